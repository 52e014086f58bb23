"""Rules on engine releases.

Each fact on a drafter that it is about, release by release, and the smallest change that helps.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.releases import ranges
from eaglectl.errors import EaglectlError
from eaglectl.formats.format import Answers
from eaglectl.formats.names import WRAPPERS
from eaglectl.judge.judgement import Report
from eaglectl.judge.rule import Policy, Suppression
from eaglectl.judge.rules import rules
from eaglectl.judge.rules.serving import RULES
from eaglectl.operations.converting import ConvertOptions
from tests.builders import (
    ABSENT,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    MLP,
    VOCAB,
    Stored,
    call,
    drafter_folder,
    drafter_tensors,
    floats,
    integers,
)
from tests.cases import CASES, Case, stored_tensors, true_answers
from tests.conftest import FIXTURES
from tests.validation.judging import PRODUCERS, Bad, build, judged

IDS = "eagle_aux_hidden_state_layer_ids"


def of(model_type: str, *architectures: str) -> dict[str, Any]:
    """A target's model_type, and the classes that its config names, if any."""
    return {"model_type": model_type, "architectures": list(architectures)}


def nested(**keys: Any) -> dict[str, Any]:
    return {"eagle_config": {IDS: [1, 3, 4], **keys}}


def biases(*parts: str) -> dict[str, Stored | None]:
    sizes = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM, "o": HIDDEN}
    return {f"layers.0.self_attn.{part}_proj.bias": floats(f"bias {part}", sizes[part]) for part in parts}


