"""Drafters that show the facts on engines: of each fact a case, run in releases on both sides of a flip."""

import random
from collections.abc import Mapping

from tests.engine.agreement.bases import BASES
from tests.engine.agreement.cases import CASES

# by the fact's id
VLLM: Mapping[str, str] = {
    "no-class-qwen3": "qwen3/none",
    "architecture": "llama3/architectures wrong",
    "model-type": "llama3/model_type qwen3_next",
    "prefix": "llama3/names with model.",
    "unknown-tensor": "llama3/an unknown tensor",
    "null-target-hidden": "llama3/target_hidden_size null",
    "identity-d2t": "llama-shared/identity d2t",
    "d2t-missing": "llama3/d2t missing",
    "no-draft-vocab-size": "llama3/draft_vocab_size absent",
    "aux-count-unstated": "llama3/fc too narrow",
    "fc-norm-unstated": "llama31/fc_norm absent",
    "norm-output-unstated": "llama3/norm_output nested",
    "norm-output-overstated": "llama3/norm_output told, trained without",
    "norm-before-fc-unstated": "llama3/input_norm, norm_before_fc absent",
    "norm-before-fc-mla": "mla3/norm_before_fc",
    "residual-unstated": "llama3/norm_before_residual nested",
    "bias-unstated": "llama3/attention biases not told",
    "bias-overstated": "llama3/attention_bias without biases",
    "layers-overstated": "llama3/two layers, one there",
    "head-dim-unstated": "llama3/one head of 16, head_dim absent",
    "sliding-window-qwen3": "qwen3/sliding_window used",
    "aux-layers": "llama31/aux ids nested as layer_ids",
    "aux-width": "llama3/aux ids with a duplicate",
    "speculators-norm-output": "speculators31/fc_norm gone and told false",
    "speculators-fc-norm": "speculators31/none",
    "class-mismatch": "llama3/architectures of MLA",
    "later-hidden-norm": "llama31/two layers, hidden_norm in the later",
    "verifier-tensors": "llama3/verifier_lm_head",
    "rope-base": "llama3/rope_theta other, trained with 10000",
    "dimension-above": "llama3/hidden_size wrong",
    "dimension-below": "llama3/intermediate_size too small",
    "layers-understated": "llama3/two layers there, one told",
    "layers-unstated": "llama31/num_hidden_layers absent",
    "ids-unsorted": "llama3/aux ids unsorted",
    "draft-vocab-mismatch": "llama3/draft_vocab_size the whole",
    "hidden-act": "llama3/hidden_act gelu",
    "tied-head": "llama-shared/tie_word_embeddings with its own embed_tokens",
    "mlp-bias-overstated": "llama3/mlp_bias without biases",
    "biases-partial": "llama3/attention biases but o_proj's",
    "head-dim-smaller": "llama3/one head of 64, head_dim absent",
    "unknown-tensor-early": "llama3/an unknown tensor",
    "bias-refused": "llama3/attention biases not told",
    "drafting-stops": "llama3/positions 16",
    "speculators-mla": "mla3/in the speculators format",
    "speculators-model-type": "speculators31/layer's model_type null",
    "yarn-factor": "llama3/rope_scaling yarn with attention_factor",
    "partial-rotary": "llama3/half of each head in rope_parameters, trained whole",
}
SGLANG: Mapping[str, str] = {
    "architecture": "llama31/sglang: architecture Eagle3LlamaForCausalLM",
    "qk-norms": "llama31/sglang: q and k norms",
    "residual": "llama31/sglang: norm_before_residual",
    "attention-bias": "llama31/sglang: attention_bias with o",
    "draft-vocab-size": "llama31/sglang: draft_vocab_size absent",
    "tied-head": "llama31/sglang: tie_word_embeddings",
    "d2t-missing": "llama31/sglang: d2t missing",
    "layers-overstated": "llama31/sglang: two layers told",
    "mla-prefix": "mla3-yarn/model. before all",
    "later-input-layernorm": "llama31/sglang: two layers, input_layernorm",
    "fc-norm": "qwen3-target/fc_norm absent",
    "sliding-window": "llama31/sglang: sliding window",
    "aux-layers": "llama31/sglang: nested ids null",
    "mla-norm-before-fc": "mla3-yarn/norm_before_fc",
    "aux-count": "llama31/sglang: four ids at the top alone",
    "unknown-tensor": "mla3-yarn/an unknown tensor",
    "fc-bias": "mla3-yarn/fc.bias",
    "mlp-bias": "llama31/sglang: mlp_bias",
    "wrapped-names": "llama31/sglang: model. before all",
    "last-boundary": "llama31/sglang: nested id of the last layer",
    "ids-empty": "llama31/sglang: nested ids empty",
    "ids-twice": "llama31/sglang: nested ids twice the same",
    "ids-unsorted": "llama31/sglang: nested ids unsorted",
    "quantised-module": "llama31/sglang: fc in FP8",
    "quantised-targets": "llama31/sglang: fc in FP8, the layers in no list",
    "positions": "mla3-yarn/max_position_embeddings 100",
    "head-replaced": "llama31/sglang: draft_vocab_size null, its own lm_head",
    "head-unfilled": "llama-shared/none",
    "tied-to-own": "llama-shared/tie_word_embeddings with its own embed_tokens",
    "biases-unfilled": "llama31/sglang: bias true, fc.bias",
    "one-state": "llama31/sglang: one aux state",
    "hidden-act": "llama31/sglang: hidden_act gelu",
    "draft-vocab-mismatch": "llama31/sglang: draft_vocab_size too big",
    "null-target-hidden": "llama31/sglang: target_hidden_size null",
    "mla-aux-count": "mla3-yarn/four aux ids",
}
LLAMACPP: Mapping[str, str] = {
    "mla": "mla3/none",
    "qk-norms": "llama.cpp/q and k norms",
    "architecture": "llama.cpp/architecture of its own",
    "draft-vocab-size": "llama.cpp/draft_vocab_size absent",
    "multi-layer": "llama.cpp/two layers",
    "layers-misstated": "llama.cpp/num_hidden_layers 8",
    "aux-count": "llama.cpp/four states",
    "fc-norm": "llama.cpp/fc_norm",
    "norm-output": "llama.cpp/norm_output",
    "norm-before-fc": "llama.cpp/norm_before_fc nested",
    "residual": "speculators3/norm_before_residual absent",
    "biases": "llama.cpp/biases of q, k and v",
    "parallel": "llama.cpp/parallel",
    "sliding-window": "llama.cpp/sliding window",
    "unknown-tensor": "speculators3/verifier_norm",
    "prefix": "llama.cpp/model. before all",
    "d2t-missing": "llama.cpp/d2t missing",
    "shapes": "llama.cpp/head_dim absent",
    "last-boundary": "llama.cpp/ids 2, 4, 8",
    "aux-layers": "llama.cpp/ids nested alone, other layers",
    "tied-head": "llama-shared/tie_word_embeddings with its own embed_tokens",
}
SHOWN = {"vllm": VLLM, "sglang": SGLANG, "llama.cpp": LLAMACPP}
EARLY = "its releases end before 0.22.0, the first whose CPU build asks a target for its states"
OPEN = "it states what is not known, and no run shows that"
MLA = "CPU builds before 0.32.0 have no MLA attention"
PARALLEL = "the recorded cases draft one token after another"
TARGETS = "tests/engine/targets runs the classes of targets (vllm_targets.json)"
GPU = "of the V2 runner of a release whose CPU build has none, or of a release without V1"
NO_REFERENCE = "no layout has a place for what was trained, so nothing says what it drafts"
GPU_STAGES = "of a target in stages, each of which needs a device"
NOT_RUN = "no drafter of the recorded cases shows it yet"
# what no drafter can show on a CPU build, or is recorded elsewhere
UNCOUNTED = (EARLY, OPEN, MLA, GPU, GPU_STAGES, TARGETS, NO_REFERENCE)
# why a CPU build of vLLM does not show the others
UNSHOWN: Mapping[str, str] = {
    "no-class-mla": EARLY,
    "mla-plain-rope": MLA,
    "multi-layer": EARLY,
    "aux-count": EARLY,
    "fc-norm-absent": EARLY,
    "fc-norm-dropped": EARLY,
    "fc-norm-not-applied": MLA,
    "norm-output-absent": EARLY,
    "norm-before-fc-absent": EARLY,
    "norm-before-fc-nested": EARLY,
    "residual-absent": EARLY,
    "attention-bias-absent": EARLY,
    "parallel-absent": EARLY,
    "quantised-absent": EARLY,
    "absorbed-names": NOT_RUN,
    "aux-unknown": OPEN,
    "speculators-unknown": EARLY,
    "speculators-norm-before-fc": EARLY,
    "speculators-peagle": PARALLEL,
    "mask-token": PARALLEL,
    "mask-token-unread": PARALLEL,
    "biases-without-place": NO_REFERENCE,
    "speculators-peagle-fc-norm": PARALLEL,
    "unknown-tensor-dropped": MLA,
    "head-absent": EARLY,
    "embedding-replaced": OPEN,
    "mla-rope-base": EARLY,
    "drafting-stops-by-runner": OPEN,
    "positions": NOT_RUN,
    "pipeline": GPU_STAGES,
    "pipeline-class": GPU_STAGES,
    "pipeline-unknown": OPEN,
    "quantised-module": NOT_RUN,
    "quantised-names": NOT_RUN,
    "quantised-names-plain": NOT_RUN,
    "packed-head": NOT_RUN,
    "packed-target-head": NOT_RUN,
    "packed-head-by-runner": OPEN,
    "quantised-targets": EARLY,
    "yarn-keys": NOT_RUN,
    "end-boundary": NOT_RUN,
    "mla-scaling": NOT_RUN,
    "mla-scaling-refused": NOT_RUN,
    "quantised-target": EARLY,
    "head-of-multimodal": GPU,
    "target-unlisted": EARLY,
    "target-lacks": TARGETS,
    "target-unknown": OPEN,
    "aux-runner": OPEN,
    "aux-ids-unread": EARLY,
    "rope-parameters-unread": EARLY,
    "rope-parameters-by-chance": OPEN,
    "parallel-runner": GPU,
    "weight-files": NOT_RUN,
    "embedding-short": NOT_RUN,
    "embedding-zeros": NOT_RUN,
}
# what a release with another reading of a key does with them
FLIPS = (
    *(f"llama3/model_type {name}" for name in ("kimi_k3", "qwen3_5_text", "deepseek_v41")),
    "llama3/rope_scaling yarn",
    "llama3/rope_scaling yarn with mscale",
    "llama3/rope_scaling yarn with attn_factor",
    "qwen3/rope_scaling yarn with mscale",
    "qwen3/four aux ids, told",
    "qwen3/four aux ids and fc for four",
    "qwen3/norm_before_residual told",
    "qwen3/norm_before_fc",
    "llama3/norm_before_residual told",
    "llama3/norm_before_fc",
    "llama3/norm_before_fc nested",
    "llama3/four aux ids, told",
    "llama3/four aux ids, not told",
    "llama3/attention biases",
    "llama3/sliding_window in layer_types",
    "llama3/rope_scaling linear",
    "llama3/rope_scaling llama3",
    "llama3/rope_parameters other",
    "llama31/aux ids nested alone",
    "llama31/aux ids as target_layer_ids",
    "llama31/fc_norm nested",
    "llama31/norm_output false",
    "speculators31/layer's rope other",
    "speculators31/layer's model_type qwen3",
)
DRAWN = 20


def _released() -> tuple[str, ...]:
    """Every base that CPU builds run, every fact's case and flip, and DRAWN of the others."""
    runs = {name for name in CASES if CASES[name].kind != "mla"}
    named = {f"{base}/none" for base in BASES} | {*VLLM.values(), *FLIPS}
    rest = sorted(runs - named)
    named |= set(random.Random("releases").sample(rest, DRAWN))
    return tuple(name for name in CASES if name in named & runs)


RELEASED = _released()
