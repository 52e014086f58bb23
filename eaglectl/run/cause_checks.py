"""The test of each cause of low acceptance: the evidence in, what it shows out (`Outcome`)."""

from collections.abc import Sequence

from msgspec.structs import replace

from eaglectl.drafter.tensors import FROM_D2T, FROM_T2D
from eaglectl.formats.catalogue import default_format, layout_for
from eaglectl.formats.commands import Fix
from eaglectl.judge.judgement import changes_serving
from eaglectl.judge.rule import Finding
from eaglectl.run.answering import LayerSearch
from eaglectl.run.evidence import NO_ENGINE, NOT_RUN, Evidence, Outcome, Shown, lowest_above
from eaglectl.run.gate import MAX_REGRESSION
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
from eaglectl.run.results import SmokeReport
from eaglectl.text import listed
from eaglectl.verdicts import MatchEnding, ReadingOutcome

# ratio between sets: healthy drafters have twice the acceptance on some sets (fixtures/real/acceptance.json)
LEAST_TIMES = 3
TWICE = "twice as many --prompts"
# with a larger share of drafts past the drafter's positions, the other drafts cannot be judged
MOST_LEFT_OUT = 0.9
NOT_THE_BASE = (
    "; the target was not compared with the one of the training, and fine-tuning shows in no file of the"
    " drafter: pass the base model with --base-target to measure both"
)
CONTRADICTION = "d2t-t2d"
CHOICE = "; the first command assumes that t2d is right, the second that d2t is"
ROTATED, MARKED = "rotated-target", "marked-rotation"
SWITCHED = {"true": "false", "false": "true"}


def _as_shown(findings: Sequence[Finding], *commands: str) -> Shown | None:
    if not findings:
        return None
    first, more = findings[0], [finding.rule.name for finding in findings[1:]]
    rest = f" (and {len(more)} more: {listed(more)})" if more else ""
    words = f"{first.rule.id} {first.rule.name}: {first.match.message}{rest}"
    return Shown(words, commands, fix=first.repair)


def check_rule(evidence: Evidence, name: str, *, when_low: bool) -> Outcome:
    """Return a rule's finding, or why the rule could not look; `when_low`: only if acceptance may be low."""
    findings = [finding for finding in evidence.validated.findings if finding.rule.name == name]
    if not findings:
        return next((gap.reason for gap in evidence.validated.unchecked if gap.rule.name == name), None)
    if when_low and not evidence.may_be_low:
        return None
    return _as_shown(findings, evidence.commands["validate"])


def check_rotation(evidence: Evidence, _: object, name: str, *, when_low: bool) -> Outcome:
    """Return a rule's finding with the conversion that its fix names, for the requested engine."""
    outcome = check_rule(evidence, name, when_low=when_low)
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


def check_other_target(evidence: Evidence, _: object) -> Outcome:
    """Return the first error of `validate` on the target."""
    errors = _as_shown(evidence.serving_errors(of_target=True), evidence.commands["validate"])
    return errors or _unchecked_rules(evidence, of_target=True)


def check_file_rule(evidence: Evidence, _: object) -> Outcome:
    """Return the first error of `validate` that every engine serves, except d2t beside t2d."""
    errors = evidence.serving_errors(of_target=False)
    if certain := [finding for finding in errors if finding.rule.name != CONTRADICTION]:
        return _as_shown(certain, *evidence.known("fix"))
    if errors:
        return f"{errors[0].rule.id} {CONTRADICTION}: which of the two is right is measured first"
    if problem := evidence.validated.problem:
        return Shown(problem, evidence.known("validate"))
    return _unchecked_rules(evidence, of_target=False)


def check_tables(evidence: Evidence, _: object) -> Outcome:
    """Return a contradiction of d2t and t2d, and which of them drafts better."""
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


def check_no_run(evidence: Evidence, _: object, reasons: str, look: str, words: str, command: str) -> Outcome:
    """Return why a look is missing (`reasons` is "gaps" or "refusals"), within `words`; None if it is not."""
    reason = getattr(evidence, reasons).get(look)
    return Shown(words.format(reason), evidence.known(command)) if reason else None


def check_other_reading(evidence: Evidence, run: SmokeReport) -> Outcome:
    """Return the reading of the sensitivity probe that drafts better beyond chance."""
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


