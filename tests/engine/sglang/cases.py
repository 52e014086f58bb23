"""The drafters that SGLang was run with: those of the vLLM records that its classes can take, and its own."""

from functools import partial
from typing import Any

from eaglectl.formats.format import Answers
from tests.builders import ABSENT, integers
from tests.engine.agreement.bases import DRAFT, DRAFTED, HIDDEN, VOCAB, Files, drafter, drafter_for, uniform
from tests.engine.agreement.cases import CASES as SHARED
from tests.engine.agreement.cases import Case, unchanged
from tests.engine.agreement.drawn import drawn
from tests.engine.agreement.edits import (
    Edit,
    add,
    both,
    cast,
    config,
    drop,
    fill,
    in_float8,
    inside,
    noise,
    rename,
)
from tests.engine.agreement.listed import LISTED
from tests.engine.agreement.plain import (
    ANOTHERS,
    ATTENTION,
    COMPRESSED,
    FLOAT_8,
    IDENTITY,
    IDS,
    KEYS,
    MLP_BIASES,
    NESTED,
    ROPE,
    ROWS,
    WHOLE_HEAD,
    absent,
    fc_for,
    heads_of,
    nested_in,
    rope,
    second_layer,
)
from tests.engine.agreement.records import SGLANG_RECORDS, read

