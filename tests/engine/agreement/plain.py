"""The negative cases of vLLM 0.32.0 on CPUs, and good drafters told in another way, all on a plain EAGLE-3
drafter of Llama's kind.
"""

from typing import Any

from tests.builders import ABSENT, LLAMA3, YARN, floats, integers, mask
from tests.engine.agreement.bases import DRAFT, DRAFTED, GQA, HIDDEN, MLP, VOCAB, uniform
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
    inside,
    metadata,
    moved,
    noise,
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
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
ATTENTION_BIASES = tuple(
    (f"{ATTENTION}{part}_proj.bias", rows) for part, rows in (("q", ROWS), ("k", KEYS), ("v", KEYS))
)
SECOND: dict[str, tuple[int, ...]] = {
    "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,), "mlp.gate_proj": (MLP, HIDDEN),
    "mlp.up_proj": (MLP, HIDDEN), "mlp.down_proj": (HIDDEN, MLP), "self_attn.q_proj": (ROWS, HIDDEN),
    "self_attn.k_proj": (KEYS, HIDDEN),
    "self_attn.v_proj": (KEYS, HIDDEN), "self_attn.o_proj": (HIDDEN, ROWS),
}  # fmt: skip


def ids(*every: Any) -> Edit:
    """Top-level aux ids and the nested ones that agree with them, where they are numbers."""
    nested = [one - 1 for one in every if isinstance(one, int)]
    return both(config(**{IDS: list(every)}), inside(NESTED, **{IDS: nested or ABSENT}))


def biases() -> Edit:
    """Biases of q, k and v."""
    return both(*(add(name, uniform(name, rows)) for name, rows in ATTENTION_BIASES))


def second_layer() -> Edit:
    """The tensors of a second layer."""
    return both(*(noise(f"layers.1.{name}.weight", *shape) for name, shape in SECOND.items()))


