"""Why acceptance is low: a list of causes in order, of which the first that the evidence shows is named."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.acceptance.answering import MeasuredAnswer
from eaglectl.acceptance.layers import LayerSearch
from eaglectl.acceptance.report import SmokeReport
from eaglectl.base import Result
from eaglectl.errors import RefusedError
from eaglectl.validation.judge import Report
from eaglectl.verdicts import CheckVerdict, DiagnosisEnding

Stage = Literal["reading", "reference", "engine", "measured"]
STAGES: tuple[Stage, ...] = ("reading", "reference", "engine", "measured")
# of all other endings it is FAIL
VERDICTS: Mapping[DiagnosisEnding, CheckVerdict] = {
    DiagnosisEnding.HEALTHY: CheckVerdict.PASS,
    DiagnosisEnding.COULD_NOT_LOOK: CheckVerdict.COULD_NOT_LOOK,
}


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
    """What was looked at, stage by stage; a look that was not taken is None, and `missed` says why by name.

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
    stage: Stage
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


def causes_of(causes: Iterable[Cause], stage: Stage) -> tuple[Cause, ...]:
    """The causes that can be tested once `stage` was looked at."""
    return tuple(cause for cause in causes if cause.stage == stage)


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
