"""How a diagnosis ends without a cause: healthy, nothing found, or too little to look at."""

from eaglectl.acceptance.causes.looks import WEAK_POSITION_0, is_dead, is_low, is_thin
from eaglectl.acceptance.diagnosis import Cause, Evidence, Shown
from eaglectl.acceptance.measurement import FEWEST_DRAFTS, FEWEST_PROMPTS, Measurement
from eaglectl.acceptance.report import MAX_REGRESSION
from eaglectl.acceptance.sensitivity import Variant
from eaglectl.verdicts import DiagnosisEnding, ReadingOutcome


def _no_reference(evidence: Evidence) -> Shown | None:
    if not evidence.reference_gap:
        return None
    return Shown(f"{evidence.reference_gap}; then diagnose again", (evidence.commands["diagnose"],))


def _too_few(evidence: Evidence) -> Shown | None:
    served = evidence.served
    assert served is not None
    measured = served.measured
    if is_thin(measured):
        return Shown(
            f"{measured.prompts} prompts with {measured.drafts} drafts are too few to judge by;"
            f" {FEWEST_PROMPTS} and {FEWEST_DRAFTS} are needed, and 16 prompts or more are better: give more"
            " --prompts, or more --max-tokens"
        )
    if not is_dead(measured) and (open_reading := _open_reading(evidence)) is not None:
        return Shown(
            f"{open_reading.name} drafts better by x{open_reading.ratio.value:.2f}, which"
            f" {open_reading.measured.prompts} prompts cannot tell from chance: give about"
            f" {open_reading.prompts_needed}"
        )
    if evidence.layers is not None and (found := evidence.layers.found) is not None:
        return Shown(
            f"{found.name} draft better by x{found.ratio.value:.2f}, which {found.measured.prompts} prompts"
            " cannot tell from chance: give twice as many --prompts"
        )
    if evidence.expected is not None:
        return _unclear(measured, evidence.expected)
    first = measured.per_position[0]
    if first.low < WEAK_POSITION_0 <= first.high:
        return Shown(
            f"position 0 is accepted in {first.value:.0%} [{first.low:.0%}, {first.high:.0%}] of drafts,"
            f" which does not tell whether it is above {WEAK_POSITION_0:.0%}: give more --prompts than"
            f" {measured.prompts}, or --expected with the acceptance length that training reported"
        )
    return None


def _unclear(measured: Measurement, expected: float) -> Shown | None:
    """Where the length is below what was expected, and its interval is not."""
    length = measured.length
    if length.value >= MAX_REGRESSION * expected or length.high < expected:
        return None
    return Shown(
        f"acceptance length {length.value:.2f} [{length.low:.2f}, {length.high:.2f}] does not tell whether it"
        f" is below the {expected:g} that was expected: give more --prompts than {measured.prompts}"
    )


def _open_reading(evidence: Evidence) -> Variant | None:
    """The reading that a few more prompts could show to be better."""
    variants = evidence.reference.variants if evidence.reference else ()
    open_ones = [
        variant
        for variant in variants
        if variant.outcome == ReadingOutcome.TOO_FEW_PROMPTS and variant.prompts_needed is not None
    ]
    return max(open_ones, key=lambda variant: variant.ratio.value, default=None)


def _no_engine(evidence: Evidence) -> Shown | None:
    """Where the engine that was asked for did not run: nothing else was found, which is no health."""
    if not evidence.engine_gap:
        return None
    return Shown(
        f"nothing was found in the file, the reference and the prompts, and the engine did not run:"
        f" {evidence.engine_gap}"
    )


def _healthy(evidence: Evidence) -> Shown | None:
    served = evidence.served
    assert served is not None
    if is_low(evidence) or is_dead(served.measured):
        return None
    first, length = served.measured.per_position[0], served.measured.length
    words = (
        f"acceptance length {length.value:.2f} [{length.low:.2f}, {length.high:.2f}] at k={served.k},"
        f" position 0 accepted in {first.value:.0%}"
    )
    if evidence.expected is not None:
        words += f", as far as these prompts tell that of training ({evidence.expected:g})"
    return Shown(words)


def _not_found(evidence: Evidence) -> Shown:
    served = evidence.served
    assert served is not None
    measured = served.measured
    words = f"acceptance length {measured.length.value:.2f} at k={served.k}"
    if is_dead(measured):
        words += (
            ", that of a dead drafter in every reading: never trained, or for another target of these shapes,"
            " as this one is once its residual stream is rotated (QuaRot, SpinQuant)"
        )
    elif evidence.expected is not None:
        words += f", below the {evidence.expected:g} that was expected, with nothing found"
    return Shown(words, (evidence.commands["probe"],))


NO_REFERENCE = Cause(
    "no-reference",
    DiagnosisEnding.COULD_NOT_LOOK,
    "reference",
    "no run of the reference",
    "whether the target, its weights, torch and the prompts are there",
    "Follow the sentence.",
    _no_reference,
)
TOO_FEW = Cause(
    "too-few",
    DiagnosisEnding.COULD_NOT_LOOK,
    "measured",
    "too few prompts",
    "numbers of prompts and drafts, and intervals that hold both answers",
    "Give more `--prompts`.",
    _too_few,
)
NO_ENGINE = Cause(
    "no-engine",
    DiagnosisEnding.COULD_NOT_LOOK,
    "measured",
    "no run of the engine",
    "whether the engine that was asked for ran",
    "Follow the sentence.",
    _no_engine,
)
HEALTHY = Cause(
    "healthy",
    DiagnosisEnding.HEALTHY,
    "measured",
    "nothing wrong",
    "acceptance that is not low",
    "Nothing to do.",
    _healthy,
)
NOT_FOUND = Cause(
    "not-found",
    DiagnosisEnding.NOT_FOUND,
    "measured",
    "no cause found",
    "what remains",
    "See what was ruled out and what was not looked at.",
    _not_found,
)