FC_NORM = {f"fc_norm.{index}.weight": floats(f"fc_norm {index}", HIDDEN) for index in range(3)}
WIDE_NORM = {f"fc_norm.{index}.weight": floats(f"fc_norm {index}", 32) for index in range(3)}
INPUT_NORM = {"input_norm.weight": floats("input_norm", 3 * HIDDEN)}
QUERY_NORMS = {f"layers.0.self_attn.{part}_norm.weight": floats(part, HEAD_DIM) for part in "qk"}
FOUR = {"fc.weight": floats("fc", HIDDEN, 4 * HIDDEN)}
FOUR_IDS = {IDS: [1, 3, 4, 5], "eagle_config": {IDS: [0, 2, 3, 4]}}
SECOND = {
    f"layers.1.{name}": floats(name, *shape)
    for name, shape in {
        "hidden_norm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "mlp.gate_proj.weight": (MLP, HIDDEN),
        "mlp.up_proj.weight": (MLP, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, MLP),
        "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
    }.items()
}
HEADED = {"draft_vocab_size": None}
HEADED_TENSORS = {"d2t": None, "lm_head.weight": floats("lm_head", VOCAB, HIDDEN)}
ONE_STATE = {"num_aux_hidden_states": 1, IDS: [4], "eagle_config": {IDS: [3]}}
JOINT = json.loads((PRODUCERS / "speculators/default/config.json").read_text())["transformer_layer_config"]
THEIRS = {name.replace("hidden_norm", "input_layernorm"): stored for name, stored in SECOND.items()}
LATENT = {
    f"layers.1.{name}": floats(name, *shape)
    for name, shape in {
        "input_layernorm.weight": (32,),
        "post_attention_layernorm.weight": (32,),
        "mlp.gate_proj.weight": (48, 32),
        "mlp.up_proj.weight": (48, 32),
        "mlp.down_proj.weight": (32, 48),
        "self_attn.q_a_proj.weight": (24, 32),
        "self_attn.q_a_layernorm.weight": (24,),
        "self_attn.q_b_proj.weight": (160, 24),
        "self_attn.kv_a_proj_with_mqa.weight": (576, 32),
        "self_attn.kv_a_layernorm.weight": (512,),
        "self_attn.kv_b_proj.weight": (64, 512),
        "self_attn.o_proj.weight": (32, 32),
    }.items()
}
LATENT_LAYER = {
    key: value
    for key, value in json.loads((PRODUCERS / "vllm/mla/config.json").read_text()).items()
    if key not in (IDS, "eagle_config", "architectures")
}
PREFIXED: dict[str, Stored | None] = dict.fromkeys(drafter_tensors())
PREFIXED |= {
    name if name in ("d2t", "lm_head.weight") else f"model.{name}": stored
    for name, stored in drafter_tensors().items()
}
FULL = {"lm_head.weight": floats("lm_head", VOCAB, HIDDEN), "d2t": None}
MASK = {"mask_hidden": floats("mask_hidden", 1, 3 * HIDDEN)}
PLAIN = {"rope_scaling": None}
NESTED_NORM = {"norm_before_fc": ABSENT, **nested(norm_before_fc=True)}
MODELOPT = json.loads((PRODUCERS / "modelopt/hf-ids/config.json").read_text())
FAMILIES = {"vllm": "serving: vLLM", "sglang": "serving: SGLang", "llama.cpp": "serving: llama.cpp"}
HALF_ROTATED = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
SLIDING = {"layer_types": ["sliding_attention"], "sliding_window": 512}
QWEN3 = {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"}
OWN_IDS = {IDS: [1, 3, 6], "eagle_config": ABSENT}
NO_EMBEDDING = {"embed_tokens.weight": None}

BAD = (
    Bad("vllm-weight-files", "vllm", "opens other.safetensors", beside="other.safetensors"),
    Bad("sglang-weight-files", "sglang", "opens other.safetensors", beside="other.safetensors"),
    Bad("vllm-no-class-mla", "vllm==0.17.1", base="vllm/mla"),
    Bad("vllm-no-class-qwen3", "vllm==0.23.0", config=QWEN3, tensors=QUERY_NORMS),
    Bad(
        "vllm-architecture",
        "vllm==0.32.0",
        "FooForCausalLM",
        {"architectures": ["FooForCausalLM"]},
        where="config.json:architectures",
    ),
    Bad("vllm-architecture", "vllm==0.24.0", "(none)", {"architectures": ABSENT}, where=""),
    Bad(
        "vllm-model-type",
        "vllm==0.32.0",
        "deepseek_v3",
        {"model_type": "deepseek_v3"},
        where="config.json:model_type",
    ),
    Bad("vllm-model-type", "vllm==0.32.0", "deepseek_v3", {"model_type": "deepseek_v3"}, base="vllm/mla"),
    Bad("vllm-prefix", "vllm==0.32.0", tensors=PREFIXED),
    Bad(
        "vllm-unknown-tensor",
        "vllm==0.32.0",
        "layers.0.extra.weight",
        tensors={"layers.0.extra.weight": floats("extra", HIDDEN)},
    ),
    Bad(
        "vllm-unknown-tensor-early",
        "vllm==0.24.0",
        "layers.0.extra.weight",
        tensors={"layers.0.extra.weight": floats("extra", HIDDEN)},
    ),
    Bad(
        "vllm-unknown-tensor-dropped",
        "vllm==0.24.0",
        "extra",
        base="vllm/mla",
        tensors={"layers.0.extra.weight": floats("extra", 32)},
    ),
    Bad("vllm-null-target-hidden", "vllm==0.32.0", config={"target_hidden_size": None}),
    Bad(
        "vllm-identity-d2t",
        "vllm==0.30.0",
        config={"draft_vocab_size": VOCAB},
        tensors={**FULL, "d2t": integers(*[0] * VOCAB)},
    ),
    Bad("vllm-d2t-missing", "vllm==0.32.0", tensors={"d2t": None}),
    Bad("vllm-no-draft-vocab-size", "vllm==0.32.0", config={"draft_vocab_size": ABSENT}),
    Bad("vllm-mla-plain-rope", "vllm==0.27.1", base="vllm/mla", config=PLAIN),
    Bad(
        "vllm-multi-layer",
        "vllm==0.11.0",
        config={"num_hidden_layers": 2, IDS: ABSENT, "eagle_config": ABSENT},
        tensors={**THEIRS, **NO_EMBEDDING},
    ),
    Bad(
        "vllm-aux-count",
        "vllm==0.21.0",
        "exactly 3",
        config={**FOUR_IDS, "num_aux_hidden_states": 4},
        tensors=FOUR,
    ),
    Bad(
        "vllm-aux-count-unstated",
        "vllm==0.32.0",
        "for 3 aux states",
        {"num_aux_hidden_states": ABSENT, IDS: [1, 3, 4, 5], "eagle_config": ABSENT},
        FOUR,
    ),
    Bad("vllm-fc-norm-absent", "vllm==0.21.0", config={"fc_norm": True}, tensors=FC_NORM),
    Bad("vllm-fc-norm-dropped", "vllm==0.21.0", base="vllm/mla", config={"fc_norm": True}, tensors=WIDE_NORM),
    Bad(
        "vllm-fc-norm-not-applied",
        "vllm>=0.22,<0.23",
        base="vllm/mla",
        config={"fc_norm": True},
        tensors=WIDE_NORM,
    ),
    Bad(
        "vllm-fc-norm-unstated",
        "vllm==0.22.0",
        config={"fc_norm": ABSENT, **nested(fc_norm=True)},
        tensors=FC_NORM,
    ),
    Bad("vllm-norm-output-absent", "vllm==0.21.0", config={"norm_output": True}),
    Bad(
        "vllm-norm-output-unstated",
        "vllm==0.32.0",
        config={"fc_norm": True, "norm_output": ABSENT, **nested(norm_output=True)},
        tensors=FC_NORM,
    ),
    Bad("vllm-norm-before-fc-absent", "vllm==0.17.1", config={"norm_before_fc": True}, tensors=INPUT_NORM),
    Bad(
        "vllm-norm-before-fc-nested",
        "vllm==0.21.0",
        config={"norm_before_fc": ABSENT, **nested(norm_before_fc=True)},
        tensors=INPUT_NORM,
    ),
    Bad(
        "vllm-norm-before-fc-unstated", "vllm==0.32.0", config={"norm_before_fc": ABSENT}, tensors=INPUT_NORM
    ),
    Bad(
        "vllm-norm-before-fc-mla",
        "vllm==0.32.0",
        base="vllm/mla",
        config={"norm_before_fc": True},
        tensors={"input_norm.weight": floats("norm", 96)},
    ),
    Bad("vllm-attention-bias-absent", "vllm==0.15.1", base="vllm/bias"),
    Bad("vllm-bias-unstated", "vllm==0.32.0", base="vllm/bias", config={"attention_bias": False}),
    Bad(
        "vllm-bias-overstated",
        "vllm==0.32.0",
        config={"attention_bias": True},
        where="config.json:attention_bias",
    ),
    Bad("vllm-bias-refused", "vllm==0.24.0", base="vllm/bias", config={"attention_bias": False}),
    Bad("vllm-layers-overstated", "vllm==0.32.0", "builds 3 layers", {"num_hidden_layers": 3}),
    Bad(
        "vllm-layers-understated",
        "vllm==0.32.0",
        "builds 1 of 2",
        base="speculators/two-layers",
        config={"num_hidden_layers": 1},
    ),
    Bad("vllm-layers-unstated", "vllm==0.32.0", config={"num_hidden_layers": ABSENT}),
    Bad(
        "vllm-head-dim-unstated",
        "vllm==0.32.0",
        "takes head_dim 16",
        {"head_dim": ABSENT, "hidden_size": HIDDEN, "num_attention_heads": 1, "num_key_value_heads": 1},
        {
            "layers.0.self_attn.q_proj.weight": floats("q", 8, 32),
            "layers.0.self_attn.k_proj.weight": floats("k", 8, 32),
            "layers.0.self_attn.v_proj.weight": floats("v", 8, 32),
            "layers.0.self_attn.o_proj.weight": floats("o", 16, 8),
        },
    ),
    Bad("vllm-head-dim-smaller", "vllm==0.32.0", "takes head_dim 4", {"head_dim": ABSENT}),
    Bad("vllm-parallel-absent", "vllm==0.15.1", config={"mask_token_id": 3}, tensors=MASK),
    Bad("vllm-mask-token", "vllm==0.32.0", tensors=MASK),
    Bad(
        "vllm-mask-token-unread",
        "vllm==0.27.1",
        "from pard_token or ptd_token_id or dflash_config.mask_token_id alone",
        {"mask_token_id": 3},
        MASK,
    ),
    Bad("vllm-sliding-window-qwen3", "vllm==0.25.1", config={**QWEN3, **SLIDING}, tensors=QUERY_NORMS),
    Bad(
        "vllm-aux-layers",
        "vllm==0.32.0",
        "V2 runner",
        {IDS: ABSENT, "eagle_config": {IDS: [0, 3, 6]}},
        target={"model_type": "llama"},
    ),
    Bad("vllm-aux-unknown", "vllm==0.11.0", "without --target", tensors=NO_EMBEDDING, is_blind=True),
    Bad("vllm-aux-ids-unread", "vllm==0.11.0", config=OWN_IDS, tensors=NO_EMBEDDING),
    Bad("vllm-speculators-unknown", "vllm==0.10.0", base="speculators/plain"),
    Bad(
        "vllm-speculators-norm-before-fc",
        "vllm==0.18.1",
        base="speculators/default",
        config={"norm_output": False, "transformer_layer_config": {**JOINT, "rope_theta": 500000.0}},
    ),
    Bad(
        "vllm-speculators-peagle",
        "vllm==0.32.0",
        base="speculators/peagle-llama",
        config={"norm_output": True},
    ),
    Bad(
        "vllm-absorbed-names",
        "vllm==0.32.0",
        "w_kc",
        base="sglang/mla-absorbed",
        config={IDS: [2, 4, 5], "eagle_config": ABSENT, "rope_scaling": {"type": "yarn", "factor": 4.0}},
    ),
    Bad(
        "vllm-class-mismatch",
        "vllm==0.32.0",
        "Eagle3DeepseekV2ForCausalLM",
        {"architectures": ["Eagle3DeepseekV2ForCausalLM"]},
    ),
    Bad("vllm-later-hidden-norm", "vllm==0.32.0", config={"num_hidden_layers": 2}, tensors=SECOND),
    Bad(
        "vllm-verifier-tensors", "vllm==0.32.0", tensors={"verifier_norm.weight": floats("verifier", HIDDEN)}
    ),
    Bad("vllm-dimension-above", "vllm==0.32.0", "intermediate_size: 32", {"intermediate_size": 32}),
    Bad("vllm-dimension-below", "vllm==0.32.0", "intermediate_size: 16", {"intermediate_size": 16}),
    Bad(
        "vllm-ids-unsorted",
        "vllm==0.32.0",
        config={IDS: [5, 2, 4], "eagle_config": ABSENT},
        where=f"config.json:{IDS}",
    ),
    Bad("vllm-draft-vocab-mismatch", "vllm==0.32.0", "head of 20 rows", {"draft_vocab_size": 20}),
    Bad("vllm-hidden-act", "vllm==0.32.0", config={"hidden_act": "gelu"}),
    Bad(
        "vllm-tied-head",
        "vllm==0.32.0",
        config={"tie_word_embeddings": True, "draft_vocab_size": VOCAB},
        tensors={"lm_head.weight": None, "d2t": None},
    ),
    Bad("vllm-mlp-bias-overstated", "vllm==0.32.0", config={"mlp_bias": True}),
    Bad(
        "vllm-biases-partial", "vllm==0.32.0", config={"attention_bias": True}, tensors=biases("q", "k", "v")
    ),
    Bad("vllm-biases-without-place", "vllm==0.32.0", tensors={"fc.bias": floats("fc.bias", HIDDEN)}),
    Bad(
        "vllm-quantised-target",
        "vllm==0.11.0",
        config={IDS: ABSENT, "eagle_config": ABSENT},
        tensors=NO_EMBEDDING,
        target={"quantization_config": {"quant_method": "fp8"}},
    ),
    Bad(
        "vllm-head-absent",
        "vllm==0.11.0",
        config={"draft_vocab_size": VOCAB, IDS: ABSENT, "eagle_config": ABSENT},
        tensors={"lm_head.weight": None, "d2t": None, **NO_EMBEDDING},
    ),
    Bad(
        "vllm-embedding-replaced", "vllm==0.11.0", config={IDS: ABSENT, "eagle_config": ABSENT}, is_blind=True
    ),
    Bad("vllm-mla-rope-base", "vllm==0.18.1", base="vllm/mla", config=PLAIN),
    Bad(
        "vllm-positions",
        "vllm==0.26.0",
        "2048 positions",
        target={"max_position_embeddings": 131072},
        where="config.json:max_position_embeddings",
    ),
    Bad(
        "vllm-head-of-multimodal",
        "vllm==0.25.1",
        config={"draft_vocab_size": VOCAB},
        tensors={"lm_head.weight": None, "d2t": None},
        target={"architectures": ["Qwen3VLForConditionalGeneration"]},
    ),
    Bad(
        "vllm-target-lacks",
        "vllm==0.33.0",
        "has no EAGLE-3 for Step3p5ForCausalLM targets: stops at start",
        target=of("step3p5"),
    ),
    Bad(
        "vllm-target-lacks",
        "vllm==0.25.1",
        "has no EAGLE-3 for GraniteMoeHybridForCausalLM targets",
        target=of("granite", "GraniteMoeHybridForCausalLM"),
    ),
    Bad(
        "vllm-target-unknown",
        "vllm==0.33.0",
        "model_type foo_bar: was never looked at with such a target",
        target=of("foo_bar"),
        is_blind=True,
    ),
    Bad(
        "vllm-target-unknown",
        "vllm==0.33.0",
        "LlavaForConditionalGeneration with a language model of type foo_bar",
        target={**of("llava", "LlavaForConditionalGeneration"), "text_config": {"model_type": "foo_bar"}},
        is_blind=True,
    ),
    Bad("vllm-target-unlisted", "vllm==0.21.0", "of model_type granite", target=of("granite")),
    Bad(
        "vllm-aux-runner",
        "vllm==0.27.0",
        "one of its two runners",
        {IDS: ABSENT, "eagle_config": {IDS: [2, 4, 8]}},
        target=of("gemma4_text"),
        is_blind=True,
    ),
    Bad(
        "vllm-residual-unstated",
        "vllm==0.32.0",
        config={"norm_before_residual": ABSENT},
        answers={"norm_before_residual": "true"},
    ),
    Bad(
        "vllm-rope-base",
        "vllm==0.32.0",
        "base 500000.0, and 10000",
        answers={"rope": "10000"},
        where="config.json:rope_theta",
    ),
    Bad(
        "vllm-rope-parameters-unread",
        "vllm>=0.17,<0.19.1",
        "transformers 4",
        {
            "rope_theta": ABSENT,
            "rope_scaling": ABSENT,
            "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
        },
    ),
    Bad(
        "vllm-rope-parameters-by-chance",
        "vllm==0.23.0",
        config={
            "rope_theta": ABSENT,
            "rope_scaling": ABSENT,
            "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
        },
        is_blind=True,
    ),
    Bad(
        "vllm-norm-output-overstated",
        "vllm==0.32.0",
        config={"norm_output": True},
        answers={"norm_output": "false"},
    ),
    Bad(
        "vllm-speculators-peagle-fc-norm",
        "vllm==0.32.0",
        base="speculators/peagle-llama",
        config={"fc_norm": True},
        tensors=WIDE_NORM,
        answers={"norm_output": "false"},
    ),
    Bad(
        "vllm-speculators-model-type",
        "vllm==0.24.0",
        "mistral",
        base="speculators/plain",
        config={
            "transformer_layer_config": {
                **json.loads((PRODUCERS / "speculators/plain/config.json").read_text())[
                    "transformer_layer_config"
                ],
                "model_type": "mistral",
            }
        },
    ),
    Bad(
        "vllm-speculators-mla",
        "vllm==0.32.0",
        base="vllm/mla",
        config={
            **dict.fromkeys(LATENT_LAYER, ABSENT),
            "speculators_model_type": "eagle3",
            "transformer_layer_config": LATENT_LAYER,
            "draft_vocab_size": 96,
            "norm_before_residual": False,
            "eagle_config": ABSENT,
        },
    ),
    Bad("sglang-later-input-layernorm", "sglang", config={"num_hidden_layers": 2}, tensors=THEIRS),
    Bad(
        "sglang-mla-layers",
        "sglang",
        base="vllm/mla",
        config={"num_hidden_layers": 2},
        tensors={
            **LATENT,
            "layers.1.input_layernorm.weight": None,
            "layers.1.hidden_norm.weight": floats("norm", 32),
        },
    ),
    Bad(
        "sglang-mla-quantised",
        "sglang",
        base="vllm/mla",
        config={"quantization_config": {"quant_method": "fp8"}},
        tensors={
            "layers.0.self_attn.kv_b_proj.weight": ("F8_E4M3", (64, 512), bytes(64 * 512)),
            "layers.0.self_attn.kv_b_proj.weight_scale": floats("scale", 1, dtype="F32"),
        },
    ),
    Bad("sglang-speculators", "sglang", base="speculators/plain"),
    Bad(
        "sglang-architecture",
        "sglang",
        "Eagle3LlamaForCausalLM",
        {"architectures": ["Eagle3LlamaForCausalLM"]},
        where="config.json:architectures",
    ),
    Bad("sglang-qk-norms", "sglang", tensors=QUERY_NORMS),
    Bad("sglang-residual", "sglang", config={"norm_before_residual": True}),
    Bad("sglang-parallel", "sglang", config={"mask_token_id": 3}, tensors=MASK),
    Bad("sglang-draft-vocab-size", "sglang", config={"draft_vocab_size": ABSENT}),
    Bad(
        "sglang-tied-head",
        "sglang",
        config={"tie_word_embeddings": True},
        where="config.json:tie_word_embeddings",
    ),
    Bad("sglang-d2t-missing", "sglang", tensors={"d2t": None}),
    Bad("sglang-layers-overstated", "sglang", config={"num_hidden_layers": 3}),
    Bad(
        "sglang-mla-prefix",
        "sglang",
        base="vllm/mla",
        tensors={"norm.weight": None, "model.norm.weight": floats("norm", 32)},
    ),
    Bad(
        "sglang-wrapped-names",
        "sglang",
        "begins with module.",
        tensors={"norm.weight": None, "module.norm.weight": floats("norm", HIDDEN)},
    ),
    Bad(
        "sglang-norm-output",
        "sglang",
        "trained with true",
        {"fc_norm": True, "norm_output": ABSENT, **nested(norm_output=True)},
        FC_NORM,
    ),
    Bad(
        "sglang-fc-norm",
        "sglang",
        "reads fc_norm as false",
        {"fc_norm": ABSENT, **nested(fc_norm=True)},
        FC_NORM,
    ),
    Bad("sglang-norm-before-fc", "sglang", config={"norm_before_fc": ABSENT}, tensors=INPUT_NORM),
    Bad("sglang-sliding-window", "sglang", "window-size 512", SLIDING),
    Bad("sglang-partial-rotary", "sglang", config=HALF_ROTATED),
    Bad("sglang-aux-layers", "sglang", "other layers", {IDS: [1, 4, 6], "eagle_config": ABSENT}),
    Bad("sglang-aux-unknown", "sglang", config={"eagle_config": {IDS: [2, 4, 5]}}, is_blind=True),
    Bad(
        "sglang-mla-norm-before-fc",
        "sglang",
        base="vllm/mla",
        config={"norm_before_fc": True},
        tensors={"input_norm.weight": floats("norm", 96)},
    ),
    Bad("sglang-aux-count", "sglang", "for 2 aux states", {"num_aux_hidden_states": 2}),
    Bad(
        "sglang-norm-before-fc-absent",
        "sglang>=0.5.14,<=0.5.16",
        config={"norm_before_fc": True},
        tensors=INPUT_NORM,
    ),
    Bad(
        "sglang-target-unlisted",
        "sglang==0.5.15.post1",
        "has no EAGLE-3 for MiniMaxM3SparseForCausalLM targets: has no class for it",
        target=of("minimax_m3"),
    ),
    *(
        Bad(
            "sglang-target-unlisted",
            "sglang==0.5.23",
            f"no EAGLE-3 for {name} targets: stops",
            target=of(kind),
        )
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
    Bad(
        "sglang-target-state",
        "sglang==0.5.23",
        "of Gemma3ForCausalLM targets what each layer adds, without the residual",
        target=of("gemma3_text"),
    ),
    Bad(
        "sglang-target-unknown",
        "sglang==0.5.23",
        "model_type foo_bar: was never looked at with such a target",
        target=of("foo_bar"),
        is_blind=True,
    ),
    Bad("sglang-unknown-tensor", "sglang", tensors={"layers.0.extra.weight": floats("extra", HIDDEN)}),
    Bad("sglang-fc-bias", "sglang", tensors={"fc.bias": floats("fc.bias", HIDDEN)}),
    Bad(
        "sglang-mlp-bias",
        "sglang",
        config={"mlp_bias": True},
        tensors={
            "layers.0.mlp.down_proj.bias": floats("bias", HIDDEN),
            "layers.0.mlp.up_proj.bias": floats("up", MLP),
            "layers.0.mlp.gate_proj.bias": floats("gate", MLP),
        },
    ),
    Bad(
        "sglang-last-boundary",
        "sglang",
        "(boundary 8)",
        {IDS: [1, 4, 8], "eagle_config": {IDS: [0, 3, 7]}},
        target={},
    ),
    Bad("sglang-ids-empty", "sglang", "stops", {IDS: [2, 4, 5], "eagle_config": {IDS: []}}, target={}),
    Bad(
        "sglang-positions",
        "sglang",
        "--context-length 1024",
        {"max_position_embeddings": 1024},
        target={"max_position_embeddings": 2048},
    ),
    Bad("sglang-ids-unsorted", "sglang", "ascending", {IDS: [5, 2, 4], "eagle_config": {IDS: [4, 1, 3]}}),
    Bad(
        "sglang-tied-to-own",
        "sglang",
        "the target's embedding",
        {"draft_vocab_size": VOCAB, "tie_word_embeddings": True},
        {
            **{"lm_head.weight": None, "d2t": None, "t2d": None},
            "embed_tokens.weight": floats("embed_tokens", VOCAB, HIDDEN),
        },
    ),
    Bad(
        "sglang-embedding-replaced",
        "sglang",
        "the rotated target's embedding",
        record={"previous": {"target_rotation": {"embedding": "own"}}},
    ),
    Bad(
        "sglang-head-unfilled",
        "sglang",
        f"draft_vocab_size {VOCAB}",
        {"draft_vocab_size": VOCAB},
        {"lm_head.weight": None, "d2t": None, "t2d": None},
    ),
    Bad("sglang-head-replaced", "sglang", "is None", HEADED, HEADED_TENSORS),
    Bad("sglang-biases-unfilled", "sglang", "because bias says true", {"bias": True}),
    Bad("sglang-one-state", "sglang", config=ONE_STATE, tensors={"fc.weight": floats("fc", HIDDEN, HIDDEN)}),
    Bad("sglang-hidden-act", "sglang", "hidden_act gelu", {"hidden_act": "gelu"}),
    Bad("sglang-draft-vocab-mismatch", "sglang", "head of 32 rows", {"draft_vocab_size": 32}),
    Bad("sglang-null-target-hidden", "sglang", config={"target_hidden_size": None}),
    Bad("llama.cpp-mla", "llama.cpp", base="vllm/mla"),
    Bad("llama.cpp-qk-norms", "llama.cpp", tensors=QUERY_NORMS),
    Bad("llama.cpp-architecture", "llama.cpp", "FooForCausalLM", {"architectures": ["FooForCausalLM"]}),
    Bad("llama.cpp-draft-vocab-size", "llama.cpp", config={"draft_vocab_size": ABSENT}),
    Bad("llama.cpp-multi-layer", "llama.cpp", "2 layers", {"num_hidden_layers": 2}, THEIRS),
    Bad("llama.cpp-layers-misstated", "llama.cpp", "num_hidden_layers 3", {"num_hidden_layers": 3}),
    Bad(
        "llama.cpp-aux-count",
        "llama.cpp",
        "there are 4",
        {**FOUR_IDS, "num_aux_hidden_states": 4},
        FOUR,
    ),
    Bad("llama.cpp-fc-norm", "llama.cpp", config={"fc_norm": True}, tensors=FC_NORM),
    Bad("llama.cpp-norm-output", "llama.cpp", config={"norm_output": True}),
    Bad("llama.cpp-norm-before-fc", "llama.cpp", config=NESTED_NORM, tensors=INPUT_NORM),
    Bad(
        "llama.cpp-residual",
        "llama.cpp",
        "trained with true",
        {"norm_before_residual": ABSENT},
        base="speculators/plain",
    ),
    Bad(
        "llama.cpp-biases",
        "llama.cpp",
        "attention biases",
        {"attention_bias": True},
        biases("q", "k", "v"),
    ),
    Bad("llama.cpp-parallel", "llama.cpp", config={"mask_token_id": 3}, tensors=MASK),
    Bad("llama.cpp-sliding-window", "llama.cpp", config=SLIDING),
    Bad("llama.cpp-partial-rotary", "llama.cpp", config=HALF_ROTATED),
    Bad("llama.cpp-hidden-act", "llama.cpp", "hidden_act is gelu", {"hidden_act": "gelu"}),
    Bad(
        "llama.cpp-rope-type",
        "llama.cpp",
        "rope scaling dynamic",
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    ),
    Bad("llama.cpp-unknown-tensor", "llama.cpp", tensors={"layers.0.extra.weight": floats("extra", HIDDEN)}),
    Bad(
        "llama.cpp-prefix",
        "llama.cpp",
        "begin with model.",
        tensors={"fc.weight": None, "model.fc.weight": floats("fc", HIDDEN, 3 * HIDDEN)},
    ),
    Bad("llama.cpp-d2t-missing", "llama.cpp", tensors={"d2t": None}),
    Bad("llama.cpp-shapes", "llama.cpp", "intermediate_size 7", {"intermediate_size": 7}),
    Bad("llama.cpp-target-unlisted", "llama.cpp", "of Qwen2ForCausalLM targets: stops", target=of("qwen2")),
    Bad("llama.cpp-target-unknown", "llama.cpp", "model_type foo_bar", target=of("foo_bar"), is_blind=True),
    Bad(
        "llama.cpp-last-boundary",
        "llama.cpp",
        "(boundary 8)",
        {IDS: [1, 4, 8], "eagle_config": {IDS: [0, 3, 7]}},
        target={},
    ),
    Bad(
        "llama.cpp-aux-layers",
        "llama.cpp",
        "the default, boundaries [2, 4, 5]",
        {IDS: ABSENT, "eagle_config": {IDS: [3, 5, 8]}},
        target={},
    ),
    Bad(
        "llama.cpp-tied-head",
        "llama.cpp",
        config={"tie_word_embeddings": True, "draft_vocab_size": VOCAB},
        tensors={"lm_head.weight": None, "d2t": None},
    ),
    Bad(
        "llama.cpp-quantised",
        "llama.cpp",
        "was not run",
        {"quantization_config": {"quant_method": "fp8"}},
        {
            "layers.0.self_attn.o_proj.weight": (
                "F8_E4M3",
                (HIDDEN, HEADS * HEAD_DIM),
                bytes(HIDDEN * HEADS * HEAD_DIM),
            ),
            "layers.0.self_attn.o_proj.weight_scale": floats("scale", 1, dtype="F32"),
        },
        is_blind=True,
    ),
    Bad(
        "llama.cpp-aux-unknown",
        "llama.cpp",
        "pass --target",
        {"eagle_config": {**MODELOPT["eagle_config"], IDS: [1, 3, 4]}},
        base="modelopt/hf-ids",
        is_blind=True,
    ),
)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad.rule} {bad.engine}")
def test_a_fact_is_found_where_it_holds_and_no_other_is(bad: Bad, tmp_path: Path) -> None:
    report = judged(bad, tmp_path, select=["EGL10", "EGL11", "EGL12"])
    if bad.is_blind:
        assert [one.rule.name for one in report.unchecked] == [bad.rule], [
            one.reason for one in report.unchecked
        ]
        assert report.findings == () and report.verdict == "could-not-look"
        assert bad.says in report.unchecked[0].reason
        assert {one.outcome.check for one in report.releases} == {"could-not-look"}
        return
    assert [one.rule.name for one in report.findings] == [bad.rule], [
        one.match.message for one in report.findings
    ]
    (found,) = report.findings
    assert bad.says in found.match.message and found.severity == "error" and report.verdict == "fail"
    assert bad.where is None or found.match.where == bad.where
    assert {one.outcome.check for one in report.releases} == {"fail"} and report.releases[0].rules == (
        found.rule.id,
    )
    assert found.match.engines == tuple(f"{one.engine}=={one.release}" for one in report.releases)


# facts that a base of EAGLE-3.1 or of older releases brings along with others; their releases are told one by
# one below
TOGETHER = {
    "vllm-residual-absent",
    "vllm-quantised-absent",
    "vllm-speculators-norm-output",
    "vllm-speculators-fc-norm",
    "sglang-attention-bias",
    "sglang-ids-twice",
    "sglang-absorbed-names",
    "sglang-mla-aux-count",
}


# facts of no known release; test_new_release.py has the case
FICTIONAL = {"vllm-parallel-runner"}


def test_every_serving_rule_has_a_bad_case() -> None:
    named = {one.name for one in RULES}
    cases = {bad.rule for bad in BAD} | TOGETHER | FICTIONAL
    assert cases == named, named - cases


@pytest.mark.parametrize(
    ("rule", "engine", "base", "config", "tensors"),
    [
        (
            "vllm-residual-absent",
            "vllm==0.10.0",
            "",
            {"norm_before_residual": True, "architectures": ["Eagle3LlamaForCausalLM"]},
            {},
        ),
        ("vllm-quantised-absent", "vllm==0.11.0", "modelopt/hf-fp8", {}, {}),
        ("vllm-speculators-norm-output", "vllm==0.24.0", "speculators/eagle3.1", {}, {}),
        ("vllm-speculators-fc-norm", "vllm==0.24.0", "speculators/eagle3.1", {}, {}),
        ("sglang-attention-bias", "sglang", "vllm/bias", {}, {}),
        ("sglang-ids-twice", "sglang", "", {IDS: [2, 4, 4], **nested(**{IDS: [1, 3, 3]})}, {}),
        ("sglang-absorbed-names", "sglang", "sglang/mla-absorbed", {}, {}),
        (
            "sglang-mla-aux-count",
            "sglang",
            "vllm/mla",
            {"num_aux_hidden_states": 3, IDS: ABSENT, "eagle_config": {IDS: [1, 3]}},
            {},
        ),
    ],
)
def test_a_fact_that_comes_with_others_is_found_too(
    rule: str, engine: str, base: str, config: dict[str, Any], tensors: dict[str, Any], tmp_path: Path
) -> None:
    report = judged(
        Bad(rule, engine, config=config, tensors=tensors, base=base),
        tmp_path,
        select=["EGL10", "EGL11", "EGL12"],
    )
    assert rule in {one.rule.name for one in report.findings}, [one.match.message for one in report.findings]


def by_release(report: Report) -> dict[str, str]:
    """Each outcome with its releases in few words."""
    found: dict[str, list[str]] = {}
    for one in report.releases:
        found.setdefault(f"{one.outcome.check} {' '.join(one.rules)}".strip(), []).append(one.release)
    return {outcome: ranges(releases, ENGINES["vllm"].releases) for outcome, releases in found.items()}


@pytest.mark.parametrize(
    ("model_type", "fix"),
    [
        ("granite", "serve it with vLLM 0.32.0 - 0.33.0: "),
        ("gemma3_text", "serve it with SGLang 0.5.14 - 0.5.16: "),
        ("step3p5", "no release of vLLM, SGLang, llama.cpp is known to capture this target."),
    ],
)
def test_for_a_target_that_is_not_captured_the_releases_that_do_are_named(
    model_type: str, fix: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, "num_hidden_layers": 8}))
    options = eaglectl.ValidateOptions(target=str(tmp_path / "config.json"), engines=["vllm==0.31.0"])
    report = eaglectl.validate(str(drafter_folder(tmp_path, "drafter")), options)
    (found,) = [finding for finding in report.findings if finding.rule.id == "EGL1079"]
    assert found.fix.startswith(fix)


