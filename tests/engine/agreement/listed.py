"""Cases with a reason of their own, by the base they stand on."""

from tests.builders import ABSENT, YARN, mask
from tests.engine.agreement.bases import DRAFT, DRAFTED, HIDDEN, VOCAB, Files
from tests.engine.agreement.edits import (
    Edit,
    add,
    both,
    config,
    drop,
    fill,
    in_float8,
    inside,
    noise,
    rename,
)
from tests.engine.agreement.plain import (
    ATTENTION,
    COMMON,
    COMPRESSED,
    FLOAT_8,
    IDENTITY,
    IDS,
    LLAMA_3,
    MASK_HIDDEN,
    NESTED,
    NO_IDS,
    WHOLE_HEAD,
    absent,
    biases,
    fc_for,
    ids,
    nested_alone,
    second_layer,
)

NO_FC_NORM = drop(*(f"fc_norm.{place}.weight" for place in range(3)))
FC_NORM_3 = noise("fc_norm.3.weight", HIDDEN)
IN_DFLASH = both(
    NO_IDS, config(dflash_config={"mask_token_id": 3, "target_layer_ids": [0, 3, 5]}), MASK_HIDDEN
)
LLAMA_31: dict[str, Edit] = {
    **absent("fc_norm", "norm_output", "num_hidden_layers"),
    "fc_norm.3 there too": FC_NORM_3,
    "fc_norm told false": config(fc_norm=False),
    "fc_norm null": config(fc_norm=None),
    "fc_norm nested": nested_alone(fc_norm=True),
    "fc_norm gone": NO_FC_NORM,
    "fc_norm gone and told false": both(config(fc_norm=False), NO_FC_NORM),
    "fc_norm named aux_norm": rename("fc_norm", "aux_norm"),
    "norm_output false": config(norm_output=False),
    "norm_output nested": nested_alone(norm_output=True),
    "aux ids default": ids(2, 4, 5),
    "aux ids as floats": config(**{IDS: [1.0, 4.0, 6.0]}),
    "aux ids as one text": config(**{IDS: "1,4,6"}),
    "aux id 0 at the top": both(config(**{IDS: [0, 4, 6]}), inside(NESTED, **{IDS: ABSENT})),
    "four aux ids, fc and fc_norm for four, not told": both(
        ids(1, 2, 4, 6), fc_for(4), FC_NORM_3, config(num_aux_hidden_states=ABSENT)
    ),
    "no aux ids": NO_IDS,
    "aux ids at the top alone": inside(NESTED, **{IDS: ABSENT}),
    "aux ids nested alone": config(**{IDS: ABSENT}),
    "aux ids nested alone, as at the top": nested_alone(**{IDS: [1, 4, 6]}),
    "aux ids nested as layer_ids": both(NO_IDS, inside(NESTED, layer_ids=[1, 4, 6])),
    "aux ids as target_layer_ids": both(NO_IDS, config(target_layer_ids=[0, 3, 5])),
    "P-EAGLE, aux ids in dflash_config": both(IN_DFLASH, config(**{NESTED: ABSENT})),
    "P-EAGLE, aux ids in dflash_config, eagle_config beside it": IN_DFLASH,
    "aux ids empty at the top": both(config(**{IDS: []}), inside(NESTED, **{IDS: [1, 4, 6]})),
    "two layers, hidden_norm in the later": both(
        config(num_hidden_layers=2),
        second_layer(),
        rename("layers.1.input_layernorm", "layers.1.hidden_norm"),
    ),
    "four aux ids": ids(1, 2, 4, 6),
    "four aux ids, told": both(ids(1, 2, 4, 6), fc_for(4), FC_NORM_3, config(num_aux_hidden_states=4)),
}
SHARED: dict[str, Edit] = {
    "identity d2t": IDENTITY,
    "identity d2t and t2d": both(IDENTITY, add("t2d", mask(tuple(range(VOCAB)), VOCAB))),
    "draft_vocab_size absent": config(draft_vocab_size=ABSENT),
    "draft_vocab_size null": config(draft_vocab_size=None),
    "its own lm_head": WHOLE_HEAD,
    "its own embed_tokens": noise("embed_tokens.weight", VOCAB, HIDDEN),
    "tie_word_embeddings": config(tie_word_embeddings=True),
    "tie_word_embeddings with its own embed_tokens": both(
        config(tie_word_embeddings=True), noise("embed_tokens.weight", VOCAB, HIDDEN)
    ),
    "draft_vocab_size too small": config(draft_vocab_size=DRAFT),
}
QWEN_3: dict[str, Edit] = {
    **COMMON,
    "mlp_bias without biases": config(mlp_bias=True),
    "dual_chunk_attention_config": config(dual_chunk_attention_config={"chunk_size": 32, "local_size": 8}),
    "architectures of Llama": config(architectures=["LlamaForCausalLMEagle3"]),
    "architectures of Llama, model_type llama": config(
        architectures=["LlamaForCausalLMEagle3"], model_type="llama"
    ),
    "architectures Qwen3ForCausalLM": config(architectures=["Qwen3ForCausalLM"]),
    "model_type llama": config(model_type="llama"),
    "without q_norm and k_norm": drop(f"{ATTENTION}q_norm.weight", f"{ATTENTION}k_norm.weight"),
    "four aux ids and fc for four": both(ids(1, 2, 4, 5), fc_for(4), config(num_aux_hidden_states=ABSENT)),
    "aux id 99": ids(2, 4, 99),
    "attention biases": both(config(attention_bias=True), biases()),
    "sliding_window used": config(use_sliding_window=True, sliding_window=16, max_window_layers=0),
    "rope_scaling yarn with mscale": config(rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}),
    "sliding_window not used": config(use_sliding_window=False, sliding_window=16),
    "two layers": both(
        config(num_hidden_layers=2),
        second_layer(),
        noise("layers.1.self_attn.q_norm.weight", 32),
        noise("layers.1.self_attn.k_norm.weight", 32),
    ),
    "fc NaN": fill("fc.weight", float("nan")),
    "two aux ids, told": both(ids(2, 5), fc_for(2), config(num_aux_hidden_states=2)),
}


