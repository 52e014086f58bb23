"""Holding validate to llama.cpp: the disagreements that stand."""

from collections.abc import Mapping

from tests.engine.agreement.judging import DIVIDED, UNREADABLE, UNSAFE, UNTRAINED

# where validate and the engine of the records disagree, and validate stands
SHORT = "what differs shows on longer prompts, or the reference engine does not run it either"
JUSTIFIED: Mapping[str, str] = {
    "llama.cpp/ids 2, 4, 4": "llama.cpp takes a layer twice, and no other engine does",
    "llama.cpp/draft_vocab_size too big": DIVIDED, "llama3/draft_vocab_size too small": DIVIDED,
    "llama3/aux count 4": DIVIDED, "llama.cpp/rope dynamic": SHORT, "llama.cpp/hidden_act gelu": SHORT,
    "llama3/partial_rotary_factor": SHORT, "llama3/d2t of two axes": UNREADABLE,
    "llama3/target_hidden_size null": UNREADABLE, "llama3/tie_word_embeddings None": UNREADABLE,
    "llama3/model_type None": UNREADABLE, "llama-fresh/num_aux_hidden_states -1": UNREADABLE,
    "llama-fresh/tie_word_embeddings 1": UNREADABLE,
    "llama3/layers.0.input_layernorm.weight as U8": UNTRAINED,
    "llama-shared/layers.0.input_layernorm.weight as I64": UNTRAINED,
    "llama3/layers.0.self_attn.k_proj.weight all 1e30": UNTRAINED, "llama3/norm all zero": UNTRAINED,
    "llama3/o_proj all zero": UNTRAINED, "llama3/a pickle beside the weights": UNSAFE,
}  # fmt: skip

UNREAD = "the release reads no ids, and these were trained with the layers that it takes"
# the same for other releases
JUSTIFIED_OTHERS: Mapping[str, str] = {
    **JUSTIFIED,
    **dict.fromkeys(
        (
            *("llama.cpp/ids 0, 3, 7", "llama.cpp/ids as text", "llama3/aux id 9", "llama3/four aux ids"),
            "llama3/aux ids as floats",
        ),
        UNREAD,
    ),
}
