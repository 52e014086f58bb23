"""Causes in the prompts: their length, sampling, the chat template, one kind of them."""

from eaglectl.acceptance.causes.looks import NOT_RUN, WEAK_POSITION_0, is_low, is_thin
from eaglectl.acceptance.diagnosis import Cause, Evidence, NotLooked, Shown
from eaglectl.text import listed
from eaglectl.verdicts import DiagnosisEnding


def _past_positions(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.reference is None or evidence.reference.probed is None:
        return NotLooked(NOT_RUN)
    probed = evidence.reference.probed
    if probed.starts and probed.left_out == probed.starts:
        words = f"all {probed.starts} drafts begin past the drafter's max_position_embeddings"
        return Shown(f"{words}; give shorter prompts, or train it on longer texts")
    if probed.fall is None:
        return None
    fall = probed.fall
    words = (
        f"first draft tokens are right in {fall.below:.0%} before position {fall.position} and in"
        f" {fall.above:.0%} from there on: it was trained on shorter texts than these"
    )
    return Shown(f"{words}; train it on texts as long as those that are served")


def _sampling(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.sampled is None or evidence.reference is None:
        return NotLooked("measured greedily; give --temperature with that of production")
    sampled, greedy = evidence.sampled.measured.length, evidence.reference.measured.length
    if sampled.high >= greedy.low:
        return None
    return Shown(
        f"acceptance length {sampled.value:.2f} at temperature {evidence.sampled.temperature:g} and"
        f" {greedy.value:.2f} at 0, with greedy drafts: sampled tokens are harder to foresee; lower the"
        " temperature, have vLLM sample drafts too (draft_sample_method probabilistic in"
        " --speculative-config), or train it on sampled answers"
    )


def _template(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.templated is None or evidence.reference is None:
        if evidence.has_unused_template and is_low(evidence):
            return NotLooked("the run through the target's chat template could not be made")
        if evidence.has_unused_template:
            return NotLooked("asked only where acceptance is low")
        return NotLooked("no plain prompts, or the target has no chat template")
    plain, templated = evidence.reference.measured.length, evidence.templated.measured.length
    if templated.low <= plain.high or is_thin(evidence.templated.measured):
        return None
    return Shown(
        f"acceptance length {templated.value:.2f} with the same texts in the target's chat template, and"
        f' {plain.value:.2f} as given: give chats as "messages", as a server gets them'
    )


def _one_set(evidence: Evidence) -> Shown | NotLooked | None:
    served = evidence.served
    assert served is not None
    sets = {name: part for name, part in served.by_set.items() if not is_thin(part)}
    if len(sets) < 2:
        return NotLooked('the prompts are of one set; name sets in --prompts ("set")')
    best = max(sets.values(), key=lambda part: part.length.low)
    low = [
        name
        for name, part in sets.items()
        if part.length.high < best.length.low and part.per_position[0].high < WEAK_POSITION_0
    ]
    if not low or best.per_position[0].low < WEAK_POSITION_0:
        return None
    figures = listed(f'"{name}" {part.length.value:.2f}' for name, part in sets.items())
    return Shown(
        f"acceptance lengths by set: {figures}; it loses on {listed(low)}: train it on prompts like those"
    )


PAST_POSITIONS = Cause(
    "past-positions",
    DiagnosisEnding.PROMPTS,
    "reference",
    "texts longer than it was trained on",
    "where first draft tokens stop being right, and drafts past max_position_embeddings",
    "Serve shorter texts, or train on longer ones.",
    _past_positions,
)
SAMPLING = Cause(
    "sampling",
    DiagnosisEnding.PROMPTS,
    "measured",
    "sampling",
    "acceptance at `--temperature` below that at 0",
    "Lower the temperature, let vLLM sample drafts (`draft_sample_method`), or train on sampled answers.",
    _sampling,
)
TEMPLATE = Cause(
    "template",
    DiagnosisEnding.PROMPTS,
    "measured",
    "prompts without the target's chat template",
    "plain prompts again, through the target's chat template",
    "Give chats as `messages`.",
    _template,
)
ONE_SET = Cause(
    "one-set",
    DiagnosisEnding.PROMPTS,
    "measured",
    "one kind of prompts",
    "sets of prompts on which it is weak, beside one on which it is not",
    "Train on prompts like those it loses on.",
    _one_set,
)
