"""Holding validate and inspect to SGLang: the disagreements that stand."""

from collections.abc import Mapping

from tests.engine.agreement.judging import DIVIDED, DROPPED, UNREADABLE, UNSAFE, UNTRAINED

# where validate and the engine of the records disagree, and validate stands
JUSTIFIED: Mapping[str, str] = {
    "llama31/sglang: fc.bias alone": DROPPED,
    "llama31/sglang: keys in text_config of Qwen3-VL": "no other drafter with its config class was run",
    "llama31/sglang: norm_before_fc unstated": DIVIDED,
    "llama31/sglang: norm_before_fc, nested false": DIVIDED,
    "llama31/sglang: its own embed_tokens": "EGL704 warns; whether the embedding was trained is not known",
    "llama3/an unknown tensor in the layer": DROPPED,
    "llama3/a single fc_norm.weight": DROPPED,
    "llama3/an unknown bias": DROPPED,
    "llama3/a name with t2d": DROPPED,
    "llama3/t2d that does not": DIVIDED,
    "llama3/input_norm without the flag": DIVIDED,
    "llama3/aux ids as floats": UNREADABLE,
    "llama3/d2t slightly negative": "an index of -1 is the last token, which no prompt here drafts",
    "llama3/norm all zero": UNTRAINED,
    "llama3/lm_head all zero": UNTRAINED,
    "llama3/o_proj all zero": UNTRAINED,
    "llama3/layers.0.input_layernorm.weight as U8": UNTRAINED,
    "llama3/layers.0.self_attn.k_proj.weight all 1e30": UNTRAINED,
    "llama3/scales without quantization_config": DROPPED,
    "llama31/fc_norm.3 there too": DROPPED,
    "llama3/two shards, a name not in the index": DIVIDED,
    "llama3/two shards, a tensor in both": DIVIDED,
    "llama31/aux ids as floats": UNREADABLE,
    "llama31/aux ids as one text": UNREADABLE,
    "llama3/a pickle beside the weights": UNSAFE,
    "llama3/a README and code": UNSAFE,
}
