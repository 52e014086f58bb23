"""Random drafters in vLLM's native layout, written without eaglectl, for property tests."""

import json
import math
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from eaglectl.drafter.drafter import Feature
from eaglectl.formats.format import Layout, ModelClass
from tests.builders import ITEM, write_safetensors

DEPTH = 24
Choices = SimpleNamespace  # what was drawn of one drafter


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
    choices = Choices(
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
    return Made(_config(choices), _tensors(choices))


def _model_classes(layout: Layout | None, expressed: set[Feature]) -> st.SearchStrategy[ModelClass]:
    """MLA and the others equally often."""
    known = list(layout.architectures) if layout else list(CLASSES)
    plain = [key for key in known if key != "mla" and (key != "qwen3" or Feature.QK_NORM in expressed)]
    kinds = [st.sampled_from(plain)] if plain else []
    return st.one_of(*kinds, *[st.just("mla") for key in known if key == "mla"])


def _tensors(choices: Choices) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    dice = random.Random(choices.seed)
    shapes = {"fc.weight": (HIDDEN, choices.aux * choices.width), **_norm_shapes(choices)}
    for index in range(choices.layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in _layer_shapes(choices, index).items()}
    shapes |= {"norm.weight": (HIDDEN,), "lm_head.weight": (len(choices.draft) or VOCAB, HIDDEN)}
    if choices.width != HIDDEN:
        shapes["embed_tokens.weight"] = (VOCAB, HIDDEN)
    item = ITEM[choices.dtype]
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
    return {"input_norm.weight": (choices.aux * choices.width,)} if choices.norm == "norm_before_fc" else {}


def _layer_shapes(choices: Choices, index: int) -> dict[str, tuple[int, ...]]:
    size = 2 * HIDDEN if index == 0 else HIDDEN
    names = ["hidden_norm"] if index == 0 else []
    shapes = {f"{name}.weight": (HIDDEN,) for name in (*names, "input_layernorm", "post_attention_layernorm")}
    attention = _mla_shapes(size) if choices.model_class == "mla" else _attention_shapes(choices, size)
    shapes |= {f"self_attn.{name}": shape for name, shape in attention.items()}
    mlp = {"gate": (MLP, HIDDEN), "up": (MLP, HIDDEN), "down": (HIDDEN, MLP)}
    return {**shapes, **{f"mlp.{name}_proj.weight": shape for name, shape in mlp.items()}}


def _mla_shapes(size: int) -> dict[str, tuple[int, ...]]:
    return {
        "q_a_proj.weight": (6, size),
        "q_a_layernorm.weight": (6,),
        "q_b_proj.weight": (HEADS * (4 + 2), 6),
        "kv_a_proj_with_mqa.weight": (10 + 2, size),
        "kv_a_layernorm.weight": (10,),
        "kv_b_proj.weight": (HEADS * (4 + 3), 10),
        "o_proj.weight": (HIDDEN, HEADS * 3),
    }


def _attention_shapes(choices: Choices, size: int) -> dict[str, tuple[int, ...]]:
    kv_rows = choices.kv_heads * 6
    rows = {"q": (HEADS * 6, size), "k": (kv_rows, size), "v": (kv_rows, size), "o": (HIDDEN, HEADS * 6)}
    shapes: dict[str, tuple[int, ...]] = {f"{name}_proj.weight": shape for name, shape in rows.items()}
    if choices.has_bias:
        shapes |= {f"{name}_proj.bias": shape[:1] for name, shape in rows.items()}
    if choices.model_class == "qwen3":
        shapes |= {"q_norm.weight": (6,), "k_norm.weight": (6,)}
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