def test_each_release_of_a_range_is_judged_by_its_own_facts(tmp_path: Path) -> None:
    bad = Bad(
        "",
        "vllm>=0.21,<=0.33",
        base="vllm/mla",
        config={"fc_norm": True, "norm_output": True},
        tensors=WIDE_NORM,
    )
    report = judged(bad, tmp_path)
    assert by_release(report) == {
        "fail EGL1016 EGL1019": "0.21.0",
        "fail EGL1017": "0.22.0 - 0.22.1",
        "pass": "0.23.0 - 0.33.0",
    }
    assert report.releases[1].reasons == ("loads fc_norm and never applies it",)
    assert [one.match.engines for one in report.findings if one.rule.id == "EGL1017"] == [
        ("vllm==0.22.0", "vllm==0.22.1")
    ]
    assert "vLLM 0.22.0 - 0.22.1 loads fc_norm" in next(
        one.match.message for one in report.findings if one.rule.id == "EGL1017"
    )


@pytest.mark.parametrize(
    ("config", "tensors", "engine", "rules", "outcome"),
    [
        ({}, {"d2t": None}, "vllm==0.32.0", ["EGL310"], "fail EGL310"),
        ({}, {"layers.0.extra.weight": floats("extra", HIDDEN)}, "vllm==0.32.0", ["EGL202"], "fail EGL202"),
        ({"architectures": ["FooForCausalLM"]}, {}, "vllm==0.32.0", ["EGL101"], "fail EGL101"),
        ({"num_hidden_layers": 3}, {}, "vllm==0.32.0", ["EGL105"], "fail EGL105"),
        ({"num_aux_hidden_states": 2}, {}, "vllm==0.32.0", ["EGL401"], "fail EGL401"),
        ({IDS: [5, 2, 4], "eagle_config": ABSENT}, {}, "vllm==0.32.0", ["EGL1053"], "fail EGL1053"),
        ({"fc_norm": ABSENT, "norm_output": True}, FC_NORM, "vllm==0.32.0", ["EGL502"], "fail EGL502"),
        ({"tie_word_embeddings": True}, {}, "sglang", ["EGL1108"], "fail EGL1108"),
        ({}, {"norm.weight": None}, "vllm==0.32.0", ["EGL201"], "fail EGL201"),
        ({}, {"d2t": integers(*range(100, 124))}, "vllm==0.32.0", ["EGL302"], "fail EGL302"),
    ],
)
def test_one_defect_is_one_finding_and_fails_its_releases(
    config: dict[str, Any],
    tensors: dict[str, Any],
    engine: str,
    rules: list[str],
    outcome: str,
    tmp_path: Path,
) -> None:
    """Of two rules on one defect the more severe reports it, else the one that holds for every engine."""
    report = judged(Bad("", engine, config=config, tensors=tensors), tmp_path)
    assert [one.rule.id for one in report.findings if one.severity != "note"] == rules
    assert [f"{one.outcome.check} {' '.join(one.rules)}" for one in report.releases] == [outcome]
    assert report.verdict == "fail"


