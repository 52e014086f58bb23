"""Cases with a reason of their own, by the base they stand on."""

from tests.builders import ABSENT, integers, mask
from tests.engine.agreement.bases import DRAFT, DRAFTED, HIDDEN, VOCAB, uniform
from tests.engine.agreement.edits import (
    Edit,
    add,
    both,
    config,
    drop,
    fill,
    inside,
    noise,
    rename,
)
from tests.engine.agreement.plain import ATTENTION, IDS, LLAMA_3, NESTED, biases, ids, second_layer

LLAMA_31: dict[str, Edit] = {
    "fc_norm.3 there too": noise("fc_norm.3.weight", HIDDEN),
    "fc_norm absent": config(fc_norm=ABSENT),
    "fc_norm told false": config(fc_norm=False),
    "fc_norm null": config(fc_norm=None),
    "fc_norm nested": both(config(fc_norm=ABSENT), inside(NESTED, fc_norm=True)),
    "fc_norm gone": drop("fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"),
    "fc_norm gone and told false": both(
        config(fc_norm=False), drop("fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight")
    ),
    "fc_norm named aux_norm": rename("fc_norm", "aux_norm"),
    "norm_output false": config(norm_output=False),
    "norm_output absent": config(norm_output=ABSENT),
    "norm_output nested": both(config(norm_output=ABSENT), inside(NESTED, norm_output=True)),
    "aux ids default": ids(2, 4, 5),
    "aux ids as floats": config(**{IDS: [1.0, 4.0, 6.0]}),
    "aux ids as one text": config(**{IDS: "1,4,6"}),
    "aux id 0 at the top": both(config(**{IDS: [0, 4, 6]}), inside(NESTED, **{IDS: ABSENT})),
    "four aux ids, fc and fc_norm for four, not told": both(
        ids(1, 2, 4, 6),
        noise("fc.weight", HIDDEN, 4 * HIDDEN),
        noise("fc_norm.3.weight", HIDDEN),
        config(num_aux_hidden_states=ABSENT),
    ),
    "no aux ids": both(config(**{IDS: ABSENT}), inside(NESTED, **{IDS: ABSENT})),
    "aux ids at the top alone": inside(NESTED, **{IDS: ABSENT}),
    "aux ids nested alone": config(**{IDS: ABSENT}),
    "aux ids nested alone, as at the top": both(config(**{IDS: ABSENT}), inside(NESTED, **{IDS: [1, 4, 6]})),
    "aux ids nested as layer_ids": both(
        config(**{IDS: ABSENT}), inside(NESTED, **{IDS: ABSENT, "layer_ids": [1, 4, 6]})
    ),
    "aux ids as target_layer_ids": both(
        config(**{IDS: ABSENT, "target_layer_ids": [0, 3, 5]}), inside(NESTED, **{IDS: ABSENT})
    ),
    "aux ids empty at the top": both(config(**{IDS: []}), inside(NESTED, **{IDS: [1, 4, 6]})),
    "num_hidden_layers absent": config(num_hidden_layers=ABSENT),
    "two layers, hidden_norm in the later": both(
        config(num_hidden_layers=2),
        second_layer(),
        rename("layers.1.input_layernorm", "layers.1.hidden_norm"),
    ),
    "four aux ids": ids(1, 2, 4, 6),
    "four aux ids, told": both(
        ids(1, 2, 4, 6),
        noise("fc.weight", HIDDEN, 4 * HIDDEN),
        noise("fc_norm.3.weight", HIDDEN),
        config(num_aux_hidden_states=4),
    ),
}
SHARED: dict[str, Edit] = {
    "identity d2t": add("d2t", integers(*[0] * VOCAB)),
    "identity d2t and t2d": both(
        add("d2t", integers(*[0] * VOCAB)), add("t2d", mask(tuple(range(VOCAB)), VOCAB))
    ),
    "draft_vocab_size absent": config(draft_vocab_size=ABSENT),
    "draft_vocab_size null": config(draft_vocab_size=None),
    "its own lm_head": noise("lm_head.weight", VOCAB, HIDDEN),
    "its own embed_tokens": noise("embed_tokens.weight", VOCAB, HIDDEN),
    "tie_word_embeddings": config(tie_word_embeddings=True),
    "tie_word_embeddings with its own embed_tokens": both(
        config(tie_word_embeddings=True), noise("embed_tokens.weight", VOCAB, HIDDEN)
    ),
    "draft_vocab_size too small": config(draft_vocab_size=DRAFT),
}
QWEN_3: dict[str, Edit] = {
    "architectures of Llama": config(architectures=["LlamaForCausalLMEagle3"]),
    "architectures of Llama, model_type llama": config(
        architectures=["LlamaForCausalLMEagle3"], model_type="llama"
    ),
    "architectures Qwen3ForCausalLM": config(architectures=["Qwen3ForCausalLM"]),
    "model_type llama": config(model_type="llama"),
    "without q_norm and k_norm": drop(f"{ATTENTION}q_norm.weight", f"{ATTENTION}k_norm.weight"),
    "four aux ids": ids(1, 2, 4, 5),
    "four aux ids and fc for four": both(
        ids(1, 2, 4, 5), noise("fc.weight", HIDDEN, 4 * HIDDEN), config(num_aux_hidden_states=ABSENT)
    ),
    "four aux ids, told": both(
        ids(1, 2, 4, 5), noise("fc.weight", HIDDEN, 4 * HIDDEN), config(num_aux_hidden_states=4)
    ),
    "aux id 99": ids(2, 4, 99),
    "use_aux_hidden_state false": inside(NESTED, use_aux_hidden_state=False),
    "norm_before_residual told": config(norm_before_residual=True),
    "norm_before_fc": both(
        config(norm_before_fc=True),
        add("input_norm.weight", uniform("input_norm", 3 * HIDDEN, low=0.5, high=1.5)),
    ),
    "d2t absolute": add("d2t", integers(*DRAFTED)),
    "attention biases": both(config(attention_bias=True), biases()),
    "sliding_window used": config(use_sliding_window=True, sliding_window=16, max_window_layers=0),
    "sliding_window not used": config(use_sliding_window=False, sliding_window=16),
    "two layers": both(
        config(num_hidden_layers=2),
        second_layer(),
        noise("layers.1.self_attn.q_norm.weight", 32),
        noise("layers.1.self_attn.k_norm.weight", 32),
    ),
    "fc NaN": fill("fc.weight", float("nan")),
    "an unknown tensor": noise("extra.weight", HIDDEN),
    "two aux ids, told": both(
        ids(2, 5), noise("fc.weight", HIDDEN, 2 * HIDDEN), config(num_aux_hidden_states=2)
    ),
}
MLA_3: dict[str, Edit] = {
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
    "four aux ids": ids(1, 2, 4, 5),
    "four aux ids, told": both(
        ids(1, 2, 4, 5), noise("fc.weight", HIDDEN, 4 * HIDDEN), config(num_aux_hidden_states=4)
    ),
    "use_aux_hidden_state false": inside(NESTED, use_aux_hidden_state=False),
    "rope_scaling yarn": config(
        rope_scaling={
            "type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        }
    ),
    "rope_scaling yarn with mscale": config(
        rope_scaling={
            "type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        }
    ),
    "rope_interleave false": config(rope_interleave=False),
    "two layers told": config(num_hidden_layers=2),
    "w_kc": noise(f"{ATTENTION}w_kc", 2, 16, 512),
    "fused_qkv_a_proj": rename("q_a_proj", "fused_qkv_a_proj_with_mqa"),
    "norm_before_residual told": config(norm_before_residual=True),
    "norm_before_fc": both(
        config(norm_before_fc=True),
        add("input_norm.weight", uniform("input_norm", 3 * HIDDEN, low=0.5, high=1.5)),
    ),
    "fc NaN": fill("fc.weight", float("nan")),
    "an unknown tensor": noise("extra.weight", HIDDEN),
    "d2t absolute": add("d2t", integers(*DRAFTED)),
}
LAYER, PROPOSALS = "transformer_layer_config", "speculators_config"
SPECULATORS: dict[str, Edit] = {
    "model_type speculator_model": config(model_type="speculator_model"),
    "model_type llama at the top": config(model_type="llama"),
    "norm_before_residual absent": config(norm_before_residual=ABSENT),
    "norm_output absent": config(norm_output=ABSENT),
    "fc_norm absent": config(fc_norm=ABSENT),
    "fc_norm told false": config(fc_norm=False),
    "speculators_model_type unknown": config(speculators_model_type="eagle9"),
    "speculators_model_type absent": config(speculators_model_type=ABSENT),
    "transformer_layer_config absent": config(transformer_layer_config=ABSENT),
    "layer's model_type absent": inside(LAYER, model_type=ABSENT),
    "layer's model_type qwen3": inside(LAYER, model_type="qwen3"),
    "layer's model_type null": inside(LAYER, model_type=None),
    "layer's model_type mistral": inside(LAYER, model_type="mistral"),
    "layer's rope other": inside(LAYER, rope_parameters={"rope_theta": 500.0, "rope_type": "default"}),
    "layer's rope absent": inside(LAYER, rope_parameters=ABSENT),
    "layer's heads wrong": inside(LAYER, num_attention_heads=8),
    "two layers told": inside(LAYER, num_hidden_layers=2),
    "speculators_config absent": config(speculators_config=ABSENT),
    "no proposals": inside(PROPOSALS, proposal_methods=[]),
    "no verifier": inside(PROPOSALS, verifier=ABSENT),
    "target_hidden_size told": config(target_hidden_size=HIDDEN),
    "draft_vocab_size absent": config(draft_vocab_size=ABSENT),
    "aux ids null": config(**{IDS: None}),
    "aux ids other": config(**{IDS: [2, 4, 6]}),
    "num_aux_hidden_states": config(num_aux_hidden_states=3),
    "four aux ids": both(
        config(**{IDS: [1, 2, 4, 6]}),
        noise("fc.weight", HIDDEN, 4 * HIDDEN),
        noise("fc_norm.3.weight", HIDDEN),
    ),
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
        "identity d2t": add("d2t", integers(*[0] * VOCAB)),
        "norm_output nested": both(config(norm_output=ABSENT), inside(NESTED, norm_output=True)),
    },
    "mla31": {
        "norm_output nested": both(config(norm_output=ABSENT), inside(NESTED, norm_output=True)),
        "fc_norm told false": config(fc_norm=False),
        "fc_norm gone": drop("fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"),
        "norm_output false": config(norm_output=False),
    },
}
