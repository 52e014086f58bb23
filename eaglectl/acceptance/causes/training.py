"""Causes in the training: none, or too little."""

from eaglectl.acceptance.causes.looks import WEAK_POSITION_0, is_dead, is_low, warned
from eaglectl.acceptance.diagnosis import Cause, Evidence, Shown
from eaglectl.verdicts import DiagnosisEnding


def _weak(evidence: Evidence) -> Shown | None:
    served = evidence.served
    assert served is not None
    if is_dead(served.measured) or evidence.expected is not None or not is_low(evidence):
        return None
    first, length = served.measured.per_position[0], served.measured.length
    return Shown(
        f"acceptance length {length.value:.2f} [{length.low:.2f}, {length.high:.2f}], position 0 accepted in"
        f" {first.value:.0%}: alive, the same in every reading, and weak (below {WEAK_POSITION_0:.0%}, a line"
        " drawn by eaglectl): it needs more training, or prompts like those it was trained on"
    )


UNTRAINED = Cause(
    "untrained",
    DiagnosisEnding.TRAINING,
    "measured",
    "a drafter that was not trained",
    "low acceptance, and tensors as initialised (EGL207)",
    "Train it.",
    warned("untrained"),
)
WEAK = Cause(
    "weak",
    DiagnosisEnding.TRAINING,
    "measured",
    "too little training",
    "position 0 accepted in less than half of drafts, with nothing else found",
    "Train it longer, on prompts like those that are served.",
    _weak,
)