# on a CPU SGLang builds DeepSeek's YaRN rope only
YARN: dict[str, Any] = {
    "rope_type": "yarn", "type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip


def nested(*ids: Any) -> Edit:
    """The ids that SGLang reads."""
    return inside(NESTED, **{IDS: list(ids)})


def biases(**parts: int) -> Edit:
    return both(*(add(f"{ATTENTION}{part}_proj.bias", uniform(part, rows)) for part, rows in parts.items()))


def one_state(value: float | None = None) -> Edit:
    """One aux state, and fc and fc_norm for one; fc of one number where it is given."""
    edits = [
        config(num_aux_hidden_states=1, **{IDS: [4]}),
        nested(3),
        drop("fc_norm.1.weight", "fc_norm.2.weight"),
        fc_for(1),
    ]
    return both(*edits, *([] if value is None else [fill("fc.weight", value)]))


def four_states() -> Edit:
    return both(fc_for(4), noise("fc_norm.3.weight", HIDDEN))


OF_FC = {
    **{"quant_method": "compressed-tensors", "format": "float-quantized"},
    "config_groups": {"group_0": {"targets": ["re:.*fc$"], "weights": FLOAT_8, "input_activations": None}},
}
WINDOW = config(layer_types=["sliding_attention"], sliding_window=8, use_sliding_window=True)
# how drafters of these cases were trained, where the files say otherwise
TRAINED = {"rope_scaling linear, trained without": Answers(semantics={"rope": "plain"})}
# on llama31, with options of SGLang's command line
STARTED: dict[str, tuple[Edit, dict[str, int | str]]] = {
    "sliding window, started with it": (WINDOW, {"speculative_draft_window_size": 7}),
    "sliding window, started with one more": (WINDOW, {"speculative_draft_window_size": 8}),
    # SGLang takes float16 for the target's float32
    "torch_dtype bfloat16, started with auto": (config(torch_dtype="bfloat16"), {"dtype": "auto"}),
    "100 positions, started with them": (config(max_position_embeddings=100), {"context_length": 100}),
}
# on llama31: fc_norm, norm_output, boundaries 1, 4, 6, a reduced vocabulary
SGLANG_31: dict[str, Edit] = {
    "keys in text_config": nested_in("text_config"),
    "keys in thinker_config": nested_in("thinker_config"),
    "keys in text_config of Qwen3-VL": nested_in("text_config", model_type="qwen3_vl"),
    "text_config beside its own keys": config(text_config=ANOTHERS),
    **absent("architectures", "draft_vocab_size", "head_dim"),
    "nested ids 0, 2, 6": both(config(**{IDS: [1, 3, 7]}), nested(0, 2, 6)),
    "nested ids unsorted": both(config(**{IDS: [6, 1, 4]}), nested(5, 0, 3)),
    "nested ids twice the same": both(config(**{IDS: [1, 4, 4]}), nested(0, 3, 3)),
    "nested ids empty": nested(),
    "nested ids null": inside(NESTED, **{IDS: None}),
    "nested id of the last layer": both(config(**{IDS: [1, 4, 8]}), nested(0, 3, 7)),
    "nested id -1": both(config(**{IDS: [0, 4, 6]}), nested(-1, 3, 5)),
    "nested id past the depth": both(config(**{IDS: [1, 4, 9]}), nested(0, 3, 8)),
    "nested layer_ids": both(config(**{IDS: ABSENT, NESTED: {"layer_ids": [0, 3, 5]}})),
    "eagle_config absent": config(**{NESTED: ABSENT}),
    "eagle_config null": config(**{NESTED: None}),
    "eagle_config absent, ids absent": config(**{NESTED: ABSENT, IDS: ABSENT}),
    "one aux state": one_state(),
    "one aux state, fc of zeros": one_state(0.0),
    "one aux state, not counted": both(one_state(), config(num_aux_hidden_states=ABSENT)),
    "four ids at the top alone": both(
        four_states(), config(num_aux_hidden_states=ABSENT, **{IDS: [1, 2, 4, 6], NESTED: ABSENT})
    ),
    "architecture Eagle3LlamaForCausalLM": config(architectures=["Eagle3LlamaForCausalLM"]),
    "architecture LlamaForCausalLM": config(architectures=["LlamaForCausalLM"]),
    "norm_before_residual": config(norm_before_residual=True),
    "q and k norms": both(
        noise(f"{ATTENTION}q_norm.weight", HIDDEN), noise(f"{ATTENTION}k_norm.weight", HIDDEN)
    ),
    "parallel": both(config(mask_token_id=0, ptd_token_id=0), noise("mask_hidden", 1, 3 * HIDDEN)),
    "attention_bias": both(config(attention_bias=True), biases(q=ROWS, k=KEYS, v=KEYS)),
    "attention_bias with o": both(config(attention_bias=True), biases(q=ROWS, k=KEYS, v=KEYS, o=HIDDEN)),
    "biases unstated": biases(q=ROWS, k=KEYS, v=KEYS),
    "bias true, fc.bias": both(config(bias=True), noise("fc.bias", HIDDEN)),
    "fc.bias alone": noise("fc.bias", HIDDEN),
    "mlp_bias": both(config(mlp_bias=True), MLP_BIASES),
    "draft_vocab_size null, its own lm_head": both(config(draft_vocab_size=None), drop("d2t"), WHOLE_HEAD),
    "draft_vocab_size null, no lm_head": both(config(draft_vocab_size=None), drop("d2t", "lm_head.weight")),
    "draft_vocab_size too big": config(draft_vocab_size=DRAFT + 64),
    "draft_vocab_size too small": config(draft_vocab_size=DRAFT - 64),
    "full vocabulary, identity d2t": both(config(draft_vocab_size=VOCAB), IDENTITY, WHOLE_HEAD),
    "d2t missing": drop("d2t"),
    "d2t absolute": add("d2t", integers(*DRAFTED)),
    "d2t of uint16": cast("d2t", "U16"),
    "d2t of uint32": cast("d2t", "U32"),
    "d2t of uint64": cast("d2t", "U64"),
    "d2t of uint8": cast("d2t", "U8"),
    "d2t of float32": cast("d2t", "F32"),
    "its own embed_tokens": noise("embed_tokens.weight", VOCAB, HIDDEN),
    "tie_word_embeddings": config(tie_word_embeddings=True),
    "two layers told": config(num_hidden_layers=2),
    "two layers, input_layernorm": both(config(num_hidden_layers=2), second_layer()),
    "use_aux_norm": config(fc_norm=ABSENT, use_aux_norm=True),
    "aux_norm names": both(
        rename("fc_norm.0", "aux_norm_low"),
        rename("fc_norm.1", "aux_norm_mid"),
        rename("fc_norm.2", "aux_norm_high"),
    ),
    "norm_before_fc unstated": noise("input_norm.weight", 3 * HIDDEN),
    "norm_before_fc": both(config(norm_before_fc=True), noise("input_norm.weight", 3 * HIDDEN)),
    "norm_before_fc, nested false": both(
        config(norm_before_fc=True),
        inside(NESTED, norm_before_fc=False),
        noise("input_norm.weight", 3 * HIDDEN),
    ),
    "sliding window": WINDOW,
    "target_hidden_size null": config(target_hidden_size=None),
    "rope_theta alone": config(rope_theta=12345.0, rope_scaling=ABSENT),
    "rope_parameters alone": rope(12345.0),
    "no rope": config(rope_theta=ABSENT, rope_scaling=ABSENT),
    "use_fope in rope_parameters": config(
        rope_theta=ABSENT, rope_scaling=ABSENT, rope_parameters={**ROPE, "use_fope": True, "num_kv_heads": 2}
    ),
    "use_fope in rope_scaling": config(
        rope_scaling={"rope_type": "default", "use_fope": True, "num_kv_heads": 2}
    ),
    "use_cache 1": config(use_cache=1),
    "per_layer_config": config(per_layer_config={"0": {"num_attention_heads": 2}}),
    "per_layer_config of the activation": config(per_layer_config={"0": {"hidden_act": "gelu"}}),
    "is_heterogeneous": config(is_heterogeneous=True),
    "compression_config, weights not": config(compression_config=COMPRESSED),
    "rope_scaling linear with a whole factor": config(rope_scaling={"rope_type": "linear", "factor": 4}),
    "rope_scaling dynamic without a factor": config(rope_scaling={"rope_type": "dynamic"}),
    "rope_scaling ntk": config(rope_scaling={"rope_type": "ntk", "factor": 4.0}),
    "rope_scaling linear, trained without": config(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "rope_theta null": config(rope_theta=None),
    "layer_types of eight layers": config(layer_types=["full_attention"] * 8),
    "three heads": heads_of(3),
    "seq_length 16": config(seq_length=16),
    "hidden_act gelu": config(hidden_act="gelu"),
    "use_aux_hidden_state false": inside(NESTED, use_aux_hidden_state=False),
    "model. before all but the head": both(
        rename("", "model."), rename("model.lm_head", "lm_head"), rename("model.d2t", "d2t")
    ),
    "model. before all": rename("", "model."),
    "midlayer.": rename("layers.0.", "midlayer."),
    "an unknown tensor": noise("verifier_norm.weight", HIDDEN),
    "weights of bfloat16": both(
        cast("", "BF16"), drop("embed_tokens.weight"), config(torch_dtype="bfloat16")
    ),
}
# on a Qwen3 target, with a drafter of SGLang's one class
QWEN_TARGET: dict[str, Edit] = {
    **absent("norm_output", "fc_norm", "head_dim"),
    "none": unchanged,
    "nested ids 0, 2, 6": both(config(**{IDS: [1, 3, 7]}), nested(0, 2, 6)),
    "nested id -1": both(config(**{IDS: [0, 4, 6]}), nested(-1, 3, 5)),
    "nested id of the last layer": both(config(**{IDS: [1, 4, 8]}), nested(0, 3, 7)),
    "nested ids unsorted": both(config(**{IDS: [6, 1, 4]}), nested(5, 0, 3)),
    "eagle_config absent": config(**{NESTED: ABSENT}),
    "eagle_config absent, default ids": config(**{NESTED: ABSENT, IDS: [2, 4, 5]}),
    "eagle_config absent, ids absent": config(**{NESTED: ABSENT, IDS: ABSENT}),
    "model_type qwen3": config(model_type="qwen3"),
}
HEADLESS = drop("lm_head.weight", "d2t")
LATENT = f"{ATTENTION}kv_b_proj.weight"
MLA: dict[str, Edit] = {
    **absent("fc_norm", "draft_vocab_size"),
    "midlayer.": rename("layers.0.", "midlayer."),
    "model. before all": rename("", "model."),
    "two layers told": config(num_hidden_layers=2),
    "kv_b_proj of int8": cast(LATENT, "U8"),
    "use_aux_norm": config(fc_norm=ABSENT, use_aux_norm=True),
    "draft_vocab_size null, its own lm_head": config(draft_vocab_size=None),
    "no lm_head": drop("lm_head.weight"),
    "no lm_head, the whole vocabulary told": both(HEADLESS, config(draft_vocab_size=VOCAB)),
    "no lm_head, draft_vocab_size null": both(HEADLESS, config(draft_vocab_size=None)),
    "four states": four_states(),
    "fc.bias": noise("fc.bias", HIDDEN),
    "mlp_bias": both(config(mlp_bias=True), noise("layers.0.mlp.down_proj.bias", HIDDEN)),
}


def mla_drafter(name: str) -> Files:
    """A good MLA drafter with the rope that SGLang builds on a CPU."""
    files = drafter(name)
    files.config["rope_scaling"] = dict(YARN)
    return files


def _own() -> dict[str, Case]:
    """Cases that concern SGLang alone."""
    found = {
        f"llama31/sglang: {name}": Case(
            "llama31", partial(drafter, "llama31"), edit, answers=TRAINED.get(name, Answers())
        )
        for name, edit in SGLANG_31.items()
    }
    found |= {
        f"llama31/sglang: {name}": Case("llama31", partial(drafter, "llama31"), edit, options=options)
        for name, (edit, options) in STARTED.items()
    }
    for name, ignore in (("", ["re:.*proj", "lm_head"]), (", the layers in no list", [])):
        quantised = both(in_float8("fc"), config(quantization_config={**OF_FC, "ignore": ignore}))
        found[f"llama31/sglang: fc in FP8{name}"] = Case(
            "llama31", partial(drafter, "llama31"), quantised, is_loaded_only=True
        )
    found |= {
        f"qwen3-target/{name}": Case("qwen3-target", partial(drafter_for, "qwen3", "llama31"), edit, "qwen3")
        for name, edit in QWEN_TARGET.items()
    }
    for base in ("mla3", "mla31"):
        edits = {"none": unchanged} | MLA | LISTED[base] | drawn(base)
        names = [name for name in edits if not name.startswith("rope_")]
        if base == "mla3":  # it has no fc_norm to change
            names = [name for name in names if name not in ("fc_norm absent", "use_aux_norm")]
        else:  # it has the whole vocabulary
            names = [name for name in names if not name.startswith("no lm_head, ")]
        found |= {
            f"{base}-yarn/{name}": Case(
                f"{base}-yarn", partial(mla_drafter, base), edits[name], is_loaded_only=True
            )
            for name in names
        }
    return found


# of the cases that vLLM was run with those that are recorded
CASES = _own() | {name: SHARED[name] for name in read(SGLANG_RECORDS) if name in SHARED}
