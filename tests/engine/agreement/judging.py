"""Holding validate to the engine: no false pass, no false alarm, and the few exceptions with reasons."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.engines.behaviour import Fact
from eaglectl.engines.registry import EngineRequest
from eaglectl.errors import EaglectlError
from eaglectl.judge.judgement import Report
from tests.engine.agreement.bases import PACKED_HEAD, STRETCHED, TARGETS, WITH_TOKENIZER, target
from tests.engine.agreement.cases import Case
from tests.engine.agreement.edits import both, config, in_four_bits
from tests.engine.agreement.plain import PACKED_HEAD as PACKED_HEAD_CONFIG
from tests.engine.agreement.records import Record

DROPPED = (
    "the engine leaves out a tensor that was written for something, so it does not serve all that was trained"
)
DIVIDED = (
    "two places of the checkpoint disagree; that the engine goes by the one this case left right is luck"
)
UNREADABLE = "the value is of no type that readers of the key share; this release makes the right thing of it"
LUCK = "the engine fills the missing norm with ones, and these weights happen to be ones"
UNTRAINED = "the engine runs what is written, and no training writes it"
UNTOUCHED = "the row that is not finite is of a token that no prompt here holds"
UNSAFE = "a file that can run code on whoever opens the checkpoint must not ship, whatever engines do with it"
PAIRED = "the config says that halves are paired, which engines ignore; these weights pair neighbours"
TIED = (
    "the config ties the head to an embedding that the file has not; the engine and the reference both"
    " take the target's head"
)
ADAPTED = (
    "the engine reads no adapter, and whether the drafter or its target was trained with it is not known"
)
SCALED = "every logit is scaled alike, and greedy drafting, which is vLLM's default, goes by their order"
KERNEL = (
    "the CPU build computes it in bfloat16 alone; it loads, which it does not without model.fc in `ignore`"
)
V2 = (
    "the release takes the V2 runner for this target wherever Triton is, which reads other keys;"
    " on CPUs it takes V1"
)
V2_ALONE = "the V2 runner, which the release takes on a GPU, does not serve it; the recorded V1 does"
# what validate may say of a release where inspect says this
AGREEING = {
    "as trained": ("pass",),
    "as trained, started so": ("pass",),
    "differs": ("fail",),
    "fails": ("fail",),
    "unknown": ("fail", "could-not-look"),
}
# where validate and the engine of the records disagree, and validate stands
JUSTIFIED: Mapping[str, str] = {
    "llama3/fc.bias": DROPPED,
    "llama3/a norm's bias": DROPPED,
    "llama3/a name with t2d": DROPPED,
    "llama3/mask_hidden": DROPPED,
    "llama3/t2d that does not": DIVIDED,
    "llama3/input_norm without the flag": DIVIDED,
    "llama3/weights twice": DIVIDED,
    "llama3/two shards, a name not in the index": DIVIDED,
    "llama3/two shards, a name pointing wrong": DIVIDED,
    "llama3/two shards, a tensor in both": DIVIDED,
    "llama3/aux ids as floats": UNREADABLE,
    "llama3/aux ids as one text": UNREADABLE,
    "llama31/aux ids as floats": UNREADABLE,
    "llama3/torch_dtype 3": UNREADABLE,
    "llama-fresh/without norm.weight": LUCK,
    "llama-fresh/without layers.0.hidden_norm.weight": LUCK,
    "llama-fresh/without layers.0.input_layernorm.weight": LUCK,
    "llama-fresh/without layers.0.post_attention_layernorm.weight": LUCK,
    "llama3/d2t all zero": UNTRAINED,
    "llama3/fc all zero": UNTRAINED,
    "llama3/model_type deepseek_v41": UNTRAINED,
    "llama3/model_type kimi_k2": UNTRAINED,  # of MLA, and this drafter has GQA
    "llama3/embed_tokens all zero": UNTRAINED,
    "llama3/q_proj all zero": UNTRAINED,
    "llama3/o_proj all zero": UNTRAINED,
    "llama3/layers.0.self_attn.k_proj.weight all 1e30": UNTRAINED,
    "llama3/layers.0.input_layernorm.weight as U8": UNTRAINED,
    "llama-shared/layers.0.input_layernorm.weight as I64": UNTRAINED,
    "mla3/layers.0.input_layernorm.weight as I64": UNTRAINED,
    "speculators31/layers.0.hidden_norm.weight all 0": UNTRAINED,
    "llama3/a pickle beside the weights": UNSAFE,
    "llama3/a README and code": UNSAFE,
    "llama3/embed_tokens with one NaN": UNTOUCHED,
    "llama-shared/tie_word_embeddings": TIED,
    "llama3/attention in 4 bits": KERNEL,
    "llama3/logit_scale": SCALED,
    "llama3/an adapter beside it": ADAPTED,
    "llama3/positions 16": V2,
    "llama3/positions 32, the target's stretched to 128": V2,
    "llama3/two layers, one with a window": V2,
    "llama3/seq_length 16": V2,
    "mla3/rope_scaling yarn": V2_ALONE,
    "mla3/rope_scaling yarn with mscale": V2_ALONE,
    "mla3/rope_interleave false": PAIRED,
    "llama3/aux ids nested as layer_ids": V2,
    "llama31/aux ids nested alone": V2,
    "llama31/aux ids nested as layer_ids": V2,
}
# the same for the V1 runner of any release
JUSTIFIED_V1: Mapping[str, str] = {
    **{name: reason for name, reason in JUSTIFIED.items() if reason not in (V2, V2_ALONE)},
    "speculators31/layer's model_type null": UNREADABLE,  # before 0.24.0
    "llama3/lm_head in 4 bits": KERNEL,
}
# the same for the V2 runner, which is the one that validate judges the release by
JUSTIFIED_V2: Mapping[str, str] = {
    **{name: reason for name, reason in JUSTIFIED.items() if reason not in (V2, V2_ALONE)},
    "mla3/use_aux_hidden_state false": DIVIDED,
}


def targets(root: Path) -> Path:
    """Write all targets below `root`."""
    for kind in (*TARGETS, WITH_TOKENIZER, STRETCHED):
        target(kind).write(root / kind)
    packed = target("llama")
    both(in_four_bits("lm_head"), config(quantization_config=PACKED_HEAD_CONFIG))(packed)
    packed.write(root / PACKED_HEAD)
    return root


def contradiction(folder: Path, target: Path, engine: str) -> str:
    """Where inspect and validate, both with headers alone, say different things of one engine release."""
    asked = eaglectl.ValidateOptions(target=str(target), engines=[engine], headers_only=True)
    release = eaglectl.validate(str(folder), asked).releases[0]
    try:
        found = eaglectl.inspect(str(folder), target=str(target), engines=[engine]).requested[0]
    except EaglectlError as error:
        return (
            ""
            if release.outcome.check != "pass"
            else f"validate passes it, and inspect cannot read it: {error}"
        )
    is_agreed = release.outcome.check in AGREEING[found.outcome]
    return (
        "" if is_agreed else f"inspect: {found.outcome}; validate: {release.outcome.check} {release.reasons}"
    )


def report(
    case: Case, engine: str | EngineRequest, root: Path, parent: Path, select: Sequence[str] = ()
) -> Report:
    """What validate says of a case, its target at hand; only these rules, where some are selected."""
    folder = case.files().write(parent / "drafter")
    options = eaglectl.ValidateOptions(
        target=str(root / case.kind), engines=[engine], select=select, answers=case.answers
    )
    return eaglectl.validate(str(folder), options)


def unshown(fact: Fact, found: Report, record: Record) -> str:
    """Why a case does not show a fact, from a report of its rule alone; empty where it does."""
    if fact.rule not in {finding.rule.id for finding in found.findings}:
        return "the fact does not hold for the case"
    if not record.is_wrong:
        return "the engine served the case"
    is_stopped = record.stopped in ("raises", "dies")
    return (
        ""
        if is_stopped == (fact.outcome == "fails")
        else f"the engine: {record.stopped}, the fact: {fact.outcome}"
    )


def disagreement(record: Record, found: Report, options: Mapping[str, Any]) -> str:
    """How validate disagrees with an engine that served the drafter as trained, or was seen not to.

    The engine was started with these options.
    """
    errors = [f"{one.rule.id} {one.match.message}" for one in found.findings if one.severity == "error"]
    # the runs are started with --dtype float32, but for those of cases that say otherwise
    options = {"dtype": "float16", **options}
    needed = {option.argument for one in found.releases for option in one.options}
    is_passed = found.verdict == "pass" or any(one.outcome.check == "pass" for one in found.releases)
    is_passed = is_passed and needed <= options.items()
    words = f"{record.verdict} {record.reason}"
    if record.is_wrong and is_passed:
        return f"false pass: the engine: {words}"
    if record.is_served and errors:
        return f"false alarm: the engine serves it ({words}), validate: {'; '.join(errors)}"
    return ""
