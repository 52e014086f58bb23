"""What was looked at in a diagnosis, and what shows a cause of low acceptance."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.engines.engine import Verdict
from eaglectl.errors import RefusedError
from eaglectl.formats.commands import Fix
from eaglectl.judge.judgement import Report, changes_serving
from eaglectl.judge.rule import Finding
from eaglectl.run.answering import LayerSearch
from eaglectl.run.probes import Variant
from eaglectl.run.published_lengths import PublishedLength, published_lengths
from eaglectl.run.results import SmokeReport
from eaglectl.verdicts import DiagnosisEnding

Phase = Literal["reading", "reference", "engine", "measured"]
# without a threshold, a lower share at position 0 starts further tests; it does not make a drafter weak
LOOK_POSITION_0 = 0.5
NO_ENGINE = "no engine was requested; pass --engine or --run-in"
NOT_RUN = "the reference did not run it"
# why a look that a cause needs is missing, if nothing failed
MISSING = {
    "reference": NOT_RUN,
    "layers": NOT_RUN,
    "engine": NO_ENGINE,
    "sampled": "measured greedily; pass --temperature with the temperature of production",
    "templated": "runs only if acceptance may be low, on plain prompts that fit into the context with the"
    " target's chat template",
    "base": "the target of the training was not given; pass it (the base model of a fine-tuned target) with"
    " --base-target",
}


class Threshold(NamedTuple):
    """The acceptance length to judge by, and its origin in words."""

    length: float
    origin: str


class Evidence(Struct, frozen=True):
    """The looks at a drafter, phase by phase; a missing look is None.

    `reference` has the results of the sensitivity probe, `layers` those of other aux boundaries. `sampled` is
    a second run of the reference at the requested temperature, `templated` one with the same texts in the
    target's chat template, `base` a run with the target of the training. `expected` is the acceptance length
    that training reported. `commands` are the next commands by name, without repairs that are known to fail.
    `gaps` state why a look is missing, by look; `refusals` why it refused the drafter. `as_stored` are the
    newest releases that do not run the file as stored, if no engine was requested.
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
    base: SmokeReport | None = None
    is_target_quantised: bool = False
    has_own_embedding: bool = False
    gaps: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    as_stored: tuple[Verdict, ...] = ()

    def without(self, look: str, error: Exception) -> "Evidence":
        """Return the evidence with the reason why a look failed."""
        if isinstance(error, RefusedError):
            return replace(self, refusals={**self.refusals, look: str(error)})
        return replace(self, gaps={**self.gaps, look: str(error)})

    @property
    def served(self) -> SmokeReport | None:
        """The run that a user sees: the engine's, or the reference's if no engine ran."""
        return self.engine or self.reference

    @property
    def threshold(self) -> Threshold | None:
        """The acceptance length to judge by, and its origin in words; None if there is none.

        It is --expected, else the lowest published length of a run like this one.
        """
        if self.expected is not None:
            return Threshold(self.expected, "of --expected")
        alike = self.served.published.alike if self.served and self.served.published else ()
        working = [(length.length, length.figure.drafter) for length in alike if not length.is_dead]
        if not working:
            return None
        length, drafter = min(working)
        return Threshold(length, f"that {drafter} reaches in such a run")

    @property
    def is_low(self) -> bool:
        """Whether acceptance is below the threshold."""
        threshold, served = self.threshold, self.served
        return bool(threshold and served and served.measured.length.high < threshold.length)

    @property
    def floor(self) -> PublishedLength | None:
        """The lowest acceptance length of any published drafter that works, if this run has less.

        None too if there is a threshold, or if nothing was measured as served.
        """
        if self.threshold is not None or self.served is None:
            return None
        return lowest_above(self.served.measured.length.value)

    @property
    def may_be_low(self) -> bool:
        """Whether warnings about the files count: acceptance is low, or may be low without a threshold."""
        if self.threshold is not None or self.served is None:
            return self.is_low
        return self.served.measured.per_position[0].value < LOOK_POSITION_0

    def serving_errors(self, *, of_target: bool) -> list[Finding]:
        """Return the errors of `validate` that change serving in every engine, on the target or the file."""
        return [
            finding
            for finding in self.validated.findings
            if finding.severity == "error"
            and changes_serving(finding.rule)
            and (finding.rule.family == "target") == of_target
        ]

    def known(self, *names: str) -> tuple[str, ...]:
        """Return the commands with these names, without those that are known to fail."""
        return tuple(self.commands[name] for name in names if name in self.commands)


def lowest_above(length: float) -> PublishedLength | None:
    """Return the lowest acceptance length of any published drafter that works, if `length` is below it."""
    working = (published for published in published_lengths() if not published.is_dead)
    lowest = min(working, key=lambda published: published.length)
    return lowest if length < lowest.length else None


class Shown(Struct, frozen=True):
    """The evidence for a cause: a sentence, the next commands, a title, and the fix.

    `better` is a reading that drafts better; the diagnosis' title states both acceptance lengths.
    """

    words: str
    commands: tuple[str, ...] = ()
    title: str = ""
    fix: Fix = Fix()
    better: Variant | None = None


# evidence for a cause, the reason why it could not be tested, or None if the evidence rules it out
Outcome = Shown | str | None


class Cause(Struct, frozen=True):
    """A cause: its id, how a diagnosis with it ends, when it can be tested, and its test.

    `title`, `how` (what the test compares) and `advice` (what to do) are also its documentation. `needs` is
    the look of the evidence that the test gets as its second argument.
    """

    id: str
    ending: DiagnosisEnding
    phase: Phase
    title: str
    how: str
    advice: str
    test: Callable[[Evidence, Any], Outcome]
    needs: str = "served"
