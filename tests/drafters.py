"""Random drafters in vLLM's native layout, written without eaglectl, for property tests."""

import json
import math
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from eaglectl.drafter.drafter import Feature
from eaglectl.formats.format import Layout, ModelClass

DEPTH = 24
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "BOOL": 1}


@dataclass(frozen=True, repr=False)
class Made:
    """A drafter's config and tensors: name -> (dtype, shape, bytes)."""

    config: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]]

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        write_safetensors(folder / "model.safetensors", self.tensors)
        return folder


def write_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
    raw = json.dumps(table).encode()
    raw += b" " * (-len(raw) % 8)
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"".join(data for _, _, data in tensors.values()))


@dataclass(frozen=True)
class Choices:
    """What was drawn of one drafter."""

    model_class: ModelClass
    width: int
    layers: int
    aux: int
    kv_heads: int
    norm: str
    has_bias: bool
    dtype: str
    draft: tuple[int, ...]
    boundaries: tuple[int, ...]
    norm_output: bool
    norm_before_residual: bool
    rope_theta: float
    seed: int


HIDDEN, MLP, VOCAB, HEADS = 8, 12, 40, 4
CLASSES: dict[ModelClass, tuple[str, str]] = {
    "llama": ("LlamaForCausalLMEagle3", "llama"),
    "qwen3": ("Eagle3Qwen3ForCausalLM", "qwen3"),
    "mla": ("Eagle3DeepseekV2ForCausalLM", "deepseek_v2"),
}
MLA_SIZES = {
    "q_lora_rank": 6,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 3,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
}


@st.composite
def drafters(draw: st.DrawFn, layout: Layout | None = None) -> Made:
    """GQA, MHA, MQA or MLA; 1-3 layers; 1-5 aux states; any norms, vocabulary and biases.

    With a layout, only what it expresses, on layers of a target of DEPTH.
    """
    choices = draw(drafter_choices(layout))
    return Made(_config(choices), _tensors(choices))


