"""Which engine release serves which drafter from which layout, found by judging ideal drafters."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.drafter.boundaries import TRAINING_DEFAULT, AuxLayers
from eaglectl.drafter.drafter import Drafter, Norms, Rope, Target
from eaglectl.drafter.tensors import LAYER_SHAPES, Dimensions, Tensor, expected_shape
from eaglectl.engines.registry import ENGINES, view_for
from eaglectl.engines.sglang import ids_in
from eaglectl.engines.view import View
from eaglectl.errors import EaglectlError
from eaglectl.formats.catalogue import FORMATS
from eaglectl.formats.format import Format, ModelClass
from eaglectl.formats.writer import write_config, written_name

ATTENTION: Mapping[str, ModelClass] = {"GQA": "llama", "Qwen3": "qwen3", "MLA": "mla"}
NORMS: Mapping[str, Norms] = {
    "3": Norms(fc_norm=False, norm_before_fc=False, norm_output=False, norm_before_residual=False),
    "3.1": Norms(fc_norm=True, norm_before_fc=False, norm_output=True, norm_before_residual=False),
    "3.1-joint": Norms(fc_norm=False, norm_before_fc=True, norm_output=True, norm_before_residual=False),
}
TARGETS: Mapping[ModelClass, Target] = {
    "llama": Target("org/target", "llama", 32, 64, 256),
    "qwen3": Target("org/target", "qwen3", 36, 64, 256),
    "mla": Target("org/target", "deepseek_v3", 61, 64, 256),
}
GQA = Dimensions(64, 64, 3, 256, 128, 96, 1, heads=4, kv_heads=2, head_dim=16)
MLA = Dimensions(
    64,
    64,
    3,
    256,
    128,
    96,
    1,
    heads=4,
    q_lora_rank=24,
    kv_lora_rank=16,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
QUERY_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")


class Service(Struct, frozen=True):
    """The releases of an engine that serve a kind of drafter from a layout, and why the newest does not."""

    engine: str
    layout: str
    version: str
    attention: str
    releases: tuple[str, ...]
    reasons: tuple[str, ...]


def services() -> Iterator[Service]:
    """Every engine, layout, version and attention for which the layout has a place."""
    for engine, format, version, attention in product(ENGINES.values(), FORMATS, NORMS, ATTENTION):
        if checkpoint := _written(format, engine.name, version, attention):
            verdicts = [engine.verdict(checkpoint, release) for release in engine.releases]
            serving = tuple(verdict.release for verdict in verdicts if verdict.outcome.is_served)
            yield Service(engine.name, format.name, version, attention, serving, verdicts[-1].reasons)


def ideal(version: str, attention: str) -> Drafter:
    """A drafter of one layer on the default aux layers, with a reduced vocabulary and its own head."""
    family = ATTENTION[attention]
    dims, norms, target = MLA if family == "mla" else GQA, NORMS[version], TARGETS[family]
    assert target.depth is not None
    boundaries = TRAINING_DEFAULT.at(target.depth)
    aux = AuxLayers(3, boundaries, True, "the default", boundaries, "boundary")
    scaling = YARN if family == "mla" else None
    settings = {"rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "hidden_act": "silu"}
    return Drafter(
        "eaglectl",
        "",
        "eagle3",
        dims,
        norms,
        aux,
        Rope(500000.0, scaling, family == "mla"),
        target,
        {
            name: Tensor(name, "I64" if name == "d2t" else "BF16", shape, ())
            for name, shape in _tensors(family, norms, dims)
        },
        settings,
        {},
        {},
        (),
        None,
        (),
        ("BF16",),
    )


def _tensors(
    model_class: ModelClass, norms: Norms, dims: Dimensions
) -> Iterator[tuple[str, tuple[int, ...]]]:
    names = ["fc.weight", "norm.weight", "lm_head.weight", "d2t"]
    if norms.fc_norm:
        names += [f"fc_norm.{index}.weight" for index in range(dims.aux)]
    if norms.norm_before_fc:
        names.append("input_norm.weight")
    names += [f"layers.0.{part}" for part in LAYER_SHAPES if _has_part(model_class, part)]
    for name in names:
        shape = expected_shape(name, dims)
        assert shape is not None, name
        yield name, shape


def _has_part(model_class: ModelClass, part: str) -> bool:
    """Whether a layer of this class has a tensor, biases left out."""
    if not part.endswith(".weight") or (part in QUERY_NORMS and model_class != "qwen3"):
        return False
    is_common = "self_attn" not in part or "o_proj" in part
    is_latent = "_a_" in part or "_b_" in part
    return is_common or is_latent == (model_class == "mla")


def _written(format: Format, engine: str, version: str, attention: str) -> View | None:
    """An ideal drafter as `engine` reads it from a layout; None where the layout has no place for it."""
    layout, drafter, family = format.layout, ideal(version, attention), ATTENTION[attention]
    if layout is None or family not in layout.architectures or format.is_parallel:
        return None
    if drafter.features() - layout.expresses or drafter.features() & layout.lacks.get(family, frozenset()):
        return None
    ids = {}
    for place in format.written_ids:
        with suppress(EaglectlError):  # SGLang's rule has none for some
            ids[place.key] = ids_in(place, drafter.aux.boundaries or (), drafter.target)
    config = write_config(drafter, format, family, ids, ["BF16"])
    flat = format.flat(config)
    names = tuple(written_name(name, layout) for name in drafter.tensors)
    if not ids:
        drafter = replace(drafter, aux=replace(drafter.aux, ids=None, convention=None))
    return view_for(engine, drafter, config, flat, names)
