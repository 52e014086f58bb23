"""The common keys of configs: of which kind each is and what it means, for schemas, rules and producers.

A schema states what a key means and of which kind its value is, for editors and for `eaglectl validate`.
Which keys belong together is for rules to judge; keys that a schema does not know are allowed. Numbers are
held to their kinds when a config is read and when one is written.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from eaglectl.drafter.drafter import Note
from eaglectl.errors import RefusedError
from eaglectl.formats.config_keys import PARTIAL
from eaglectl.formats.format import IdMeaning

# engines count in 32 bits and compute in float32
MAX_COUNT, MAX_NUMBER = (1 << 31) - 1, 3.4028234663852886e38
SIZE = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT}
COUNT = {"type": "integer", "minimum": 0, "maximum": MAX_COUNT}
POSITIVE = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_NUMBER}
NATURAL = {"type": "number", "minimum": 0, "maximum": MAX_NUMBER}
SHARE = {"type": "number", "minimum": 0, "maximum": 1}
FLAG = {"type": "boolean"}
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1}
IDS = {"type": "array", "items": COUNT}
TOKENS = {"type": ["integer", "array"], "minimum": 0, "maximum": MAX_COUNT, "items": COUNT}
PADDING = {"type": "integer", "minimum": -1, "maximum": MAX_COUNT}  # -1: none
PART = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
OBJECT = {"type": "object"}


# numbers of a rope's scaling, whatever its rope_type
ROPE: dict[str, dict[str, Any]] = {
    "rope_theta": POSITIVE,
    "factor": POSITIVE,
    "original_max_position_embeddings": {**POSITIVE, "maximum": MAX_COUNT},
    "low_freq_factor": POSITIVE,
    "high_freq_factor": POSITIVE,
    "beta_fast": POSITIVE,
    "beta_slow": POSITIVE,
    "attention_factor": POSITIVE,
    "alpha": POSITIVE,
    "mscale": NATURAL,
    "mscale_all_dim": NATURAL,
    "short_factor": {"type": "array", "items": POSITIVE},
    "long_factor": {"type": "array", "items": POSITIVE},
    "partial_rotary_factor": PART,
}


def maybe(kind: dict[str, Any]) -> dict[str, Any]:
    """A kind, or null, which readers take as absent."""
    given = kind["type"] if isinstance(kind["type"], list) else [kind["type"]]
    return {**kind, "type": [*given, "null"]}


IDS_MEANING: Mapping[IdMeaning, str] = {
    "output": "Target layers whose outputs are the drafter's input, counted from 0 (j: the output of layer"
    " j, which vLLM calls j + 1).",
    "boundary": "Target layers before which the residual stream is taken, 0 to the target's depth (2: after"
    " the first two layers), ascending.",
    "sglang": "Target layers as SGLang reads them: it adds one to each, for DeepSeek and Kimi targets only"
    " when the first is 1.",
}

# key: kind, meaning. Sizes count elements; positions and vocabularies count tokens
KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "architectures": (TEXTS, "The drafter's class; engines take the first."),
    "model_type": (TEXT, "Class of the decoder layer, as transformers names it."),
    "hidden_size": (SIZE, "Width of the drafter's hidden state, in channels."),
    "intermediate_size": (SIZE, "Width of the MLP, in channels."),
    "num_hidden_layers": (SIZE, "Decoder layers of the drafter, usually 1."),
    "num_attention_heads": (SIZE, "Query heads."),
    "num_key_value_heads": (SIZE, "Key and value heads; as many as query heads where absent."),
    "head_dim": (SIZE, "Width of one head, in channels; hidden_size / num_attention_heads where absent."),
    "vocab_size": (SIZE, "Tokens of the target's vocabulary."),
    "draft_vocab_size": (
        maybe(SIZE),
        "Tokens that the drafter can propose: rows of lm_head; the whole vocabulary where null.",
    ),
    "target_hidden_size": (
        maybe(SIZE),
        "Width of the target's hidden states, in channels; hidden_size where absent.",
    ),
    "max_position_embeddings": (SIZE, "Longest context that the rotary table covers, in tokens."),
    "rms_norm_eps": (POSITIVE, "What RMSNorm adds to the mean square."),
    "hidden_act": (TEXT, "Activation of the MLP; engines have silu alone."),
    "attention_bias": (FLAG, "Whether the attention projections have biases."),
    "mlp_bias": (FLAG, "Whether the MLP projections have biases."),
    "attention_dropout": (SHARE, "Share of attention weights dropped in training; engines ignore it."),
    "initializer_range": (
        {"type": "number", "minimum": 0},
        "Standard deviation of weights before training; engines ignore it.",
    ),
    "pretraining_tp": (COUNT, "Left from older transformers; engines ignore it."),
    "rope_theta": (
        maybe(POSITIVE),
        "Base of the rotary frequencies; 10000 where absent, never the target's.",
    ),
    "rope_scaling": (
        maybe(OBJECT),
        "How rotary frequencies are stretched (rope_type, factor, ...); not at all where null.",
    ),
    "rope_parameters": (maybe(OBJECT), "transformers 5: rope_theta and the scaling in one object."),
    "tie_word_embeddings": (FLAG, "Whether lm_head is the embedding; a drafter has its own."),
    "torch_dtype": (maybe(TEXT), "Type of the weights: bfloat16, float16, float32."),
    "dtype": (maybe(TEXT), "transformers 5: torch_dtype."),
    "bos_token_id": (maybe(TOKENS), "Token at the beginning of a text."),
    "eos_token_id": (maybe(TOKENS), "Token, or tokens, that end a text."),
    "pad_token_id": (maybe(PADDING), "Token that fills a batch."),
    "sliding_window": (
        maybe(COUNT),
        "Tokens that attention looks back, where a layer slides; the whole context where null.",
    ),
    "use_sliding_window": (FLAG, "Whether attention slides."),
    "max_window_layers": (COUNT, "Layers from this one on slide."),
    "layer_types": (
        {"type": "array", "items": TEXT},
        "Attention of each layer of the drafter: full_attention or sliding_attention.",
    ),
    "use_cache": (FLAG, "Whether transformers keeps keys and values; engines ignore it."),
    "transformers_version": (maybe(TEXT), "Version of transformers that wrote the file."),
    "quantization_config": (maybe(OBJECT), "How the weights are quantised; only beside quantised weights."),
    "q_lora_rank": (maybe(SIZE), "MLA: rank of the compressed query; engines need one."),
    "kv_lora_rank": (
        SIZE,
        "MLA: rank of the compressed keys and values; with qk_rope_head_dim 320, 512 or 576 in vLLM.",
    ),
    "qk_nope_head_dim": (SIZE, "MLA: width of a head's part without rotary positions, in channels."),
    "qk_rope_head_dim": (SIZE, "MLA: width of a head's part with rotary positions, in channels."),
    "v_head_dim": (SIZE, "MLA: width of a value head, in channels."),
    "rope_interleave": (FLAG, "MLA: whether rotary pairs are neighbours."),
    "fc_norm": (FLAG, "EAGLE-3.1: each aux state has a norm of its own before fc."),
    "norm_output": (FLAG, "EAGLE-3.1: the state fed back to the drafter is the one after the last norm."),
    "norm_before_fc": (FLAG, "One norm over all aux states before fc."),
    "norm_before_residual": (FLAG, "The residual is the hidden state after its norm."),
    "num_aux_hidden_states": (SIZE, "Hidden states of the target that fc takes; 3 where absent."),
    "eagle_config": (OBJECT, "What engines and trainers keep for EAGLE alone."),
    "use_aux_norm": (FLAG, "SGLang's older name of fc_norm."),
    "mask_token_id": (maybe(COUNT), "P-EAGLE: the token that stands for those not yet known."),
    "target_model_type": (maybe(TEXT), "model_type of the target."),
}
# keys of eagle_config; layer ids are declared by each producer (Format.ids)
EAGLE_CONFIG: dict[str, tuple[dict[str, Any], str]] = {
    "use_aux_hidden_state": (
        FLAG,
        "Whether the drafter takes hidden states of several target layers; engines have no EAGLE-3 without.",
    ),
    "norm_before_fc": (FLAG, "One norm over all aux states before fc; TensorRT-LLM reads it here alone."),
    "use_input_layernorm_in_first_layer": (FLAG, "Trainer's switch: the embedding is normed."),
    "use_last_layernorm": (FLAG, "Trainer's switch: there is a norm before lm_head."),
    "use_mtp_layernorm": (FLAG, "Trainer's switch of another drafter family."),
    "next_layer_regular": (FLAG, "Trainer's switch: layers after the first take one hidden state."),
    "parallel_draft_step": (SIZE, "Trainer's switch: tokens proposed at once."),
    "parallel_draft_heads_num_layers": (COUNT, "Trainer's switch: layers of each parallel head."),
}

MLA_KEYS = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "rope_interleave",
)
SWITCH_KEYS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "num_aux_hidden_states")
_ELSEWHERE = (
    *MLA_KEYS,
    *SWITCH_KEYS,
    "eagle_config",
    "use_aux_norm",
    "mask_token_id",
    "target_model_type",
)
DECODER_KEYS = tuple(key for key in KEYS if key not in _ELSEWHERE)
SHAPE_KEYS = (
    "architectures",
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "vocab_size",
)
TRAINER_KEYS = (
    "use_aux_hidden_state",
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "use_mtp_layernorm",
)


def common_keys(*names: str) -> dict[str, Any]:
    """The schemas of several keys of the common table."""
    return {name: {**KEYS[name][0], "description": KEYS[name][1]} for name in names}


# objects of a config whose keys are those of the top level too
LAYER = "transformer_layer_config"
ROPES = ("rope_scaling", "rope_parameters")
KINDS: Mapping[str, Mapping[str, Any]] = {
    **{key: kind for key, (kind, _) in {**EAGLE_CONFIG, **KEYS}.items()},
    **dict.fromkeys(PARTIAL, PART),
}


def is_within(kind: Mapping[str, Any], value: float) -> bool:
    """Whether a number is in the range of a kind."""
    least, most, above = kind.get("minimum"), kind.get("maximum"), kind.get("exclusiveMinimum")
    return (
        (least is None or value >= least)
        and (most is None or value <= most)
        and (above is None or value > above)
    )


def number_notes(config: Mapping[str, Any]) -> Iterator[Note]:
    """A problem for each number of a config that cannot be what its key means."""
    for place, text in _unfit(config):
        is_rope = place.startswith(ROPES) or place in ("rope_theta", *PARTIAL)
        yield Note("problem", place.partition(".")[0], text, "rope-values" if is_rope else "value-types")


def check_numbers(config: Mapping[str, Any]) -> None:
    """Raise RefusedError for a config to write in which a number cannot be what its key means."""
    for place, text in _unfit(config):
        raise RefusedError(text, "value-types", f"config.json:{place}")


def _unfit(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Places, and what is wrong with the number there."""
    for prefix in ("", f"{LAYER}.", "eagle_config."):
        table = config.get(prefix[:-1]) if prefix else config
        if not isinstance(table, Mapping):
            continue
        for key, value in table.items():
            if key in ROPES and isinstance(value, Mapping):
                yield from _unfit_rope(f"{prefix}{key}", value)
            elif not _fits(kind := KINDS.get(key, {}), value):
                yield prefix + key, f"config.json: {prefix}{key} is {value!r}; {_expected(kind)} was expected"