def test_without_an_engine_no_serving_rule_is_said_to_have_passed(tmp_path: Path) -> None:
    report = eaglectl.validate(str(drafter_folder(tmp_path)), eaglectl.ValidateOptions(has_engines=False))
    told = {*(one.id for one in report.passed), *(one.rule.id for one in report.unchecked)}
    assert not told & {one.id for one in RULES} and report.releases == () and report.verdict == "pass"


def test_only_the_engine_that_is_asked_for_is_judged(tmp_path: Path) -> None:
    report = eaglectl.validate(str(drafter_folder(tmp_path)), eaglectl.ValidateOptions(engines=["sglang"]))
    families = {one.family for one in report.passed}
    assert "serving: SGLang" in families and "serving: vLLM" not in families
    assert [(one.engine, one.release, one.outcome.check) for one in report.releases] == [
        ("sglang", "0.5.23", "pass")
    ]


def test_serving_rules_alone_without_an_engine_look_at_nothing_and_pass_nothing(tmp_path: Path) -> None:
    report = eaglectl.validate(
        str(drafter_folder(tmp_path)), eaglectl.ValidateOptions(select=["EGL1017"], has_engines=False)
    )
    assert report.verdict == "could-not-look"
    assert [one.reason for one in report.unchecked] == ["no release of vLLM is asked for; pass --engine vllm"]