@st.composite
def drafter_choices(draw: st.DrawFn, layout: Layout | None) -> Choices:
    expressed = set(layout.expresses) if layout else set(Feature)

    def maybe(*features: Feature) -> bool:
        return expressed.issuperset(features) and draw(st.booleans())

    model_class = draw(_model_classes(layout, expressed))
    is_mla = model_class == "mla"
    if layout:
        expressed -= layout.lacks.get(model_class, frozenset())
    norms = ["none"]
    norms += ["fc_norm"] if Feature.FC_NORM in expressed else []
    norms += ["norm_before_fc"] if Feature.NORM_BEFORE_FC in expressed and not is_mla else []
    has_any_count = expressed.issuperset({Feature.AUX_COUNT, Feature.AUX_LAYERS})
    aux = draw(st.integers(1, 5)) if has_any_count else 3
    boundaries: tuple[int, ...] = (2, DEPTH // 2, DEPTH - 3)
    if Feature.AUX_LAYERS in expressed:
        lowest = 2 if layout else 0  # boundary 0 is the output of no layer, and ids from 1 are doubted
        layers = draw(st.sets(st.integers(lowest, DEPTH - 4), min_size=aux, max_size=aux))
        boundaries = tuple(sorted(layers))
    tokens = st.sets(st.integers(0, VOCAB - 1), min_size=5, max_size=20)
    return Choices(
        model_class=model_class,
        width=draw(st.sampled_from([8, 12])),
        layers=draw(st.integers(1, 3)) if Feature.MULTI_LAYER in expressed else 1,
        aux=aux,
        kv_heads=draw(st.sampled_from([1, 2, 4])),
        norm=draw(st.sampled_from(norms)),
        has_bias=not is_mla and maybe(Feature.OUTPUT_BIAS, Feature.ATTENTION_BIAS),
        dtype=draw(st.sampled_from(["BF16", "F16", "F32"])),
        draft=tuple(sorted(draw(tokens))) if draw(st.booleans()) else (),
        boundaries=boundaries,
        norm_output=maybe(Feature.NORM_OUTPUT),
        norm_before_residual=maybe(Feature.NORM_BEFORE_RESIDUAL),
        # some trainers rotate with 10000 whatever the config says
        rope_theta=draw(st.sampled_from([10000.0, 1e6])),
        seed=draw(st.integers(0, 9)),
    )


def _model_classes(layout: Layout | None, expressed: set[Feature]) -> st.SearchStrategy[ModelClass]:
    """MLA and the others equally often."""
    known = list(layout.architectures) if layout else list(CLASSES)
    plain = [key for key in known if key != "mla" and (key != "qwen3" or Feature.QK_NORM in expressed)]
    if "mla" not in known:
        return st.sampled_from(plain)
    mla: st.SearchStrategy[ModelClass] = st.just("mla")
    return mla | st.sampled_from(plain) if plain else mla


def _tensors(choices: Choices) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    dice = random.Random(choices.seed)
    shapes = {"fc.weight": (HIDDEN, choices.aux * choices.width), **_norm_shapes(choices)}
    for index in range(choices.layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in _layer_shapes(choices, index).items()}
    shapes |= {"norm.weight": (HIDDEN,), "lm_head.weight": (len(choices.draft) or VOCAB, HIDDEN)}
    if choices.width != HIDDEN:
        shapes["embed_tokens.weight"] = (VOCAB, HIDDEN)
    item = SIZES[choices.dtype]
    tensors = {
        name: (choices.dtype, shape, dice.randbytes(item * math.prod(shape)))
        for name, shape in shapes.items()
    }
    if draft := choices.draft:
        offsets = [token - index for index, token in enumerate(draft)]
        tensors["d2t"] = ("I64", (len(draft),), struct.pack(f"<{len(draft)}q", *offsets))
        tensors["t2d"] = ("BOOL", (VOCAB,), bytes(token in draft for token in range(VOCAB)))
    return tensors


def _norm_shapes(choices: Choices) -> dict[str, tuple[int, ...]]:
    if choices.norm == "fc_norm":
        return {f"fc_norm.{index}.weight": (choices.width,) for index in range(choices.aux)}
    if choices.norm == "norm_before_fc":
        return {"input_norm.weight": (choices.aux * choices.width,)}
    return {}


def _layer_shapes(choices: Choices, index: int) -> dict[str, tuple[int, ...]]:
    size = 2 * HIDDEN if index == 0 else HIDDEN
    shapes: dict[str, tuple[int, ...]] = {"hidden_norm.weight": (HIDDEN,)} if index == 0 else {}
    shapes |= {"input_layernorm.weight": (HIDDEN,), "post_attention_layernorm.weight": (HIDDEN,)}
    shapes |= _mla_shapes(size) if choices.model_class == "mla" else _attention_shapes(choices, size)
    return shapes | {
        "mlp.gate_proj.weight": (MLP, HIDDEN),
        "mlp.up_proj.weight": (MLP, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, MLP),
    }


def _mla_shapes(size: int) -> dict[str, tuple[int, ...]]:
    return {
        "self_attn.q_a_proj.weight": (6, size),
        "self_attn.q_a_layernorm.weight": (6,),
        "self_attn.q_b_proj.weight": (HEADS * (4 + 2), 6),
        "self_attn.kv_a_proj_with_mqa.weight": (10 + 2, size),
        "self_attn.kv_a_layernorm.weight": (10,),
        "self_attn.kv_b_proj.weight": (HEADS * (4 + 3), 10),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * 3),
    }


def _attention_shapes(choices: Choices, size: int) -> dict[str, tuple[int, ...]]:
    kv_rows = choices.kv_heads * 6
    rows = {"q": (HEADS * 6, size), "k": (kv_rows, size), "v": (kv_rows, size), "o": (HIDDEN, HEADS * 6)}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in rows.items():
        shapes[f"self_attn.{name}_proj.weight"] = shape
        if choices.has_bias:
            shapes[f"self_attn.{name}_proj.bias"] = shape[:1]
    if choices.model_class == "qwen3":
        shapes |= {"self_attn.q_norm.weight": (6,), "self_attn.k_norm.weight": (6,)}
    return shapes


def _config(choices: Choices) -> dict[str, Any]:
    architecture, model_type = CLASSES[choices.model_class]
    attention = {"num_key_value_heads": choices.kv_heads, "head_dim": 6}
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": choices.layers,
        "vocab_size": VOCAB,
        "num_attention_heads": HEADS,
        "draft_vocab_size": len(choices.draft) or VOCAB,
        "target_hidden_size": choices.width,
        "rms_norm_eps": 1e-5,
        "rope_theta": choices.rope_theta,
        "max_position_embeddings": 512,
        "attention_bias": choices.has_bias,
        "norm_before_residual": choices.norm_before_residual,
        "fc_norm": choices.norm == "fc_norm",
        "norm_before_fc": choices.norm == "norm_before_fc",
        "norm_output": choices.norm_output,
        "num_aux_hidden_states": choices.aux,
        "eagle_aux_hidden_state_layer_ids": list(choices.boundaries),
        **(MLA_SIZES if choices.model_class == "mla" else attention),
    }
