"""Which engine release serves which drafter from which layout, found by judging ideal drafters."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.drafter.drafter import TRAINING_DEFAULT, AuxLayers, Drafter, Norms, Rope, Target
from eaglectl.drafter.tensors import Dimensions, Tensor, expected_shape
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
# the parts of the single layer without its attention, and the parts of attention by class
LAYER_PARTS = (
    "input_layernorm", "hidden_norm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj", "self_attn.o_proj",
)  # fmt: skip
ATTENTION_PARTS: Mapping[ModelClass, tuple[str, ...]] = {
    "llama": ("q_proj", "k_proj", "v_proj"),
    "qwen3": ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm"),
    "mla": ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"),
}


class Service(Struct, frozen=True):
    """The releases of an engine that serve a kind of drafter from a layout, and why the newest does not."""

    engine: str
    layout: str
    version: str
    attention: str
    releases: tuple[str, ...]
    reasons: tuple[str, ...]


def services() -> Iterator[Service]:
    """Yield a service for every engine, layout, version and attention that the layout can store."""
    for engine, format, version, attention in product(ENGINES.values(), FORMATS, NORMS, ATTENTION):
        if checkpoint := _written_view(format, engine.name, version, attention):
            verdicts = [engine.verdict(checkpoint, release) for release in engine.releases]
            serving = tuple(verdict.release for verdict in verdicts if verdict.outcome.is_served)
            yield Service(engine.name, format.name, version, attention, serving, verdicts[-1].reasons)


def ideal(version: str, attention: str) -> Drafter:
    """Build the drafter that each engine is judged with, in each layout.

    It has one layer, the default aux layers, a reduced vocabulary and its own head.
    """
    family = ATTENTION[attention]
    dims, norms, target = MLA if family == "mla" else GQA, NORMS[version], TARGETS[family]
    boundaries = TRAINING_DEFAULT.at(target.depth or 0)
    modules = ["fc", "norm", "lm_head", *(f"layers.0.{part}" for part in LAYER_PARTS)]
    modules += [f"layers.0.self_attn.{part}" for part in ATTENTION_PARTS[family]]
    modules += [f"fc_norm.{index}" for index in range(dims.aux if norms.fc_norm else 0)]
    modules += ["input_norm"] if norms.norm_before_fc else []
    return Drafter(
        producer="eaglectl",
        evidence="",
        kind="eagle3",
        dims=dims,
        norms=norms,
        aux=AuxLayers(
            count=3,
            boundaries=boundaries,
            is_default=True,
            how="the default",
            ids=boundaries,
            convention="boundary",
        ),
        rope=Rope(theta=500000.0, scaling=YARN if family == "mla" else None, is_interleaved=family == "mla"),
        target=target,
        tensors={
            name: Tensor(name, "I64" if name == "d2t" else "BF16", expected_shape(name, dims) or (), ())
            for name in ("d2t", *(f"{module}.weight" for module in modules))
        },
        settings={"rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "hidden_act": "silu"},
        carried={},
        strays={},
        unknown=(),
        quantisation=None,
        notes=(),
        dtypes=("BF16",),
    )


def _written_view(format: Format, engine: str, version: str, attention: str) -> View | None:
    # an ideal drafter in a layout, as an engine would read it; None if the layout cannot store it
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
    names = tuple(written_name(name, layout) for name in drafter.tensors)
    if not ids:
        drafter = replace(drafter, aux=replace(drafter.aux, ids=None, convention=None))
    return view_for(engine, drafter, config, format.flat(config), names)
