"""Write config-<producer>.schema.json: one table of keys, and what each producer makes of them.

The schemas say what a key means and of which kind its value is, for editors and for `eaglectl validate`. They do not say
which keys belong together, which is what rules are for; keys that they do not know are let pass.
"""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DRAFT = "https://json-schema.org/draft/2020-12/schema"

SIZE = {"type": "integer", "minimum": 1}
COUNT = {"type": "integer", "minimum": 0}
POSITIVE = {"type": "number", "exclusiveMinimum": 0}
SHARE = {"type": "number", "minimum": 0, "maximum": 1}
FLAG = {"type": "boolean"}
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1}
IDS = {"type": "array", "items": COUNT}
TOKENS = {"type": ["integer", "array"], "minimum": 0, "items": COUNT}
OBJECT = {"type": "object"}


def maybe(kind: dict[str, Any]) -> dict[str, Any]:
    """A kind, or null, which readers take as absent."""
    given = kind["type"] if isinstance(kind["type"], list) else [kind["type"]]
    return {**kind, "type": [*given, "null"]}


OUTPUTS = "Target layers whose outputs are the drafter's input, counted from 0 (j: the output of layer j, which vLLM calls j + 1)."
BOUNDARIES = "Target layers before which the residual stream is taken, 0 to the target's depth (2: after the first two layers), ascending."
SGLANG_IDS = (
    "Target layers as SGLang reads them: it adds one to each, for DeepSeek and Kimi targets only when the first is 1."
)

