"""Why acceptance is low: causes in the order in which they are tested, of which the first shown is named.

docs/reference/causes.md is made of the table CAUSES.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

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
from eaglectl.run.probes import LEAST_GAIN, LEAST_PROMPTS, MADE_OF_T2D, MOST_TIMES, Variant
from eaglectl.run.results import MAX_REGRESSION, SmokeReport
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict, DiagnosisEnding, MatchEnding, ReadingOutcome, ServedAs

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
# between sets: healthy drafters accept twice as much of one as of another (fixtures/real/acceptance.json)
LEAST_TIMES = 3
TWICE = "twice as many --prompts"
# the share of drafts past the drafter's positions up to which the others can be judged
MOST_LEFT_OUT = 0.9
NO_ENGINE = "no engine was asked for; give --engine or --run-in"
NOT_RUN = "the reference did not run it"
# why a look that a cause needs was not taken, where nothing kept it from being taken
MISSING = {
    "reference": NOT_RUN,
    "layers": NOT_RUN,
    "engine": NO_ENGINE,
    "sampled": "measured greedily; give --temperature with that of production",
    "templated": "run only where acceptance may be low, of plain prompts that fit with the target's chat"
    " template",
}
CONTRADICTION = "d2t-t2d"
CHOICE = "; the first command takes t2d for the right one, the second d2t"
ROTATED, MARKED = "rotated-target", "marked-rotation"
SWITCHED = {"true": "false", "false": "true"}


class Evidence(Struct, frozen=True):
    """What was looked at, phase by phase; a look that was not taken is None.

    `reference` has the results of the sensitivity probe, `layers` those of other aux boundaries. `sampled` is
    a second run of it at the temperature that was asked for, `templated` one of the same texts through the
    target's chat template. `expected` is the acceptance length that training reported; `commands` are those
    to run next, by name, without repairs that are known to fail. `gaps` say by look why it was not taken,
    `refusals` why it refused the drafter. `as_stored` are the newest releases that do not run the file as it
    is, where no engine was asked for.
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
    gaps: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    as_stored: tuple[Verdict, ...] = ()

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
    def threshold(self) -> tuple[float, str] | None:
        """The acceptance length to judge by, and whose it is; None where there is none.

        That of --expected, else the lowest that others reach on a run like this one.
        """
        if self.expected is not None:
            return self.expected, "that was expected"
        alike = self.served.published.alike if self.served and self.served.published else ()
        working = [(length.length, length.figure.drafter) for length in alike if not length.is_dead]
        return (min(working)[0], f"that {min(working)[1]} reaches on such a run") if working else None

    @property
    def is_low(self) -> bool:
        """Whether acceptance is below what was expected, or what others reach on a run like this one."""
        return bool(self.threshold and self.served and self.served.measured.length.high < self.threshold[0])

    @property
    def may_be_low(self) -> bool:
        """Whether what the files warn of is named: acceptance is low, or may be with nothing to judge by."""
        if self.threshold is not None or self.served is None:
            return self.is_low
        return self.served.measured.per_position[0].value < LOOK_POSITION_0

    def serving_errors(self, *, of_target: bool) -> list[Finding]:
        """Errors of `validate` that change what every engine serves, on the target or on the file."""
        return [
            finding
            for finding in self.validated.findings
            if finding.severity == "error"
            and changes_serving(finding.rule)
            and (finding.rule.family == "target") == of_target
        ]

    def known(self, *names: str) -> tuple[str, ...]:
        """The commands of these names that are not known to fail."""
        return tuple(self.commands[name] for name in names if name in self.commands)


class Shown(Struct, frozen=True):
    """What shows a cause: a sentence, the commands to run next, a title, and the fix.

    `better` is a reading that drafts better; the diagnosis' title states both acceptance lengths.
    """

    words: str
    commands: tuple[str, ...] = ()
    title: str = ""
    fix: Fix = Fix()
    better: Variant | None = None


# what shows a cause, why the evidence has nothing on it, or None where the evidence rules it out
Outcome = Shown | str | None


