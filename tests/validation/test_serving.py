"""Rules on engine releases: each fact, release by release, and the smallest change that helps."""

import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.engines.registry import ENGINES, EngineRequest
from eaglectl.errors import EaglectlError
from eaglectl.formats.format import Answers
from eaglectl.formats.names import WRAPPERS
from eaglectl.judge.rule import Policy, Suppression, rules
from eaglectl.judge.rules.serving import RULES
from tests.builders import (
    ABSENT,
    DRAFT,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    MLP,
    SGLANG,
    TARGETS,
    VLLM,
    VOCAB,
    Stored,
    call,
    drafter_config,
    drafter_folder,
    drafter_tensors,
    floats,
    integers,
    offsets,
)
from tests.cases import CASES, Case, stored_tensors, true_answers
from tests.conftest import FIXTURES
from tests.validation.judging import PRODUCERS, TARGET, Bad, build, judged, second_layer

IDS = "eagle_aux_hidden_state_layer_ids"


def of(model_type: str, *architectures: str) -> dict[str, Any]:
    """A target's model_type, and the classes that its config names, if any."""
    return {"model_type": model_type, "architectures": list(architectures)}


def nested(**keys: Any) -> dict[str, Any]:
    return {"eagle_config": {IDS: [1, 3, 4], **keys}}


def biases(*parts: str) -> dict[str, Stored | None]:
    sizes = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM, "o": HIDDEN}
    return {f"layers.0.self_attn.{part}_proj.bias": floats(f"bias {part}", sizes[part]) for part in parts}


def in_float8(module: str, *shape: int) -> dict[str, Stored]:
    """A quantised matrix and its scale."""
    matrix = ("F8_E4M3", shape, bytes(prod(shape)))
    return {f"{module}.weight": matrix, f"{module}.weight_scale": floats("scale", 1, dtype="F32")}


def below(prefix: str, name: str, *shape: int) -> dict[str, Stored | None]:
    return {f"{name}.weight": None, f"{prefix}.{name}.weight": floats(name, *shape)}


def by_method(name: str) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": name, "ignore": ["fc", "lm_head"]}}


def words(**changes: Any) -> dict[str, Any]:
    """A config of GPTQ, for o_proj alone."""
    lists = {"modules_in_block_to_quantize": ["o_proj"], "modules_to_not_convert": ["qkv", "mlp", "fc"]}
    dynamic = {"dynamic": {"-:.*(qkv|fc|gate_up|down).*": {}}}
    settings = {"bits": 4, "group_size": 32, "sym": True, "desc_act": False, **changes}
    stated = {key: value for key, value in settings.items() if value is not ABSENT}
    return {"quantization_config": {"quant_method": "gptq", **lists, **dynamic, **stated}}


def fp8(scheme: str = "") -> dict[str, Any]:
    """A config of FP8 in blocks, for o_proj alone; without a scheme it states none."""
    plain = ["model.fc", "lm_head", *(f"{part}_proj" for part in ("q", "k", "v", "gate", "up", "down"))]
    stated = {"quant_method": "fp8", "weight_block_size": [8, 8], "ignored_layers": plain}
    return {"quantization_config": stated | ({"activation_scheme": scheme} if scheme else {})}


def only_nested(*ids: int) -> dict[str, Any]:
    return {IDS: ABSENT, "eagle_config": {IDS: list(ids)}}


def scaled(kind: str, original: int | None = 32768, **more: Any) -> dict[str, Any]:
    """A rope scaling by four, of this original length."""
    length = {} if original is None else {"original_max_position_embeddings": original}
    return {"rope_scaling": {"rope_type": kind, "factor": 4.0, **length, **more}}


def in_part(key: str) -> dict[str, Any]:
    """The decoder's keys in an object, as configs of multimodal models have them."""
    layer = {name: value for name, value in drafter_config().items() if name not in (IDS, "eagle_config")}
    del layer["architectures"], layer["model_type"]
    return {**dict.fromkeys(layer, ABSENT), key: layer}


UNSCALED = {"mscale_all_dim": 1.0, "apply_yarn_scaling": False}
BOTH_UNREAD = {**UNSCALED, "attn_factor": 2}
SCALED_BY_ONE = {"mscale_all_dim": 1.0, "attention_factor": 1.0}
RAMPED = scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0)
SHORT_YARN = {**scaled("yarn", 16384), "max_position_embeddings": 131072}