def test_a_policy_that_requires_a_serving_rule_needs_an_engine(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    policy = Policy(required=frozenset({"EGL1017"}))
    options = eaglectl.ValidateOptions(policy=policy, has_engines=False)
    assert eaglectl.validate(str(folder), options).verdict == "could-not-look"
    assert (
        eaglectl.validate(str(folder), eaglectl.ValidateOptions(policy=policy, engines=["vllm"])).verdict
        == "pass"
    )


def test_a_suppressed_finding_lets_the_checkpoint_pass_and_not_the_release(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"fc_norm": True, "norm_output": True}, tensors=FC_NORM)
    policy = Policy(suppressions=(Suppression("vllm-fc-norm-absent", "old"), Suppression("EGL1019", "old")))
    report = eaglectl.validate(str(folder), eaglectl.ValidateOptions(engines=["vllm==0.21.0"], policy=policy))
    assert report.verdict == "pass" and [one.outcome.check for one in report.releases] == ["fail"]


def test_what_cannot_be_read_is_said_of_every_release(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "model.safetensors").write_bytes(b"x")
    report = eaglectl.validate(str(folder), eaglectl.ValidateOptions(engines=["vllm>=0.32,<=0.33", "sglang"]))
    assert [one.outcome.check for one in report.releases] == [
        "could-not-look"
    ] * 3 and report.smallest_changes == ()
    assert report.verdict == "fail"