def yarn(mscale: float) -> Edit:
    """DeepSeek's rope."""
    scaling = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32.0}
    return config(rope_scaling=scaling | {"beta_slow": 1.0, "mscale": mscale, "mscale_all_dim": mscale})


def in_speculators_format(files: Files) -> None:
    """The same drafter as a speculators config states it: what is of the layer is inside."""
    config, outside = (
        files.config,
        ("draft_vocab_size", IDS, "norm_before_residual", "norm_output", "fc_norm"),
    )
    layer = {key: value for key, value in config.items() if key not in (*outside, NESTED, "architectures")}
    files.config = {key: config[key] for key in outside} | {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
    }


LINEAR = {"rope_type": "linear", "factor": 4.0}
OF_HEAD = {
    **COMPRESSED,
    "config_groups": {
        "group_0": {"targets": ["re:.*lm_head"], "weights": FLOAT_8, "input_activations": None}
    },
}
MLA_3: dict[str, Edit] = {
    **COMMON,
    "n_routed_experts null": config(n_routed_experts=None),
    "norm_topk_prob 1": config(norm_topk_prob=1),
    "routed_scaling_factor 1": config(routed_scaling_factor=1),
    "attention_bias without biases": config(attention_bias=True),
    "index_topk": config(index_topk=64, index_n_heads=2, index_head_dim=64),
    "model_type deepseek_v3": config(model_type="deepseek_v3"),
    "model_type kimi_k2": config(model_type="kimi_k2"),
    "model_type llama": config(model_type="llama"),
    "architectures LlamaForCausalLM": config(architectures=["LlamaForCausalLM"]),
    "architectures Eagle3DeepseekV3ForCausalLM": config(architectures=["Eagle3DeepseekV3ForCausalLM"]),
    "kv_lora_rank wrong": config(kv_lora_rank=256),
    "q_lora_rank null": config(q_lora_rank=None),
    "q_lora_rank absent": config(q_lora_rank=ABSENT),
    "v_head_dim wrong": config(v_head_dim=32),
    "qk_nope_head_dim wrong": config(qk_nope_head_dim=32),
    "heads wrong": config(num_attention_heads=4),
    "aux id 0": ids(0, 4, 5),
    "aux id 0 at the top": both(config(**{IDS: [0, 4, 5]}), inside(NESTED, **{IDS: ABSENT})),
    "rope_scaling yarn": yarn(1.0),
    "rope_scaling yarn with mscale": yarn(0.707),
    "rope_scaling linear": config(rope_scaling=LINEAR),
    "rope_scaling linear with an original length": config(
        rope_scaling={**LINEAR, "original_max_position_embeddings": 64}
    ),
    "lm_head in FP8": both(in_float8("lm_head"), config(quantization_config=OF_HEAD)),
    "rope_interleave false": config(rope_interleave=False),
    "two layers told": config(num_hidden_layers=2),
    "in the speculators format": in_speculators_format,
    "w_kc": noise(f"{ATTENTION}w_kc", 2, 16, 512),
    "w_kc and w_vc": both(
        noise(f"{ATTENTION}w_kc", 2, 16, 512),
        noise(f"{ATTENTION}w_vc", 2, 512, 16),
        drop(f"{ATTENTION}kv_b_proj.weight"),
    ),
    "fused_qkv_a_proj": rename("q_a_proj", "fused_qkv_a_proj_with_mqa"),
    "fc NaN": fill("fc.weight", float("nan")),
}
FC_NORMS = both(*(noise(f"fc_norm.{place}.weight", HIDDEN) for place in range(3)))