# key: kind, meaning. Sizes count elements, positions and vocabularies tokens.
KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "architectures":            (TEXTS, "The drafter's class; engines take the first."),
    "model_type":               (TEXT, "Family of the decoder layer, as transformers names it."),
    "hidden_size":              (SIZE, "Width of the drafter's hidden state, in channels."),
    "intermediate_size":        (SIZE, "Width of the MLP, in channels."),
    "num_hidden_layers":        (SIZE, "Decoder layers of the drafter, usually 1."),
    "num_attention_heads":      (SIZE, "Query heads."),
    "num_key_value_heads":      (SIZE, "Key and value heads; as many as query heads where absent."),
    "head_dim":                 (SIZE, "Width of one head, in channels; hidden_size / num_attention_heads where absent."),
    "vocab_size":               (SIZE, "Tokens of the target's vocabulary."),
    "draft_vocab_size":         (maybe(SIZE), "Tokens that the drafter can propose: rows of lm_head; the whole vocabulary where null."),
    "target_hidden_size":       (maybe(SIZE), "Width of the target's hidden states, in channels; hidden_size where absent."),
    "max_position_embeddings":  (SIZE, "Longest context that the rotary table covers, in tokens."),
    "rms_norm_eps":             (POSITIVE, "What RMSNorm adds to the mean square."),
    "hidden_act":               (TEXT, "Activation of the MLP; engines have silu alone."),
    "attention_bias":           (FLAG, "Whether the attention projections have biases."),
    "mlp_bias":                 (FLAG, "Whether the MLP projections have biases."),
    "attention_dropout":        (SHARE, "Share of attention weights dropped in training; engines ignore it."),
    "initializer_range":        ({"type": "number", "minimum": 0}, "Standard deviation of weights before training; engines ignore it."),
    "pretraining_tp":           (COUNT, "Left from older transformers; engines ignore it."),
    "rope_theta":               (maybe(POSITIVE), "Base of the rotary frequencies; 10000 where absent, never the target's."),
    "rope_scaling":             (maybe(OBJECT), "How rotary frequencies are stretched (rope_type, factor, ...); not at all where null."),
    "rope_parameters":          (maybe(OBJECT), "transformers 5: rope_theta and the scaling in one object."),
    "tie_word_embeddings":      (FLAG, "Whether lm_head is the embedding; a drafter has its own."),
    "torch_dtype":              (maybe(TEXT), "Type of the weights: bfloat16, float16, float32."),
    "dtype":                    (maybe(TEXT), "transformers 5: torch_dtype."),
    "bos_token_id":             (maybe(TOKENS), "Token at the beginning of a text."),
    "eos_token_id":             (maybe(TOKENS), "Token, or tokens, that end a text."),
    "pad_token_id":             (maybe(TOKENS), "Token that fills a batch."),
    "sliding_window":           (maybe(COUNT), "Tokens that attention looks back, where a layer slides; the whole context where null."),
    "use_sliding_window":       (FLAG, "Whether attention slides."),
    "max_window_layers":        (COUNT, "Layers from this one on slide."),
    "layer_types":              ({"type": "array", "items": TEXT}, "Attention of each layer of the drafter: full_attention or sliding_attention."),
    "use_cache":                (FLAG, "Whether transformers keeps keys and values; engines ignore it."),
    "transformers_version":     (maybe(TEXT), "Version of transformers that wrote the file."),
    "quantization_config":      (maybe(OBJECT), "How the weights are quantised; only beside quantised weights."),
    "q_lora_rank":              (maybe(SIZE), "MLA: rank of the compressed query; engines need one."),
    "kv_lora_rank":             (SIZE, "MLA: rank of the compressed keys and values; with qk_rope_head_dim 320, 512 or 576 in vLLM."),
    "qk_nope_head_dim":         (SIZE, "MLA: width of a head's part without rotary positions, in channels."),
    "qk_rope_head_dim":         (SIZE, "MLA: width of a head's part with rotary positions, in channels."),
    "v_head_dim":               (SIZE, "MLA: width of a value head, in channels."),
    "rope_interleave":          (FLAG, "MLA: whether rotary pairs are neighbours."),
    "fc_norm":                  (FLAG, "EAGLE-3.1: each aux state has a norm of its own before fc."),
    "norm_output":              (FLAG, "EAGLE-3.1: the state fed back to the drafter is the one after the last norm."),
    "norm_before_fc":           (FLAG, "One norm over all aux states before fc."),
    "norm_before_residual":     (FLAG, "The residual is the hidden state after its norm."),
    "num_aux_hidden_states":    (SIZE, "Hidden states of the target that fc takes; 3 where absent."),
    "eagle_aux_hidden_state_layer_ids": (IDS, BOUNDARIES),
    "eagle_config":             (OBJECT, "What engines and trainers keep for EAGLE alone."),
    "use_aux_norm":             (FLAG, "SGLang's older name of fc_norm."),
    "mask_token_id":            (maybe(COUNT), "P-EAGLE: the token that stands for those not yet known."),
    "target_model_type":        (maybe(TEXT), "model_type of the target."),
}  # fmt: skip
# keys of eagle_config; its layer ids are each producer's own
EAGLE_CONFIG: dict[str, tuple[dict[str, Any], str]] = {
    "use_aux_hidden_state":               (FLAG, "Whether the drafter takes hidden states of several target layers; engines have no EAGLE-3 without."),
    "norm_before_fc":                     (FLAG, "One norm over all aux states before fc; TensorRT-LLM reads it here alone."),
    "use_input_layernorm_in_first_layer": (FLAG, "Trainer's switch: the embedding is normed."),
    "use_last_layernorm":                 (FLAG, "Trainer's switch: there is a norm before lm_head."),
    "use_mtp_layernorm":                  (FLAG, "Trainer's switch of another drafter family."),
    "next_layer_regular":                 (FLAG, "Trainer's switch: layers after the first take one hidden state."),
    "parallel_draft_step":                (SIZE, "Trainer's switch: tokens proposed at once."),
    "parallel_draft_heads_num_layers":    (COUNT, "Trainer's switch: layers of each parallel head."),
}  # fmt: skip

MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rope_interleave")
SWITCHES = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "num_aux_hidden_states")
ELSEWHERE = (
    *MLA,
    *SWITCHES,
    "eagle_aux_hidden_state_layer_ids",
    "eagle_config",
    "use_aux_norm",
    "mask_token_id",
    "target_model_type",
)
DECODER = tuple(key for key in KEYS if key not in ELSEWHERE)
SHAPE = ("architectures", "model_type", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
NESTED = (
    "draft_vocab_size",
    "target_hidden_size",
    "architectures",
    "torch_dtype",
    "quantization_config",
    "rope_interleave",
)


def key(name: str, **changes: Any) -> dict[str, Any]:
    """The schema of one key."""
    kind, meaning = KEYS[name]
    return {**kind, "description": meaning, **changes}


def keys(*names: str) -> dict[str, Any]:
    """The schemas of several keys."""
    return {name: key(name) for name in names}


def eagle_config(ids: str, *names: str) -> dict[str, Any]:
    """eagle_config with layer ids that mean `ids`."""
    inner = {name: {**EAGLE_CONFIG[name][0], "description": EAGLE_CONFIG[name][1]} for name in names}
    listed = {"eagle_aux_hidden_state_layer_ids": {**IDS, "description": ids}}
    return {"eagle_config": {**OBJECT, "description": KEYS["eagle_config"][1], "properties": {**listed, **inner}}}


TRAINERS = ("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm")
MODELOPT = (*TRAINERS, "next_layer_regular", "parallel_draft_step", "parallel_draft_heads_num_layers", "norm_before_fc")
VERSION = {"_torchspec_version": {**TEXT, "description": "Version of TorchSpec that wrote the file."}}
NEMO_DEPTH = "NeMo copies the target's depth; the drafter has as many layers as its weights."
PROPOSAL = {**OBJECT, "properties": {
    "proposal_type": {**TEXT, "description": "How tokens are chosen: greedy."},
    "speculative_tokens": {**SIZE, "description": "Tokens proposed in one step."},
    "accept_tolerance": {"type": "number", "minimum": 0, "description": "How much less likely than the best a token may be."},
    "verifier_accept_k": {**SIZE, "description": "The verifier accepts its k likeliest tokens."},
}}  # fmt: skip
VERIFIER = {**OBJECT, "description": "The target.", "properties": {
    "name_or_path": {"type": ["string", "null"], "description": "The target's name on the Hub; a path of one machine serves nobody else."},
    "architectures": {"type": "array", "items": TEXT, "description": "The target's class."},
}}  # fmt: skip
SPECULATORS: dict[str, Any] = {
    "speculators_model_type": {"enum": ["eagle3", "peagle"], "description": "What kind of speculator this is."},
    "speculators_version": {**TEXT, "description": "Version of speculators that wrote the file."},
    "speculators_config": {**OBJECT, "description": "How the speculator is meant to be used, and with which target.", "properties": {
        "algorithm": {"enum": ["eagle3", "peagle"], "description": "The same as speculators_model_type."},
        "default_proposal_method": {**TEXT, "description": "Which of proposal_methods is used."},
        "proposal_methods": {"type": "array", "items": PROPOSAL, "minItems": 1, "description": "Ways to propose tokens."},
        "verifier": VERIFIER,
    }},
    "transformer_layer_config": {
        **OBJECT, "description": "The decoder layer's own config; what is absent has its class's value.",
        "properties": keys(*(name for name in DECODER if name not in NESTED), "num_aux_hidden_states"),
        "required": ["model_type"],
    },
    "embed_requires_grad": {**FLAG, "description": "Trainer's switch: the embedding is trained."},
    "norm_before_residual": key("norm_before_residual", description="The residual is the hidden state after its norm; true where absent (P-EAGLE: false)."),
}  # fmt: skip

FLAT = keys(*DECODER)
# producer: title, keys, required keys
PRODUCERS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "eagle":    ("SafeAILab EAGLE", FLAT, SHAPE),
    "nebius":   ("nebius", {**FLAT, "truncated_vocab_size": {**SIZE, "description": "nebius' name of draft_vocab_size, beside it."}}, (*SHAPE, "truncated_vocab_size")),
    "specforge": ("SpecForge", {
        **FLAT, **keys("fc_norm", "target_model_type", "mask_token_id", "norm_before_residual"), **eagle_config(OUTPUTS, "use_aux_hidden_state"),
        "norm_output": key("norm_output", description="EAGLE-3.1's switch since pull request 879 (September 2026); before it, true trained EAGLE-3 and false a head without a last norm."),
    }, SHAPE),
    "torchspec": ("TorchSpec", {**FLAT, **keys(*MLA, "fc_norm", "norm_output"), **VERSION, **eagle_config(OUTPUTS, *TRAINERS)}, SHAPE),
    "torchspec-vllm": ("TorchSpec (--vllm)", {**FLAT, **keys(*MLA, "fc_norm", "norm_output"), **VERSION, **eagle_config(BOUNDARIES, *TRAINERS)}, SHAPE),
    "lightseekorg": ("lightseekorg (TorchSpec, Kimi MLA)", {**FLAT, **keys(*MLA, "fc_norm", "norm_output"), **eagle_config(BOUNDARIES, *TRAINERS)}, (*SHAPE, "eagle_config")),
    "speculators": ("speculators", {
        **keys("architectures", "dtype", "torch_dtype", "draft_vocab_size", "target_hidden_size", "tie_word_embeddings", "fc_norm", "norm_output", "norm_before_fc",
               "eagle_aux_hidden_state_layer_ids", "mask_token_id", "transformers_version", "quantization_config"),
        **SPECULATORS,
    }, ("architectures", "speculators_model_type", "speculators_config", "transformer_layer_config")),
    "modelopt": ("NVIDIA ModelOpt", {**FLAT, **keys(*MLA), **eagle_config(OUTPUTS, *MODELOPT)}, (*SHAPE, "eagle_config")),
    "modelopt-megatron": ("NVIDIA ModelOpt (Megatron)", {**FLAT, **eagle_config(OUTPUTS, *MODELOPT)}, SHAPE),
    "angelslim": ("AngelSlim", {
        **FLAT, **keys("target_model_type"), "modal_type": {**TEXT, "description": "What the target takes in."},
    }, SHAPE),
    "automodel": ("NeMo Automodel", {
        **FLAT, **keys(*MLA, "fc_norm", "norm_output", "mask_token_id"), "num_hidden_layers": key("num_hidden_layers", description=NEMO_DEPTH),
        "parallel_drafting": {**FLAG, "description": "P-EAGLE: several tokens are proposed at once, which needs mask_hidden."},
        "num_depths": {**SIZE, "description": "P-EAGLE, training: depths that are predicted in parallel."},
        "down_sample_ratio": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "description": "P-EAGLE, training: share of positions kept from one depth to the next."},
    }, SHAPE),
    "vllm-native": ("vLLM's own layout", {**FLAT, **keys(*MLA, *SWITCHES, "eagle_aux_hidden_state_layer_ids", "mask_token_id", "target_model_type"), **eagle_config(SGLANG_IDS, "use_aux_hidden_state", "norm_before_fc")}, (*SHAPE, *SWITCHES)),
    "sglang-native": ("SGLang's own layout", {
        **FLAT, **keys(*MLA, *SWITCHES, "use_aux_norm", "eagle_aux_hidden_state_layer_ids", "target_model_type"), **eagle_config(SGLANG_IDS, "use_aux_hidden_state", "norm_before_fc"),
        "norm_before_residual": key("norm_before_residual", description="Ignored by SGLang: only false is served as it was trained."),
    }, (*SHAPE, "draft_vocab_size")),
}  # fmt: skip


def schema(producer: str) -> dict[str, Any]:
    """The schema of one producer's config.json."""
    title, properties, required = PRODUCERS[producer]
    about = (
        f"config.json of an EAGLE-3 or EAGLE-3.1 drafter as {title} writes it. Keys that are not listed are let pass."
    )
    head = {
        "$schema": DRAFT,
        "$id": f"urn:eaglectl:config:{producer}",
        "title": f"{title}: config.json",
        "description": about,
    }
    return {**head, "type": "object", "properties": properties, "required": list(dict.fromkeys(required))}


def path(producer: str) -> Path:
    """Where a producer's schema lies."""
    return HERE / f"config-{producer}.schema.json"


def text(producer: str) -> str:
    """A schema file's text."""
    return json.dumps(schema(producer), indent=2) + "\n"


if __name__ == "__main__":
    for one in PRODUCERS:
        path(one).write_text(text(one))