@pytest.mark.parametrize(
    ("bad", "way"),
    [
        (
            Bad(
                "",
                "vllm>=0.22",
                config={"num_aux_hidden_states": ABSENT, IDS: [1, 3, 4, 5], "eagle_config": ABSENT},
                tensors=FOUR,
            ),
            "vLLM: write num_aux_hidden_states: 4 into config.json",
        ),
        (
            Bad(
                "",
                "vllm>=0.22",
                config={"fc_norm": ABSENT, "norm_output": ABSENT, **nested(fc_norm=True, norm_output=True)},
                tensors=FC_NORM,
            ),
            "vLLM: write fc_norm: true, norm_output: true into config.json",
        ),
        (
            Bad("", "vllm>=0.10.1", config={IDS: ABSENT, "eagle_config": ABSENT}, tensors=NO_EMBEDDING),
            'vLLM: write architectures: ["Eagle3LlamaForCausalLM"] into config.json',
        ),
        (
            Bad(
                "",
                "vllm==0.18.0",
                config={
                    "rope_theta": ABSENT,
                    "rope_scaling": ABSENT,
                    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
                },
            ),
            "vLLM: write rope_theta: 1000000.0, rope_scaling: null into config.json",
        ),
        (Bad("", "vllm==0.32.0", tensors=PREFIXED), "vLLM: `eaglectl convert {path} --for vllm`"),
        (
            Bad(
                "",
                "vllm>=0.21",
                base="vllm/mla",
                config={"fc_norm": True, "norm_output": True},
                tensors=WIDE_NORM,
            ),
            "vLLM: ask for vllm>=0.23.0, since nothing written makes earlier ones serve it (0.21.0 - 0.22.1"
            " feeds the state before the norm back (norm_output is ignored), loads fc_norm and never applies"
            " it)",
        ),
        (Bad("", "vllm>=0.24", base="speculators/four-aux"), "vLLM: `eaglectl convert {path} --for vllm`"),
        (
            Bad(
                "",
                "vllm==0.33.0",
                base="vllm/mla",
                config={"norm_before_fc": True},
                tensors={"input_norm.weight": floats("norm", 96)},
            ),
            "vLLM: no known release serves it whatever is written"
            " (0.33.0 has no norm_before_fc for MLA drafters)",
        ),
        (Bad("", "vllm", tensors=MASK), "vLLM: write pard_token and mask_token_id as it was trained"),
        (
            Bad("", "vllm==0.27.1", config={"mask_token_id": 3}, tensors=MASK),
            "vLLM: write pard_token: 3 into config.json",
        ),
        (
            Bad("", "sglang", config={"norm_before_residual": True}),
            "SGLang: no known release serves it whatever is written"
            " (0.5.23 does not know norm_before_residual)",
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
            " --source-semantics modelopt=pre-689` (which vLLM then does not serve as trained)",
        ),
    ],
)
def test_of_two_engines_the_change_keeps_the_other_or_says_that_it_does_not(base: str, way: str) -> None:
    path, target = str(FIXTURES / "producers" / base), str(FIXTURES / "target")
    answers = true_answers(path)
    options = eaglectl.ValidateOptions(target, ["vllm", "sglang"], headers_only=True, answers=answers)
    assert eaglectl.validate(path, options).smallest_changes == (way.format(path=path, target=target),)