def in_peagle_format(**switches: bool) -> Edit:
    """A parallel drafter, with these switches of 3.1."""
    switches = {"fc_norm": False, "norm_output": False, **switches}
    kind = {"speculators_model_type": "peagle", "architectures": ["PEagleDraftModel"], "mask_token_id": 3}
    return both(
        config(**kind, **switches), NO_FC_NORM, MASK_HIDDEN, inside("speculators_config", algorithm="peagle")
    )


LAYER, PROPOSALS = "transformer_layer_config", "speculators_config"
SPECULATORS: dict[str, Edit] = {
    **absent("norm_before_residual", "norm_output", "fc_norm", "speculators_model_type"),
    "norm_before_residual null, trained with it": config(norm_before_residual=None),
    **absent("transformer_layer_config", "speculators_config", "draft_vocab_size"),
    "P-EAGLE": in_peagle_format(),
    "P-EAGLE, norm_output": in_peagle_format(norm_output=True),
    "P-EAGLE, fc_norm": both(in_peagle_format(fc_norm=True), FC_NORMS),
    "model_type speculator_model": config(model_type="speculator_model"),
    "model_type llama at the top": config(model_type="llama"),
    "fc_norm told false": config(fc_norm=False),
    "fc_norm gone and told false": both(config(fc_norm=False), NO_FC_NORM),
    "speculators_model_type unknown": config(speculators_model_type="eagle9"),
    "layer's model_type absent": inside(LAYER, model_type=ABSENT),
    "layer's model_type qwen3": inside(LAYER, model_type="qwen3"),
    # without what readers before 0.24.0 drop
    "layer's model_type null": both(
        inside(LAYER, model_type=None), config(fc_norm=False, norm_output=False), NO_FC_NORM
    ),
    "layer's model_type mistral": inside(LAYER, model_type="mistral"),
    "layer's rope other": inside(LAYER, rope_parameters={"rope_theta": 500.0, "rope_type": "default"}),
    "layer's rope absent": inside(LAYER, rope_parameters=ABSENT),
    "layer's layer_types of eight layers": inside(LAYER, layer_types=["full_attention"] * 8),
    "layer's rope_scaling linear with a whole factor": inside(
        LAYER, rope_parameters={"rope_type": "linear", "factor": 4, "rope_theta": 10000.0}
    ),
    "layer's heads wrong": inside(LAYER, num_attention_heads=8),
    "two layers told": inside(LAYER, num_hidden_layers=2),
    "no proposals": inside(PROPOSALS, proposal_methods=[]),
    "no verifier": inside(PROPOSALS, verifier=ABSENT),
    "target_hidden_size told": config(target_hidden_size=HIDDEN),
    "aux ids null": config(**{IDS: None}),
    "aux ids other": config(**{IDS: [2, 4, 6]}),
    "num_aux_hidden_states": config(num_aux_hidden_states=3),
    "four aux ids": both(config(**{IDS: [1, 2, 4, 6]}), fc_for(4), FC_NORM_3),
    "t2d there": add("t2d", mask(DRAFTED, VOCAB)),
    "verifier_norm there": noise("verifier_norm.weight", HIDDEN),
}
LISTED: dict[str, dict[str, Edit]] = {
    "llama3": LLAMA_3,
    "llama31": LLAMA_31,
    "llama-shared": SHARED,
    "qwen3": QWEN_3,
    "mla3": MLA_3,
    "speculators31": SPECULATORS,
    "speculators-qwen3": {
        "layer's model_type absent": inside(LAYER, model_type=ABSENT),
        "layer's model_type llama": inside(LAYER, model_type="llama"),
    },
    "qwen31": {
        "attention_dropout null": config(attention_dropout=None),
        "identity d2t": IDENTITY,
        "norm_output nested": nested_alone(norm_output=True),
    },
    "mla31": {
        "norm_output nested": nested_alone(norm_output=True),
        "fc_norm told false": config(fc_norm=False),
        "fc_norm gone": NO_FC_NORM,
        "norm_output false": config(norm_output=False),
    },
}
