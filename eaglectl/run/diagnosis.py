"""Why acceptance is low: causes are tested in order, and the first that the evidence shows is named."""

from collections.abc import Callable, Mapping, Sequence

from eaglectl.base import Result
from eaglectl.run.answering import MeasuredAnswer
from eaglectl.run.evidence import MISSING, Cause, Evidence, Outcome, Phase, Shown
from eaglectl.verdicts import CheckVerdict, DiagnosisEnding

# all other endings are FAIL
VERDICTS: Mapping[DiagnosisEnding, CheckVerdict] = {
    DiagnosisEnding.HEALTHY: CheckVerdict.PASS,
    DiagnosisEnding.COULD_NOT_LOOK: CheckVerdict.COULD_NOT_LOOK,
}
# endings that are no cause of low acceptance
NO_FAULTS = (*VERDICTS, DiagnosisEnding.NOT_FOUND)


class Diagnosis(Result, frozen=True):
    """The result of a diagnosis. `ruled_out` are titles of causes, `not_looked` titles with the reason.

    `measured` are the answers to open questions of the files, which are measured first. `finding` is `words`
    without the fix. With `has_figures`, `title` states acceptance lengths.
    """

    source: str
    target: str
    cause: str
    ending: DiagnosisEnding
    title: str
    words: str
    commands: tuple[str, ...]
    ruled_out: tuple[str, ...]
    not_looked: tuple[tuple[str, str], ...]
    evidence: Evidence
    measured: tuple[MeasuredAnswer, ...] = ()
    finding: str = ""
    has_figures: bool = False

    @property
    def verdict(self) -> CheckVerdict:
        """PASS for HEALTHY, COULD_NOT_LOOK for itself, FAIL for any cause and for NOT_FOUND."""
        return VERDICTS.get(self.ending, CheckVerdict.FAIL)


def find_cause(
    causes: Sequence[Cause],
    evidence: Evidence,
    look: Callable[[Phase, Evidence], Evidence],
    source: str,
    target: str,
) -> Diagnosis:
    """Test `causes` in order up to the first that is shown; before each phase, `look` adds its evidence."""
    phase: Phase = "reading"
    ruled_out, not_looked = [], []
    for cause in causes:
        if cause.phase != phase:
            phase = cause.phase
            evidence = look(phase, evidence)
        look_at = getattr(evidence, cause.needs)
        if look_at is None and cause.needs in MISSING:
            outcome: Outcome = evidence.gaps.get(cause.needs, MISSING[cause.needs])
        else:
            outcome = cause.test(evidence, look_at)
        if isinstance(outcome, Shown):
            break
        if cause.ending in NO_FAULTS:
            continue
        if outcome is None:
            ruled_out.append(cause.title)
        else:
            not_looked.append((cause.title, outcome))
    assert isinstance(outcome, Shown), "the last cause is always shown"
    title, better = outcome.title or cause.title, outcome.better
    if better is not None:
        title += f": {better.stated_length:.2f} as stated, {better.measured.length.value:.2f} read so"
    rest = [other.title for other in causes[causes.index(cause) + 1 :] if other.ending not in NO_FAULTS]
    return Diagnosis(
        source,
        target,
        cause.id,
        cause.ending,
        title,
        f"{outcome.words}; fix: {outcome.fix.text}" if outcome.fix else outcome.words,
        outcome.commands,
        tuple(ruled_out),
        (*not_looked, *((title, "an earlier cause was found") for title in rest)),
        evidence,
        finding=outcome.words,
        has_figures=better is not None,
    )
