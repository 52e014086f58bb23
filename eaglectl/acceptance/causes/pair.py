"""Causes in the pair: another target, a rotated one, another revision of it, or a quantised one."""

from eaglectl.acceptance.causes.looks import as_shown, is_low, serving_errors, unchecked_rules, warned
from eaglectl.acceptance.diagnosis import Cause, Evidence, NotLooked, Shown
from eaglectl.formats.catalogue import default_format, layout_for
from eaglectl.verdicts import DiagnosisEnding

ROTATED = "rotated-target"


def _rotated(evidence: Evidence) -> Shown | NotLooked | None:
    found = [finding for finding in evidence.validated.findings if finding.rule.name == ROTATED]
    if not found:
        reasons = [entry.reason for entry in evidence.validated.unchecked if entry.rule.name == ROTATED]
        return NotLooked(reasons[0]) if reasons else None
    return as_shown(found, *_commands(evidence, found[0].fix))


def _marked(evidence: Evidence) -> Shown | NotLooked | None:
    shown = warned("marked-rotation")(evidence)
    if not isinstance(shown, Shown):
        return shown
    return Shown(shown.words, _commands(evidence, shown.words))


def _commands(evidence: Evidence, fix: str) -> tuple[str, ...]:
    """The conversion that a fix names, in the layout for the engine that was asked for."""
    layout = layout_for(evidence.engine_name or "")
    option = "" if layout == default_format().name else f" --for {layout}"
    commands = tuple(part + option for part in fix.split("`")[1::2])
    return commands or (evidence.commands["validate"],)


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


ROTATED_TARGET = Cause(
    "rotated-target",
    DiagnosisEnding.PAIR,
    "reading",
    "a target whose residual stream is rotated",
    "the target's embedding: the lengths and angles of the drafter's own rows, and other values (EGL710)",
    "Run the printed `convert --target-rotation`.",
    _rotated,
)
MARKED_ROTATION = Cause(
    "marked-rotation",
    DiagnosisEnding.PAIR,
    "measured",
    "a target that its files mark as rotated",
    "low acceptance, and QuaRot or SpinQuant in the target's files (EGL711)",
    "Run the printed `convert --target-rotation`, unless it was trained on this target.",
    _marked,
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
