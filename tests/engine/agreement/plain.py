"""The bad cases of vLLM 0.32.0, and good ones told in another way, on a plain drafter of Llama's kind."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from eaglectl.judge.rules.config import TYPES
from tests.builders import ABSENT, LLAMA3, YARN, floats, integers, mask
from tests.engine.agreement.bases import (
    BLOCK,
    DRAFT,
    DRAFTED,
    GQA,
    HIDDEN,
    MLP,
    ROPE,
    VOCAB,
    Files,
    layer_shapes,
    uniform,
)
from tests.engine.agreement.edits import (
    Edit,
    add,
    both,
    cast,
    config,
    drop,
    file,
    fill,
    head_swapped,
    header,
    in_four_bits,
    in_int8,
    in_training_state,
    inside,
    metadata,
    moved,
    noise,
    over,
    rename,
    scale,
    sharded,
    spot,
    targets,
    transpose,
    weights,
)

IDS, NESTED = "eagle_aux_hidden_state_layer_ids", "eagle_config"
ATTENTION = "layers.0.self_attn."
ROWS = GQA["num_attention_heads"] * GQA["head_dim"]
KEYS = GQA["num_key_value_heads"] * GQA["head_dim"]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 123456\n"
# types that vLLM makes multi-token-prediction classes of, since 0.10.2, 0.27.0, 0.28.0 and 0.30.0
REWRITTEN = ("qwen3_next", "kimi_k3", "qwen3_5_text", "deepseek_v41")
# types whose config classes give what a drafter leaves out other values than Llama's, or need other keys
OTHERS = (
    "glm4", "glm4_moe", "gpt_oss", "apertus", "phi", "gemma3_text", "minicpm", "eagle3", "deepseek_v2",
    "kimi_k2", "glm4_moe_lite",
)  # fmt: skip
# of another model's language model
ANOTHERS = {**GQA, "num_attention_heads": 8, "num_key_value_heads": 8, "model_type": "llama"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
FLOAT_8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": FLOAT_8, "input_activations": None}},
    "ignore": [],
}
INT8_WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
INT8_INPUTS = {**INT8_WEIGHTS, "strategy": "token", "dynamic": True}
INT8 = {
    **COMPRESSED,
    "format": "int-quantized",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": INT8_WEIGHTS, "input_activations": INT8_INPUTS}
    },
    "ignore": ["lm_head", "re:.*mlp.*", "re:.*self_attn.*", "fc"],
}
FOUR_BITS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 16}
PACKED = {
    **COMPRESSED,
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": FOUR_BITS, "input_activations": None}},
}
ORDERED = {
    **PACKED,
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {**FOUR_BITS, "actorder": "group"}}},
}
PACKED_HEAD = {
    **PACKED,
    "config_groups": {
        "group_0": {"targets": ["re:.*lm_head"], "weights": FOUR_BITS, "input_activations": None}
    },
}


def ids(*every: Any) -> Edit:
    """Top-level aux ids and the nested ones that agree with them, where they are numbers."""
    nested = [one - 1 for one in every if isinstance(one, int)]
    return both(config(**{IDS: list(every)}), inside(NESTED, **{IDS: nested or ABSENT}))


def each(word: str, value: Any, *keys: str) -> dict[str, Edit]:
    """A case for each of these keys of the config: another value, or gone."""
    return {f"{key} {word}": config(**{key: value}) for key in keys}


absent, null = partial(each, "absent", ABSENT), partial(each, "null", None)


def nested_alone(**keys: Any) -> Edit:
    """Keys that eagle_config has, and the config itself has not."""
    return both(config(**dict.fromkeys(keys, ABSENT)), inside(NESTED, **keys))


def rope(theta: float) -> Edit:
    """A plain rope as transformers 5 writes it."""
    parameters = {"rope_type": "default", "rope_theta": theta}
    return config(rope_theta=ABSENT, rope_scaling=ABSENT, rope_parameters=parameters)


def nested_in(key: str, **changes: Any) -> Edit:
    """All keys but the class and the layer ids in an object, as configs of multimodal models have them."""

    def edit(files: Files) -> None:
        top = ("architectures", "model_type", IDS, NESTED)
        files.config[key] = {name: files.config.pop(name) for name in [*files.config] if name not in top}
        files.config.update(changes)

    return edit


def fc_for(states: int) -> Edit:
    """An fc of random numbers for so many aux states."""
    return noise("fc.weight", HIDDEN, states * HIDDEN)


INPUT_NORM = add("input_norm.weight", uniform("input_norm", 3 * HIDDEN, around=1.0))
MLP_BIASES = both(
    *(
        noise(f"layers.0.mlp.{part}_proj.bias", rows)
        for part, rows in (("gate", MLP), ("up", MLP), ("down", HIDDEN))
    )
)
IDENTITY = add("d2t", integers(*[0] * VOCAB))
WHOLE_HEAD = noise("lm_head.weight", VOCAB, HIDDEN)
NO_IDS = both(config(**{IDS: ABSENT}), inside(NESTED, **{IDS: ABSENT}))


def biases() -> Edit:
    """Biases of q, k and v."""
    names = {f"{ATTENTION}{part}_proj.bias": rows for part, rows in (("q", ROWS), ("k", KEYS), ("v", KEYS))}
    return both(*(add(name, uniform(name, rows)) for name, rows in names.items()))


def one_head(width: int) -> Edit:
    """One head of this width, which the config does not state; the hidden size is 32."""
    return both(
        config(head_dim=ABSENT, num_attention_heads=1, num_key_value_heads=1),
        *(noise(f"{ATTENTION}{part}_proj.weight", width, 2 * HIDDEN) for part in "qkv"),
        noise(f"{ATTENTION}o_proj.weight", HIDDEN, width),
    )


def heads_of(count: int) -> Edit:
    """So many query heads of 32, and one of keys and values."""
    return both(
        config(num_attention_heads=count, num_key_value_heads=1),
        noise(f"{ATTENTION}q_proj.weight", count * 32, 2 * HIDDEN),
        *(noise(f"{ATTENTION}{part}_proj.weight", 32, 2 * HIDDEN) for part in "kv"),
        noise(f"{ATTENTION}o_proj.weight", HIDDEN, count * 32),
    )


def longrope(**keys: Any) -> Edit:
    """A longrope of 64 original positions and one list of factors, with more keys, or others."""
    lists = {f"{length}_factor": [2.0] * 16 for length in ("short", "long")}
    scaling = {"rope_type": "longrope", "original_max_position_embeddings": 64, **lists, **keys}
    return config(rope_scaling={key: value for key, value in scaling.items() if value is not ABSENT})


SHORT_LISTS: dict[str, Any] = {
    "short_factor": [1.0] * 16, "long_factor": [4.0] * 16,
    "short_mscale": 1.0, "long_mscale": 1.0, "attention_factor": 1.0,
}  # fmt: skip
SHORT_LONGROPE = longrope(**SHORT_LISTS, original_max_position_embeddings=96)


def yarn(**keys: Any) -> Edit:
    """A yarn scaling with more keys."""
    return config(rope_scaling={**YARN, **keys})


def second_layer() -> Edit:
    """The tensors of a second layer."""
    shapes = layer_shapes("llama", 1)
    names = dict.fromkeys((*BLOCK[3:], *BLOCK, *shapes))  # in the order of the recorded files
    return both(*(noise(f"layers.1.{name}.weight", *shapes[name]) for name in names))


def embedding_of(rows: int) -> Edit:
    """An embedding of the first rows of the target's alone."""
    return both(
        config(vocab_size=rows),
        over("embed_tokens.weight", lambda array: array[:rows]),
        targets(lambda every: sorted(token * 37 % 192 for token in range(len(every)))),
    )