LLAMA_3: dict[str, Edit] = {
    # names
    "an unknown tensor": noise("extra.weight", HIDDEN),
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
    "without the layer": both(
        drop("layers.0.mlp.up_proj.weight", "layers.0.mlp.gate_proj.weight", "layers.0.mlp.down_proj.weight")
    ),
    "two layers, one there": config(num_hidden_layers=2),
    "two layers": both(config(num_hidden_layers=2), second_layer()),
    "two layers there, one told": second_layer(),
    # shapes
    "fc too narrow": noise("fc.weight", HIDDEN, 2 * HIDDEN),
    "fc too wide": noise("fc.weight", HIDDEN, 4 * HIDDEN),
    "norm too long": noise("norm.weight", HIDDEN + 1),
    "q_proj of one input": noise(f"{ATTENTION}q_proj.weight", ROWS, HIDDEN),
    "down_proj transposed": transpose("layers.0.mlp.down_proj.weight"),
    "lm_head too short": noise("lm_head.weight", DRAFT - 1, HIDDEN),
    "lm_head of the whole vocabulary": noise("lm_head.weight", VOCAB, HIDDEN),
    "embed_tokens too short": noise("embed_tokens.weight", VOCAB - 1, HIDDEN),
    "gate_proj too short": noise("layers.0.mlp.gate_proj.weight", MLP - 2, HIDDEN),
    # draft vocabulary
    "d2t missing": drop("d2t"),
    "d2t absolute": add("d2t", integers(*DRAFTED)),
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
    "d2t and lm_head in another order": head_swapped,
    "d2t of int32": cast("d2t", "I32"),
    "d2t of float32": add("d2t", floats("d2t", DRAFT, dtype="F32")),
    "d2t of two axes": add(
        "d2t", ("I64", (DRAFT, 1), integers(*(token - place for place, token in enumerate(DRAFTED)))[2])
    ),
    "draft_vocab_size absent": config(draft_vocab_size=ABSENT),
    "draft_vocab_size null": config(draft_vocab_size=None),
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
    "four aux ids": ids(1, 2, 4, 5),
    "four aux ids and fc for four": both(ids(1, 2, 4, 5), noise("fc.weight", HIDDEN, 4 * HIDDEN)),
    "four aux ids, told": both(
        ids(1, 2, 4, 5), noise("fc.weight", HIDDEN, 4 * HIDDEN), config(num_aux_hidden_states=4)
    ),
    "four aux ids, not told": both(
        ids(1, 2, 4, 5), noise("fc.weight", HIDDEN, 4 * HIDDEN), config(num_aux_hidden_states=ABSENT)
    ),
    "two aux ids, told": both(
        ids(2, 5), noise("fc.weight", HIDDEN, 2 * HIDDEN), config(num_aux_hidden_states=2)
    ),
    "one aux id, told": both(ids(4), noise("fc.weight", HIDDEN, HIDDEN), config(num_aux_hidden_states=1)),
    "all aux ids out of range": ids(91, 95, 99),
    "aux ids as text": ids("2", "4", "5"),
    "aux ids as floats": config(**{IDS: [2.0, 4.0, 5.0]}),
    "aux ids as one text": config(**{IDS: "2,4,5"}),
    "aux ids unsorted": ids(5, 2, 4),
    "aux ids empty": both(config(**{IDS: []}), inside(NESTED, **{IDS: []})),
    "aux ids null": both(config(**{IDS: None}), inside(NESTED, **{IDS: ABSENT})),
    "no aux ids": both(config(**{IDS: ABSENT}), inside(NESTED, **{IDS: ABSENT})),
    "aux ids at the top alone": inside(NESTED, **{IDS: ABSENT}),
    "aux ids nested alone": config(**{IDS: ABSENT}),
    "aux ids nested alone, as at the top": both(config(**{IDS: ABSENT}), inside(NESTED, **{IDS: [2, 4, 5]})),
    "aux ids that disagree": inside(NESTED, **{IDS: [2, 4, 6]}),
    "aux ids nested as layer_ids": both(
        config(**{IDS: ABSENT}), inside(NESTED, **{IDS: ABSENT, "layer_ids": [2, 4, 6]})
    ),
    "aux count 2": config(num_aux_hidden_states=2),
    "aux count 4": config(num_aux_hidden_states=4),
    "aux count absent": config(num_aux_hidden_states=ABSENT),
    "aux count 4 and fc for four": both(
        config(num_aux_hidden_states=4), noise("fc.weight", HIDDEN, 4 * HIDDEN)
    ),
    "use_aux_hidden_state false": inside(NESTED, use_aux_hidden_state=False),
    "eagle_config absent": config(eagle_config=ABSENT),
    # flags
    "fc_norm told, not there": config(fc_norm=True),
    "norm_output told": config(norm_output=True),
    "norm_output nested": both(config(norm_output=ABSENT), inside(NESTED, norm_output=True)),
    "norm_output null": config(norm_output=None),
    "norm_output absent": config(norm_output=ABSENT),
    "norm_before_residual told": config(norm_before_residual=True),
    "norm_before_residual absent": config(norm_before_residual=ABSENT),
    "norm_before_residual nested": both(
        config(norm_before_residual=ABSENT), inside(NESTED, norm_before_residual=True)
    ),
    "norm_before_fc told, not there": config(norm_before_fc=True),
    "norm_before_fc": both(
        config(norm_before_fc=True),
        add("input_norm.weight", uniform("input_norm", 3 * HIDDEN, low=0.5, high=1.5)),
    ),
    "norm_before_fc nested": both(
        config(norm_before_fc=ABSENT),
        inside(NESTED, norm_before_fc=True),
        add("input_norm.weight", uniform("input_norm", 3 * HIDDEN, low=0.5, high=1.5)),
    ),
    "all flags absent": config(
        norm_output=ABSENT, fc_norm=ABSENT, norm_before_fc=ABSENT, norm_before_residual=ABSENT
    ),
    # numbers
    "fc all NaN": fill("fc.weight", float("nan")),
    "fc one inf": spot("fc.weight", float("inf")),
    "fc all zero": fill("fc.weight", 0),
    "norm with one NaN": spot("norm.weight", float("nan")),
    "lm_head all NaN": fill("lm_head.weight", float("nan")),
    "lm_head all zero": fill("lm_head.weight", 0),
    "lm_head all the same": fill("lm_head.weight", 0.25),
    "norm all zero": fill("norm.weight", 0),
    "embed_tokens all zero": fill("embed_tokens.weight", 0),
    "embed_tokens with one NaN": spot("embed_tokens.weight", float("nan"), 300),
    "q_proj all zero": fill(f"{ATTENTION}q_proj.weight", 0),
    "o_proj all zero": fill(f"{ATTENTION}o_proj.weight", 0),
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
    "head_dim absent": config(head_dim=ABSENT),
    "head_dim wrong": config(head_dim=64),
    "target_hidden_size null": config(target_hidden_size=None),
    "target_hidden_size absent": config(target_hidden_size=ABSENT),
    "target_hidden_size wrong": config(target_hidden_size=64),
    "layers 0": config(num_hidden_layers=0),
    "rms_norm_eps absent": config(rms_norm_eps=ABSENT),
    "rms_norm_eps other": config(rms_norm_eps=0.01),
    "rope_theta other": config(rope_theta=500.0),
    "rope_theta absent": config(rope_theta=ABSENT),
    "rope_scaling linear": config(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "rope_scaling llama3": config(rope_scaling=LLAMA3),
    "rope_scaling yarn": config(rope_scaling=YARN),
    "rope_scaling unknown": config(rope_scaling={"rope_type": "spiral", "factor": 4.0}),
    "rope_scaling without a type": config(rope_scaling={"factor": 4.0}),
    "rope_parameters": config(
        rope_theta=ABSENT,
        rope_scaling=ABSENT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    "rope_parameters other": config(
        rope_theta=ABSENT, rope_scaling=ABSENT, rope_parameters={"rope_type": "default", "rope_theta": 500.0}
    ),
    "positions too few": config(max_position_embeddings=64),
    "positions absent": config(max_position_embeddings=ABSENT),
    "hidden_act gelu": config(hidden_act="gelu"),
    "hidden_act absent": config(hidden_act=ABSENT),
    "attention_bias without biases": config(attention_bias=True),
    "attention biases": both(config(attention_bias=True), biases(), noise(f"{ATTENTION}o_proj.bias", HIDDEN)),
    "attention biases but o_proj's": both(config(attention_bias=True), biases()),
    "attention biases not told": both(biases(), noise(f"{ATTENTION}o_proj.bias", HIDDEN)),
    "mlp_bias without biases": config(mlp_bias=True),
    "mlp biases": both(
        config(mlp_bias=True),
        noise("layers.0.mlp.gate_proj.bias", MLP),
        noise("layers.0.mlp.up_proj.bias", MLP),
        noise("layers.0.mlp.down_proj.bias", HIDDEN),
    ),
    "tie_word_embeddings": config(tie_word_embeddings=True),
    "sliding_window": config(sliding_window=16),
    "sliding_window in layer_types": config(sliding_window=16, layer_types=["sliding_attention"]),
    "partial_rotary_factor": config(partial_rotary_factor=0.5),
    # who it is
    "architectures wrong": config(architectures=["MyEagle3Model"]),
    "architectures absent": config(architectures=ABSENT),
    "architectures empty": config(architectures=[]),
    "architectures as text": config(architectures="LlamaForCausalLMEagle3"),
    "architectures LlamaForCausalLM": config(architectures=["LlamaForCausalLM"]),
    "architectures Eagle3LlamaForCausalLM": config(architectures=["Eagle3LlamaForCausalLM"]),
    "architectures of Qwen3": config(architectures=["Eagle3Qwen3ForCausalLM"]),
    "architectures of MLA": config(architectures=["Eagle3DeepseekV2ForCausalLM"]),
    "architectures of EAGLE 1": config(architectures=["EagleLlamaForCausalLM"]),
    "model_type absent": config(model_type=ABSENT),
    "model_type unknown": config(model_type="llama9"),
    "model_type qwen3": config(model_type="qwen3"),
    "model_type eagle": config(model_type="eagle"),
    "torch_dtype unknown": config(torch_dtype="float7"),
    "torch_dtype absent": config(torch_dtype=ABSENT),
    "dtype for torch_dtype": config(torch_dtype=ABSENT, dtype="float32"),
    "auto_map": config(auto_map={"AutoModel": "modeling.Model"}),
    "keys of its own": config(my_key={"a": 1}, _name_or_path="/home/me/run"),
    # quantisation
    "quantization_config fp8, weights not": config(quantization_config=FP8),
    "quantization_config unknown": config(quantization_config={"quant_method": "magic"}),
    "quantization_config empty": config(quantization_config={}),
    "quantization_config null": config(quantization_config=None),
    "quantization_config compressed-tensors, weights not": config(
        quantization_config={
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {
                        "num_bits": 8,
                        "type": "float",
                        "symmetric": True,
                        "strategy": "tensor",
                        "dynamic": False,
                    },
                    "input_activations": None,
                }
            },
            "ignore": [],
        }
    ),
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
    "weights with an unknown dtype": header(
        lambda table: table | {"norm.weight": table["norm.weight"] | {"dtype": "F12"}}
    ),
    "weights with overlapping tensors": header(
        lambda table: (
            table
            | {
                "norm.weight": table["norm.weight"]
                | {"data_offsets": table["layers.0.hidden_norm.weight"]["data_offsets"]}
            }
        )
    ),
    "weights as pytorch_model.bin, no pickle": both(
        file("model.safetensors", None), file("pytorch_model.bin", b"\x80\x02}q\0.")
    ),
    "a pickle beside the weights": file("pytorch_model.bin", b"\x80\x02}q\0."),
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
