"""Why acceptance is low: causes are tested in order, and the first that the evidence shows is named.

docs/reference/causes.md is generated from the table CAUSES.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.base import Result
from eaglectl.drafter.tensors import FROM_D2T, FROM_T2D
from eaglectl.engines.engine import Verdict
from eaglectl.errors import RefusedError
from eaglectl.formats.catalogue import default_format, layout_for
from eaglectl.formats.commands import Fix
from eaglectl.judge.judgement import Report, changes_serving
from eaglectl.judge.rule import Finding
from eaglectl.run.answering import LayerSearch, MeasuredAnswer
from eaglectl.run.measurement import (
    DEAD_LENGTH,
    DEAD_POSITION_0,
    FEWEST_DRAFTS,
    FEWEST_PROMPTS,
    Estimate,
    Measurement,
    p_words,
    prompts_to_tell,
    ratio,
)
from eaglectl.run.probes import LEAST_GAIN, LEAST_PROMPTS, MADE_OF_T2D, MOST_TIMES, Sensitivity, Variant
from eaglectl.run.results import MAX_REGRESSION, PublishedLength, SmokeReport, published_lengths
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict, DiagnosisEnding, MatchEnding, ReadingOutcome

Phase = Literal["reading", "reference", "engine", "measured"]
# all other endings are FAIL
VERDICTS: Mapping[DiagnosisEnding, CheckVerdict] = {
    DiagnosisEnding.HEALTHY: CheckVerdict.PASS,
    DiagnosisEnding.COULD_NOT_LOOK: CheckVerdict.COULD_NOT_LOOK,
}
# endings that are no cause of low acceptance
NO_FAULTS = (*VERDICTS, DiagnosisEnding.NOT_FOUND)
# without a threshold, a lower share at position 0 starts further tests; it does not make a drafter weak
LOOK_POSITION_0 = 0.5
# ratio between sets: healthy drafters have twice the acceptance on some sets (fixtures/real/acceptance.json)
LEAST_TIMES = 3
TWICE = "twice as many --prompts"
# with a larger share of drafts past the drafter's positions, the other drafts cannot be judged
MOST_LEFT_OUT = 0.9
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
NOT_THE_BASE = (
    "; the target was not compared with the one of the training, and fine-tuning shows in no file of the"
    " drafter: pass the base model with --base-target to measure both"
)
CONTRADICTION = "d2t-t2d"
CHOICE = "; the first command assumes that t2d is right, the second that d2t is"
ROTATED, MARKED = "rotated-target", "marked-rotation"
SWITCHED = {"true": "false", "false": "true"}


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


def _as_shown(findings: Sequence[Finding], *commands: str) -> Shown | None:
    if not findings:
        return None
    first, more = findings[0], [finding.rule.name for finding in findings[1:]]
    rest = f" (and {len(more)} more: {listed(more)})" if more else ""
    words = f"{first.rule.id} {first.rule.name}: {first.match.message}{rest}"
    return Shown(words, commands, fix=first.repair)


def _of_rule(evidence: Evidence, name: str, *, when_low: bool) -> Outcome:
    """Return a rule's finding, or why the rule could not look; `when_low`: only if acceptance may be low."""
    findings = [finding for finding in evidence.validated.findings if finding.rule.name == name]
    if not findings:
        return next((gap.reason for gap in evidence.validated.unchecked if gap.rule.name == name), None)
    if when_low and not evidence.may_be_low:
        return None
    return _as_shown(findings, evidence.commands["validate"])


def _rotation(evidence: Evidence, _: object, name: str, *, when_low: bool) -> Outcome:
    """Return a rule's finding with the conversion that its fix names, for the requested engine."""
    outcome = _of_rule(evidence, name, when_low=when_low)
    if not isinstance(outcome, Shown):
        return outcome
    layout = layout_for(evidence.engine_name or "")
    option = "" if layout == default_format().name else f" --for {layout}"
    commands = tuple(offered.line + option for offered in outcome.fix.commands)
    return replace(outcome, commands=commands or outcome.commands)