def in_packed_attention(*ignore: str, table: Mapping[str, Any] = PACKED) -> Edit:
    """The attention's modules packed, and these excluded by name."""
    modules = (in_four_bits(f"{ATTENTION}{part}_proj") for part in "qkvo")
    return both(*modules, config(quantization_config={**table, "ignore": list(ignore)}))


MASK_HIDDEN = noise("mask_hidden", 1, 3 * HIDDEN)
# of every kind of attention
COMMON: dict[str, Edit] = {
    "an unknown tensor": noise("extra.weight", HIDDEN),
    "d2t absolute": add("d2t", integers(*DRAFTED)),
    "four aux ids": ids(1, 2, 4, 5),
    "four aux ids, told": both(ids(1, 2, 4, 5), fc_for(4), config(num_aux_hidden_states=4)),
    "use_aux_hidden_state false": inside(NESTED, use_aux_hidden_state=False),
    "norm_before_residual told": config(norm_before_residual=True),
    "norm_before_fc": both(config(norm_before_fc=True), INPUT_NORM),
}
LLAMA_3: dict[str, Edit] = {
    **COMMON,
    **absent("draft_vocab_size", "eagle_config", "norm_output", "norm_before_residual", "head_dim"),
    **absent("target_hidden_size", "rms_norm_eps", "rope_theta", "hidden_act", "architectures"),
    **absent("model_type", "torch_dtype"),
    **null("draft_vocab_size", "norm_output", "target_hidden_size", "quantization_config"),
    # names
    "an unknown tensor in the layer": noise("layers.0.extra.weight", HIDDEN, HIDDEN),
    "names with model.": rename("", "model."),
    "names with draft_model.": rename("", "draft_model."),
    "names with midlayer.": rename("layers.0.", "midlayer."),
    "a single fc_norm.weight": noise("fc_norm.weight", HIDDEN),
    "verifier_lm_head": noise("verifier_lm_head.weight", VOCAB, HIDDEN),
    "verifier_norm": noise("verifier_norm.weight", HIDDEN),
    "fc.bias": noise("fc.bias", HIDDEN),
    "an unknown bias": noise("layers.0.mlp.extra.bias", HIDDEN),
    "a norm's bias": noise("norm.bias", HIDDEN),
    "a name with t2d": noise("my_t2d_copy", 5),
    "t2d that agrees": add("t2d", mask(DRAFTED, VOCAB)),
    "t2d that does not": add("t2d", mask(DRAFTED[:-1], VOCAB)),
    "inv_freq": noise(f"{ATTENTION}rotary_emb.inv_freq", 16),
    "input_norm without the flag": noise("input_norm.weight", 3 * HIDDEN),
    "input_norm, norm_before_fc absent": both(config(norm_before_fc=ABSENT), INPUT_NORM),
    "mask_hidden": noise("mask_hidden", 1, 1, 3 * HIDDEN),
    "embed_tokens named as the target's": rename("embed_tokens", "model.embed_tokens"),
    "fused qkv": rename("self_attn.q_proj", "self_attn.qkv_proj"),
    # what is missing
    "without fc": drop("fc.weight"),
    "without norm": drop("norm.weight"),
    "without hidden_norm": drop("layers.0.hidden_norm.weight"),
    "without lm_head": drop("lm_head.weight"),
    "without embed_tokens": drop("embed_tokens.weight"),
    "without q_proj": drop(f"{ATTENTION}q_proj.weight"),
    "without o_proj": drop(f"{ATTENTION}o_proj.weight"),
    "without up_proj": drop("layers.0.mlp.up_proj.weight"),
    "without the layer": drop(*(f"layers.0.mlp.{part}_proj.weight" for part in ("up", "gate", "down"))),
    "two layers, one there": config(num_hidden_layers=2),
    "two layers": both(config(num_hidden_layers=2), second_layer()),
    "two layers there, one told": second_layer(),
    # shapes
    "fc too narrow": fc_for(2),
    "fc too wide": fc_for(4),
    "norm too long": noise("norm.weight", HIDDEN + 1),
    "q_proj of one input": noise(f"{ATTENTION}q_proj.weight", ROWS, HIDDEN),
    "down_proj transposed": transpose("layers.0.mlp.down_proj.weight"),
    "lm_head too short": noise("lm_head.weight", DRAFT - 1, HIDDEN),
    "lm_head of the whole vocabulary": WHOLE_HEAD,
    "embed_tokens too short": noise("embed_tokens.weight", VOCAB - 1, HIDDEN),
    "gate_proj too short": noise("layers.0.mlp.gate_proj.weight", MLP - 2, HIDDEN),
    # draft vocabulary
    "d2t missing": drop("d2t"),
    "d2t out of range": targets(lambda every: [*every[:-1], VOCAB + 40]),
    "d2t far out of range": targets(lambda every: [*every[:-1], 100000]),
    "d2t very negative": targets(lambda every: [-3000, *every[1:]]),
    "d2t slightly negative": targets(lambda every: [-1, *every[1:]]),
    "d2t with a duplicate": targets(lambda every: [*every[:50], every[49], *every[51:]]),
    "d2t all the same": targets(lambda every: [every[0]] * len(every)),
    "d2t all zero": add("d2t", integers(*[0] * DRAFT)),
    "d2t too short": targets(lambda every: every[:-1]),
    "d2t too long": targets(lambda every: [*every, 200]),
    "d2t reversed": targets(lambda every: every[::-1]),
    "d2t and lm_head in another order": head_swapped(),
    "d2t of int32": cast("d2t", "I32"),
    "d2t of uint16": cast("d2t", "U16"),
    "d2t of uint64": cast("d2t", "U64"),
    "d2t of float32": add("d2t", floats("d2t", DRAFT, dtype="F32")),
    "d2t of two axes": add(
        "d2t", ("I64", (DRAFT, 1), integers(*(token - place for place, token in enumerate(DRAFTED)))[2])
    ),
    "draft_vocab_size the whole": config(draft_vocab_size=VOCAB),
    "draft_vocab_size too small": config(draft_vocab_size=DRAFT - 1),
    "draft_vocab_size too large": config(draft_vocab_size=VOCAB + 1),
    "vocab_size too small": config(vocab_size=VOCAB - 6),
    "vocab_size too large": config(vocab_size=VOCAB + 64),
    # aux layers
    "aux ids of another training": ids(1, 3, 5),
    "aux ids up to the last": ids(2, 4, 8),
    "aux id 0": ids(0, 4, 5),
    "aux id 99": ids(2, 4, 99),
    "aux id 9": ids(2, 4, 9),
    "aux id -1": ids(2, 4, -1),
    "aux ids with a duplicate": ids(2, 2, 5),
    "two aux ids": ids(2, 5),
    "four aux ids and fc for four": both(ids(1, 2, 4, 5), fc_for(4)),
    "four aux ids, not told": both(ids(1, 2, 4, 5), fc_for(4), config(num_aux_hidden_states=ABSENT)),
    "two aux ids, told": both(ids(2, 5), fc_for(2), config(num_aux_hidden_states=2)),
    "one aux id, told": both(ids(4), fc_for(1), config(num_aux_hidden_states=1)),
    "all aux ids out of range": ids(91, 95, 99),
    "aux ids as text": ids("2", "4", "5"),
    "aux ids as floats": config(**{IDS: [2.0, 4.0, 5.0]}),
    "aux ids as one text": config(**{IDS: "2,4,5"}),
    "aux ids unsorted": ids(5, 2, 4),
    "aux ids empty": both(config(**{IDS: []}), inside(NESTED, **{IDS: []})),
    "aux ids null": both(config(**{IDS: None}), inside(NESTED, **{IDS: ABSENT})),
    "no aux ids": NO_IDS,
    "aux ids at the top alone": inside(NESTED, **{IDS: ABSENT}),
    "aux ids nested alone": config(**{IDS: ABSENT}),
    "aux ids nested alone, as at the top": nested_alone(**{IDS: [2, 4, 5]}),
    "aux ids that disagree": inside(NESTED, **{IDS: [2, 4, 6]}),
    "aux ids nested as layer_ids": both(NO_IDS, inside(NESTED, layer_ids=[2, 4, 6])),
    "aux count 2": config(num_aux_hidden_states=2),
    "aux count 4": config(num_aux_hidden_states=4),
    "aux count absent": config(num_aux_hidden_states=ABSENT),
    "aux count 4 and fc for four": both(config(num_aux_hidden_states=4), fc_for(4)),
    # flags
    "fc_norm told, not there": config(fc_norm=True),
    "norm_output told": config(norm_output=True),
    "norm_output told, trained without": config(norm_output=True),
    "norm_output nested": nested_alone(norm_output=True),
    "norm_before_residual nested": nested_alone(norm_before_residual=True),
    "norm_before_fc told, not there": config(norm_before_fc=True),
    "norm_before_fc nested": both(nested_alone(norm_before_fc=True), INPUT_NORM),
    "all flags absent": config(
        norm_output=ABSENT, fc_norm=ABSENT, norm_before_fc=ABSENT, norm_before_residual=ABSENT
    ),
    # numbers
    **{f"{name} all zero": fill(f"{name}.weight", 0) for name in ("fc", "lm_head", "norm", "embed_tokens")},
    **{f"{part} all zero": fill(f"{ATTENTION}{part}.weight", 0) for part in ("q_proj", "o_proj")},
    "fc all NaN": fill("fc.weight", float("nan")),
    "fc one inf": spot("fc.weight", float("inf")),
    "norm with one NaN": spot("norm.weight", float("nan")),
    "lm_head all NaN": fill("lm_head.weight", float("nan")),
    "lm_head all the same": fill("lm_head.weight", 0.25),
    "embed_tokens with one NaN": spot("embed_tokens.weight", float("nan"), 300),
    "fc ten times": scale("fc.weight", 10.0),
    "weights of bfloat16": both(cast("", "BF16"), config(torch_dtype="bfloat16")),
    "weights of bfloat16, told float32": cast("", "BF16"),
    "weights of float16": both(cast("", "F16"), config(torch_dtype="float16")),
    "fc of float64": cast("fc.weight", "F64"),
    "fc of int64": cast("fc.weight", "I64"),
    "norm of float16": cast("norm.weight", "F16"),
    # dimensions and rope
    "hidden_size wrong": config(hidden_size=64),
    "intermediate_size wrong": config(intermediate_size=64),
    "intermediate_size too small": config(intermediate_size=32),
    "heads wrong": config(num_attention_heads=8),
    "kv heads wrong": config(num_key_value_heads=4),
    "kv heads absent": config(num_key_value_heads=ABSENT),
    "head_dim wrong": config(head_dim=64),
    **{f"one head of {width}, head_dim absent": one_head(width) for width in (16, 64)},
    "target_hidden_size wrong": config(target_hidden_size=64),
    "layers 0": config(num_hidden_layers=0),
    "rms_norm_eps other": config(rms_norm_eps=0.01),
    "rope_theta other": config(rope_theta=500.0),
    "rope_theta other, trained with 10000": config(rope_theta=500.0),
    "half of each head in rope_parameters, trained whole": config(
        rope_theta=ABSENT, rope_scaling=ABSENT, rope_parameters={**ROPE, "partial_rotary_factor": 0.5}
    ),
    "rope_scaling linear": config(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "rope_scaling llama3": config(rope_scaling=LLAMA3),
    "rope_scaling yarn": config(rope_scaling=YARN),
    "rope_scaling yarn with attention_factor": yarn(attention_factor=1.0),
    "rope_scaling yarn with mscale": yarn(mscale=1.0, mscale_all_dim=1.0),
    "rope_scaling yarn with attn_factor": yarn(attn_factor=2.0),
    "rope_scaling yarn with extrapolation_factor": yarn(extrapolation_factor=0.5),
    "rope_scaling dynamic": config(
        max_position_embeddings=32, rope_scaling={"rope_type": "dynamic", "factor": 4.0}
    ),
    "rope_scaling linear with a whole factor": config(rope_scaling={"rope_type": "linear", "factor": 4}),
    "rope_scaling with its own base": config(
        rope_theta=ABSENT, rope_scaling={"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}
    ),
    "rope_scaling longrope": longrope(long_factor=[4.0] * 16),
    "rope_scaling longrope with attention_factor": longrope(attention_factor=1.0),
    # trained without a scaling, as a text of up to 96 tokens is
    "rope_scaling longrope of 96 positions": SHORT_LONGROPE,
    "rope_scaling longrope of 96 positions, started for 96": SHORT_LONGROPE,
    "rope_scaling longrope, its original length at the top": both(
        longrope(**SHORT_LISTS, original_max_position_embeddings=ABSENT),
        config(original_max_position_embeddings=96),
    ),
    "rope_scaling longrope, 32 positions at the top": both(
        longrope(**SHORT_LISTS, original_max_position_embeddings=ABSENT),
        config(original_max_position_embeddings=32),
    ),
    # trained with a factor of 1, as the drafter's positions are the original ones
    "rope_scaling longrope, the target's positions beyond": both(
        longrope(short_factor=[1.0] * 16, long_factor=[1.0] * 16), config(max_position_embeddings=64)
    ),
    "rope_scaling linear, trained without": config(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "rope_scaling yarn, another original length at the top": both(
        yarn(), config(original_max_position_embeddings=32)
    ),
    "two rope scalings, that of rope_parameters trained": config(
        rope_scaling={"rope_type": "linear", "factor": 4.0},
        rope_parameters={**ROPE, "rope_type": "linear", "factor": 2.0},
    ),
    "rope_scaling ntk": config(rope_scaling={"rope_type": "ntk", "factor": 4.0}),
    "rope_scaling dynamic without a factor": config(rope_scaling={"rope_type": "dynamic", "alpha": 4.0}),
    "rope_scaling dynamic with max_trained_positions": config(
        rope_scaling={"rope_type": "dynamic", "factor": 4.0, "max_trained_positions": 64}
    ),
    "use_fope in rope_parameters": config(
        rope_theta=ABSENT,
        rope_scaling=ABSENT,
        rope_parameters={**ROPE, "use_fope": True, "fope_init_factor": 0.5},
    ),
    "per_layer_config": config(per_layer_config={"0": {"num_attention_heads": 2}}),
    "per_layer_config of the activation": config(per_layer_config={"0": {"hidden_act": "gelu"}}),
    "per_layer_config of the layer as it is": config(per_layer_config={"0": {}}),
    "is_heterogeneous": config(is_heterogeneous=True),
    "medusa_num_heads": config(medusa_num_heads=4),
    "bos_token_id a list": config(bos_token_id=[1]),
    "eos_token_id a list": config(eos_token_id=[2, 3]),
    "use_cache 1": config(use_cache=1),
    "n_predict 1": config(n_predict=1),
    "n_predict 2": config(n_predict=2),
    "rope_dim in rope_parameters": config(
        rope_theta=ABSENT, rope_scaling=ABSENT, rope_parameters={**ROPE, "rope_dim": 16}
    ),
    "rope_theta null": config(rope_theta=None),
    "seq_length 16": config(seq_length=16),
    "keys in text_config": nested_in("text_config"),
    "keys in llm_config": nested_in("llm_config"),
    "keys in text_config of Qwen3-VL": nested_in("text_config", model_type="qwen3_vl"),
    "text_config beside its own keys": config(text_config=ANOTHERS),
    "llm_config beside its own keys": config(llm_config=ANOTHERS),
    "rope_scaling unknown": config(rope_scaling={"rope_type": "spiral", "factor": 4.0}),
    "rope_scaling without a type": config(rope_scaling={"factor": 4.0}),
    "rope_parameters": rope(10000.0),
    "rope_parameters other": rope(500.0),
    "positions too few": config(max_position_embeddings=64),
    "positions 16": config(max_position_embeddings=16),
    "positions 32, the target's stretched to 128": config(max_position_embeddings=32),
    "positions absent": config(max_position_embeddings=ABSENT),
    "hidden_act gelu": config(hidden_act="gelu"),
    "attention_bias without biases": config(attention_bias=True),
    "attention biases": both(config(attention_bias=True), biases(), noise(f"{ATTENTION}o_proj.bias", HIDDEN)),
    "attention biases but o_proj's": both(config(attention_bias=True), biases()),
    "attention biases not told": both(biases(), noise(f"{ATTENTION}o_proj.bias", HIDDEN)),
    "mlp_bias without biases": config(mlp_bias=True),
    "mlp biases": both(config(mlp_bias=True), MLP_BIASES),
    "tie_word_embeddings": config(tie_word_embeddings=True),
    "sliding_window": config(sliding_window=16),
    "sliding_window in layer_types": config(sliding_window=16, layer_types=["sliding_attention"]),
    "layer_types of eight layers": config(layer_types=["full_attention"] * 8),
    "layer_types without sliding_window": config(layer_types=["sliding_attention"]),
    "two layers, one with a window": both(
        config(num_hidden_layers=2, sliding_window=16, layer_types=["sliding_attention", "full_attention"]),
        second_layer(),
    ),
    "three heads": heads_of(3),
    "bias without biases": config(bias=True),
    "is_causal false": config(is_causal=False),
    "logit_scale": config(logit_scale=0.25),
    "partial_rotary_factor": config(partial_rotary_factor=0.5),
    # who it is
    "architectures wrong": config(architectures=["MyEagle3Model"]),
    "architectures empty": config(architectures=[]),
    "architectures as text": config(architectures="LlamaForCausalLMEagle3"),
    "architectures LlamaForCausalLM": config(architectures=["LlamaForCausalLM"]),
    "architectures Eagle3LlamaForCausalLM": config(architectures=["Eagle3LlamaForCausalLM"]),
    "architectures of Qwen3": config(architectures=["Eagle3Qwen3ForCausalLM"]),
    "architectures of MLA": config(architectures=["Eagle3DeepseekV2ForCausalLM"]),
    "architectures of EAGLE 1": config(architectures=["EagleLlamaForCausalLM"]),
    "model_type unknown": config(model_type="llama9"),
    "model_type eagle": config(model_type="eagle"),
    **{f"model_type {name}": config(model_type=name) for name in (*REWRITTEN, *TYPES[1:], *OTHERS)},
    "torch_dtype unknown": config(torch_dtype="float7"),
    "dtype for torch_dtype": config(torch_dtype=ABSENT, dtype="float32"),
    "auto_map": config(auto_map={"AutoModel": "modeling.Model"}),
    "keys of its own": config(my_key={"a": 1}, _name_or_path="/home/me/run"),
    # of a target whose tokenizer has 256 tokens; vLLM adds rows of zeros up to a multiple of 64
    **{f"embed_tokens of {rows} rows": embedding_of(rows) for rows in (192, 200)},
    # drafting in parallel
    "P-EAGLE": both(config(mask_token_id=3, pard_token=3), MASK_HIDDEN),
    "P-EAGLE, mask_token_id alone": both(config(mask_token_id=3), MASK_HIDDEN),
    "P-EAGLE without a mask token": MASK_HIDDEN,
    # quantisation
    "quantization_config fp8, weights not": config(quantization_config=FP8),
    "quantization_config unknown": config(quantization_config={"quant_method": "magic"}),
    "quantization_config empty": config(quantization_config={}),
    "quantization_config compressed-tensors, weights not": config(quantization_config=COMPRESSED),
    "quantization_config int8, fc not excluded by its name": config(quantization_config=INT8),
    "attention in INT8, fc not excluded by its name": both(
        *(in_int8(f"{ATTENTION}{part}_proj") for part in "qkvo"),
        config(quantization_config={**INT8, "ignore": ["lm_head", "re:.*mlp.*", "fc"]}),
    ),
    "the target's lm_head in 4 bits": both(),
    "lm_head in 4 bits": both(in_four_bits("lm_head"), config(quantization_config=PACKED_HEAD)),
    "attention in 4 bits": in_packed_attention("lm_head", "re:.*mlp.*", "fc", "model.fc"),
    "attention in 4 bits, fc not excluded by its name": in_packed_attention("lm_head", "re:.*mlp.*", "fc"),
    "attention in 4 bits, by activation order": in_packed_attention(
        *("lm_head", "re:.*mlp.*", "fc", "model.fc"), table=ORDERED
    ),
    "compression_config, weights not": config(compression_config=COMPRESSED),
    "scales without quantization_config": noise("fc.weight_scale", 1),
    "kv scales": both(noise(f"{ATTENTION}k_scale", 1), noise(f"{ATTENTION}v_scale", 1)),
    # files
    "config.json missing": file("config.json", None),
    "config.json empty": file("config.json", ""),
    "config.json no JSON": file("config.json", "{hidden_size: 3"),
    "config.json a list": file("config.json", "[1, 2]"),
    "weights missing": file("model.safetensors", None),
    "weights empty": file("model.safetensors", ""),
    "weights truncated": weights(lambda raw: raw[:-100]),
    "weights truncated in the header": weights(lambda raw: raw[:500]),
    "weights with bytes behind": weights(lambda raw: raw + b"\0" * 8),
    "weights a pointer": file("model.safetensors", POINTER),
    "weights with a huge header length": weights(lambda raw: b"\xff" * 8 + raw[8:]),
    "weights with an unknown dtype": header(lambda table: table["norm.weight"].update(dtype="F12")),
    "weights with overlapping tensors": header(
        lambda table: table["norm.weight"].update(
            data_offsets=table["layers.0.hidden_norm.weight"]["data_offsets"]
        )
    ),
    "weights as pytorch_model.bin, no pickle": both(
        file("model.safetensors", None), file("pytorch_model.bin", b"\x80\x02}q\0.")
    ),
    "a pickle beside the weights": file("pytorch_model.bin", b"\x80\x02}q\0."),
    "weights in a training state": in_training_state,
    "weights under another name": moved("drafter.safetensors"),
    "weights as consolidated": moved("consolidated.safetensors"),
    "weights twice": weights(bytes, "copy.safetensors"),
    "no metadata": metadata(None),
    "metadata of another framework": metadata({"format": "flax"}),
    "two shards": sharded(),
    "two shards, one lost": sharded(without_file=2),
    "two shards, a name not in the index": sharded(lost="fc.weight"),
    "two shards, a name pointing wrong": sharded(swapped="fc.weight"),
    "two shards, a tensor in both": sharded(twice="fc.weight"),
    "two shards, no index": sharded(has_index=False),
    "an index beside the whole": file(
        "model.safetensors.index.json",
        '{"metadata": {}, "weight_map": {"fc.weight": "model-00001-of-00001.safetensors"}}',
    ),
    "an index that is no JSON": both(sharded(), file("model.safetensors.index.json", "{")),
    "a README and code": both(
        file("README.md", "---\nlicense: mit\n---\n"), file("modeling.py", "import os\n")
    ),
    "an adapter beside it": file("adapter_config.json", "{}"),
}
