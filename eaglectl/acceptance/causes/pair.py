"""Causes in the pair: another target, another revision of it, or a quantised one."""

from eaglectl.acceptance.causes.looks import as_shown, is_low, serving_errors, unchecked_rules, warned
from eaglectl.acceptance.diagnosis import Cause, Evidence, NotLooked, Shown
from eaglectl.verdicts import DiagnosisEnding


def _other_target(evidence: Evidence) -> Shown | NotLooked | None:
    shown = as_shown(list(serving_errors(evidence, of_target=True)), evidence.commands["validate"])
    return shown or unchecked_rules(evidence, of_target=True)


def _other_revision(evidence: Evidence) -> Shown | NotLooked:
    if not evidence.has_own_embedding:
        return NotLooked("the file has no embedding of its own to compare with the target's")
    found = warned("own-embedding")(evidence)
    if not isinstance(found, Shown):
        return found or NotLooked("its embedding is the target's, which revisions may share")
    advice = "; pass the revision that it was trained for, or train it on this one"
    return Shown(found.words.rpartition("; fix: ")[0] + advice, found.commands)


def _quantised(evidence: Evidence) -> Shown | None:
    if not evidence.is_target_quantised or not is_low(evidence):
        return None
    return Shown(
        "the target is quantised, and acceptance is low with nothing else found: measure with the target that"
        " the drafter was trained with; where that is good, train it on the quantised target's own states"
    )


OTHER_TARGET = Cause(
    "other-target",
    DiagnosisEnding.PAIR,
    "reading",
    "a target of other shapes or another vocabulary",
    "errors of `validate` on the target (EGL7xx)",
    "Pass the target that the drafter was trained for.",
    _other_target,
)
OTHER_REVISION = Cause(
    "other-revision",
    DiagnosisEnding.PAIR,
    "measured",
    "another revision of the target",
    "low acceptance, and an embedding that is not the target's (EGL704)",
    "Pass the revision that the drafter was trained for.",
    _other_revision,
)
QUANTISED_TARGET = Cause(
    "quantised-target",
    DiagnosisEnding.PAIR,
    "measured",
    "a quantised target",
    "low acceptance, and a target with quantization_config",
    "Measure with the target of the training.",
    _quantised,
)