def _unchecked_rules(evidence: Evidence, *, of_target: bool) -> str | None:
    rules = [
        entry.rule.id
        for entry in evidence.validated.unchecked
        if changes_serving(entry.rule)
        and (entry.rule.family == "target") == of_target
        and entry.rule.name not in (ROTATED, MARKED)  # these are causes themselves
    ]
    return f"rules that could not look: {listed(rules)}" if rules else None


def _other_target(evidence: Evidence, _: object) -> Outcome:
    errors = _as_shown(evidence.serving_errors(of_target=True), evidence.commands["validate"])
    return errors or _unchecked_rules(evidence, of_target=True)


def _file_rule(evidence: Evidence, _: object) -> Outcome:
    errors = evidence.serving_errors(of_target=False)
    if certain := [finding for finding in errors if finding.rule.name != CONTRADICTION]:
        return _as_shown(certain, *evidence.known("fix"))
    if errors:
        return f"{errors[0].rule.id} {CONTRADICTION}: which of the two is right is measured first"
    if problem := evidence.validated.problem:
        return Shown(problem, evidence.known("validate"))
    return _unchecked_rules(evidence, of_target=False)


def _tables(evidence: Evidence, _: object) -> Outcome:
    errors = evidence.serving_errors(of_target=False)
    error = next((finding for finding in errors if finding.rule.name == CONTRADICTION), None)
    if error is None:
        return None
    both = evidence.known(FROM_T2D, FROM_D2T)
    words = f"{error.rule.id} {CONTRADICTION}: {error.match.message}"
    if not both:  # rows in another order than t2d's
        return Shown(words, fix=error.repair)
    variants = evidence.reference.variants if evidence.reference else ()
    variant = next((variant for variant in variants if variant.name == MADE_OF_T2D), None)
    if variant is None:
        gap = evidence.refusals.get("reference") or evidence.gaps.get("reference") or NOT_RUN
        return Shown(f"{words}; it was not measured which of them is right: {gap}{CHOICE}", both)
    words += f"; with the tokens of t2d its acceptance length is x{variant.ratio.words} of that with d2t's"
    if variant.is_better or variant.ratio.high < 1:
        return Shown(words, both[:1] if variant.is_better else both[1:])
    return Shown(f"{words}, within chance on {variant.measured.prompts} prompts{CHOICE}", both)


def _no_run(evidence: Evidence, _: object, reasons: str, look: str, words: str, command: str) -> Outcome:
    """Return why a look is missing (`reasons` is "gaps" or "refusals"), within `words`; None if it is not."""
    reason = getattr(evidence, reasons).get(look)
    return Shown(words.format(reason), evidence.known(command)) if reason else None


def _other_reading(evidence: Evidence, run: SmokeReport) -> Outcome:
    if (probed := run.probed) is None:
        return NOT_RUN
    if (best := probed.best) is None:
        unproven = [
            variant.name for variant in probed.variants if variant.outcome == ReadingOutcome.TOO_FEW_PROMPTS
        ]
        if not probed.variants:
            return "no reading was tried"
        if (prompts := probed.variants[0].measured.prompts) < LEAST_PROMPTS:
            return (
                f"{prompts} prompts are too few to show that a reading is better; use {LEAST_PROMPTS} or more"
            )
        return f"too few prompts to judge {listed(unproven)}" if unproven else None
    if best.is_of_layers and evidence.layers and evidence.layers.found and evidence.layers.found.is_better:
        return f"{best.name} draft better, and so do other layers from the search"
    name, _, value = best.name.rpartition(" ")
    title = f"it drafts better read with {best.name}"
    if value in SWITCHED:
        title = f"{name} is {SWITCHED[value]} and should be {value}"
    words = (
        f"read with {best.name} its acceptance length is x{best.ratio.words}, beyond chance (p"
        f" {p_words(best.p_value)}, corrected for {len(probed.variants)} readings)"
    )
    if more := _more_faults(evidence, probed, best):
        title, words = f"read with {best.name} it drafts better, but that is not all", words + more
    return Shown(
        words,
        (evidence.commands["repair"],),
        title,
        better=best,
    )


