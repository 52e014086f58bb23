"""Why acceptance is low: a list of causes in order, of which the first that the evidence shows is named.

What several causes look at stands below: findings, acceptance that is low, dead or too little.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.base import Result
from eaglectl.errors import RefusedError
from eaglectl.judge.judge import Report
from eaglectl.judge.judgement import changes_serving
from eaglectl.judge.rule import Finding
from eaglectl.run.answering import MeasuredAnswer
from eaglectl.run.layers import LayerSearch
from eaglectl.run.measurement import (
    DEAD_LENGTH,
    DEAD_POSITION_0,
    FEWEST_DRAFTS,
    FEWEST_PROMPTS,
    Estimate,
    Measurement,
    ratio,
)
from eaglectl.run.report import SmokeReport
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict, DiagnosisEnding

Phase = Literal["reading", "reference", "engine", "measured"]
PHASES: tuple[Phase, ...] = ("reading", "reference", "engine", "measured")
# of all other endings it is FAIL
VERDICTS: Mapping[DiagnosisEnding, CheckVerdict] = {
    DiagnosisEnding.HEALTHY: CheckVerdict.PASS,
    DiagnosisEnding.COULD_NOT_LOOK: CheckVerdict.COULD_NOT_LOOK,
}

# below it more is looked at where there is nothing to judge acceptance by; no drafter is weak for it
LOOK_POSITION_0 = 0.5
# rules that could not look are reported by a cause of their own
OWN_CAUSES = ("rotated-target", "marked-rotation")
NOT_RUN = "the reference did not run it"


class Missed(Struct, frozen=True):
    """Why a look gave nothing; `is_refusal`: the drafter itself was refused."""

    reason: str
    is_refusal: bool = False


class PairFacts(Struct, frozen=True):
    """What matters of the files of drafter and target where acceptance is low."""

    is_target_quantised: bool = False
    has_own_embedding: bool = False
    has_unused_template: bool = False


class Evidence(Struct, frozen=True):
    """What was looked at, phase by phase; a look that was not taken is None, and `missed` says why by name.

    `reference` has the results of the sensitivity probe, `layers` those of other aux boundaries. `sampled` is
    a second run of it at the temperature that was asked for, `templated` one of the same texts through the
    target's chat template. `expected` is the acceptance length that training reported; `commands` are those
    to run next, by name, without repairs that are known to fail.
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
    pair: PairFacts = PairFacts()
    missed: Mapping[str, Missed] = field(default_factory=dict)

    def with_missed(self, look: str, error: Exception) -> "Evidence":
        """The evidence with why a look gave nothing."""
        missed = Missed(str(error), is_refusal=isinstance(error, RefusedError))
        return replace(self, missed={**self.missed, look: missed})

    def gap(self, look: str) -> str:
        """Why a look was not taken; empty where it was, or where it refused the drafter."""
        missed = self.missed.get(look)
        return missed.reason if missed and not missed.is_refusal else ""

    def refusal(self, look: str) -> str:
        """Why a look refused the drafter; empty where it did not."""
        missed = self.missed.get(look)
        return missed.reason if missed and missed.is_refusal else ""

    @property
    def served(self) -> SmokeReport | None:
        """The run that a user sees: the engine's, or the reference's where no engine ran."""
        return self.engine or self.reference


class Shown(Struct, frozen=True):
    """What shows a cause: a sentence, the commands to run next, and a title with its figures."""

    words: str
    commands: tuple[str, ...] = ()
    title: str = ""


class NotLooked(Struct, frozen=True):
    """Why the evidence has nothing on a cause."""

    reason: str


Test = Callable[[Evidence], Shown | NotLooked | None]


class Cause(Struct, frozen=True):
    """A cause: its id, how a diagnosis with it ends, when it can be tested, and its test.

    `title` names it and `advice` states what to do about it, for the documentation. The test gives None where
    the evidence rules the cause out.
    """

    id: str
    ending: DiagnosisEnding
    phase: Phase
    title: str
    advice: str
    test: Test

    @property
    def how(self) -> str:
        """What the test looks at, from its docstring: a part of a sentence."""
        text = " ".join(str(self.test.__doc__).split()).removesuffix(".")
        return text if text[:2].isupper() else text[0].lower() + text[1:]


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


def causes_of(causes: Iterable[Cause], phase: Phase) -> tuple[Cause, ...]:
    """The causes that can be tested once `phase` was looked at."""
    return tuple(cause for cause in causes if cause.phase == phase)


class Walk(Struct, frozen=True):
    """The causes that were tested so far, and the one that was shown, if any."""

    ruled_out: tuple[Cause, ...] = ()
    not_looked: tuple[tuple[Cause, str], ...] = ()
    found: tuple[Cause, Shown] | None = None

    def through(self, causes: Sequence[Cause], evidence: Evidence) -> "Walk":
        """The walk after testing `causes` in order, up to the first that is shown."""
        ruled_out, not_looked = list(self.ruled_out), list(self.not_looked)
        for cause in causes:
            match cause.test(evidence):
                case Shown() as shown:
                    return Walk(tuple(ruled_out), tuple(not_looked), (cause, shown))
                case NotLooked(reason):
                    not_looked.append((cause, reason))
                case None:
                    ruled_out.append(cause)
        return Walk(tuple(ruled_out), tuple(not_looked))