def test_what_is_to_be_written_makes_all_releases_pass(tmp_path: Path) -> None:
    bad = Bad(
        "",
        "vllm>=0.22",
        config={"fc_norm": ABSENT, "norm_output": ABSENT, **nested(fc_norm=True, norm_output=True)},
        tensors=FC_NORM,
    )
    assert judged(bad, tmp_path).verdict == "fail"
    config = json.loads((tmp_path / "drafter/config.json").read_text())
    (tmp_path / "drafter/config.json").write_text(
        json.dumps({**config, "fc_norm": True, "norm_output": True})
    )
    report = eaglectl.validate(str(tmp_path / "drafter"), eaglectl.ValidateOptions(engines=["vllm>=0.22"]))
    assert report.verdict == "pass" and {one.outcome.check for one in report.releases} == {"pass"}


@pytest.mark.parametrize("layout", ["vllm", "sglang"])
@pytest.mark.parametrize("case", [case for case in CASES if not case.is_pickled], ids=lambda case: case.path)
def test_what_convert_writes_for_an_engine_passes_in_it(case: Case, layout: str, tmp_path: Path) -> None:
    try:
        eaglectl.convert(
            str(case.folder),
            tmp_path / "out",
            ConvertOptions(layout=layout, target_name="org/t", answers=case.answered()),
        )
    except EaglectlError:
        assert layout == "sglang", "vLLM has a place for everything"
        return
    report = eaglectl.validate(str(tmp_path / "out"), eaglectl.ValidateOptions(engines=[layout]))
    found = [one.rule.id for one in report.findings if one.severity != "note"]
    if case.path == "angelslim/gqa" and layout == "sglang":
        assert found == ["EGL1141"]  # its target is a HunYuan-VL, which SGLang cannot capture
        return
    assert found == []
    assert [one.outcome.check for one in report.releases] == ["pass"]
    assert report.smallest_changes == ()