def _more_faults(evidence: Evidence, probed: Sensitivity, best: Variant) -> str:
    # what shows that the file has another fault beside the best reading; empty if nothing does
    others = [variant.name for variant in probed.variants if variant.is_better and variant is not best]
    also = f"; so do the readings {listed(others)}" if others else ""
    advice = "diagnose what the conversion writes too"
    if probed.beside:
        return (
            f"; with that, {probed.beside.name} is x{probed.beside.ratio.words} more: the file has another"
            f" fault; {advice}"
        )
    if lowest := lowest_above(best.measured.length.value):
        return (
            f"{also}; below {lowest.length:.2f}, the lowest of any published drafter that works: the file has"
            f" another fault beside this one, or instead of it; {advice}"
        )
    if evidence.expected is not None and best.measured.length.high < evidence.expected:
        return f"{also}; below {evidence.expected:g} of --expected: this is not the whole cause; {advice}"
    return ""


def _other_layers(evidence: Evidence, search: LayerSearch) -> Outcome:
    if (best := search.found) is None:
        return None
    file_boundaries = [str(boundary) for boundary in search.stated]
    words = (
        f"with {best.name} its acceptance length is x{best.ratio.words} of that with the file's"
        f" {','.join(file_boundaries)}, on {best.measured.prompts} prompts that were not used to select them"
        f" among {search.tried} sets"
    )
    if not best.is_better:
        return f"{words}: within chance on so few prompts"
    more = "each set with one boundary one layer off drafts worse"
    if search.alike:
        alike = listed((",".join(map(str, boundaries)) for boundaries in search.alike), " or ")
        more = f"these prompts do not distinguish them from {alike}: the trainer's config decides"
    title = (
        f"trained on boundaries {best.option.partition(' ')[2]}, but the file states"
        f" {listed(file_boundaries)}"
    )
    return Shown(f"{words}; {more}", (evidence.commands["layers"],), title, better=best)


def _past_positions(_: Evidence, run: SmokeReport) -> Outcome:
    if (probed := run.probed) is None:
        return NOT_RUN
    if probed.starts and probed.left_out > MOST_LEFT_OUT * probed.starts:
        share = f"{probed.left_out:,} of {probed.starts:,} drafts begin"
        words = f"{share} past the drafter's max_position_embeddings, and the others are too few to judge"
        return Shown(f"{words}; use shorter prompts, or train it on longer texts")
    if (fall := probed.fall) is None:
        return None
    return Shown(
        f"{fall.below:.0%} of first draft tokens are right before position {fall.position} and"
        f" {fall.above:.0%} from there on: it was trained on shorter texts than these; train it on texts as"
        " long as the served ones"
    )


def _engine_commands(evidence: Evidence, *more: str) -> tuple[str, ...]:
    """Return the smallest changes for the requested engine, without its name.

    If validation found none, return the commands with the names `more`.
    """
    commands = tuple(
        change.commands[0].line if len(change.steps) == 1 and change.commands else change.text
        for change in evidence.validated.changes
    )
    return commands or evidence.known(*more)


def _engine_refuses(evidence: Evidence, _: object) -> Outcome:
    if words := evidence.refusals.get("engine"):
        return Shown(words, _engine_commands(evidence))
    return None if evidence.engine else evidence.gaps.get("engine", NO_ENGINE)


def _engine_setting(evidence: Evidence, engine: SmokeReport) -> Outcome:
    differences = engine.run.differences
    return Shown("; ".join(differences), _engine_commands(evidence, "convert")) if differences else None


def _other_answers(_: Evidence, engine: SmokeReport) -> Outcome:
    match = engine.match
    return Shown(match.words) if match and match.is_of_another_target else None


def _other_drafter(evidence: Evidence, engine: SmokeReport) -> Outcome:
    if (match := engine.match) is None:
        return "only a server's rounds are compared with the files"
    return Shown(match.words, evidence.known("inspect")) if match.ending == MatchEnding.NO else None


def _engine_unfilled(evidence: Evidence, engine: SmokeReport) -> Outcome:
    if (unfilled := engine.run.resolved.get("unfilled")) is None:
        return "the engine does not report which parameters stay unfilled"
    words = f"parameters that no tensor fills: {listed(unfilled)}"
    return Shown(words, _engine_commands(evidence, "convert")) if unfilled else None


