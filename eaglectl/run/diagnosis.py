"""Why acceptance is low: a list of causes in order, of which the first that the evidence shows is named."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.base import Result
from eaglectl.errors import RefusedError
from eaglectl.judge.judgement import Report, changes_serving
from eaglectl.judge.rule import Finding
from eaglectl.run.answering import MeasuredAnswer
from eaglectl.run.layers import LayerSearch
from eaglectl.run.report import SmokeReport
from eaglectl.verdicts import CheckVerdict, DiagnosisEnding

Phase = Literal["reading", "reference", "engine", "measured"]
# of all other endings it is FAIL
VERDICTS: Mapping[DiagnosisEnding, CheckVerdict] = {
    DiagnosisEnding.HEALTHY: CheckVerdict.PASS,
    DiagnosisEnding.COULD_NOT_LOOK: CheckVerdict.COULD_NOT_LOOK,
}
# endings that are no cause of low acceptance
NO_FAULTS = (*VERDICTS, DiagnosisEnding.NOT_FOUND)

# below it more is looked at where there is nothing to judge acceptance by; no drafter is weak for it
LOOK_POSITION_0 = 0.5


class Evidence(Struct, frozen=True):
    """What was looked at, phase by phase; a look that was not taken is None.

    `reference` has the results of the sensitivity probe, `layers` those of other aux boundaries. `sampled` is
    a second run of it at the temperature that was asked for, `templated` one of the same texts through the
    target's chat template. `expected` is the acceptance length that training reported; `commands` are those
    to run next, by name, without repairs that are known to fail. `gaps` say by look why it was not taken,
    `refusals` why it refused the drafter.
    """

    validated: Report
    commands: Mapping[str, str]
    engine_name: str | None = None
    expected: float | None = None
    reference: SmokeReport | None = None
    layers: LayerSearch | None = None
    engine: SmokeReport | None = None
    sampled: SmokeReport | None = None
    templated: SmokeReport | None = None
    is_target_quantised: bool = False
    has_own_embedding: bool = False
    has_unused_template: bool = False
    gaps: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)

    def without(self, look: str, error: Exception) -> "Evidence":
        """The evidence with why a look gave nothing."""
        if isinstance(error, RefusedError):
            return replace(self, refusals={**self.refusals, look: str(error)})
        return replace(self, gaps={**self.gaps, look: str(error)})

    @property
    def served(self) -> SmokeReport | None:
        """The run that a user sees: the engine's, or the reference's where no engine ran."""
        return self.engine or self.reference

    @property
    def judged(self) -> SmokeReport:
        """`served`, which every cause of the phase "measured" has."""
        assert self.served is not None
        return self.served

    @property
    def bar(self) -> tuple[float, str] | None:
        """The acceptance length to judge by, and whose it is; None where there is none.

        That of --expected, else the lowest that others reach on a run like this one.
        """
        if self.expected is not None:
            return self.expected, "that was expected"
        alike = self.judged.published.alike if self.judged.published else ()
        working = (length for length in alike if not length.is_dead)
        least = min(working, key=lambda published: published.length, default=None)
        return None if least is None else (least.length, f"that {least.drafter} reaches on such a run")

    @property
    def is_low(self) -> bool:
        """Whether acceptance is below what was expected, or what others reach on a run like this one."""
        return self.bar is not None and self.judged.measured.length.high < self.bar[0]

    @property
    def may_be_low(self) -> bool:
        """Whether what the files warn of is named: acceptance is low, or may be with nothing to judge by."""
        if self.bar is not None:
            return self.is_low
        return self.judged.measured.per_position[0].value < LOOK_POSITION_0

    def serving_errors(self, *, of_target: bool) -> Iterator[Finding]:
        """Errors of `validate` that change what every engine serves, on the target or on the file."""
        for finding in self.validated.findings:
            is_of_target = finding.rule.family == "target"
            if finding.severity == "error" and changes_serving(finding.rule) and is_of_target == of_target:
                yield finding


class Shown(Struct, frozen=True):
    """What shows a cause: a sentence, the commands to run next, and a title with its figures."""

    words: str
    commands: tuple[str, ...] = ()
    title: str = ""


class Cause(Struct, frozen=True):
    """A cause: its id, how a diagnosis with it ends, when it can be tested, and its test.

    `title` names it, `how` states what the test looks at and `advice` what to do about it, for the
    documentation. The test gives what shows the cause, why the evidence has nothing on it, or None where the
    evidence rules it out.
    """

    id: str
    ending: DiagnosisEnding
    phase: Phase
    title: str
    how: str
    advice: str
    test: Callable[[Evidence], Shown | str | None]


class Diagnosis(Result, frozen=True):
    """How the tree ended. `ruled_out` are titles of causes, `not_looked` titles with the reason.

    `measured`: what the files leave open, and how measuring answered it before anything else was looked at.
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

    @property
    def verdict(self) -> CheckVerdict:
        """PASS for HEALTHY, COULD_NOT_LOOK, or FAIL for a cause and for none that was found."""
        return VERDICTS.get(self.ending, CheckVerdict.FAIL)


def find_cause(
    causes: Sequence[Cause],
    evidence: Evidence,
    look: Callable[[Phase, Evidence], Evidence],
    source: str,
    target: str,
) -> Diagnosis:
    """Test `causes` in order up to the first that is shown; `look` adds what a phase looks at before it."""
    phase: Phase = "reading"
    ruled_out, not_looked = [], []
    for cause in causes:
        if cause.phase != phase:
            phase = cause.phase
            evidence = look(phase, evidence)
        shown = cause.test(evidence)
        if isinstance(shown, Shown):
            break
        if cause.ending in NO_FAULTS:
            continue
        if shown is None:
            ruled_out.append(cause.title)
        else:
            not_looked.append((cause.title, shown))
    assert isinstance(shown, Shown), "the last cause is what remains"
    rest = (other.title for other in causes[causes.index(cause) + 1 :] if other.ending not in NO_FAULTS)
    return Diagnosis(
        source,
        target,
        cause.id,
        cause.ending,
        shown.title or cause.title,
        shown.words,
        shown.commands,
        tuple(ruled_out),
        (*not_looked, *((title, "an earlier question had its answer") for title in rest)),
        evidence,
    )