def _fits(kind: Mapping[str, Any], value: Any) -> bool:
    """Whether a number, or each of a list where the kind has items, is of a kind; true for other values."""
    if isinstance(value, list) and "items" in kind:
        return all(_fits(kind["items"], each) for each in value)
    if not _is_number(value):
        return True
    is_counted = "integer" in kind.get("type", ())
    return is_within(kind, value) and (type(value) is int or not is_counted or value == int(value))


def _unfit_rope(place: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, kind in ROPE.items():
        value, item = table.get(key), kind.get("items", kind)
        values = value if isinstance(value, list) and "items" in kind else [value]
        if value is not None and not all(_is_number(each) and is_within(item, each) for each in values):
            expected = f"{_expected(item)}{' for each' if 'items' in kind else ''}"
            yield place, f"config.json: {place}.{key} is {value!r}; {expected} was expected"
            return
    low, high = table.get("low_freq_factor"), table.get("high_freq_factor")
    if low is not None and high is not None and high <= low:
        text = f"high_freq_factor is {high!r}; a number above low_freq_factor, {low!r}, was expected"
        yield place, f"config.json: {place}.{text}"


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)


def _expected(kind: Mapping[str, Any]) -> str:
    name = "a whole number" if "integer" in kind.get("type", ()) else "a number"
    least, most = kind.get("minimum"), kind.get("maximum")
    start = f"above {kind['exclusiveMinimum']}" if least is None else f"from {least}"
    return f"{name} {start} to {most}" if isinstance(most, int) else f"{name} {start} that float32 holds"
