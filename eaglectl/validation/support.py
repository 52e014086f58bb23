"""Which engine release serves which kind of drafter from which layout: ideal drafters, written and judged, nothing by heart."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from eaglectl.drafter.boundaries import AuxLayers, default_boundaries
from eaglectl.drafter.drafter import Drafter, Feature, Norms, Rope, Target
from eaglectl.drafter.tensors import LAYER_SHAPES, Dimensions, Tensor, expected_shape
from eaglectl.engines.catalogue import ENGINES, view_for
from eaglectl.engines.engine import sglang_ids
from eaglectl.engines.facts import Engine
from eaglectl.engines.view import View
from eaglectl.formats.catalogue import FORMATS
from eaglectl.formats.format import Family, Format, Layout
from eaglectl.formats.writing import write_config, written_name

ATTENTION: Mapping[str, Family] = {"GQA": "llama", "Qwen3": "qwen3", "MLA": "mla"}
NORMS: Mapping[str, Norms] = {
    "3":         Norms(fc_norm=False, norm_before_fc=False, norm_output=False, norm_before_residual=False),
    "3.1":       Norms(fc_norm=True, norm_before_fc=False, norm_output=True, norm_before_residual=False),
    "3.1-joint": Norms(fc_norm=False, norm_before_fc=True, norm_output=True, norm_before_residual=False),
}  # fmt: skip
TARGETS: Mapping[Family, Target] = {
    "llama": Target("org/target", "llama", 32, 64, 256),
    "qwen3": Target("org/target", "qwen3", 36, 64, 256),
    "mla":   Target("org/target", "deepseek_v3", 61, 64, 256),
}  # fmt: skip
GQA = Dimensions(64, 64, 3, 256, 128, 96, 1, heads=4, kv_heads=2, head_dim=16)
MLA = Dimensions(
    64, 64, 3, 256, 128, 96, 1, heads=4, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
)  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
QUERY_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")


@dataclass(frozen=True, slots=True)
class Service:
    """The releases of an engine that serve one kind of drafter from one layout, and what keeps the newest from it."""

    engine: str
    layout: str
    version: str
    attention: str
    releases: tuple[str, ...]
    reasons: tuple[str, ...]


def services() -> Iterator[Service]:
    """Every engine, layout, version and attention for which the layout has a place."""
    for engine in ENGINES.values():
        for format in FORMATS:
            for version in NORMS:
                for attention in ATTENTION:
                    if seen := _written(format, engine.name, version, attention):
                        yield _service(engine, format.name, version, attention, seen)


def ideal(version: str, attention: str) -> Drafter:
    """A drafter of one layer on the default aux layers, with a reduced vocabulary, its own head and the target's embedding."""
    family = ATTENTION[attention]
    dims, norms, target = MLA if family == "mla" else GQA, NORMS[version], TARGETS[family]
    assert target.depth is not None
    boundaries = default_boundaries(target.depth)
    aux = AuxLayers(3, boundaries, True, "the default", boundaries, "boundary")
    scaling = YARN if family == "mla" else None
    settings = {"rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "hidden_act": "silu"}
    return Drafter(
        "eaglectl", "", "eagle3", dims, norms, aux, Rope(500000.0, scaling, family == "mla"), target,
        {name: Tensor(name, "I64" if name == "d2t" else "BF16", shape, ()) for name, shape in _tensors(family, norms, dims)},
        settings, {}, {}, (), None, (), ("BF16",),
    )  # fmt: skip


def _tensors(family: Family, norms: Norms, dims: Dimensions) -> Iterator[tuple[str, tuple[int, ...]]]:
    names = ["fc.weight", "norm.weight", "lm_head.weight", "d2t"]
    names += [f"fc_norm.{index}.weight" for index in range(dims.aux) if norms.fc_norm]
    names += ["input_norm.weight"] if norms.norm_before_fc else []
    is_latent = {part: "_a_" in part or "_b_" in part for part in LAYER_SHAPES}
    for part in LAYER_SHAPES:
        is_common = "self_attn" not in part or "o_proj" in part
        is_wanted = is_common or is_latent[part] == (family == "mla")
        if part.endswith(".weight") and is_wanted and (part not in QUERY_NORMS or family == "qwen3"):
            names.append(f"layers.0.{part}")
    for name in names:
        shape = expected_shape(name, dims)
        assert shape is not None, name
        yield name, shape


def _written(format: Format, engine: str, version: str, attention: str) -> View | None:
    """An ideal drafter as `engine` meets it in a layout; None where the layout has no place for it."""
    layout, drafter, family = format.layout, ideal(version, attention), ATTENTION[attention]
    if layout is None or family not in layout.architectures or Feature.PARALLEL in _only(format):
        return None
    if drafter.features() - layout.expresses or drafter.features() & layout.lacks.get(family, frozenset()):
        return None
    config = write_config(drafter, layout, family, _nested(layout, drafter), ["BF16"])
    flat = format.flatten(config) if format.flatten else config
    names = tuple(written_name(name, layout) for name in drafter.tensors)
    if not layout.has_top_ids and _nested(layout, drafter) is None:
        drafter = replace(drafter, aux=replace(drafter.aux, ids=None, convention=None))
    return view_for(engine, drafter, config, flat, names)


def _only(format: Format) -> frozenset[Feature]:
    """What a format is for and nothing else: P-EAGLE's files are parallel drafters."""
    return frozenset({Feature.PARALLEL}) if format.name == "peagle" else frozenset()


def _nested(layout: Layout, drafter: Drafter) -> list[int] | None:
    boundaries = drafter.aux.boundaries
    if boundaries is None or layout.nested_ids is None:
        return None
    if layout.nested_ids == "sglang":
        ids = sglang_ids(boundaries, drafter.target)
        return None if isinstance(ids, str) else list(ids)
    return [b - 1 if layout.nested_ids == "output" else b for b in boundaries]


def _service(engine: Engine, layout: str, version: str, attention: str, seen: View) -> Service:
    verdicts = [engine.verdict(seen, release) for release in engine.releases]
    good = tuple(verdict.release for verdict in verdicts if verdict.outcome == "as trained")
    return Service(engine.name, layout, version, attention, good, verdicts[-1].reasons)