def _engine_fact(evidence: Evidence, _: object) -> Outcome:
    if evidence.engine_name is None:
        return NO_ENGINE
    releases, compared = evidence.validated.releases, _ratio(evidence.engine, evidence.reference)
    if not releases:
        return "the server's release is not judged; pass it to `validate --engine`"
    if compared is not None and compared.low >= MAX_REGRESSION:
        return None
    failed = [verdict for verdict in releases if verdict.outcome.is_known_wrong]
    if not failed:
        is_open = any(verdict.outcome.is_open for verdict in releases)
        return "the verdict on this release is unknown: see `validate --engine`" if is_open else None
    last = failed[-1]
    words = f"{last.engine} {last.release} does not serve it as trained: {'; '.join(last.reasons)}"
    return Shown(words, _engine_commands(evidence, "convert"))


def _ratio(run: SmokeReport | None, reference: SmokeReport | None) -> Estimate | None:
    """Return acceptance in a run over that in the reference; None if the two cannot be compared."""
    if run is None or reference is None or run.k != reference.k:
        return None
    both = run.run.results, reference.run.results
    return ratio(*both) if len(both[0]) == len(both[1]) else None


def _other_run(
    evidence: Evidence, run: SmokeReport, missing: str, words: str, most: float = 1.0, is_gain: bool = False
) -> Outcome:
    """Return a run with clearly lower acceptance than the reference's; with `is_gain`, clearly higher."""
    if (change := _ratio(run, evidence.reference)) is None:
        return missing
    is_clear = change.high < most and change.value < MAX_REGRESSION
    if is_gain:
        is_clear = change.low > 1 and change.value >= LEAST_GAIN
    if not is_clear or _is_thin(run.measured):
        return None
    commands = _engine_commands(evidence, "convert") if run is evidence.engine else ()
    return Shown(words.format(run=run, reference=evidence.reference, change=change), commands)


def _is_thin(measured: Measurement) -> bool:
    return measured.prompts < FEWEST_PROMPTS or measured.drafts < FEWEST_DRAFTS


def _is_dead(measured: Measurement) -> bool:
    """Whether almost no draft token is accepted, as of a broken or untrained drafter."""
    return measured.length.value <= DEAD_LENGTH or measured.per_position[0].value < DEAD_POSITION_0


def _draft_vocabulary(_: Evidence, served: SmokeReport) -> Outcome:
    if (coverage := served.coverage) is None:
        return (
            "the draft vocabulary is the target's, its table is open, or the run does not report the answers'"
            " tokens"
        )
    if not coverage.holds_down or _is_thin(served.measured):
        return None
    low = listed(coverage.low_parts)
    return Shown(
        f"the draft vocabulary holds {coverage.words}; measured: {served.measured.length.value:.2f};"
        f" {coverage.advice}",
        coverage.commands,
        f"a draft vocabulary without the tokens of {low}" if low else "",
    )


def _one_set(_: Evidence, served: SmokeReport) -> Outcome:
    sets = {name: part.length for name, part in served.by_set.items() if not _is_thin(part)}
    if len(sets) < 2:
        return 'all prompts are of one set; name sets in --prompts ("set")'
    most = max(length.low for length in sets.values()) - 1
    low = [name for name, length in sets.items() if length.high - 1 < most / LEAST_TIMES]
    figures = listed(f'"{name}" {length.value:.2f}' for name, length in sets.items())
    words = f"acceptance lengths by set: {figures}; it is low on {listed(low)}: train it on such prompts"
    return Shown(words) if low else None


def _too_few(evidence: Evidence, served: SmokeReport) -> Outcome:
    measured, threshold = served.measured, evidence.threshold
    if _is_thin(measured):
        return Shown(
            f"{measured.prompts} prompts with {measured.drafts} drafts are too few to judge by;"
            f" {FEWEST_PROMPTS} and {FEWEST_DRAFTS} are needed, and 16 prompts or more are better: use more"
            " --prompts, or more --max-tokens"
        )
    if evidence.engine and evidence.engine.match and evidence.engine.gaps:
        return Shown("; ".join(evidence.engine.gaps))
    if variant := open_reading(evidence):
        needed = f"about {variant.prompts_needed}" if variant.prompts_needed else TWICE
        return Shown(
            f"{variant.name} {'draft' if variant.is_of_layers else 'drafts'} better by"
            f" x{variant.ratio.words}, within chance on {variant.measured.prompts} prompts: use {needed}",
            evidence.known("more"),
        )
    if words := _open_run(evidence):
        return Shown(words)
    length = measured.length
    if threshold and length.value < MAX_REGRESSION * threshold[0] and length.high >= threshold[0]:
        return Shown(
            f"acceptance length {length.words} may be below the {threshold[0]:g} {threshold[1]} or not: use"
            f" more --prompts than {measured.prompts}"
        )
    return None