def conclude(walk: Walk, causes: Sequence[Cause], evidence: Evidence, source: str, target: str) -> Diagnosis:
    """The diagnosis of a walk that has found its cause; what it did not reach was not looked at."""
    assert walk.found is not None
    cause, shown = walk.found
    tested = {*(other.id for other in walk.ruled_out), *(other.id for other, _ in walk.not_looked), cause.id}
    rest = [
        (other.title, "an earlier question had its answer")
        for other in causes
        if other.id not in tested and is_fault(other)
    ]
    looked = [(other.title, reason) for other, reason in walk.not_looked if is_fault(other)]
    return Diagnosis(
        source,
        target,
        cause.id,
        cause.ending,
        shown.title or cause.title,
        shown.words,
        shown.commands,
        tuple(other.title for other in walk.ruled_out if is_fault(other)),
        (*looked, *rest),
        evidence,
    )


def is_fault(cause: Cause) -> bool:
    """Whether a cause is of low acceptance, and not another end of the tree."""
    return cause.ending not in (*VERDICTS, DiagnosisEnding.NOT_FOUND)


def serving_errors(evidence: Evidence, *, of_target: bool) -> Iterator[Finding]:
    """Errors of `validate` that change what every engine serves, on the target or on the file."""
    for finding in evidence.validated.findings:
        is_of_target = finding.rule.family == "target"
        if finding.severity == "error" and changes_serving(finding.rule) and is_of_target == of_target:
            yield finding


def as_shown(findings: list[Finding], *commands: str) -> Shown | None:
    """The first finding with its repair, and the names of the others; None where there is none."""
    if not findings:
        return None
    first, more = findings[0], len(findings) - 1
    rest = f" (and {more} more: {listed(finding.rule.name for finding in findings[1:])})" if more else ""
    words = f"{first.rule.id} {first.rule.name}: {first.match.message}{rest}; fix: {first.fix}"
    return Shown(words, commands)


def unchecked_rules(evidence: Evidence, *, of_target: bool) -> NotLooked | None:
    """Which rules that change what is served could not look; None where all could."""
    rules = [
        entry.rule.id
        for entry in evidence.validated.unchecked
        if changes_serving(entry.rule)
        and (entry.rule.family == "target") == of_target
        and entry.rule.name not in OWN_CAUSES
    ]
    return NotLooked(f"rules that could not look: {listed(rules)}") if rules else None


def warned(name: str, evidence: Evidence) -> Shown | NotLooked | None:
    """A rule's warning where it stands beside low acceptance."""
    if reasons := [entry.reason for entry in evidence.validated.unchecked if entry.rule.name == name]:
        return NotLooked(reasons[0])
    found = [finding for finding in evidence.validated.findings if finding.rule.name == name]
    return as_shown(found, evidence.commands["validate"]) if found and may_be_low(evidence) else None


def is_thin(measured: Measurement) -> bool:
    """Whether too little was measured for any verdict."""
    return measured.prompts < FEWEST_PROMPTS or measured.drafts < FEWEST_DRAFTS


def is_dead(measured: Measurement) -> bool:
    """Whether it accepts next to nothing, as a drafter that is broken or was never trained."""
    return measured.length.value <= DEAD_LENGTH or measured.per_position[0].value < DEAD_POSITION_0


def sampled_ratio(evidence: Evidence) -> Estimate | None:
    """Acceptance at the temperature over that at 0, prompt by prompt; None where it was not run."""
    return _over_reference(evidence, evidence.sampled)


def templated_ratio(evidence: Evidence) -> Estimate | None:
    """Acceptance in the target's chat template over that as given; None where it was not run."""
    return _over_reference(evidence, evidence.templated)


def _over_reference(evidence: Evidence, other: SmokeReport | None) -> Estimate | None:
    if other is None or evidence.reference is None:
        return None
    return ratio(other.run.results, evidence.reference.run.results)


def bar(evidence: Evidence) -> tuple[float, str] | None:
    """The acceptance length to judge by, and whose it is; None where there is none.

    That of --expected, else the lowest that others reach on a run like this one.
    """
    if evidence.expected is not None:
        return evidence.expected, "that was expected"
    served = evidence.served
    alike = served.published.alike if served and served.published else ()
    least = min((length for length in alike if not length.is_dead), key=lambda one: one.length, default=None)
    return None if least is None else (least.length, f"that {least.drafter} reaches on such a run")


def is_low(evidence: Evidence) -> bool:
    """Whether acceptance is below what was expected, or what others reach on a run like this one."""
    served, judged = evidence.served, bar(evidence)
    assert served is not None
    return judged is not None and served.measured.length.high < judged[0]


def may_be_low(evidence: Evidence) -> bool:
    """Whether what the files warn of is named: acceptance is low, or may be with nothing to judge it by."""
    served = evidence.served
    assert served is not None
    if bar(evidence) is not None:
        return is_low(evidence)
    return served.measured.per_position[0].value < LOOK_POSITION_0