def check_other_layers(evidence: Evidence, search: LayerSearch) -> Outcome:
    """Return the aux boundaries that draft better than the file's."""
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


def check_past_positions(_: Evidence, run: SmokeReport) -> Outcome:
    """Return the position after which fewer first draft tokens are right."""
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


def check_engine_refuses(evidence: Evidence, _: object) -> Outcome:
    """Return why the engine refused the drafter."""
    if words := evidence.refusals.get("engine"):
        return Shown(words, _engine_commands(evidence))
    return None if evidence.engine else evidence.gaps.get("engine", NO_ENGINE)


def check_engine_setting(evidence: Evidence, engine: SmokeReport) -> Outcome:
    """Return what the engine resolved otherwise than the file states."""
    differences = engine.run.differences
    return Shown("; ".join(differences), _engine_commands(evidence, "convert")) if differences else None


def check_other_answers(_: Evidence, engine: SmokeReport) -> Outcome:
    """Return how a server's answers show another target."""
    match = engine.match
    return Shown(match.words) if match and match.is_of_another_target else None


def check_other_drafter(evidence: Evidence, engine: SmokeReport) -> Outcome:
    """Return how a server's rounds show another drafter."""
    if (match := engine.match) is None:
        return "only a server's rounds are compared with the files"
    return Shown(match.words, evidence.known("inspect")) if match.ending == MatchEnding.NO else None


def check_engine_unfilled(evidence: Evidence, engine: SmokeReport) -> Outcome:
    """Return the engine's parameters that no tensor fills."""
    if (unfilled := engine.run.resolved.get("unfilled")) is None:
        return "the engine does not report which parameters stay unfilled"
    words = f"parameters that no tensor fills: {listed(unfilled)}"
    return Shown(words, _engine_commands(evidence, "convert")) if unfilled else None


def check_engine_fact(evidence: Evidence, _: object) -> Outcome:
    """Return why the release does not serve the file as trained, unless it drafts as the reference does."""
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


def check_other_run(
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


def check_draft_vocabulary(_: Evidence, served: SmokeReport) -> Outcome:
    """Return a draft vocabulary without the tokens of the answers."""
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


def check_one_set(_: Evidence, served: SmokeReport) -> Outcome:
    """Return the prompt sets with much lower acceptance than the others."""
    sets = {name: part.length for name, part in served.by_set.items() if not _is_thin(part)}
    if len(sets) < 2:
        return 'all prompts are of one set; name sets in --prompts ("set")'
    most = max(length.low for length in sets.values()) - 1
    low = [name for name, length in sets.items() if length.high - 1 < most / LEAST_TIMES]
    figures = listed(f'"{name}" {length.value:.2f}' for name, length in sets.items())
    words = f"acceptance lengths by set: {figures}; it is low on {listed(low)}: train it on such prompts"
    return Shown(words) if low else None


def check_too_few(evidence: Evidence, served: SmokeReport) -> Outcome:
    """Return why the prompts are too few to judge by."""
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


def check_other_revision(evidence: Evidence, _: object) -> Outcome:
    """Return how the drafter's own embedding differs from the target's."""
    if not evidence.has_own_embedding:
        return "the file has no embedding of its own to compare with the target's"
    outcome = check_rule(evidence, "own-embedding", when_low=True)
    if isinstance(outcome, Shown):
        advice = "; pass the revision that it was trained for, or train it on this one"
        return replace(outcome, words=outcome.words + advice, fix=Fix())
    return outcome or "its embedding is the target's, which several revisions may share"


def check_quantised_target(evidence: Evidence, _: object) -> Outcome:
    """Return that the target is quantised, if acceptance is low."""
    words = (
        "the target is quantised, and acceptance is low without another cause: measure with the target that"
        " the drafter was trained with; if that is good, train it on the quantised target's states"
    )
    return Shown(words) if evidence.is_target_quantised and evidence.is_low else None


def check_weak(evidence: Evidence, served: SmokeReport) -> Outcome:
    """Return the acceptance of a drafter that is alive and below the threshold."""
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


def check_healthy(evidence: Evidence, served: SmokeReport) -> Outcome:
    """Return the acceptance of a drafter that is not below its threshold or floor."""
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


def check_not_found(evidence: Evidence, served: SmokeReport) -> Outcome:
    """Return the acceptance, and what it is below."""
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