def open_reading(evidence: Evidence) -> Variant | None:
    """Return the reading, or the layers, with a gain that only more prompts could show to be beyond chance.

    For a dead drafter it is any reading that is alive, as the drafter is then not dead in every reading.
    """
    run, searched = evidence.reference, evidence.layers.found if evidence.layers else None
    is_dead = run is not None and _is_dead(run.measured)
    unproven = {ReadingOutcome.TOO_FEW_PROMPTS} | ({ReadingOutcome.NO_BETTER} if is_dead else set())
    gaining = [
        variant
        for variant in (run.variants if run else ())
        if variant.outcome in unproven
        and variant.ratio.value >= LEAST_GAIN
        and not (is_dead and _is_dead(variant.measured))
    ]
    return max(gaining, key=lambda variant: variant.ratio.value, default=searched)


def _open_run(evidence: Evidence) -> str:
    """Return a loss by sampling, or a gain by the chat template, that a few more prompts could show; else "".

    A change that needs more than MOST_TIMES the prompts counts as chance.
    """
    for run, where, is_loss in (
        (evidence.sampled, "at the requested temperature", True),
        (evidence.templated, "in the target's chat template", False),
    ):
        compared = _ratio(run, evidence.reference)
        if run is None or compared is None or not compared.low <= 1 <= compared.high:
            continue
        if compared.value >= MAX_REGRESSION if is_loss else compared.value < LEAST_GAIN:
            continue
        prompts = run.measured.prompts
        needed = prompts_to_tell(compared, 1.0, prompts)
        if needed is not None and needed <= MOST_TIMES * prompts:
            return (
                f"{where} the acceptance length is x{compared.words}, within chance on {prompts} prompts: use"
                f" about {needed}"
            )
    return ""


def _other_revision(evidence: Evidence, _: object) -> Outcome:
    if not evidence.has_own_embedding:
        return "the file has no embedding of its own to compare with the target's"
    outcome = _of_rule(evidence, "own-embedding", when_low=True)
    if isinstance(outcome, Shown):
        advice = "; pass the revision that it was trained for, or train it on this one"
        return replace(outcome, words=outcome.words + advice, fix=Fix())
    return outcome or "its embedding is the target's, which several revisions may share"


def _quantised_target(evidence: Evidence, _: object) -> Outcome:
    words = (
        "the target is quantised, and acceptance is low without another cause: measure with the target that"
        " the drafter was trained with; if that is good, train it on the quantised target's states"
    )
    return Shown(words) if evidence.is_target_quantised and evidence.is_low else None


def _weak(evidence: Evidence, served: SmokeReport) -> Outcome:
    if (threshold := evidence.threshold) is None:
        return "no published length of a run like this one; pass training's with --expected"
    if _is_dead(served.measured) or evidence.expected is not None or not evidence.is_low:
        return None
    return Shown(
        f"{_figures(served)}: alive, not better in any reading, and below the {threshold.length:g}"
        f" {threshold.origin}: it needs more training, or prompts like those it was trained on"
        f"{'' if evidence.base else NOT_THE_BASE}"
    )


def _figures(served: SmokeReport) -> str:
    first, length = served.measured.per_position[0], served.measured.length
    return f"acceptance length {length.words} at k={served.k}, {first.value:.0%} accepted at position 0"