class Cause(Struct, frozen=True):
    """A cause: its id, how a diagnosis with it ends, when it can be tested, and its test.

    `title` names it, `how` states what the test looks at and `advice` what to do about it, for the
    documentation. `needs` is the look of the evidence that the test gets as its second argument.
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
    """How the tree ended. `ruled_out` are titles of causes, `not_looked` titles with the reason.

    `measured`: what the files leave open, and how measuring answered it before anything else was looked at.
    `finding` is `words` without the fix. `has_figures`: `title` states acceptance lengths.
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
        look_at = getattr(evidence, cause.needs)
        if look_at is None and cause.needs in MISSING:
            shown: Outcome = evidence.gaps.get(cause.needs, MISSING[cause.needs])
        else:
            shown = cause.test(evidence, look_at)
        if isinstance(shown, Shown):
            break
        if cause.ending in NO_FAULTS:
            continue
        if shown is None:
            ruled_out.append(cause.title)
        else:
            not_looked.append((cause.title, shown))
    assert isinstance(shown, Shown), "the last cause is what remains"
    title, better = shown.title or cause.title, shown.better
    if better is not None:
        title += f": {better.stated_length:.2f}, and {better.measured.length.value:.2f} read so"
    rest = [other.title for other in causes[causes.index(cause) + 1 :] if other.ending not in NO_FAULTS]
    return Diagnosis(
        source,
        target,
        cause.id,
        cause.ending,
        title,
        f"{shown.words}; fix: {shown.fix.text}" if shown.fix else shown.words,
        shown.commands,
        tuple(ruled_out),
        (*not_looked, *((title, "an earlier question had its answer") for title in rest)),
        evidence,
        finding=shown.words,
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
    """A rule's finding, `when_low` where it stands beside low acceptance; or why the rule could not look."""
    findings = [finding for finding in evidence.validated.findings if finding.rule.name == name]
    if not findings:
        return next((gap.reason for gap in evidence.validated.unchecked if gap.rule.name == name), None)
    if when_low and not evidence.may_be_low:
        return None
    return _as_shown(findings, evidence.commands["validate"])


def _rotation(evidence: Evidence, _: object, name: str, *, when_low: bool) -> Outcome:
    """What a rule shows, with the conversion that its fix names, for the engine that was asked for."""
    shown = _of_rule(evidence, name, when_low=when_low)
    if not isinstance(shown, Shown):
        return shown
    layout = layout_for(evidence.engine_name or "")
    option = "" if layout == default_format().name else f" --for {layout}"
    commands = tuple(offered.line + option for offered in shown.fix.commands)
    return replace(shown, commands=commands or shown.commands)


def _unchecked_rules(evidence: Evidence, *, of_target: bool) -> str | None:
    rules = [
        entry.rule.id
        for entry in evidence.validated.unchecked
        if changes_serving(entry.rule)
        and (entry.rule.family == "target") == of_target
        and entry.rule.name not in (ROTATED, MARKED)  # which are causes of their own
    ]
    return f"rules that could not look: {listed(rules)}" if rules else None


def _other_target(evidence: Evidence, _: object) -> Outcome:
    shown = _as_shown(evidence.serving_errors(of_target=True), evidence.commands["validate"])
    return shown or _unchecked_rules(evidence, of_target=True)


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
        return Shown(f"{words}; which of them is right was not measured: {gap}{CHOICE}", both)
    words += f"; with the tokens of t2d it drafts x{variant.ratio.words} as much as with those of d2t"
    if variant.is_better or variant.ratio.high < 1:
        return Shown(words, both[:1] if variant.is_better else both[1:])
    return Shown(f"{words}, which {variant.measured.prompts} prompts cannot tell from chance{CHOICE}", both)


def _no_run(evidence: Evidence, _: object, reasons: str, look: str, words: str, command: str) -> Outcome:
    """Why the evidence has no run of `look` ("gaps" or "refusals"), put into `words`; None where it has."""
    reason = getattr(evidence, reasons).get(look)
    return Shown(words.format(reason), evidence.known(command)) if reason else None


def _other_reading(evidence: Evidence, run: SmokeReport) -> Outcome:
    if (probed := run.probed) is None:
        return NOT_RUN
    if (best := probed.best) is None:
        few = [each.name for each in probed.variants if each.outcome == ReadingOutcome.TOO_FEW_PROMPTS]
        if not probed.variants:
            return "no reading was tried"
        if (prompts := probed.variants[0].measured.prompts) < LEAST_PROMPTS:
            return f"{prompts} prompts show no reading to be better; {LEAST_PROMPTS} or more can"
        return f"too few prompts to tell of {listed(few)}" if few else None
    if best.is_of_layers and evidence.layers and evidence.layers.found and evidence.layers.found.is_better:
        return f"{best.name} draft better, and so do layers that the search found"
    name, _, value = best.name.rpartition(" ")
    title = f"it drafts better read with {best.name}"
    if value in SWITCHED:
        title = f"{name} is {SWITCHED[value]} and should be {value}"
    return Shown(
        f"read with {best.name} it drafts x{best.ratio.words} as much, beyond chance (p"
        f" {p_words(best.p_value)} after {len(probed.variants)} readings)",
        (evidence.commands["repair"],),
        title,
        better=best,
    )


def _other_layers(evidence: Evidence, search: LayerSearch) -> Outcome:
    if (found := search.found) is None:
        return None
    stated = [str(boundary) for boundary in search.stated]
    words = (
        f"from {found.name} it drafts x{found.ratio.words} as much as from {','.join(stated)} that the file"
        f" states, on {found.measured.prompts} prompts that did not choose them among {search.tried} sets"
    )
    if not found.is_better:
        return f"{words}: too few to tell from chance"
    more = "from each set with one boundary one off it drafts less"
    if search.alike:
        alike = listed((",".join(map(str, boundaries)) for boundaries in search.alike), " or ")
        more = f"from {alike} it drafts as well, as far as these prompts tell: the trainer's config decides"
    title = f"trained on boundaries {found.option.partition(' ')[2]}, and the file states {listed(stated)}"
    return Shown(f"{words}; {more}", (evidence.commands["layers"],), title, better=found)


def _past_positions(_: Evidence, run: SmokeReport) -> Outcome:
    if (probed := run.probed) is None:
        return NOT_RUN
    if probed.starts and probed.left_out > MOST_LEFT_OUT * probed.starts:
        share = f"{probed.left_out:,} of {probed.starts:,} drafts begin"
        words = f"{share} past the drafter's max_position_embeddings, and nothing can be told of the others"
        return Shown(f"{words}; give shorter prompts, or train it on longer texts")
    if (fall := probed.fall) is None:
        return None
    return Shown(
        f"first draft tokens are right in {fall.below:.0%} before position {fall.position} and in"
        f" {fall.above:.0%} from there on: it was trained on shorter texts than these; train it on texts as"
        " long as those that are served"
    )


def _engine_commands(evidence: Evidence, *more: str) -> tuple[str, ...]:
    """The smallest changes for the one engine that was asked for, without its name before them.

    Where reading says of none, the commands with the names `more`.
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
        return "it is seen of servers alone"
    return Shown(match.words, evidence.known("inspect")) if match.ending == MatchEnding.NO else None


def _engine_unfilled(evidence: Evidence, engine: SmokeReport) -> Outcome:
    if (unfilled := engine.run.resolved.get("unfilled")) is None:
        return "the engine does not say which parameters nothing fills"
    words = f"parameters that nothing fills: {listed(unfilled)}"
    return Shown(words, _engine_commands(evidence, "convert")) if unfilled else None


def _engine_fact(evidence: Evidence, _: object) -> Outcome:
    if evidence.engine_name is None:
        return NO_ENGINE
    releases, compared = evidence.validated.releases, _ratio(evidence.engine, evidence.reference)
    if not releases:
        return "which releases the server has is not asked; validate --engine takes one"
    if compared is not None and compared.low >= MAX_REGRESSION:
        return None
    failed = [verdict for verdict in releases if verdict.outcome.is_known_wrong]
    if not failed:
        is_open = any(verdict.outcome == ServedAs.UNKNOWN for verdict in releases)
        return "its verdict is open: see `validate --engine`" if is_open else None
    last = failed[-1]
    words = f"{last.engine} {last.release} does not serve it as trained: {'; '.join(last.reasons)}"
    return Shown(words, _engine_commands(evidence, "convert"))


def _ratio(run: SmokeReport | None, reference: SmokeReport | None) -> Estimate | None:
    """Acceptance in a run over that in the reference; None where the two cannot be compared."""
    if run is None or reference is None or run.k != reference.k:
        return None
    both = run.run.results, reference.run.results
    return ratio(*both) if len(both[0]) == len(both[1]) else None


def _other_run(
    evidence: Evidence, run: SmokeReport, missing: str, words: str, most: float = 1.0, is_gain: bool = False
) -> Outcome:
    """A run with clearly less acceptance than the reference's, or clearly more, where that is the fault."""
    if (change := _ratio(run, evidence.reference)) is None:
        return missing
    is_shown = change.high < most and change.value < MAX_REGRESSION
    if is_gain:
        is_shown = change.low > 1 and change.value >= LEAST_GAIN
    if not is_shown or _is_thin(run.measured):
        return None
    commands = _engine_commands(evidence, "convert") if run is evidence.engine else ()
    return Shown(words.format(run=run, reference=evidence.reference, change=change), commands)


def _is_thin(measured: Measurement) -> bool:
    return measured.prompts < FEWEST_PROMPTS or measured.drafts < FEWEST_DRAFTS


def _is_dead(measured: Measurement) -> bool:
    """Whether it accepts next to nothing, as a drafter that is broken or was never trained."""
    return measured.length.value <= DEAD_LENGTH or measured.per_position[0].value < DEAD_POSITION_0


def _draft_vocabulary(_: Evidence, served: SmokeReport) -> Outcome:
    if (coverage := served.coverage) is None:
        return (
            "the draft vocabulary is the target's, its table is not settled, or the run does not tell the"
            " answers' tokens"
        )
    if not coverage.holds_down or _is_thin(served.measured):
        return None
    low = listed(coverage.low_parts)
    return Shown(
        f"the draft vocabulary holds {coverage.words}, and {served.measured.length.value:.2f} was measured:"
        f" {coverage.advice}",
        coverage.commands,
        f"a draft vocabulary without the tokens of {low}" if low else "",
    )


def _one_set(_: Evidence, served: SmokeReport) -> Outcome:
    sets = {name: part.length for name, part in served.by_set.items() if not _is_thin(part)}
    if len(sets) < 2:
        return 'the prompts are of one set; name sets in --prompts ("set")'
    most = max(length.low for length in sets.values()) - 1
    low = [name for name, length in sets.items() if length.high - 1 < most / LEAST_TIMES]
    figures = listed(f'"{name}" {length.value:.2f}' for name, length in sets.items())
    words = f"acceptance lengths by set: {figures}; it loses on {listed(low)}: train it on prompts like those"
    return Shown(words) if low else None


def _too_few(evidence: Evidence, served: SmokeReport) -> Outcome:
    measured, threshold = served.measured, evidence.threshold
    if _is_thin(measured):
        return Shown(
            f"{measured.prompts} prompts with {measured.drafts} drafts are too few to judge by;"
            f" {FEWEST_PROMPTS} and {FEWEST_DRAFTS} are needed, and 16 prompts or more are better: give more"
            " --prompts, or more --max-tokens"
        )
    if evidence.engine and evidence.engine.match and evidence.engine.gaps:
        return Shown("; ".join(evidence.engine.gaps))
    if variant := open_reading(evidence):
        needed = f"about {variant.prompts_needed}" if variant.prompts_needed else TWICE
        return Shown(
            f"{variant.name} {'draft' if variant.is_of_layers else 'drafts'} better by"
            f" x{variant.ratio.words}, which {variant.measured.prompts} prompts cannot tell from chance: give"
            f" {needed}",
            evidence.known("more"),
        )
    if words := _open_run(evidence):
        return Shown(words)
    length = measured.length
    if threshold and length.value < MAX_REGRESSION * threshold[0] and length.high >= threshold[0]:
        return Shown(
            f"acceptance length {length.words} does not tell whether it is below the {threshold[0]:g}"
            f" {threshold[1]}: give more --prompts than {measured.prompts}"
        )
    return None


def open_reading(evidence: Evidence) -> Variant | None:
    """The reading, or the layers, that gain on these prompts and that more of them could show to be better.

    Of a dead drafter it is any that is alive: nothing is "dead in every reading" beside it.
    """
    run, found = evidence.reference, evidence.layers.found if evidence.layers else None
    is_dead = run is not None and _is_dead(run.measured)
    unproven = {ReadingOutcome.TOO_FEW_PROMPTS} | ({ReadingOutcome.NO_BETTER} if is_dead else set())
    gaining = [
        variant
        for variant in (run.variants if run else ())
        if variant.outcome in unproven
        and variant.ratio.value >= LEAST_GAIN
        and not (is_dead and _is_dead(variant.measured))
    ]
    return max(gaining, key=lambda variant: variant.ratio.value, default=found)


def _open_run(evidence: Evidence) -> str:
    """Sampling that costs, or a chat template that gains, where a few more prompts could show it; "": none.

    Not where that is many times the prompts given, as of chance.
    """
    for run, where, is_loss in (
        (evidence.sampled, "at the temperature that was asked for", True),
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
                f"{where} the prompts have x{compared.words} of their acceptance, which {prompts} prompts"
                f" cannot tell from chance: give about {needed}"
            )
    return ""


def _other_revision(evidence: Evidence, _: object) -> Outcome:
    if not evidence.has_own_embedding:
        return "the file has no embedding of its own to compare with the target's"
    shown = _of_rule(evidence, "own-embedding", when_low=True)
    if isinstance(shown, Shown):
        advice = "; pass the revision that it was trained for, or train it on this one"
        return replace(shown, words=shown.words + advice, fix=Fix())
    return shown or "its embedding is the target's, which revisions may share"


def _quantised_target(evidence: Evidence, _: object) -> Outcome:
    words = (
        "the target is quantised, and acceptance is low with nothing else found: measure with the target that"
        " the drafter was trained with; where that is good, train it on the quantised target's own states"
    )
    return Shown(words) if evidence.is_target_quantised and evidence.is_low else None


def _weak(evidence: Evidence, served: SmokeReport) -> Outcome:
    if (threshold := evidence.threshold) is None:
        return "no figure of a run like this one; --expected states training's"
    if _is_dead(served.measured) or evidence.expected is not None or not evidence.is_low:
        return None
    return Shown(
        f"{_figures(served)}: alive, the same in every reading, and below the {threshold[0]:g}"
        f" {threshold[1]}: it needs more training, or prompts like those it was trained on"
    )


def _figures(served: SmokeReport) -> str:
    first, length = served.measured.per_position[0], served.measured.length
    return f"acceptance length {length.words} at k={served.k}, position 0 accepted in {first.value:.0%}"


def _healthy(evidence: Evidence, served: SmokeReport) -> Outcome:
    if evidence.is_low or _is_dead(served.measured):
        return None
    words = _figures(served)
    if evidence.as_stored:
        names = listed([f"{verdict.engine} {verdict.release}" for verdict in evidence.as_stored])
        words += f", as it was trained; as it is stored, in {names}: {evidence.as_stored[0].reasons[0]}"
        return Shown(words, evidence.known("mend"), "its weights draft, and engines read the file otherwise")
    if evidence.expected is not None:
        return Shown(f"{words}, as far as these prompts tell that of training ({evidence.expected:g})")
    if (threshold := evidence.threshold) is not None:
        return Shown(f"{words}, as others: not below the {threshold[0]:g} {threshold[1]}")
    lines = served.published.lines if served.published else ()
    return Shown(
        f"{words}; nothing was found; whether {served.measured.length.value:.2f} is good for it cannot be"
        f" told here: {'; '.join(lines) or 'no published length of this target is known'}"
    )


def _not_found(evidence: Evidence, served: SmokeReport) -> Outcome:
    words = f"acceptance length {served.measured.length.value:.2f} at k={served.k}"
    if _is_dead(served.measured):
        words += (
            ", that of a dead drafter in every reading: never trained, or for another target of these shapes,"
            " as this one is once its residual stream is rotated (QuaRot, SpinQuant)"
        )
    elif evidence.expected is not None:
        words += f", below the {evidence.expected:g} that was expected, with nothing found"
    return Shown(words, evidence.known("probe"))


CAUSES: tuple[Cause, ...] = (
    Cause(
        "rotated-target",
        DiagnosisEnding.PAIR,
        "reading",
        title="a target whose residual stream is rotated",
        how=(
            "the target's embedding: the lengths and angles of the drafter's own rows, and other values"
            " (EGL710)"
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
        advice=("Run the printed `convert`; what it cannot repair has to be restored from the trainer."),
        test=_file_rule,
    ),
    Cause(
        "tables",
        DiagnosisEnding.FILE,
        "reference",
        title="d2t and t2d that name other tokens",
        how=("EGL305, and the sensitivity probe: whether the tokens of t2d draft better than those of d2t"),
        advice="Run the printed `convert`; where it is not told which of them is right, choose.",
        test=_tables,
    ),
    Cause(
        "refused",
        DiagnosisEnding.FILE,
        "reference",
        title="a file that is not read without an answer",
        how="whether the reference refuses the drafter",
        advice="Follow the sentence; `inspect` lists the questions.",
        test=partial(_no_run, reasons="refusals", look="reference", words="{}", command="inspect"),
    ),
    Cause(
        "no-reference",
        DiagnosisEnding.COULD_NOT_LOOK,
        "reference",
        title="no run of the reference",
        how="whether the target, its weights, torch and the prompts are there",
        advice="Follow the sentence.",
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
            "other boundaries of the target, moved one by one while first draft tokens get better on half of"
            " the prompts, and judged on the other half"
        ),
        advice="Run the printed `convert --aux-layers`, after a look into the trainer's config.",
        test=_other_layers,
        needs="layers",
    ),
    Cause(
        "past-positions",
        DiagnosisEnding.PROMPTS,
        "reference",
        title="texts longer than it was trained on",
        how="where first draft tokens stop being right, and drafts past max_position_embeddings",
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
        title="an engine that uses other settings than the file means",
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
        how="the server's greedy answers beside those of the target's files",
        advice="Give the target that it serves, as `--target`.",
        test=_other_answers,
        needs="engine",
    ),
    Cause(
        "server-drafter",
        DiagnosisEnding.ENGINE,
        "engine",
        title="a server that drafts otherwise than these files",
        how="the rounds of the server and of the files, prompt by prompt, where the answers are equal",
        advice="Load these files there again; `inspect` tells what its engine reads otherwise.",
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
        advice=(
            "Write the keys that are named, run the printed `convert`, or install the release that is named."
        ),
        test=_engine_fact,
    ),
    Cause(
        "engine-lower",
        DiagnosisEnding.ENGINE,
        "engine",
        title="an engine that computes something else",
        how="acceptance in the engine over that in the reference, on the same prompts",
        advice="Try the printed `convert`, another release, and report it to the engine.",
        test=partial(
            _other_run,
            missing="the engine's run has another number of drafts in a round than the reference's",
            most=MAX_REGRESSION,
            words="{run.run.engine} {run.run.version} accepts x{change.words} of what the reference does with"
            " the same file, and says of no setting that it differs",
        ),
        needs="engine",
    ),
    Cause(
        "sampling",
        DiagnosisEnding.PROMPTS,
        "measured",
        title="sampling",
        how="acceptance at `--temperature` below that at 0",
        advice=(
            "Lower the temperature, let vLLM sample drafts (`draft_sample_method`), or train on sampled"
            " answers."
        ),
        test=partial(
            _other_run,
            missing=MISSING["sampled"],
            words="acceptance length {run.measured.length.value:.2f} at temperature {run.temperature:g} and"
            " {reference.measured.length.value:.2f} at 0 (ratio {change.words}), with greedy drafts: sampled"
            " tokens are harder to foresee; lower the temperature, have vLLM sample drafts too"
            " (draft_sample_method probabilistic in --speculative-config), or train it on sampled answers",
        ),
        needs="sampled",
    ),
    Cause(
        "template",
        DiagnosisEnding.PROMPTS,
        "measured",
        title="prompts without the target's chat template",
        how="plain prompts again, through the target's chat template",
        advice="Give chats as `messages`.",
        test=partial(
            _other_run,
            missing=MISSING["templated"],
            is_gain=True,
            words="acceptance length {run.measured.length.value:.2f} with the same texts in the target's chat"
            ' template, and {reference.measured.length.value:.2f} as given: give chats as "messages", as a'
            " server gets them",
        ),
        needs="templated",
    ),
    Cause(
        "draft-vocabulary",
        DiagnosisEnding.VOCABULARY,
        "measured",
        title="a draft vocabulary without the tokens of the answers",
        how=(
            "the share of the answers' tokens that a reduced draft vocabulary holds, in all, by set and by"
            " script"
        ),
        advice=(
            "Count the tokens of such answers by the printed command. Prune a drafter that was pruned anew by"
            " them, without training; train any other with a draft vocabulary of them."
        ),
        test=_draft_vocabulary,
    ),
    Cause(
        "one-set",
        DiagnosisEnding.PROMPTS,
        "measured",
        title="one kind of prompts",
        how=(
            "sets of prompts of which it accepts less than a third of the draft tokens that it does of"
            " another"
        ),
        advice="Train on prompts like those it loses on.",
        test=_one_set,
    ),
    Cause(
        "too-few",
        DiagnosisEnding.COULD_NOT_LOOK,
        "measured",
        title="too few prompts",
        how="numbers of prompts and drafts, and intervals that hold both answers",
        advice="Give more `--prompts`.",
        test=_too_few,
    ),
    Cause(
        "marked-rotation",
        DiagnosisEnding.PAIR,
        "measured",
        title="a target that its files mark as rotated",
        how="low acceptance, and QuaRot or SpinQuant in the target's files (EGL711)",
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
        "quantised-target",
        DiagnosisEnding.PAIR,
        "measured",
        title="a quantised target",
        how="low acceptance, and a target with quantization_config",
        advice="Measure with the target of the training.",
        test=_quantised_target,
    ),
    Cause(
        "untrained",
        DiagnosisEnding.TRAINING,
        "measured",
        title="a drafter that was not trained",
        how="low acceptance, and tensors as initialised (EGL207)",
        advice="Train it.",
        test=lambda evidence, _: _of_rule(evidence, "untrained", when_low=True),
    ),
    Cause(
        "weak",
        DiagnosisEnding.TRAINING,
        "measured",
        title="too little training",
        how=("acceptance below that of every drafter that others ran likewise, with nothing else found"),
        advice="Train it longer, on prompts like those that are served.",
        test=_weak,
    ),
    Cause(
        "no-engine",
        DiagnosisEnding.COULD_NOT_LOOK,
        "measured",
        title="no run of the engine",
        how="whether the engine that was asked for ran",
        advice="Follow the sentence.",
        test=partial(
            _no_run,
            reasons="gaps",
            look="engine",
            words="nothing was found in the file, the reference and the prompts, and the engine did not run:"
            " {}",
            command="",
        ),
    ),
    Cause(
        "healthy",
        DiagnosisEnding.HEALTHY,
        "measured",
        title="nothing found",
        how="acceptance that is not below what it can be judged by, with nothing found",
        advice="Nothing to do.",
        test=_healthy,
    ),
    Cause(
        "not-found",
        DiagnosisEnding.NOT_FOUND,
        "measured",
        title="no cause found",
        how="what remains",
        advice="See what was ruled out and what was not looked at.",
        test=_not_found,
    ),
)