def config_of(fixture: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((PRODUCERS / fixture / "config.json").read_text())
    return config


def layer_of(fixture: str, **changes: Any) -> dict[str, Any]:
    """The layer's config of a drafter of speculators, with changes."""
    key = "transformer_layer_config"
    return {key: {**config_of(f"speculators/{fixture}")[key], **changes}}


ONE_HEAD = {"head_dim": ABSENT, "num_attention_heads": 1, "num_key_value_heads": 1}
ONE_HEAD_TENSORS = {f"layers.0.self_attn.{part}_proj.weight": floats(part, 8, 32) for part in "qkv"}
ONE_HEAD_TENSORS["layers.0.self_attn.o_proj.weight"] = floats("o", HIDDEN, 8)
FC_NORM = {f"fc_norm.{index}.weight": floats(f"fc_norm {index}", HIDDEN) for index in range(3)}
WIDE_NORM = {f"fc_norm.{index}.weight": floats(f"fc_norm {index}", 32) for index in range(3)}
INPUT_NORM = {"input_norm.weight": floats("input_norm", 3 * HIDDEN)}
QUERY_NORMS = {f"layers.0.self_attn.{part}_norm.weight": floats(part, HEAD_DIM) for part in "qk"}
FOUR = {"fc.weight": floats("fc", HIDDEN, 4 * HIDDEN)}
FOUR_NESTED = {**only_nested(1, 3, 4, 5), "num_aux_hidden_states": 4}
FOUR_IDS = {IDS: [1, 3, 4, 5], "eagle_config": {IDS: [0, 2, 3, 4]}}
ONE_OF_TWO = {
    "num_hidden_layers": 2,
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window": 512,
}
SECOND, THEIRS = second_layer("hidden_norm"), second_layer("input_layernorm")
HEADED = {"draft_vocab_size": None}
HEADED_TENSORS = {"d2t": None, "lm_head.weight": floats("lm_head", VOCAB, HIDDEN)}
ONE_STATE = {"num_aux_hidden_states": 1, IDS: [4], "eagle_config": {IDS: [3]}}
JOINT = {"norm_output": False, **layer_of("default", rope_theta=500000.0)}
# the second layer of an MLA drafter, which sees one state beside none
LATENT = {
    name.replace("layers.0.", "layers.1."): floats(
        name, *(32 if size == 64 and axis else size for axis, size in enumerate(shape))
    )
    for name, (_, shape, _) in stored_tensors(PRODUCERS / "vllm/mla").items()
    if name.startswith("layers.0.") and "input_layernorm" not in name
}
LATENT_LAYER = config_of("vllm/mla")
for key in (IDS, "eagle_config", "architectures"):
    del LATENT_LAYER[key]
PREFIXED: dict[str, Stored | None] = dict.fromkeys(drafter_tensors())
PREFIXED |= {
    name if name in ("d2t", "lm_head.weight") else f"model.{name}": stored
    for name, stored in drafter_tensors().items()
}
FULL = {"lm_head.weight": floats("lm_head", VOCAB, HIDDEN), "d2t": None}
MASK = {"mask_hidden": floats("mask_hidden", 1, 3 * HIDDEN)}
PLAIN = {"rope_scaling": None}
NESTED_OUTPUT = {"fc_norm": True, "norm_output": ABSENT, **nested(norm_output=True)}
NESTED_NORM = {"norm_before_fc": ABSENT, **nested(norm_before_fc=True)}
MODELOPT = {"eagle_config": {**config_of("modelopt/hf-ids")["eagle_config"], IDS: [1, 3, 4]}}
FAMILIES = {"vllm": "serving: vLLM", "sglang": "serving: SGLang", "llama.cpp": "serving: llama.cpp"}
ALIKE = {"mscale": 1.0, "mscale_all_dim": 1.0}
MISTRAL = layer_of("plain", model_type="mistral")
HALF_ROTATED = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}}
SLIDING = {"layer_types": ["sliding_attention"], "sliding_window": 512}
QWEN3 = {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"}
OWN_IDS = {IDS: [1, 3, 6], "eagle_config": ABSENT}
NO_EMBEDDING = {"embed_tokens.weight": None}
NO_HEAD = {"lm_head.weight": None, "d2t": None}
NO_IDS = {IDS: ABSENT, "eagle_config": ABSENT}
NO_SWITCHES = {"fc_norm": ABSENT, "norm_output": ABSENT, **nested(fc_norm=True, norm_output=True)}
FOUR_UNCOUNTED = {"num_aux_hidden_states": ABSENT, IDS: [1, 3, 4, 5], "eagle_config": ABSENT}
TWO_IDS = {"num_aux_hidden_states": 3, IDS: ABSENT, "eagle_config": {IDS: [1, 3]}}
LAST_LAYER = {IDS: [1, 4, 8], "eagle_config": {IDS: [0, 3, 7]}}
WIDE_EXTRA = {"layers.0.extra.weight": floats("extra", 32)}
IDENTITY = {**FULL, "d2t": integers(*[0] * VOCAB)}
ABSORBED = {IDS: [2, 4, 5], "eagle_config": ABSENT, "rope_scaling": {"type": "yarn", "factor": 4.0}}
FULL_CONFIG, NEITHER = {"draft_vocab_size": VOCAB, **NO_IDS}, {**NO_HEAD, **NO_EMBEDDING}
QWEN3_VL = {"architectures": ["Qwen3VLForConditionalGeneration"]}
GRANITE = of("granite", "GraniteMoeHybridForCausalLM")
SHORT, LONGER = {"max_position_embeddings": 2048}, {"max_position_embeddings": 131072}
MOE = of("qwen3_moe", "Qwen3MoeForCausalLM")
LONGER_MOE = {**LONGER, **MOE}
LLAVA = {**of("llava", "LlavaForConditionalGeneration"), "text_config": {"model_type": "foo_bar"}}
OF_SPECULATORS = {
    **dict.fromkeys(LATENT_LAYER, ABSENT),
    **{"speculators_model_type": "eagle3", "transformer_layer_config": LATENT_LAYER, "draft_vocab_size": 96},
    **{"norm_before_residual": False, "eagle_config": ABSENT},
}
LATER = {"layers.1.input_layernorm.weight": None, "layers.1.hidden_norm.weight": floats("norm", 32)}
KV_B, OUTPUT = "layers.0.self_attn.kv_b_proj", "layers.0.self_attn.o_proj"
MLP_BIASES = {f"layers.0.mlp.{part}_proj.bias": floats(part, MLP) for part in ("up", "gate")}
MLP_BIASES["layers.0.mlp.down_proj.bias"] = floats("bias", HIDDEN)
ROTATED = {"previous": {"target_rotation": {"embedding": "own"}}}
MLA_CLASS = {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}
DYNAMIC = {"quant_method": "fp8", "activation_scheme": "dynamic"}
QUANTISED = {"quantization_config": {**DYNAMIC}}
# all others left out, by vLLM's and SGLang's own names
OF_EDGE = {"quantization_config": {**DYNAMIC, "modules_to_not_convert": ["model", "model.fc"]}}
PLAIN_FC = {"quantization_config": {**DYNAMIC, "modules_to_not_convert": ["fc", "lm_head"]}}
PACKED_LINEAR = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8}}},
    "ignore": ["fc", "lm_head"],
}
ONLY_HEAD = {
    **PACKED_LINEAR,
    "config_groups": {"group_0": {"targets": ["lm_head"], "weights": {"num_bits": 8}}},
    "ignore": [],
}
# whose head, but no other module, is listed by name for the drafter; the layers are plain
LISTED_HEAD = {
    **PACKED_LINEAR,
    "config_groups": {"group_0": {"targets": ["lm_head", "Linear"], "weights": {"num_bits": 8}}},
    "ignore": ["re:.*(fc|proj)$"],
}
GPTQ_TARGET = {"quantization_config": {"quant_method": "gptq", "bits": 4, "lm_head": True}}
BY_NAME = {"config_groups": {"group_0": {"targets": ["re:.*lm_head"], "weights": {"num_bits": 8}}}}
PACKED_TARGET = {"quantization_config": {**PACKED_LINEAR, **BY_NAME, "ignore": []}}
PACKED_HEAD = {
    "lm_head.weight": None,
    "lm_head.weight_packed": ("I32", (DRAFT, HIDDEN // 4), bytes(DRAFT * HIDDEN)),
    "lm_head.weight_scale": floats("scale", DRAFT, 1),
    "lm_head.weight_shape": ("I64", (2,), struct.pack("<2q", DRAFT, HIDDEN)),
}
IN_WORDS = {
    f"{OUTPUT}.weight": None,
    f"{OUTPUT}.qweight": ("I32", (4, HIDDEN), bytes(16 * HIDDEN)),
    f"{OUTPUT}.qzeros": ("I32", (1, HIDDEN // 8), bytes(HIDDEN // 2)),
    f"{OUTPUT}.scales": floats("scales", 1, HIDDEN, dtype="F16"),
}


def ordered(actorder: str | None, **more: Any) -> dict[str, Any]:
    """A config of compressed-tensors with an order of activations, for o_proj alone."""
    weights = {"num_bits": 8, "actorder": actorder, **more}
    groups = {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    excluded = ["re:.*(fc|lm_head|mlp.*|qkv_proj|gate_up_proj|down_proj)$"]
    return {"quantization_config": {**PACKED_LINEAR, **groups, "ignore": excluded}}


MLA_HEAD = in_float8("lm_head", 96, 32)
PACKED_OUTPUT = {
    f"{OUTPUT}.weight": None,
    f"{OUTPUT}.weight_packed": ("I32", (HIDDEN, 8), bytes(HIDDEN * 32)),
    f"{OUTPUT}.weight_scale": floats("scale", HIDDEN, 1),
}
NO_RESIDUAL = {"norm_before_residual": ABSENT}
EXTRA = {"layers.0.extra.weight": floats("extra", HIDDEN)}
WIDE_INPUT_NORM = {"input_norm.weight": floats("norm", 96)}
NEWER_ROPE = {
    **{"rope_theta": ABSENT, "rope_scaling": ABSENT},
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
}
SHARED = {"tie_word_embeddings": True, "draft_vocab_size": VOCAB}

# targets with more rows, and drafters whose own embedding lacks some of their tokenizer's ids
MORE_ROWS, SIXTY = {"vocab_size": 128}, {"vocab_size": 60}
SIXTY_TARGETS = sorted({*TARGETS, 58, 59} - {62, 63})
SIXTY_ROWS = {"embed_tokens.weight": floats("e", 60, HIDDEN), "d2t": offsets(SIXTY_TARGETS)}
NARROWER, WIDE_ROWS = {"target_hidden_size": 32}, {**MORE_ROWS, "hidden_size": 32}
WIDER_TARGET = {"fc.weight": floats("fc", HIDDEN, 3 * 32)}


THREE_HEADS = {
    "layers.0.self_attn.q_proj.weight": floats("q", 24, 32),
    "layers.0.self_attn.o_proj.weight": floats("o", HIDDEN, 24),
    **{f"layers.0.self_attn.{part}_proj.weight": floats(part, HEAD_DIM, 32) for part in "kv"},
}
YARN_TARGET = {
    **of("deepseek_v3", "DeepseekV3ForCausalLM"),
    **{"hidden_size": 32, "vocab_size": 128, "qk_nope_head_dim": 16, "qk_rope_head_dim": 64},
    **{"rope_theta": 10000.0, **scaled("yarn", 64, mscale=1.0, mscale_all_dim=1.0)},
}


def longrope(long_factor: float, **more: Any) -> dict[str, Any]:
    """A longrope of 1024 original positions, whose short factors are 1."""
    lists = {"short_factor": [1.0] * 4, "long_factor": [long_factor] * 4}
    scaling = {"rope_type": "longrope", "original_max_position_embeddings": 1024, **lists, **more}
    return {"rope_scaling": scaling}


def vllm(fact: str, *patch: Any, **given: Any) -> Bad:
    """A bad case of a fact of vLLM 0.32.0."""
    return Bad(f"vllm-{fact}", "vllm==0.32.0", *patch, **given)


def sglang(fact: str, *patch: Any, **given: Any) -> Bad:
    """A bad case of a fact of SGLang's newest release."""
    return Bad(f"sglang-{fact}", "sglang", *patch, **given)


def llama(fact: str, *patch: Any, **given: Any) -> Bad:
    """A bad case of a fact of llama.cpp."""
    return Bad(f"llama.cpp-{fact}", "llama.cpp", *patch, **given)


# by the name in the first releases of compressed-tensors
RENAMED = {"compression_config": QUANTISED["quantization_config"]}

BAD = (
    Bad("vllm-weight-files", "vllm", says="opens other.safetensors", beside="other.safetensors"),
    sglang("weight-files", says="opens other.safetensors", beside="other.safetensors"),
    Bad("vllm-no-class-mla", "vllm==0.17.1", base="vllm/mla"),
    Bad("vllm-no-class-qwen3", "vllm==0.23.0", QWEN3, QUERY_NORMS),
    vllm("architecture", {"architectures": ["FooForCausalLM"]}, where="architectures"),
    Bad("vllm-architecture", "vllm==0.24.0", {"architectures": ABSENT}, says="(none)", where=""),
    vllm("model-type", {"model_type": "deepseek_v3"}, where="model_type"),
    vllm("model-type", {"model_type": "deepseek_v3"}, says="deepseek_v3", base="vllm/mla"),
    vllm("prefix", tensors=PREFIXED),
    vllm("unknown-tensor", says="layers.0.extra.weight", tensors=EXTRA),
    Bad("vllm-unknown-tensor-early", "vllm==0.24.0", says="layers.0.extra.weight", tensors=EXTRA),
    Bad("vllm-unknown-tensor-dropped", "vllm==0.24.0", says="extra", base="vllm/mla", tensors=WIDE_EXTRA),
    vllm("null-target-hidden", {"target_hidden_size": None}),
    Bad("vllm-identity-d2t", "vllm==0.30.0", {"draft_vocab_size": VOCAB}, IDENTITY),
    vllm("d2t-missing", tensors={"d2t": None}),
    vllm("no-draft-vocab-size", {"draft_vocab_size": ABSENT}),
    Bad("vllm-mla-plain-rope", "vllm==0.27.1", PLAIN, base="vllm/mla"),
    Bad("vllm-multi-layer", "vllm==0.11.0", {"num_hidden_layers": 2, **NO_IDS}, {**THEIRS, **NO_EMBEDDING}),
    Bad("vllm-aux-count", "vllm==0.21.0", {**FOUR_IDS, "num_aux_hidden_states": 4}, FOUR, "exactly 3"),
    vllm("aux-count-unstated", FOUR_UNCOUNTED, FOUR, "for 3 aux states"),
    Bad("vllm-fc-norm-absent", "vllm==0.21.0", {"fc_norm": True}, FC_NORM),
    Bad("vllm-fc-norm-dropped", "vllm==0.21.0", {"fc_norm": True}, WIDE_NORM, base="vllm/mla"),
    Bad("vllm-fc-norm-not-applied", "vllm>=0.22,<0.23", {"fc_norm": True}, WIDE_NORM, base="vllm/mla"),
    Bad("vllm-fc-norm-unstated", "vllm==0.22.0", {"fc_norm": ABSENT, **nested(fc_norm=True)}, FC_NORM),
    Bad("vllm-norm-output-absent", "vllm==0.21.0", {"norm_output": True}),
    vllm("norm-output-unstated", NESTED_OUTPUT, FC_NORM),
    Bad("vllm-norm-before-fc-absent", "vllm==0.17.1", {"norm_before_fc": True}, INPUT_NORM),
    Bad("vllm-norm-before-fc-nested", "vllm==0.21.0", NESTED_NORM, INPUT_NORM),
    vllm("norm-before-fc-unstated", {"norm_before_fc": ABSENT}, INPUT_NORM),
    vllm("norm-before-fc-mla", {"norm_before_fc": True}, WIDE_INPUT_NORM, base="vllm/mla"),
    Bad("vllm-attention-bias-absent", "vllm==0.15.1", base="vllm/bias"),
    vllm("bias-unstated", {"attention_bias": False}, base="vllm/bias"),
    vllm("bias-overstated", {"attention_bias": True}, where="attention_bias"),
    Bad("vllm-bias-refused", "vllm==0.24.0", {"attention_bias": False}, base="vllm/bias"),
    vllm("layers-overstated", {"num_hidden_layers": 3}, says="builds 3 layers"),
    vllm(
        "layers-understated",
        layer_of("two-layers", num_hidden_layers=1, layer_types=["full_attention"]),
        says="builds 1 of 2",
        base="speculators/two-layers",
    ),
    vllm("layers-unstated", {"num_hidden_layers": ABSENT}),
    vllm("head-dim-unstated", ONE_HEAD, ONE_HEAD_TENSORS, "takes head_dim 16"),
    vllm("head-dim-smaller", {"head_dim": ABSENT}, says="takes head_dim 4"),
    Bad("vllm-parallel-absent", "vllm==0.15.1", {"mask_token_id": 3}, MASK),
    vllm("mask-token", tensors=MASK),
    Bad("vllm-mask-token-unread", "vllm==0.27.1", {"mask_token_id": 3}, MASK, "pard_token or ptd_token_id"),
    Bad("vllm-sliding-window-qwen3", "vllm==0.25.1", {**QWEN3, **SLIDING}, QUERY_NORMS),
    vllm("aux-layers", only_nested(0, 3, 6), says="V2 runner", target={"model_type": "llama"}),
    Bad("vllm-aux-unknown", "vllm==0.11.0", says="without --target", tensors=NO_EMBEDDING, is_blind=True),
    Bad("vllm-aux-ids-unread", "vllm==0.11.0", OWN_IDS, NO_EMBEDDING),
    Bad("vllm-speculators-unknown", "vllm==0.10.0", base="speculators/plain"),
    Bad("vllm-speculators-norm-before-fc", "vllm==0.18.1", JOINT, base="speculators/default"),
    vllm("absorbed-names", ABSORBED, says="w_kc", base="sglang/mla-absorbed"),
    vllm("class-mismatch", MLA_CLASS, says="Eagle3DeepseekV2ForCausalLM"),
    vllm("later-hidden-norm", {"num_hidden_layers": 2}, SECOND),
    vllm("verifier-tensors", tensors={"verifier_norm.weight": floats("verifier", HIDDEN)}),
    Bad(
        "vllm-verifier-tensors",
        "vllm==0.22.0",
        tensors={"verifier_lm_head.weight": floats("v", VOCAB, HIDDEN)},
    ),
    vllm("dimension-above", {"intermediate_size": 32}, says="intermediate_size: 32"),
    vllm("dimension-below", {"intermediate_size": 16}, says="intermediate_size: 16"),
    vllm("ids-unsorted", {IDS: [5, 2, 4], "eagle_config": ABSENT}, where=IDS),
    vllm("draft-vocab-mismatch", {"draft_vocab_size": 20}, says="head of 20 rows"),
    vllm("hidden-act", {"hidden_act": "gelu"}),
    vllm("tied-head", SHARED, NO_HEAD),
    vllm("mlp-bias-overstated", {"mlp_bias": True}),
    vllm("biases-partial", {"attention_bias": True}, biases("q", "k", "v")),
    vllm("biases-without-place", tensors={"fc.bias": floats("fc.bias", HIDDEN)}),
    Bad("vllm-pipeline", "vllm==0.29.0", says="fewer than it takes", target={}, stages=2),
    vllm("pipeline-class", says="Qwen3MoeForCausalLM", target=MOE, stages=2),
    vllm("pipeline-unknown", says="pass --target", is_blind=True, stages=4),
    sglang("pipeline", says="EAGLE3 with pipeline stages", target={}, stages=2),
    Bad("vllm-quantised-target", "vllm==0.11.0", NO_IDS, NO_EMBEDDING, target=QUANTISED),
    Bad("vllm-head-absent", "vllm==0.11.0", FULL_CONFIG, NEITHER),
    Bad("vllm-embedding-short", "vllm==0.32.0", says="of 64 rows", target=MORE_ROWS, tokens=65),
    Bad("vllm-embedding-short", "vllm==0.22.0", SIXTY, SIXTY_ROWS, "up to 64", target=MORE_ROWS, tokens=65),
    Bad("vllm-embedding-zeros", "vllm==0.32.0", SIXTY, SIXTY_ROWS, "zeros", target={}, tokens=61),
    Bad("vllm-embedding-replaced", "vllm==0.11.0", NO_IDS, is_blind=True),
    Bad("vllm-mla-rope-base", "vllm==0.18.1", PLAIN, base="vllm/mla"),
    Bad(
        "vllm-positions",
        "vllm==0.26.0",
        says="2048 pos",
        target=LONGER,
        where="max_position_embeddings",
        option="--max-model-len 2048",
    ),
    Bad("vllm-head-of-multimodal", "vllm==0.25.1", {"draft_vocab_size": VOCAB}, NO_HEAD, target=QWEN3_VL),
    Bad("vllm-target-lacks", "vllm==0.33.0", says="Step3p5ForCausalLM targets: stops", target=of("step3p5")),
    Bad("vllm-target-lacks", "vllm==0.25.1", says="for GraniteMoeHybridForCausalLM targets", target=GRANITE),
    Bad("vllm-target-unknown", "vllm==0.33.0", says="foo_bar", target=of("foo_bar"), is_blind=True),
    Bad(
        "vllm-target-unknown",
        "vllm",
        says="language model of type foo_bar",
        target=LLAVA,
        is_blind=True,
    ),
    Bad("vllm-target-unlisted", "vllm==0.21.0", says="of model_type granite", target=of("granite")),
    Bad(
        "vllm-aux-runner",
        "vllm==0.27.0",
        only_nested(2, 4, 8),
        says="one of its two runners",
        target=of("gemma4_text"),
        is_blind=True,
    ),
    Bad("vllm-aux-width", "vllm==0.28.0", FOUR_NESTED, FOUR, says="captures 3 states (", target={}),
    vllm("residual-unstated", NO_RESIDUAL, answers={"norm_before_residual": "true"}),
    vllm("rope-base", says="and 10000", answers={"rope": "10000"}, where="rope_theta"),
    Bad("vllm-rope-parameters-unread", "vllm>=0.17,<0.19.1", NEWER_ROPE, says="transformers 4"),
    Bad("vllm-rope-parameters-by-chance", "vllm==0.23.0", NEWER_ROPE, is_blind=True),
    vllm("partial-rotary", HALF_ROTATED, answers={"rope": "plain"}, says="and 1.0 of each was trained"),
    vllm("norm-output-overstated", {"norm_output": True}, answers={"norm_output": "false"}),
    vllm(
        "speculators-peagle-fc-norm",
        {"fc_norm": True},
        WIDE_NORM,
        base="speculators/peagle-llama",
        answers={"norm_output": "false"},
    ),
    Bad("vllm-speculators-model-type", "vllm==0.24.0", MISTRAL, says="mistral", base="speculators/plain"),
    vllm("speculators-mla", OF_SPECULATORS, base="vllm/mla"),
    sglang("later-input-layernorm", {"num_hidden_layers": 2}, THEIRS),
    sglang("mla-layers", {"num_hidden_layers": 2}, {**LATENT, **LATER}, base="vllm/mla"),
    sglang("quantised-targets", {"quantization_config": ONLY_HEAD}, PACKED_HEAD, "in no list"),
    sglang("quantised-targets", {"quantization_config": ONLY_HEAD}, MLA_HEAD, base="vllm/mla"),
    Bad("vllm-quantised-targets", "vllm==0.20.0", {"quantization_config": ONLY_HEAD}, PACKED_HEAD),
    sglang("quantised-module", OF_EDGE, in_float8("fc", HIDDEN, 3 * HIDDEN), "builds fc without"),
    vllm("quantised-module", OF_EDGE, in_float8("lm_head", DRAFT, HIDDEN), "builds lm_head without"),
    vllm("quantised-names", {"quantization_config": PACKED_LINEAR}, PACKED_OUTPUT, "model.fc"),
    vllm("quantised-names-plain", PLAIN_FC, in_float8(OUTPUT, HIDDEN, 32), "model.fc quantised, unlike"),
    sglang("quantised-names", PLAIN_FC, in_float8(OUTPUT, HIDDEN, 32), "model.k_proj quantised"),
    vllm("quantised-method", by_method("w8a8_int8"), in_float8(OUTPUT, HIDDEN, 32), "quant_method w8a8_int8"),
    sglang("quantised-method", by_method("experts_int8"), in_float8(OUTPUT, HIDDEN, 32), "experts_int8"),
    vllm("quantised-unread", by_method("quark"), in_float8(OUTPUT, HIDDEN, 32), "of quark", is_blind=True),
    sglang("quantised-unread", by_method("quark"), in_float8(OUTPUT, HIDDEN, 32), "of quark", is_blind=True),
    vllm("quantised-settings", words(desc_act=True), IN_WORDS, "stops at desc_act: true in"),
    vllm("quantised-settings", words(bits=2, sym=False), IN_WORDS, "stops at bits: 2, sym: false in"),
    vllm("quantised-settings", words(sym=ABSENT, group_size=256), IN_WORDS, "no sym, group_size: 256 in"),
    vllm("quantised-settings", ordered("GROUP", group_size=32), PACKED_OUTPUT, 'actorder: "GROUP" in'),
    Bad("vllm-quantised-settings", "vllm==0.22.1", ordered("static"), PACKED_OUTPUT, 'actorder: "static" in'),
    Bad("vllm-quantised-settings", "vllm==0.29.0", ordered("group"), PACKED_OUTPUT, 'actorder: "group" in'),
    sglang("quantised-settings", ordered("dynamic"), PACKED_OUTPUT, 'actorder: "dynamic" in'),
    Bad("vllm-quantised-settings", "vllm==0.21.0", words(bits=5), IN_WORDS, "stops at bits: 5 in"),
    Bad(
        "vllm-quantised-settings",
        "vllm==0.13.0",
        ordered(None, zp_dtype=None),
        PACKED_OUTPUT,
        "zp_dtype: null",
    ),
    vllm("quantised-settings", fp8(), in_float8(OUTPUT, HIDDEN, 32), "stops at no activation_scheme in"),
    vllm("quantised-settings", fp8("static"), in_float8(OUTPUT, HIDDEN, 32), "weight_block_size: [8, 8]"),
    sglang("quantised-settings", fp8(), in_float8(OUTPUT, HIDDEN, 32), "stops at no activation_scheme in"),
    sglang("quantised-dtype", words(sym=False), IN_WORDS, "stops at bfloat16: its kernels for these bits"),
    sglang("quantised-dtype", words(group_size=256), IN_WORDS, "groups of gptq take float16 alone"),
    sglang("quantised-settings", words(bits=5), IN_WORDS, "stops at bits: 5 in"),
    sglang("quantised-settings", words(quant_method="awq"), IN_WORDS, "stops at no zero_point in"),
    vllm("packed-head", {"quantization_config": LISTED_HEAD}, PACKED_HEAD, "and the drafter's is packed"),
    vllm("packed-target-head", says="and the target's is packed", target=GPTQ_TARGET),
    Bad("vllm-packed-target-head", "vllm==0.24.0", says="the target's", target=PACKED_TARGET),
    Bad(
        "vllm-packed-head-by-runner",
        "vllm==0.25.1",
        says="which runner it is",
        target={**GPTQ_TARGET, **of("gemma4_text")},
        is_blind=True,
    ),
    vllm("linear-factor", scaled("linear", None, factor=4), says="takes 4 for a list"),
    vllm("layer-types", {"layer_types": ["full_attention"] * 8}, says="8 entries for 1 layers"),
    vllm("heads-uneven", {"num_attention_heads": 3, "num_key_value_heads": 1}, THREE_HEADS),
    Bad("vllm-windows-mixed", "vllm==0.21.0", ONE_OF_TWO, THEIRS, "some of the drafter's layers"),
    Bad(
        "vllm-windows-mixed-by-runner",
        "vllm==0.27.0",
        ONE_OF_TWO,
        THEIRS,
        says="which runner it is",
        target=of("gemma4_text"),
        is_blind=True,
    ),
    vllm("window-unstated", {"layer_types": ["sliding_attention"]}),
    vllm("longrope", longrope(2.0), says="more than 1024", target={}, option="--max-model-len 1024"),
    vllm(
        "longrope",
        {**longrope(2.0, original_max_position_embeddings=None), "original_max_position_embeddings": 512},
        says="more than 512",
        target={},
        option="--max-model-len 512",
    ),
    vllm(
        "attention-kind", {"index_topk": 2048}, says="attention of index_topk", base="vllm/mla", is_blind=True
    ),
    vllm("per-layer", {"per_layer_config": {"0": {"hidden_act": "gelu"}}}, says="stops at per_layer_config"),
    vllm("per-layer", {"is_heterogeneous": True}, says="stops at is_heterogeneous"),
    vllm("config-types", {"use_cache": None}, says="stops at use_cache: null"),
    vllm("config-types", {"attention_dropout": "0"}, says='stops at attention_dropout: "0"'),
    vllm("config-types", {"n_routed_experts": None}, says="n_routed_experts", base="vllm/mla"),
    Bad(
        "vllm-config-types-by-transformers",
        "vllm==0.23.0",
        {"bos_token_id": [1]},
        says="bos_token_id: [1] in config.json with transformers 5",
        is_blind=True,
    ),
    sglang("config-types", {"initializer_range": 0}, says="stops at initializer_range: 0"),
    Bad(
        "vllm-per-layer-by-transformers",
        "vllm==0.31.0",
        {"per_layer_config": {"0": {"hidden_act": "gelu"}}},
        says="with transformers 5.14 or later",
        is_blind=True,
    ),
    vllm("rope-foreign", {"rope_scaling": {"rope_type": "default", "use_fope": True}}, says="by use_fope"),
    sglang("per-layer", {"per_layer_config": {"0": {"num_attention_heads": 2}}}, says="per_layer_config"),
    sglang("rope-fourier", {"rope_scaling": {"rope_type": "default", "use_fope": True}}, is_blind=True),
    vllm("longrope-factor", longrope(1.0, attention_factor=1.0)),
    vllm("longrope-factor", longrope(1.0, factor=8.0)),
    vllm("longrope-factor", longrope(1.0, short_mscale=1.5, long_mscale=1.5)),
    vllm("output-bias-overstated", {"bias": True}),
    vllm("not-causal", {"is_causal": False}),
    vllm("rope-base-null", {"rope_theta": None}),
    vllm("dynamic-factor", {"rope_scaling": {"rope_type": "dynamic"}}),
    vllm("rope-foreign", scaled("dynamic", None, max_trained_positions=64), says="max_trained_positions"),
    vllm("rope-foreign", {"rope_scaling": {"rope_type": "default", "rope_dim": 4}}, says="by rope_dim"),
    vllm("draft-tokens", {"n_predict": 2}, says="n_predict, 2, allows", where="n_predict"),
    vllm("draft-tokens", {"n_predict": 0}, says="n_predict, 0, allows", where="n_predict"),
    vllm("rope-kind", scaled("ntk", None), says="scaling ntk by rules", is_blind=True),
    vllm("rope-scaling", scaled("linear", None), answers={"rope": "plain"}),
    vllm("rope-scaling", {**scaled("yarn"), "original_max_position_embeddings": 64}),
    vllm("mla-prefill-scale", says="softmax scale", base="vllm/mla", target=YARN_TARGET),
    Bad(
        "vllm-drafting-length",
        "vllm==0.21.0",
        {"seq_length": 512},
        says="at 512 positions (V1 runner), by seq_length",
        target={},
        option="--max-model-len 512",
    ),
    vllm("nested-config", in_part("text_config"), says="stops at text_config"),
    vllm("nested-config", in_part("language_config"), says="stops at language_config"),
    vllm("nested-config", {"llm_config": {"num_attention_heads": 8}}, says="stops at llm_config"),
    sglang("nested-beside", {"text_config": {"head_dim": 16}}, says="sizes from text_config", is_blind=True),
    sglang("linear-factor", scaled("linear", None, factor=4), says="takes 4 for a list"),
    sglang("layer-types", {"layer_types": []}, says="0 entries for 1 layers"),
    sglang("heads-uneven", {"num_attention_heads": 3, "num_key_value_heads": 1}, THREE_HEADS),
    sglang("rope-base-null", {"rope_theta": None}),
    sglang("dynamic-factor", {"rope_scaling": {"rope_type": "dynamic"}}),
    sglang("rope-kind", scaled("ntk", None), says="scaling ntk"),
    sglang("rope-scaling", scaled("linear", None), answers={"rope": "plain"}),
    sglang(
        "positions",
        {"seq_length": 512},
        says="has 512 positions",
        target={},
        option="--context-length 512",
    ),
    sglang("mla-quantised", QUANTISED, in_float8(KV_B, 64, 512), base="vllm/mla"),
    sglang("mla-quantised", RENAMED, in_float8(KV_B, 64, 512), base="vllm/mla"),
    sglang("speculators", base="speculators/plain"),
    sglang("architecture", {"architectures": ["Eagle3LlamaForCausalLM"]}, where="architectures"),
    sglang("head-unfilled", {"draft_vocab_size": 256}, NO_HEAD, base="vllm/mla"),
    sglang("qk-norms", tensors=QUERY_NORMS),
    sglang("residual", {"norm_before_residual": True}),
    sglang("parallel", {"mask_token_id": 3}, MASK),
    sglang("draft-vocab-size", {"draft_vocab_size": ABSENT}),
    sglang("tied-head", {"tie_word_embeddings": True}, where="tie_word_embeddings"),
    sglang("d2t-missing", tensors={"d2t": None}),
    sglang("d2t-unsigned", says="U16", tensors={"d2t": integers(*TARGETS, dtype="U16")}),
    sglang("layers-overstated", {"num_hidden_layers": 3}),
    sglang("mla-prefix", base="vllm/mla", tensors=below("model", "norm", 32)),
    sglang("wrapped-names", says="begins with module.", tensors=below("module", "norm", HIDDEN)),
    sglang("norm-output", NESTED_OUTPUT, FC_NORM, "trained with true"),
    sglang("fc-norm", {"fc_norm": ABSENT, **nested(fc_norm=True)}, FC_NORM, "fc_norm as false"),
    sglang("norm-before-fc", {"norm_before_fc": ABSENT}, INPUT_NORM),
    sglang("sliding-window", SLIDING, option="--speculative-draft-window-size 511"),
    *(
        sglang(
            "draft-dtype",
            changes,
            says=words,
            target={"model_type": "llama", **target},
            option=f"--dtype {dtype}",
        )
        for changes, target, words, dtype in (
            ({}, {"torch_dtype": "float16"}, "drafter in bfloat16 and the target in float16", "float16"),
            ({"torch_dtype": "float16"}, {"dtype": "bfloat16"}, "drafter in float16", "bfloat16"),
            ({"torch_dtype": ABSENT}, {"dtype": "bfloat16"}, "drafter in float16", "bfloat16"),
            ({"torch_dtype": "float32"}, {"torch_dtype": "bfloat16"}, "drafter in float16", "bfloat16"),
        )
    ),
    sglang("sliding-window", ONE_OF_TWO, SECOND, "attends to everything"),
    sglang("sliding-window", {**SLIDING, "sliding_window": 1}, says="attends to everything"),
    sglang("sliding-window", SLIDING, says="attends to everything", base="vllm/mla"),
    sglang("partial-rotary", HALF_ROTATED, answers={"rope": "stored"}),
    sglang("aux-layers", {IDS: [1, 4, 6], "eagle_config": ABSENT}, says="other layers"),
    sglang("aux-unknown", {"eagle_config": {IDS: [2, 4, 5]}}, is_blind=True),
    sglang("mla-norm-before-fc", {"norm_before_fc": True}, WIDE_INPUT_NORM, base="vllm/mla"),
    sglang("aux-count", {"num_aux_hidden_states": 2}, says="for 2 aux states"),
    Bad("sglang-norm-before-fc-absent", "sglang>=0.5.14,<=0.5.16", {"norm_before_fc": True}, INPUT_NORM),
    Bad("sglang-target-unlisted", "sglang==0.5.15.post1", says="has no class", target=of("minimax_m3")),
    *(
        Bad("sglang-target-unlisted", "sglang==0.5.23", says=f"{name} targets: stops", target=of(kind))
        for kind, name in {
            "granite": "GraniteForCausalLM",
            "kimi_k3": "KimiK3ForConditionalGeneration",
            "step3p5": "Step3p5ForCausalLM",
            "llava": "LlavaForConditionalGeneration",
            "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
            "minicpmv": "MiniCPMV",
            "nemotron_h": "NemotronHForCausalLM",
            "deepseek_v4": "DeepseekV4ForCausalLM",
        }.items()
    ),
    Bad("sglang-target-state", "sglang==0.5.23", says="what each layer adds", target=of("gemma3_text")),
    Bad("sglang-target-unknown", "sglang==0.5.23", says="foo_bar", target=of("foo_bar"), is_blind=True),
    sglang("unknown-tensor", tensors=EXTRA),
    sglang("fc-bias", tensors={"fc.bias": floats("fc.bias", HIDDEN)}),
    sglang("mlp-bias", {"mlp_bias": True}, MLP_BIASES),
    sglang("last-boundary", LAST_LAYER, says="(boundary 8)", target={}),
    sglang("ids-empty", {IDS: [2, 4, 5], "eagle_config": {IDS: []}}, says="stops", target={}),
    *(
        sglang("positions", changes, says=words, target=target, option=f"--context-length {length}")
        for changes, words, target, length in (
            ({"max_position_embeddings": 1024}, "has 1024 positions", {}, 1024),
            ({"max_position_embeddings": ABSENT}, "has 2048 positions", LONGER, 2048),
            ({}, "and the target 8192", {**SHORT, **scaled("linear", None)}, 2048),
            (scaled("yarn"), "has 2048 positions", LONGER, 2048),
            (scaled("linear", None), "has 8192 positions", LONGER, 8192),
        )
    ),
    *(
        Bad(
            "vllm-positions",
            f"vllm=={release}",
            changes,
            says=f"{length} pos",
            target=LONGER,
            where=where,
            option=f"--max-model-len {length}",
        )
        for release, changes, length, where in (
            ("0.26.0", {"max_position_embeddings": ABSENT}, 2048, ""),
            ("0.26.0", scaled("yarn", 16384), 65536, "max_position_embeddings"),
            ("0.26.0", scaled("llama3", 32768, low_freq_factor=1.0, high_freq_factor=4.0), 2048, None),
            ("0.26.0", scaled("linear", None), 8192, None),
            ("0.26.0", scaled("dynamic", None), 2048, None),
            ("0.26.0", scaled("yarn", 4096, mrope_section=[1, 1, 2]), 65536, None),
            # its table does not grow with max_position_embeddings
            ("0.32.0", scaled("yarn", 16384), 65536, "max_position_embeddings"),
        )
    ),
    Bad(
        "vllm-positions",
        "vllm==0.10.2",
        {},
        NO_EMBEDDING,
        says="2048 pos",
        target=LONGER,
        where="max_position_embeddings",
        option="--max-model-len 2048",
    ),
    *(
        Bad(
            "vllm-drafting-stops",
            f"vllm=={release}",
            changes,
            says=f"{length} pos",
            target=target,
            option=f"--max-model-len {length}",
        )
        for release, changes, length, target in (
            ("0.21.0", scaled("dynamic", None), 8192, LONGER),
            ("0.24.0", {}, 2048, LONGER_MOE),
            ("0.28.0", {}, 2048, LONGER_MOE),
            ("0.28.0", scaled("yarn", 16384), 65536, LONGER_MOE),
            ("0.28.0", scaled("linear", None), 8192, LONGER_MOE),
            ("0.28.0", scaled("llama3", 32768, low_freq_factor=1.0, high_freq_factor=4.0), 2048, LONGER_MOE),
        )
    ),
    Bad(
        "vllm-drafting-stops",
        "vllm>=0.29.0",
        {"mask_token_id": 3},
        MASK,
        says="at the drafter's 2048 positions (V1 runner)",
        target=LONGER,
        option="--max-model-len 2048",
    ),
    *(
        Bad(
            rule, f"vllm=={release}", says=f"target{words}", target=target, option=f"--max-model-len {length}"
        )
        for rule, release, words, target, length in (
            ("vllm-drafting-stops", "0.21.0", " has 8192", {**SHORT, **scaled("linear", None)}, 2048),
            ("vllm-positions", "0.26.0", "'s (8192)", {**SHORT, **scaled("dynamic", None)}, 2048),
            # before 0.30.0 yarn's length is the original times the factor
            ("vllm-positions", "0.26.0", "'s (4096)", {**SHORT, **scaled("yarn", 1024)}, 2048),
        )
    ),
    Bad(
        "vllm-drafting-stops-by-runner",
        "vllm==0.27.0",
        says="decides which runner",
        target={**of("gemma4_text"), "max_position_embeddings": 131072},
        option="--max-model-len 2048",
    ),
    *(
        Bad(f"{engine}-yarn-factor", f"{engine}=={release}", scaled("yarn", **keys), says=words)
        for engine, release, keys, words in (
            ("vllm", "0.29.0", ALIKE, "x 1.30: mscale and mscale_all_dim are not read"),
            ("vllm", "0.22.0", {"attention_factor": 1}, "x 1.30: attention_factor is not read"),
            ("vllm", "0.29.0", {"attn_factor": 2}, "x 4.00: attn_factor is read, and training does not"),
            ("vllm", "0.29.0", {"apply_yarn_scaling": False}, "x 0.771: apply_yarn_scaling is read"),
            ("sglang", "0.5.15.post1", ALIKE, "x 1.30: mscale and mscale_all_dim are not read"),
            ("sglang", "0.5.23", {"attention_factor": 1}, "x 1.30: attention_factor is not read"),
            ("sglang", "0.5.23", {"attn_factor": 2, **ALIKE}, "x 4.00: attn_factor and mscale and"),
            ("sglang", "0.5.23", {"mscale": 0.707, "mscale_all_dim": 0}, "x 0.930: mscale and mscale_all"),
        )
    ),
    Bad("vllm-yarn-factor", "vllm==0.28.0", says="x 2.00: mscale and mscale", base="torchspec/llama"),
    Bad(
        "sglang-yarn-mrope",
        "sglang==0.5.23",
        scaled("yarn", mrope_section=[4, 6, 6], **ALIKE),
        says="TypeError",
    ),
    *(
        Bad(f"{engine}-yarn-keys", releases, scaled("yarn", **keys), says=f"reads {words} of", base=base)
        for engine, releases, keys, words, base in (
            ("vllm", "vllm>=0.11,<0.30", {"extrapolation_factor": 0.5}, "extrapolation_factor", ""),
            ("vllm", "vllm>=0.18,<0.30", {"attn_factor": 2}, "attn_factor", "vllm/mla"),
            ("vllm", "vllm>=0.18,<0.31", UNSCALED, "apply_yarn_scaling", "vllm/mla"),
            ("vllm", "vllm>=0.31", SCALED_BY_ONE, "attention_factor", "vllm/mla"),
            ("sglang", "sglang", {"extrapolation_factor": 0.5}, "extrapolation_factor", ""),
            ("sglang", "sglang", BOTH_UNREAD, "attn_factor and apply_yarn_scaling", "vllm/mla"),
        )
    ),
    Bad("vllm-mla-scaling", "vllm>=0.18", RAMPED, says="rope scaling llama3", base="vllm/mla"),
    Bad("sglang-mla-scaling", "sglang", RAMPED, says="rope scaling llama3", base="vllm/mla"),
    Bad("vllm-mla-scaling-refused", "vllm>=0.18", scaled("linear", None), says="linear", base="vllm/mla"),
    Bad("sglang-yarn-past-table", "sglang<0.5.21", SHORT_YARN, says="past 65536", target=LONGER),
    *(
        Bad("vllm-end-boundary", releases, {IDS: ids, "eagle_config": ABSENT}, says=says, target=target)
        for releases, ids, says, target in (
            ("vllm>=0.11.1,<0.18", [2, 4, 8], "boundary 8 of", {}),
            ("vllm>=0.11.1,<0.18", [0, 4, 5], "boundary 0 of", {}),
            ("vllm>=0.18,<0.25", [2, 4, 8], "boundary 8 of", of("deepseek_v3", "DeepseekV3ForCausalLM")),
            ("vllm>=0.18", [0, 4, 5], "boundary 0 of", of("deepseek_v3", "DeepseekV3ForCausalLM")),
        )
    ),
    sglang("ids-unsorted", {IDS: [5, 2, 4], "eagle_config": {IDS: [4, 1, 3]}}, says="ascending"),
    sglang("tied-to-own", SHARED, NO_HEAD, "the target's embedding"),
    sglang("embedding-replaced", says="the rotated target's embedding", record=ROTATED),
    sglang("embedding-short", NARROWER, WIDER_TARGET, "up to 69", target=WIDE_ROWS, tokens=70),
    sglang("head-unfilled", {"draft_vocab_size": VOCAB}, NO_HEAD, f"draft_vocab_size {VOCAB}"),
    sglang("head-replaced", HEADED, HEADED_TENSORS, "is None"),
    sglang("biases-unfilled", {"bias": True}, says="because bias says true"),
    sglang("one-state", ONE_STATE, {"fc.weight": floats("fc", HIDDEN, HIDDEN)}),
    sglang("hidden-act", {"hidden_act": "gelu"}, says="hidden_act gelu"),
    sglang("draft-vocab-mismatch", {"draft_vocab_size": 32}, says="head of 32 rows"),
    sglang("null-target-hidden", {"target_hidden_size": None}),
    llama("embedding-short", says="was not run", target=MORE_ROWS, tokens=70, is_blind=True),
    llama("mla", base="vllm/mla"),
    llama("qk-norms", tensors=QUERY_NORMS),
    llama("architecture", {"architectures": ["FooForCausalLM"]}, says="FooForCausalLM"),
    llama("draft-vocab-size", {"draft_vocab_size": ABSENT}),
    llama("multi-layer", {"num_hidden_layers": 2}, THEIRS, "2 layers"),
    llama("layers-misstated", {"num_hidden_layers": 3}, says="num_hidden_layers 3"),
    llama("aux-count", {**FOUR_IDS, "num_aux_hidden_states": 4}, FOUR, "there are 4"),
    llama("fc-norm", {"fc_norm": True}, FC_NORM),
    llama("norm-output", {"norm_output": True}),
    llama("norm-before-fc", NESTED_NORM, INPUT_NORM),
    Bad("llama.cpp-norm-before-fc-absent", "llama.cpp==0.3.34", {"norm_before_fc": True}, INPUT_NORM),
    Bad("llama.cpp-ids-unsorted", "llama.cpp==0.3.34", {IDS: [4, 2, 5], "eagle_config": ABSENT}),
    Bad(
        "llama.cpp-aux-layers-early",
        "llama.cpp==0.3.34",
        {IDS: [1, 3, 6], "eagle_config": ABSENT},
        says="the default, ",
        target={},
    ),
    llama("residual", NO_RESIDUAL, says="trained with true", base="speculators/plain"),
    llama("biases", {"attention_bias": True}, biases("q", "k", "v"), "attention biases"),
    llama("parallel", {"mask_token_id": 3}, MASK),
    llama("sliding-window", SLIDING),
    llama("partial-rotary", HALF_ROTATED, answers={"rope": "stored"}),
    llama("hidden-act", {"hidden_act": "gelu"}, says="hidden_act is gelu"),
    llama("rope-type", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, says="scaling dynamic"),
    llama("unknown-tensor", tensors=EXTRA),
    llama("prefix", says="begin with model.", tensors=below("model", "fc", HIDDEN, 3 * HIDDEN)),
    llama("d2t-missing", tensors={"d2t": None}),
    llama("d2t-unsigned", says="U16", tensors={"d2t": integers(*TARGETS, dtype="U16")}),
    llama("shapes", {"intermediate_size": 7}, says="intermediate_size 7"),
    llama("target-unlisted", says="of Qwen2ForCausalLM targets", target=of("qwen2")),
    llama("target-unknown", says="foo_bar", target=of("foo_bar"), is_blind=True),
    llama("last-boundary", LAST_LAYER, says="(boundary 8)", target={}),
    llama("aux-layers", only_nested(3, 5, 8), says="the default, boundaries [2, 4, 5]", target={}),
    llama("tied-head", SHARED, NO_HEAD),
    llama("quantised", QUANTISED, in_float8(OUTPUT, HIDDEN, 32), "was not run", is_blind=True),
    llama("aux-unknown", MODELOPT, says="pass --target", base="modelopt/hf-ids", is_blind=True),
)


@pytest.mark.fast(26)
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad.rule} {bad.engine}")
def test_a_fact_is_found_where_it_holds_and_no_other_is(bad: Bad, tmp_path: Path) -> None:
    report = judged(bad, tmp_path, select=["EGL10", "EGL11", "EGL12", "EGL20"])
    passing = "pass" if bad.option else "fail"
    verdict = "could-not-look" if bad.is_blind else passing
    assert {report.verdict, *(one.outcome.check for one in report.releases)} == {verdict}
    if bad.is_blind:
        ((name, reason),) = [(one.rule.name, one.reason) for one in report.unchecked]
        assert report.findings == () and name == bad.rule and bad.says in reason
        return
    (found,) = report.findings
    severity = "note" if bad.option else "error"
    assert (found.rule.name, found.severity) == (bad.rule, severity) and bad.says in found.match.message
    assert {" ".join(one.start_options) for one in report.releases} == {bad.option}
    place = f"config.json:{bad.where}" if bad.where else bad.where
    assert place is None or found.match.where == place
    assert report.releases[0].rules == (found.rule.id,)
    assert found.match.engines == tuple(f"{one.engine}=={one.release}" for one in report.releases)


# facts that a base of EAGLE-3.1 or of older releases brings along with others
V01 = {"norm_before_residual": True, "architectures": ["Eagle3LlamaForCausalLM"]}
WITH_OTHERS = (
    Bad("vllm-residual-absent", "vllm==0.10.0", V01),
    Bad("vllm-quantised-absent", "vllm==0.11.0", base="modelopt/hf-fp8"),
    Bad("vllm-speculators-norm-output", "vllm==0.24.0", base="speculators/eagle3.1"),
    Bad("vllm-speculators-fc-norm", "vllm==0.24.0", base="speculators/eagle3.1"),
    sglang("nested-config", in_part("llm_config"), says="they are in llm_config"),
    sglang("attention-bias", base="vllm/bias"),
    sglang("ids-twice", {IDS: [2, 4, 4], **nested(**{IDS: [1, 3, 3]})}),
    Bad("vllm-rope-parameters-unread", "vllm==0.11.2", base="speculators/default"),
    sglang("absorbed-names", base="sglang/mla-absorbed"),
    sglang("mla-aux-count", TWO_IDS, base="vllm/mla"),
)
# facts of no known release; test_new_release.py has the case
FICTIONAL = {"vllm-parallel-runner"}


def test_every_serving_rule_has_a_bad_case() -> None:
    assert {bad.rule for bad in BAD + WITH_OTHERS} | FICTIONAL == {rule.name for rule in RULES}


@pytest.mark.fast(3)
@pytest.mark.parametrize("bad", WITH_OTHERS, ids=lambda bad: bad.rule)
def test_a_fact_that_comes_with_others_is_found_too(bad: Bad, tmp_path: Path) -> None:
    report = judged(bad, tmp_path, select=["EGL10", "EGL11", "EGL12", "EGL20"])
    found = {one.rule.name: one.match.message for one in report.findings}
    assert bad.rule in found, found


@pytest.mark.parametrize(
    ("model_type", "fix"),
    [
        ("granite", f"serve it with vLLM 0.32.0 - {VLLM}: "),
        ("gemma3_text", "serve it with SGLang 0.5.14 - 0.5.16: "),
        ("step3p5", "no release of vLLM, SGLang, llama.cpp is known to capture this target."),
    ],
)
def test_for_a_target_that_is_not_captured_the_releases_that_do_are_named(
    model_type: str, fix: str, tmp_path: Path
) -> None:
    bad = Bad("", "vllm==0.31.0", target=of(model_type))
    (found,) = judged(bad, tmp_path, select=["EGL1079"]).findings
    assert found.fix.startswith(fix)


def test_each_release_of_a_range_is_judged_by_its_own_facts(tmp_path: Path) -> None:
    bad = Bad("", "vllm>=0.21,<=0.33", {"fc_norm": True, "norm_output": True}, WIDE_NORM, base="vllm/mla")
    report = judged(bad, tmp_path)
    wrong = {one.release: one.rules for one in report.releases if one.outcome.check != "pass"}
    assert wrong == {"0.21.0": ("EGL1016", "EGL1019"), "0.22.0": ("EGL1017",), "0.22.1": ("EGL1017",)}
    assert len(report.releases) > 10 and {one.outcome.check for one in report.releases} == {"pass", "fail"}
    assert report.releases[1].reasons == ("loads fc_norm and never applies it",)
    (match,) = [one.match for one in report.findings if one.rule.id == "EGL1017"]
    assert match.engines == ("vllm==0.22.0", "vllm==0.22.1")
    assert "vLLM 0.22.0 - 0.22.1 loads fc_norm" in match.message


@pytest.mark.parametrize(
    "bad",
    [
        Bad("EGL310", "vllm", tensors={"d2t": None}),
        Bad("EGL202", "vllm", tensors=EXTRA),
        Bad("EGL101", "vllm", {"architectures": ["FooForCausalLM"]}),
        Bad("EGL105", "vllm", {"num_hidden_layers": 3}),
        Bad("EGL401", "vllm", {"num_aux_hidden_states": 2}),
        Bad("EGL1053", "vllm==0.32.0", {IDS: [5, 2, 4], "eagle_config": ABSENT}),
        Bad("EGL502", "vllm", {"fc_norm": ABSENT, "norm_output": True}, FC_NORM),
        Bad("EGL1108", "sglang", {"tie_word_embeddings": True}),
        Bad("EGL201", "vllm", tensors={"norm.weight": None}),
        Bad("EGL302", "vllm", tensors={"d2t": integers(*range(100, 124))}),
    ],
    ids=lambda bad: bad.rule,
)
def test_one_defect_is_one_finding_and_fails_its_releases(bad: Bad, tmp_path: Path) -> None:
    """Of two rules on one defect the more severe reports it, else the one that holds for every engine."""
    report = judged(bad, tmp_path)
    assert [one.rule.id for one in report.findings if one.severity != "note"] == [bad.rule]
    assert [(one.outcome.check, one.rules) for one in report.releases] == [("fail", (bad.rule,))]
    assert report.verdict == "fail"


def test_without_an_engine_no_serving_rule_looks_and_none_passes(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    report = eaglectl.validate(folder, has_engines=False)
    told = {*(one.id for one in report.passed), *(one.rule.id for one in report.unchecked)}
    assert not told & {one.id for one in RULES} and report.releases == () and report.verdict == "pass"
    report = eaglectl.validate(folder, select=["EGL1017"], has_engines=False)
    assert report.verdict == "could-not-look"
    assert [one.reason for one in report.unchecked] == ["no release of vLLM is requested; pass --engine vllm"]
    required = Policy(required=frozenset({"EGL1017"}))
    assert eaglectl.validate(folder, policy=required, has_engines=False).verdict == "could-not-look"
    assert eaglectl.validate(folder, policy=required, engines=["vllm"]).verdict == "pass"


def test_a_suppressed_finding_lets_the_checkpoint_pass_and_not_the_release(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"fc_norm": True, "norm_output": True}, tensors=FC_NORM)
    policy = Policy(suppress=(Suppression("vllm-fc-norm-absent", "old"), Suppression("EGL1019", "old")))
    report = eaglectl.validate(folder, engines=["vllm==0.21.0"], policy=policy)
    assert report.verdict == "pass" and [one.outcome.check for one in report.releases] == ["fail"]


def test_what_cannot_be_read_is_said_of_every_release(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "model.safetensors").write_bytes(b"x")
    report = eaglectl.validate(folder, engines=["vllm>=0.32,<=0.33", "sglang"])
    assert [one.outcome.check for one in report.releases] == ["could-not-look"] * 3
    assert (report.smallest_changes, report.verdict) == ((), "fail")


@pytest.mark.parametrize(
    ("bad", "way"),
    [
        (
            Bad("", "vllm>=0.22", FOUR_UNCOUNTED, FOUR),
            "vLLM: write num_aux_hidden_states: 4 into config.json",
        ),
        (
            Bad("", "vllm>=0.22", NO_SWITCHES, FC_NORM),
            "vLLM: write fc_norm: true, norm_output: true into config.json",
        ),
        (
            Bad("", "vllm>=0.10.1", NO_IDS, NO_EMBEDDING),
            'vLLM: write architectures: ["Eagle3LlamaForCausalLM"] into config.json',
        ),
        (
            Bad("", "vllm==0.18.0", NEWER_ROPE),
            "vLLM: write rope_theta: 1000000.0, rope_scaling: null into config.json",
        ),
        (Bad("", "vllm==0.32.0", tensors=PREFIXED), "vLLM: `eaglectl convert {path} --for vllm`"),
        (
            Bad("", "vllm>=0.21", {"fc_norm": True, "norm_output": True}, WIDE_NORM, base="vllm/mla"),
            "vLLM: use vllm>=0.23.0, since no conversion makes earlier ones serve it (0.21.0 - 0.22.1"
            " feeds the state before the norm back (norm_output is ignored), loads fc_norm and never applies"
            " it)",
        ),
        (Bad("", "vllm>=0.24", base="speculators/four-aux"), "vLLM: `eaglectl convert {path} --for vllm`"),
        (
            Bad("", "vllm==0.33.0", {"norm_before_fc": True}, WIDE_INPUT_NORM, base="vllm/mla"),
            "vLLM: no known release serves it whatever is written"
            " (0.33.0 has no norm_before_fc for MLA drafters)",
        ),
        (Bad("", "vllm", tensors=MASK), "vLLM: write pard_token and mask_token_id as it was trained"),
        (Bad("", "vllm==0.27.1", {"mask_token_id": 3}, MASK), "vLLM: write pard_token: 3 into config.json"),
        (
            Bad("", "sglang", {"norm_before_residual": True}),
            "SGLang: no known release serves it whatever is written"
            f" ({SGLANG} does not know norm_before_residual)",
        ),
    ],
    ids=lambda value: value.engine if isinstance(value, Bad) else "",
)
def test_the_smallest_change_that_makes_all_pass(bad: Bad, way: str, tmp_path: Path) -> None:
    report = judged(bad, tmp_path)
    assert report.smallest_changes == (way.format(path=report.path),)


@pytest.mark.parametrize(
    ("base", "way"),
    [
        (
            "automodel/gqa",
            "vLLM and SGLang: `eaglectl convert {path} --for vllm --target {target} --aux-layers 2,4,5`",
        ),
        (
            "modelopt/hf-two-layers",
            "SGLang: `eaglectl convert {path} --for sglang --target {target} --source-semantics rope=stored"
            " --source-semantics modelopt=pre-689` (vLLM then does not serve it as trained)",
        ),
    ],
)
def test_of_two_engines_the_change_keeps_the_other_or_says_that_it_does_not(base: str, way: str) -> None:
    path, target = str(FIXTURES / "producers" / base), str(FIXTURES / "target")
    answers = true_answers(path)
    options = eaglectl.ValidateOptions(target, ["vllm", "sglang"], headers_only=True, answers=answers)
    assert eaglectl.validate(path, options).smallest_changes == (way.format(path=path, target=target),)


# test_silence.py has the same of vLLM
@pytest.mark.fast(3)
@pytest.mark.parametrize("case", [case for case in CASES if not case.is_pickled], ids=lambda case: case.path)
def test_what_convert_writes_for_sglang_passes_in_it(case: Case, tmp_path: Path) -> None:
    answers, out = case.answered(), tmp_path / "out"
    with suppress(EaglectlError):  # SGLang has not a place for everything
        eaglectl.convert(case.folder, out, layout="sglang", target_name="org/t", answers=answers)
    if not out.exists():
        return
    report = eaglectl.validate(out, engines=["sglang"])
    found = [one.rule.id for one in report.findings if one.severity != "note"]
    # its target is a HunYuan-VL, which SGLang cannot capture
    assert found == (["EGL1141"] if case.path == "angelslim/gqa" else [])
    outcomes = [one.outcome.check for one in report.releases]
    assert found or (outcomes, report.smallest_changes) == (["pass"], ())


@pytest.mark.fast(3)
@pytest.mark.parametrize("base", ["", "vllm/mla"])
@pytest.mark.parametrize("prefix", [*WRAPPERS, "module.model."])
def test_names_are_judged_with_the_prefix_that_they_are_stored_with(
    prefix: str, base: str, tmp_path: Path
) -> None:
    stored = stored_tensors(PRODUCERS / base) if base else drafter_tensors()
    tensors = {**dict.fromkeys(stored), **{f"{prefix}{name}": data for name, data in stored.items()}}
    folder = build(Bad("", "", tensors=tensors, base=base), tmp_path)
    engines = ["vllm==0.22.0", "vllm==0.24.0", "vllm==0.33.0", "sglang"]
    verdicts = eaglectl.inspect(str(folder), engines=engines).requested
    found = {one.engine: one for one in verdicts}
    # SGLang's Llama class removes model., but not from lm_head
    skipped = "model.lm_head." if prefix == "model." and not base else prefix
    assert [one.outcome for one in verdicts] == ["fails"] * 3 + ["differs"], found
    assert f"begins with {skipped}" in " ".join(found["sglang"].reasons)
    assert f"begin with {prefix}" in " ".join(found["vllm"].reasons)


def test_parallel_drafters_are_judged_by_the_runner_that_drafts_in_parallel(tmp_path: Path) -> None:
    # V1 reads these ids, V2 does not
    for name, tensors, outcome in (("parallel", MASK, "as trained"), ("plain", {}, "differs")):
        config = {"mask_token_id": 3, **only_nested(2, 4, 7)}
        folder = drafter_folder(tmp_path, name, config=config, tensors=tensors)
        options: dict[str, Any] = {"engines": ["vllm==0.33.0"], "answers": Answers(aux_layers=(2, 4, 7))}
        (verdict,) = eaglectl.inspect(folder, **options).requested
        assert verdict.outcome == outcome, verdict


@pytest.mark.parametrize(
    ("release", "base", "found"),
    [
        ("0.22.0", "speculators/peagle-llama", set()),
        ("0.32.0", "speculators/peagle-llama", set()),
        ("0.22.0", "speculators/eagle3.1", {"EGL1040"}),
        ("0.32.0", "speculators/eagle3.1", set()),
    ],
)
def test_a_drafter_that_drafts_in_one_pass_feeds_no_state_back(
    release: str, base: str, found: set[str], tmp_path: Path
) -> None:
    # these readers drop norm_output (run with P-EAGLE in 0.32.0: it drafts as the reference)
    report = judged(Bad("", f"vllm=={release}", {"norm_output": True}, base=base), tmp_path)
    of_switch = {"EGL1019", "EGL1020", "EGL1021", "EGL1040"}
    assert {finding.rule.id for finding in report.findings} & of_switch == found


@pytest.mark.parametrize(
    ("release", "beside", "outcome"),
    [
        ("0.19.1", {}, "differs"),  # does not read them
        ("0.21.0", {}, "differs"),  # takes 1, 3, 6 for what enters these layers
        ("0.22.0", {}, "as trained"),
        ("0.33.0", {}, "as trained"),
        ("0.33.0", {"eagle_config": {"use_aux_hidden_state": True}}, "differs"),
    ],
)
def test_ids_beside_the_mask_token_are_outputs_of_layers_since_0_22(
    release: str, beside: Mapping[str, Any], outcome: str, tmp_path: Path
) -> None:
    ids = {"mask_token_id": 3, "target_layer_ids": [1, 3, 6]}
    config = {IDS: ABSENT, "eagle_config": ABSENT, "pard_token": 3, "dflash_config": ids, **beside}
    folder = drafter_folder(tmp_path, config=config, tensors=MASK)
    options: dict[str, Any] = {"engines": [f"vllm=={release}"], "answers": Answers(aux_layers=(2, 4, 7))}
    (verdict,) = eaglectl.inspect(folder, **options).requested
    assert verdict.outcome == outcome, verdict


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("keys", "first"),
    [
        ({"mask_token_id": 3}, "0.28.0"),
        ({"ptd_token_id": 3}, "0.16.0"),
        ({"dflash_config": {"mask_token_id": 3}}, "0.20.0"),
        ({"pard_token": 0, "mask_token_id": 0}, "0.16.0"),
    ],
)
def test_each_key_of_the_mask_token_is_read_from_a_release_on(
    keys: Mapping[str, Any], first: str, tmp_path: Path
) -> None:
    folder, out = drafter_folder(tmp_path, config=keys, tensors=MASK), str(tmp_path / "out")

    def unread(path: str) -> list[str]:
        verdicts = eaglectl.inspect(path, engines=["vllm>=0.16"]).requested
        return [each.release for each in verdicts if "reads the mask token" in " ".join(each.reasons)]

    releases = ENGINES["vllm"].releases
    assert unread(str(folder)) == list(releases[releases.index("0.16.0") : releases.index(first)])
    # what is written serves every release that any spelling serves
    assert call("convert", folder, "-o", out).code == 0
    written = json.loads(Path(out, "config.json").read_text())
    assert unread(out) == [] and written["pard_token"] == (0 if "pard_token" in keys else 3)


def test_every_rule_of_an_engine_is_documented_from_its_data() -> None:
    for one in RULES:
        texts = (one.summary, one.why, one.fix)
        assert all(text.endswith(".") and "{" not in text for text in texts), one.id
        assert one.family == FAMILIES[one.name.split("-")[0]]
    assert {said for one in RULES for said in one.reported_by} <= {one.id for one in rules()}


def test_positions_are_written_where_they_only_size_the_table(tmp_path: Path) -> None:
    for name, scaling in (("plain", {}), ("yarn", scaled("yarn", 16384))):
        bad = Bad("vllm-drafting-stops", "vllm==0.28.0", scaling, target=LONGER_MOE)
        (tmp_path / name).mkdir()
        report = judged(bad, tmp_path / name)
        assert report.smallest_changes == () and report.releases[0].outcome == "as trained, started so"
        bad = replace(bad, config={**scaling, "max_position_embeddings": 131072})
        (written := tmp_path / f"{name}-written").mkdir()
        outcome = judged(bad, written).releases[0].outcome
        assert outcome == ("as trained" if name == "plain" else "as trained, started so")


@pytest.mark.parametrize(
    ("scaling", "engines"),
    [
        ({"mscale_all_dim": 1.0, "attention_factor": 1.0}, "vllm>=0.28,<0.31"),
        ({"mscale_all_dim": 1.0, "attention_factor": 2.0}, "vllm>=0.31"),
        ({"attention_factor": 1.0}, "vllm>=0.31"),
        ({"mscale_all_dim": 1.0, "apply_yarn_scaling": False}, "vllm>=0.31"),
        ({"mscale_all_dim": 1.0, "apply_yarn_scaling": True, "attn_factor": 1}, "vllm>=0.28"),
        ({"attn_factor": 2, "extrapolation_factor": 2}, "vllm>=0.30"),
    ],
)
def test_a_key_of_yarn_that_changes_nothing_for_mla_is_no_finding(
    scaling: Mapping[str, Any], engines: str, tmp_path: Path
) -> None:
    folder = build(Bad("", "", scaled("yarn", **scaling), base="vllm/mla"), tmp_path)
    outcomes = {one.outcome for one in eaglectl.inspect(str(folder), engines=[engines]).requested}
    assert outcomes == {"as trained"}


@pytest.mark.parametrize(
    ("ids", "kind", "engines"),
    [
        ([2, 4, 8], "llama", "vllm>=0.18"),
        ([0, 4, 5], "llama", "vllm>=0.18"),
        ([2, 4, 8], "deepseek_v3", "vllm>=0.25"),
        ([2, 4, 7], "deepseek_v3", "vllm>=0.18"),
        ([0, 4, 5], "gpt_oss", "vllm>=0.11.1"),
    ],
)
def test_the_first_and_last_boundary_are_captured_where_the_classes_have_them(
    ids: list[int], kind: str, engines: str, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, config={IDS: ids, "eagle_config": ABSENT})
    (tmp_path / "config.json").write_text(json.dumps(TARGET | of(kind)))
    report = eaglectl.validate(folder, select=["EGL1097"], engines=[engines], target=str(tmp_path))
    assert report.findings == () and not report.unchecked


def test_a_runner_that_is_known_decides_what_short_positions_do(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**TARGET, **LONGER}))
    for runner, outcome in (("", "as trained"), ("V2", "as trained"), ("V1", "as trained, started so")):
        request = EngineRequest("vllm", ("0.32.0",), runner=runner)
        options = eaglectl.ValidateOptions(target=str(tmp_path / "config.json"), engines=(request,))
        (verdict,) = eaglectl.validate(str(folder), options).releases
        assert verdict.outcome == outcome, verdict


@pytest.mark.parametrize("name", ["speculators/default", "speculators/four-aux"])
def test_a_speculators_config_keeps_rope_parameters_with_transformers_4_too(name: str) -> None:
    engines = ["vllm>=0.12.0,<0.24.0"]
    report = eaglectl.validate(PRODUCERS / name, select=["EGL1076", "EGL1077"], engines=engines)
    assert not report.findings and not report.unchecked


def test_a_name_with_t2d_is_skipped_by_every_class_of_vllm(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, tensors={"my_t2d_copy": floats("copy", 5)})
    for verdict in eaglectl.inspect(str(folder), engines=["vllm>=0.22"]).requested:
        assert verdict.outcome == "differs" and "has no place" in " ".join(verdict.reasons), verdict