def _healthy(evidence: Evidence, served: SmokeReport) -> Outcome:
    if evidence.is_low or evidence.floor or _is_dead(served.measured):
        return None
    words = _figures(served)
    if evidence.as_stored:
        names = listed([f"{verdict.engine} {verdict.release}" for verdict in evidence.as_stored])
        words += f", run as trained; as stored, in {names}: {evidence.as_stored[0].reasons[0]}"
        title = "its weights draft well, but engines read the file differently"
        return Shown(words, evidence.known("rewrite"), title)
    if evidence.expected is not None:  # a threshold too, with a sentence for the user's own figure
        return Shown(f"{words}: on these prompts not below that of training ({evidence.expected:g})")
    if (threshold := evidence.threshold) is not None:
        return Shown(f"{words}: not below the {threshold.length:g} {threshold.origin}")
    lines = served.published.lines if served.published else ()
    return Shown(
        f"{words}; no cause was found; there is no threshold for this run:"
        f" {'; '.join(lines) or 'no published length of this target is known'}"
    )


def _not_found(evidence: Evidence, served: SmokeReport) -> Outcome:
    words = f"acceptance length {served.measured.length.value:.2f} at k={served.k}"
    if _is_dead(served.measured):
        words += (
            ", dead in every reading: it was never trained, or it is for another target of these shapes, such"
            " as this one with its residual stream rotated (QuaRot, SpinQuant)"
        )
    elif evidence.expected is not None:
        words += f", below --expected {evidence.expected:g}, without a cause found"
        words += "" if evidence.base else NOT_THE_BASE
    elif floor := evidence.floor:
        words += (
            f", below {floor.length:.2f}, the lowest of any published drafter that works"
            f" ({floor.figure.drafter} on {floor.prompt_set}), without a cause found"
        )
    return Shown(words, evidence.known("probe"))