def prefixed(prefix: str, base: str = "") -> Bad:
    """A drafter whose names all begin with a wrapper's prefix."""
    stored = stored_tensors(PRODUCERS / base) if base else drafter_tensors()
    renamed: dict[str, Stored | None] = dict.fromkeys(stored)
    return Bad(
        "", "", tensors=renamed | {f"{prefix}{name}": data for name, data in stored.items()}, base=base
    )


@pytest.mark.parametrize("base", ["", "vllm/mla"])
@pytest.mark.parametrize("prefix", [*WRAPPERS, "module.model."])
def test_names_are_judged_with_the_prefix_that_they_are_stored_with(
    prefix: str, base: str, tmp_path: Path
) -> None:
    folder = build(prefixed(prefix, base), tmp_path)
    engines = ["vllm==0.22.0", "vllm==0.24.0", "vllm==0.33.0", "sglang"]
    found = {one.engine: one for one in eaglectl.inspect(str(folder), engines=engines).requested}
    outcomes = [one.outcome for one in eaglectl.inspect(str(folder), engines=engines).requested]
    # SGLang's Llama class removes model., but not from lm_head
    skipped = "model.lm_head." if prefix == "model." and not base else prefix
    assert outcomes == ["fails"] * 3 + ["differs"], found
    assert f"begins with {skipped}" in " ".join(found["sglang"].reasons)
    assert f"begin with {prefix}" in " ".join(found["vllm"].reasons)


def test_parallel_drafters_are_judged_by_the_runner_that_drafts_in_parallel(tmp_path: Path) -> None:
    config = {"mask_token_id": 3, IDS: ABSENT, "eagle_config": {IDS: [2, 4, 7]}}
    folder = drafter_folder(tmp_path, config=config, tensors=MASK)
    answers = Answers(aux_layers=(2, 4, 7))
    (verdict,) = eaglectl.inspect(str(folder), engines=["vllm==0.33.0"], answers=answers).requested
    assert verdict.outcome == "as trained", verdict  # V1 reads these ids, V2 does not
    plain = drafter_folder(tmp_path / "plain", config=config)
    (verdict,) = eaglectl.inspect(str(plain), engines=["vllm==0.33.0"], answers=answers).requested
    assert verdict.outcome == "differs", verdict


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        ({"mask_token_id": 3}, "0.28.0"),
        ({"ptd_token_id": 3}, "0.16.0"),
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


def test_sglang_removes_model_from_names_but_the_heads(tmp_path: Path) -> None:
    folder = build(Bad("", "", tensors=PREFIXED), tmp_path)
    (verdict,) = eaglectl.inspect(str(folder), engines=["sglang"]).requested
    assert "lm_head.weight" in PREFIXED and verdict.outcome == "as trained"


def test_every_rule_of_an_engine_is_documented_from_its_data() -> None:
    for one in RULES:
        assert one.summary.endswith(".") and one.why.endswith(".") and one.fix.endswith("."), one.id
        assert "{" not in one.summary + one.why + one.fix, one.id
    assert len({one.name for one in rules()}) == len({one.id for one in rules()}) == len(rules())
    assert {said for one in RULES for said in one.reported_by} <= {one.id for one in rules()}


def test_numbers_of_facts_are_in_their_engines_family_and_stay() -> None:
    first = {one.name: one.id for one in RULES}
    assert first["vllm-no-class-mla"] == "EGL1001" and first["vllm-fc-norm-not-applied"] == "EGL1017"
    assert first["vllm-aux-layers"] == "EGL1036" and first["sglang-aux-layers"] == "EGL1117"
    for one in RULES:
        assert one.family == FAMILIES[one.name.split("-")[0]]


def test_the_command_line_tells_each_release_and_the_way_out(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, tensors={"layers.0.extra.weight": floats("extra", HIDDEN)})
    done = call("validate", folder, "--engine", "vllm>=0.32,<=0.33", "--json")
    assert done.code == 1
    assert [(one["release"], one["verdict"]) for one in done.document["releases"]] == [
        ("0.32.0", "fail"),
        ("0.33.0", "fail"),
    ]