CAUSES: tuple[Cause, ...] = (
    Cause(
        "rotated-target",
        DiagnosisEnding.PAIR,
        "reading",
        title="a target whose residual stream is rotated",
        how=(
            "whether rows of the target's embedding have the lengths and angles of the drafter's, but other"
            " values (EGL710)"
        ),
        advice="Run the printed `convert --target-rotation`.",
        test=partial(_rotation, name=ROTATED, when_low=False),
    ),
    Cause(
        "other-target",
        DiagnosisEnding.PAIR,
        "reading",
        title="a target of other shapes or another vocabulary",
        how="errors of `validate` on the target (EGL7xx)",
        advice="Pass the target that the drafter was trained for.",
        test=_other_target,
    ),
    Cause(
        "file-rule",
        DiagnosisEnding.FILE,
        "reading",
        title="a file that contradicts itself or misses tensors",
        how="errors of `validate` that change what every engine serves",
        advice=("Run the printed `convert`; restore what it cannot repair from the trainer."),
        test=_file_rule,
    ),
    Cause(
        "tables",
        DiagnosisEnding.FILE,
        "reference",
        title="d2t and t2d that name different tokens",
        how=("EGL305, and the sensitivity probe: whether the tokens of t2d draft better than those of d2t"),
        advice="Run the printed `convert`; if two are printed, choose the one for the right table.",
        test=_tables,
    ),
    Cause(
        "refused",
        DiagnosisEnding.FILE,
        "reference",
        title="a file with open questions",
        how="whether the reference refuses the drafter",
        advice="Follow the message; `inspect` lists the questions.",
        test=partial(_no_run, reasons="refusals", look="reference", words="{}", command="inspect"),
    ),
    Cause(
        "no-reference",
        DiagnosisEnding.COULD_NOT_LOOK,
        "reference",
        title="no run of the reference",
        how="whether the target, its weights, torch and the prompts are available",
        advice="Follow the message.",
        test=partial(
            _no_run, reasons="gaps", look="reference", words="{}; then diagnose again", command="diagnose"
        ),
    ),
    Cause(
        "other-reading",
        DiagnosisEnding.FILE,
        "reference",
        title="a file whose tensors or switches mean something else",
        how="the sensitivity probe: whether another reading drafts better by 3 % beyond chance",
        advice=("Run the printed `convert`, with `--fix-reading`, `--source-semantics` or `--aux-layers`."),
        test=_other_reading,
        needs="reference",
    ),
    Cause(
        "other-layers",
        DiagnosisEnding.FILE,
        "reference",
        title="other aux layers than the file states",
        how=(
            "other boundaries of the target: moved one at a time while more first draft tokens are right on"
            " half of the prompts, and judged on the other half"
        ),
        advice="Check the trainer's config, then run the printed `convert --aux-layers`.",
        test=_other_layers,
        needs="layers",
    ),
    Cause(
        "past-positions",
        DiagnosisEnding.PROMPTS,
        "reference",
        title="texts longer than it was trained on",
        how="the position from which fewer first draft tokens are right, and drafts past"
        " max_position_embeddings",
        advice="Serve shorter texts, or train on longer ones.",
        test=_past_positions,
        needs="reference",
    ),
    Cause(
        "engine-refuses",
        DiagnosisEnding.ENGINE,
        "engine",
        title="an engine that refuses the drafter",
        how="the run in the engine",
        advice="Run the printed `convert`, or install a release that serves it.",
        test=_engine_refuses,
    ),
    Cause(
        "engine-setting",
        DiagnosisEnding.ENGINE,
        "engine",
        title="an engine that uses other settings than the file states",
        how="norm switches and aux layers that the engine resolved",
        advice="Run the printed `convert`.",
        test=_engine_setting,
        needs="engine",
    ),
    Cause(
        "server-target",
        DiagnosisEnding.COULD_NOT_LOOK,
        "engine",
        title="a server of another target",
        how="the server's greedy answers compared with those of the target's files",
        advice="Pass the target that it serves as `--target`.",
        test=_other_answers,
        needs="engine",
    ),
    Cause(
        "server-drafter",
        DiagnosisEnding.ENGINE,
        "engine",
        title="a server that drafts differently than these files",
        how="the rounds of the server and of the files, for each prompt with equal answers",
        advice="Load these files into the server again; `inspect` shows what its engine reads differently.",
        test=_other_drafter,
        needs="engine",
    ),
    Cause(
        "engine-unfilled",
        DiagnosisEnding.ENGINE,
        "engine",
        title="parameters that the engine leaves unfilled",
        how="the parameters that no tensor of the file fills",
        advice="Run the printed `convert`.",
        test=_engine_unfilled,
        needs="engine",
    ),
    Cause(
        "engine-fact",
        DiagnosisEnding.ENGINE,
        "engine",
        title="a release that is known not to serve it as trained",
        how="what this release is known to do with such a file, unless its own run shows no loss",
        advice=("Write the named keys, run the printed `convert`, or install the named release."),
        test=_engine_fact,
    ),
    Cause(
        "engine-lower",
        DiagnosisEnding.ENGINE,
        "engine",
        title="an engine that computes something else",
        how="acceptance in the engine over that in the reference, on the same prompts",
        advice="Try the printed `convert` or another release, and report it to the engine.",
        test=partial(
            _other_run,
            missing="the engine drafts another number of tokens in a round than the reference",
            most=MAX_REGRESSION,
            words="the acceptance length in {run.run.engine} {run.run.version} is x{change.words} of the"
            " reference's with the same file, and the engine reports no different setting",
        ),
        needs="engine",
    ),
    Cause(
        "sampling",
        DiagnosisEnding.PROMPTS,
        "measured",
        title="sampling",
        how="whether acceptance at `--temperature` is below that at 0",
        advice=(
            "Lower the temperature, let vLLM sample drafts (`draft_sample_method`), or train on sampled"
            " answers."
        ),
        test=partial(
            _other_run,
            missing=MISSING["sampled"],
            words="acceptance length {run.measured.length.value:.2f} at temperature {run.temperature:g} and"
            " {reference.measured.length.value:.2f} at 0 (ratio {change.words}), with greedy drafts: sampled"
            " tokens are harder to predict; lower the temperature, have vLLM sample drafts too"
            " (draft_sample_method probabilistic in --speculative-config), or train it on sampled answers",
        ),
        needs="sampled",
    ),
    Cause(
        "template",
        DiagnosisEnding.PROMPTS,
        "measured",
        title="prompts without the target's chat template",
        how="plain prompts, run again through the target's chat template",
        advice="Pass chats as `messages`.",
        test=partial(
            _other_run,
            missing=MISSING["templated"],
            is_gain=True,
            words="acceptance length {run.measured.length.value:.2f} with the same texts in the target's chat"
            ' template, and {reference.measured.length.value:.2f} as given: pass chats as "messages", as'
            " servers get them",
        ),
        needs="templated",
    ),
    Cause(
        "draft-vocabulary",
        DiagnosisEnding.VOCABULARY,
        "measured",
        title="a draft vocabulary without the tokens of the answers",
        how=(
            "the share of the answers' tokens that a reduced draft vocabulary holds, over all prompts, by set"
            " and by script"
        ),
        advice=(
            "Count the tokens of such answers with the printed command. Prune a pruned drafter again by these"
            " counts, without training; train any other with a draft vocabulary of these tokens."
        ),
        test=_draft_vocabulary,
    ),
    Cause(
        "one-set",
        DiagnosisEnding.PROMPTS,
        "measured",
        title="one kind of prompts",
        how=(
            "sets of prompts on which fewer than a third as many draft tokens are accepted as on another set"
        ),
        advice="Train on prompts like those of the low sets.",
        test=_one_set,
    ),
    Cause(
        "too-few",
        DiagnosisEnding.COULD_NOT_LOOK,
        "measured",
        title="too few prompts",
        how="the counts of prompts and drafts, and intervals that contain both answers",
        advice="Use more `--prompts`.",
        test=_too_few,
    ),
    Cause(
        "marked-rotation",
        DiagnosisEnding.PAIR,
        "measured",
        title="a target that is marked as rotated",
        how="low acceptance, and a mark of QuaRot or SpinQuant in the target's files (EGL711)",
        advice="Run the printed `convert --target-rotation`, unless it was trained on this target.",
        test=partial(_rotation, name=MARKED, when_low=True),
    ),
    Cause(
        "other-revision",
        DiagnosisEnding.PAIR,
        "measured",
        title="another revision of the target",
        how="low acceptance, and an embedding that is not the target's (EGL704)",
        advice="Pass the revision that the drafter was trained for.",
        test=_other_revision,
    ),
    Cause(
        "tuned-target",
        DiagnosisEnding.PAIR,
        "measured",
        title="a target with other weights than the one of the training",
        how="whether acceptance is higher with the target of the training (`--base-target`)",
        advice="Train the drafter on the states of this target, or serve the one of the training.",
        test=partial(
            _other_run,
            missing=MISSING["base"],
            is_gain=True,
            words="acceptance length {run.measured.length.value:.2f} with the target of the training, and"
            " {reference.measured.length.value:.2f} with this one, on the same prompts (x{change.words}):"
            " this target has other weights, as after fine-tuning; train the drafter on its states",
        ),
        needs="base",
    ),
    Cause(
        "quantised-target",
        DiagnosisEnding.PAIR,
        "measured",
        title="a quantised target",
        how="low acceptance, and a target with quantization_config",
        advice="Measure with the target that it was trained with.",
        test=_quantised_target,
    ),
    Cause(
        "untrained",
        DiagnosisEnding.TRAINING,
        "measured",
        title="a drafter that was not trained",
        how="low acceptance, and tensors that look randomly initialised (EGL207)",
        advice="Train it.",
        test=lambda evidence, _: _of_rule(evidence, "untrained", when_low=True),
    ),
    Cause(
        "weak",
        DiagnosisEnding.TRAINING,
        "measured",
        title="too little training",
        how=("acceptance below every published length of such a run, without another cause"),
        advice="Train it longer, on prompts like the served ones.",
        test=_weak,
    ),
    Cause(
        "no-engine",
        DiagnosisEnding.COULD_NOT_LOOK,
        "measured",
        title="no run of the engine",
        how="whether the requested engine ran",
        advice="Follow the message.",
        test=partial(
            _no_run,
            reasons="gaps",
            look="engine",
            words="the file, the reference and the prompts show no cause, and the engine did not run: {}",
            command="",
        ),
    ),
    Cause(
        "healthy",
        DiagnosisEnding.HEALTHY,
        "measured",
        title="nothing found",
        how="acceptance not below its threshold, or that of every published drafter, without a cause found",
        advice="Nothing to do.",
        test=_healthy,
    ),
    Cause(
        "not-found",
        DiagnosisEnding.NOT_FOUND,
        "measured",
        title="no cause found",
        how="no cause above is shown",
        advice="See which causes were ruled out and which were not looked at.",
        test=_not_found,
    ),
)
