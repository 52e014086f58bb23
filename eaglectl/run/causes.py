"""The causes of low acceptance that `diagnose` knows, in the order in which they are tested.

docs/troubleshooting.md is made of the table CAUSES. The tests stand above it.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from eaglectl.drafter.vocabulary import FROM_D2T, FROM_T2D
from eaglectl.formats.catalogue import default_format, layout_for
from eaglectl.judge.judgement import changes_serving
from eaglectl.judge.rule import Finding
from eaglectl.run.candidates import MADE_OF_T2D
from eaglectl.run.diagnosis import Cause, Evidence, Shown
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
from eaglectl.run.report import MAX_REGRESSION, WIDER, SmokeReport
from eaglectl.run.sensitivity import LEAST_GAIN, LEAST_PROMPTS, MOST_TIMES, Variant
from eaglectl.text import listed
from eaglectl.verdicts import DiagnosisEnding, ReadingOutcome, ServedAs

# between sets: healthy drafters accept twice as much of one as of another (fixtures/real/acceptance.json)
LEAST_TIMES = 3
NO_FIGURES = "no figure of a run like this one; --like makes one, --expected states training's"
NO_ENGINE = "no engine was asked for; give --engine or --run-in"
NOT_RUN = "the reference did not run it"
CONTRADICTION = "d2t-t2d"
CHOICE = "; the first command takes t2d for the right one, the second d2t"
ROTATED, MARKED = "rotated-target", "marked-rotation"
SWITCHED = {"true": "false", "false": "true"}


def _rotated_target(evidence: Evidence) -> Shown | str | None:
    findings, gap = _of_rule(evidence, ROTATED)
    fix = findings[0].fix if findings else ""
    return _as_shown(findings, *_rotation_commands(evidence, fix)) or gap


def _of_rule(evidence: Evidence, name: str) -> tuple[list[Finding], str | None]:
    """The findings of a rule, and why it could not look."""
    reasons = (entry.reason for entry in evidence.validated.unchecked if entry.rule.name == name)
    findings = [finding for finding in evidence.validated.findings if finding.rule.name == name]
    return findings, next(reasons, None)


def _rotation_commands(evidence: Evidence, fix: str) -> tuple[str, ...]:
    """The conversion that a fix names, in the layout for the engine that was asked for."""
    layout = layout_for(evidence.engine_name or "")
    option = "" if layout == default_format().name else f" --for {layout}"
    return tuple(part + option for part in fix.split("`")[1::2]) or (evidence.commands["validate"],)


def _as_shown(findings: Sequence[Finding], *commands: str) -> Shown | None:
    """The first finding with its repair, and the names of the others; None where there is none."""
    if not findings:
        return None
    first, more = findings[0], [finding.rule.name for finding in findings[1:]]
    rest = f" (and {len(more)} more: {listed(more)})" if more else ""
    return Shown(
        f"{first.rule.id} {first.rule.name}: {first.match.message}{rest}; fix: {first.fix}", commands
    )


def _other_target(evidence: Evidence) -> Shown | str | None:
    errors = list(evidence.serving_errors(of_target=True))
    return _as_shown(errors, evidence.commands["validate"]) or _unchecked_rules(evidence, of_target=True)


def _unchecked_rules(evidence: Evidence, *, of_target: bool) -> str | None:
    """Which rules that change what is served could not look; None where all could."""
    rules = [
        entry.rule.id
        for entry in evidence.validated.unchecked
        if changes_serving(entry.rule)
        and (entry.rule.family == "target") == of_target
        and entry.rule.name not in (ROTATED, MARKED)  # which are causes of their own
    ]
    return f"rules that could not look: {listed(rules)}" if rules else None


def _file_rule(evidence: Evidence) -> Shown | str | None:
    errors = list(evidence.serving_errors(of_target=False))
    if certain := [finding for finding in errors if finding.rule.name != CONTRADICTION]:
        return _as_shown(certain, *_known(evidence, "fix"))
    if errors:
        return f"{errors[0].rule.id} {CONTRADICTION}: which of the two is right is measured first"
    if problem := evidence.validated.problem:
        return Shown(problem, (evidence.commands["validate"],))
    return _unchecked_rules(evidence, of_target=False)


def _known(evidence: Evidence, *names: str) -> tuple[str, ...]:
    """The commands of these names that are not known to fail."""
    return tuple(evidence.commands[name] for name in names if name in evidence.commands)


def _tables(evidence: Evidence) -> Shown | None:
    errors = evidence.serving_errors(of_target=False)
    error = next((finding for finding in errors if finding.rule.name == CONTRADICTION), None)
    if error is None:
        return None
    both = _known(evidence, FROM_T2D, FROM_D2T)
    words = f"{error.rule.id} {CONTRADICTION}: {error.match.message}"
    if not both:  # rows in another order than t2d's
        return Shown(f"{words}; fix: {error.fix}")
    variants = evidence.reference.variants if evidence.reference else ()
    variant = next((variant for variant in variants if variant.name == MADE_OF_T2D), None)
    if variant is None:
        gap = evidence.refusals.get("reference") or evidence.gaps.get("reference") or NOT_RUN
        return Shown(f"{words}; which of them is right was not measured: {gap}{CHOICE}", both)
    words += f"; with the tokens of t2d it drafts x{variant.ratio.words} as much as with those of d2t"
    if variant.is_better:
        return Shown(words, both[:1])
    if variant.ratio.high < 1:
        return Shown(words, both[1:])
    return Shown(f"{words}, which {variant.measured.prompts} prompts cannot tell from chance{CHOICE}", both)


def _refused(evidence: Evidence) -> Shown | None:
    words = evidence.refusals.get("reference")
    return Shown(words, (evidence.commands["inspect"],)) if words else None


def _no_reference(evidence: Evidence) -> Shown | None:
    gap = evidence.gaps.get("reference")
    return Shown(f"{gap}; then diagnose again", (evidence.commands["diagnose"],)) if gap else None


def _other_reading(evidence: Evidence) -> Shown | str | None:
    if evidence.reference is None or (probed := evidence.reference.probed) is None:
        return NOT_RUN
    if (best := probed.best) is None:
        return _unsettled(probed.variants)
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
        f"{title}: {best.stated_length:.2f}, and {best.measured.length.value:.2f} read so",
    )


def _unsettled(variants: Sequence[Variant]) -> str | None:
    """Why it is not settled that no reading is better; None where it is."""
    if not variants:
        return "no reading was tried"
    if (prompts := variants[0].measured.prompts) < LEAST_PROMPTS:
        return f"{prompts} prompts show no reading to be better; {LEAST_PROMPTS} or more can"
    few = [variant.name for variant in variants if variant.outcome == ReadingOutcome.TOO_FEW_PROMPTS]
    return f"too few prompts to tell of {listed(few)}" if few else None


def _other_layers(evidence: Evidence) -> Shown | str | None:
    if (search := evidence.layers) is None:
        return evidence.gaps.get("layers", NOT_RUN)
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
    title = (
        f"trained on boundaries {found.name.removeprefix('aux boundaries ')}, and the file states"
        f" {listed(stated)}: {found.stated_length:.2f}, and {found.measured.length.value:.2f} read so"
    )
    return Shown(f"{words}; {more}", (evidence.commands["layers"],), title)


def _past_positions(evidence: Evidence) -> Shown | str | None:
    if evidence.reference is None or (probed := evidence.reference.probed) is None:
        return NOT_RUN
    if probed.starts and probed.left_out == probed.starts:
        words = f"all {probed.starts} drafts begin past the drafter's max_position_embeddings"
        return Shown(f"{words}; give shorter prompts, or train it on longer texts")
    if (fall := probed.fall) is None:
        return None
    return Shown(
        f"first draft tokens are right in {fall.below:.0%} before position {fall.position} and in"
        f" {fall.above:.0%} from there on: it was trained on shorter texts than these; train it on texts as"
        " long as those that are served"
    )


def _engine_refuses(evidence: Evidence) -> Shown | str | None:
    if words := evidence.refusals.get("engine"):
        return Shown(words, _changes(evidence))
    return None if evidence.engine else _why_no_engine(evidence)


def _why_no_engine(evidence: Evidence) -> str:
    return evidence.gaps.get("engine", NO_ENGINE)


def _changes(evidence: Evidence) -> tuple[str, ...]:
    """The smallest changes for the one engine that was asked for, without its name before them."""
    changes = (change.partition(": ")[2] for change in evidence.validated.smallest_changes)
    return tuple(change.strip("`") if change.count("`") == 2 else change for change in changes)


def _engine_setting(evidence: Evidence) -> Shown | str | None:
    if evidence.engine is None:
        return _why_no_engine(evidence)
    differences = evidence.engine.run.differences
    return Shown("; ".join(differences), _engine_commands(evidence)) if differences else None


def _engine_commands(evidence: Evidence) -> tuple[str, ...]:
    """What reading says has to change for this engine, or the conversion for it, if it changes anything."""
    return _changes(evidence) or _known(evidence, "convert")


def _engine_unfilled(evidence: Evidence) -> Shown | str | None:
    if evidence.engine is None:
        return _why_no_engine(evidence)
    unfilled = evidence.engine.run.resolved.get("unfilled")
    if unfilled is None:
        return "the engine does not say which parameters nothing fills"
    words = f"parameters that nothing fills: {listed(unfilled)}"
    return Shown(words, _engine_commands(evidence)) if unfilled else None


def _engine_fact(evidence: Evidence) -> Shown | str | None:
    if evidence.engine_name is None:
        return NO_ENGINE
    releases, compared = evidence.validated.releases, _engine_ratio(evidence)
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
    return Shown(words, _engine_commands(evidence))


def _engine_ratio(evidence: Evidence) -> Estimate | None:
    """Acceptance in the engine over that in the reference; None where the runs cannot be compared."""
    engine, reference = evidence.engine, evidence.reference
    if engine is None or reference is None or engine.k != reference.k:
        return None
    if len(engine.run.results) != len(reference.run.results):
        return None
    return ratio(engine.run.results, reference.run.results)


def _engine_lower(evidence: Evidence) -> Shown | str | None:
    if (engine := evidence.engine) is None:
        return _why_no_engine(evidence)
    if (compared := _engine_ratio(evidence)) is None:
        return "the engine's run has another number of drafts in a round than the reference's"
    if compared.high >= MAX_REGRESSION or _is_thin(engine.measured):
        return None
    words = (
        f"{engine.run.engine} {engine.run.version} accepts x{compared.words} of what the reference does with"
        " the same file, and says of no setting that it differs"
    )
    return Shown(words, _engine_commands(evidence))


def _is_thin(measured: Measurement) -> bool:
    """Whether too little was measured for any verdict."""
    return measured.prompts < FEWEST_PROMPTS or measured.drafts < FEWEST_DRAFTS


def _is_dead(measured: Measurement) -> bool:
    """Whether it accepts next to nothing, as a drafter that is broken or was never trained."""
    return measured.length.value <= DEAD_LENGTH or measured.per_position[0].value < DEAD_POSITION_0


def _over_reference(evidence: Evidence, run: SmokeReport | None) -> Estimate | None:
    """Acceptance in another run over that in the reference, prompt by prompt; None without either run."""
    if run is None or evidence.reference is None:
        return None
    return ratio(run.run.results, evidence.reference.run.results)


def _sampling(evidence: Evidence) -> Shown | str | None:
    sampled, greedy = evidence.sampled, evidence.reference
    if sampled is None or greedy is None:
        return "measured greedily; give --temperature with that of production"
    compared = ratio(sampled.run.results, greedy.run.results)
    if compared.high >= 1 or compared.value >= MAX_REGRESSION or _is_thin(sampled.measured):
        return None
    return Shown(
        f"acceptance length {sampled.measured.length.value:.2f} at temperature {sampled.temperature:g} and"
        f" {greedy.measured.length.value:.2f} at 0 (ratio {compared.words}), with greedy drafts: sampled"
        " tokens are harder to foresee; lower the temperature, have vLLM sample drafts too"
        " (draft_sample_method probabilistic in --speculative-config), or train it on sampled answers"
    )


def _template(evidence: Evidence) -> Shown | str | None:
    templated, plain = evidence.templated, evidence.reference
    if templated is None or plain is None:
        if not evidence.has_unused_template:
            return "no plain prompts, or the target has no chat template"
        if evidence.may_be_low:
            return "the run through the target's chat template could not be made"
        return "asked only where acceptance may be low"
    compared = ratio(templated.run.results, plain.run.results)
    if compared.low <= 1 or compared.value < LEAST_GAIN or _is_thin(templated.measured):
        return None
    return Shown(
        f"acceptance length {templated.measured.length.value:.2f} with the same texts in the target's chat"
        f' template, and {plain.measured.length.value:.2f} as given: give chats as "messages", as a server'
        " gets them"
    )


def _draft_vocabulary(evidence: Evidence) -> Shown | str | None:
    served = evidence.judged
    if served.coverage is None:
        return "the draft vocabulary is the target's, or the run does not tell the answers' tokens"
    parts = (served.coverage, *served.coverage.sets.values())
    if not any(part.is_low for part in parts) or _is_thin(served.measured):
        return None
    length = served.measured.length.value
    return Shown(
        f"the draft vocabulary holds {served.coverage.words}, and {length:.2f} was measured: {WIDER}"
    )


def _one_set(evidence: Evidence) -> Shown | str | None:
    sets = {name: part.length for name, part in evidence.judged.by_set.items() if not _is_thin(part)}
    if len(sets) < 2:
        return 'the prompts are of one set; name sets in --prompts ("set")'
    most = max(length.low for length in sets.values()) - 1
    low = [name for name, length in sets.items() if length.high - 1 < most / LEAST_TIMES]
    figures = listed(f'"{name}" {length.value:.2f}' for name, length in sets.items())
    words = f"acceptance lengths by set: {figures}; it loses on {listed(low)}: train it on prompts like those"
    return Shown(words) if low else None


def _too_few(evidence: Evidence) -> Shown | None:
    words = next(_open_questions(evidence), None)
    return Shown(words) if words else None


def _open_questions(evidence: Evidence) -> Iterator[str]:
    """What more prompts could tell."""
    measured, judged = evidence.judged.measured, evidence.bar
    if _is_thin(measured):
        yield (
            f"{measured.prompts} prompts with {measured.drafts} drafts are too few to judge by;"
            f" {FEWEST_PROMPTS} and {FEWEST_DRAFTS} are needed, and 16 prompts or more are better: give more"
            " --prompts, or more --max-tokens"
        )
    yield from _open_readings(evidence, is_dead=_is_dead(measured))
    yield from _open_runs(evidence)
    length = measured.length
    if judged and length.value < MAX_REGRESSION * judged[0] and length.high >= judged[0]:
        yield (
            f"acceptance length {length.words} does not tell whether it is below the {judged[0]:g}"
            f" {judged[1]}: give more --prompts than {measured.prompts}"
        )


def _open_readings(evidence: Evidence, *, is_dead: bool) -> Iterator[str]:
    """Readings and layers that a few more prompts could show to be better."""
    variants = evidence.reference.variants if evidence.reference and not is_dead else ()
    few = [variant for variant in variants if variant.outcome == ReadingOutcome.TOO_FEW_PROMPTS]
    readings = [variant for variant in few if variant.prompts_needed is not None]
    if reading := max(readings, key=lambda variant: variant.ratio.value, default=None):
        yield (
            f"{reading.name} drafts better by x{reading.ratio.value:.2f}, which {reading.measured.prompts}"
            f" prompts cannot tell from chance: give about {reading.prompts_needed}"
        )
    if evidence.layers is not None and (found := evidence.layers.found) is not None:
        yield (
            f"{found.name} draft better by x{found.ratio.value:.2f}, which {found.measured.prompts} prompts"
            " cannot tell from chance: give twice as many --prompts"
        )


def _open_runs(evidence: Evidence) -> Iterator[str]:
    """Sampling that costs, or a chat template that gains, where a few more prompts could show it."""
    prompts = evidence.reference.measured.prompts if evidence.reference else 0
    sampled = _over_reference(evidence, evidence.sampled)
    templated = _over_reference(evidence, evidence.templated)
    if sampled is not None and sampled.value < MAX_REGRESSION and sampled.high >= 1:
        yield from _open_run(sampled, prompts, "at the temperature that was asked for")
    elif templated is not None and templated.value >= LEAST_GAIN and templated.low <= 1:
        yield from _open_run(templated, prompts, "in the target's chat template")


def _open_run(compared: Estimate, prompts: int, where: str) -> Iterator[str]:
    """How many prompts would tell; nothing where that is many times those given, as of chance."""
    needed = prompts_to_tell(compared, 1.0, prompts)
    if needed is not None and needed <= MOST_TIMES * prompts:
        yield (
            f"{where} the prompts have x{compared.words} of their acceptance, which {prompts} prompts cannot"
            f" tell from chance: give about {needed}"
        )


def _warned(evidence: Evidence, name: str) -> Shown | str | None:
    """A rule's warning where it stands beside low acceptance."""
    findings, gap = _of_rule(evidence, name)
    return gap or (_as_shown(findings, evidence.commands["validate"]) if evidence.may_be_low else None)


def _marked_rotation(evidence: Evidence) -> Shown | str | None:
    shown = _warned(evidence, MARKED)
    if isinstance(shown, Shown):
        return Shown(shown.words, _rotation_commands(evidence, shown.words))
    return shown


def _other_revision(evidence: Evidence) -> Shown | str | None:
    if not evidence.has_own_embedding:
        return "the file has no embedding of its own to compare with the target's"
    shown = _warned(evidence, "own-embedding")
    if isinstance(shown, Shown):
        advice = "; pass the revision that it was trained for, or train it on this one"
        return Shown(shown.words.rpartition("; fix: ")[0] + advice, shown.commands)
    return shown or "its embedding is the target's, which revisions may share"


def _quantised_target(evidence: Evidence) -> Shown | None:
    words = (
        "the target is quantised, and acceptance is low with nothing else found: measure with the target that"
        " the drafter was trained with; where that is good, train it on the quantised target's own states"
    )
    return Shown(words) if evidence.is_target_quantised and evidence.is_low else None


def _weak(evidence: Evidence) -> Shown | str | None:
    served, judged = evidence.judged, evidence.bar
    if judged is None:
        return NO_FIGURES
    if _is_dead(served.measured) or evidence.expected is not None or not evidence.is_low:
        return None
    return Shown(
        f"{_figures(served)}: alive, the same in every reading, and below the {judged[0]:g} {judged[1]}: it"
        " needs more training, or prompts like those it was trained on"
    )


def _figures(served: SmokeReport) -> str:
    first, length = served.measured.per_position[0], served.measured.length
    return f"acceptance length {length.words} at k={served.k}, position 0 accepted in {first.value:.0%}"


def _no_engine(evidence: Evidence) -> Shown | None:
    gap = evidence.gaps.get("engine")
    words = "nothing was found in the file, the reference and the prompts, and the engine did not run"
    return Shown(f"{words}: {gap}") if gap else None


def _healthy(evidence: Evidence) -> Shown | None:
    served, judged = evidence.judged, evidence.bar
    if evidence.is_low or _is_dead(served.measured):
        return None
    words = _figures(served)
    if evidence.expected is not None:
        return Shown(f"{words}, as far as these prompts tell that of training ({evidence.expected:g})")
    if judged is not None:
        return Shown(f"{words}, as others: not below the {judged[0]:g} {judged[1]}")
    lines = served.published.lines if served.published else ()
    others = "; ".join(lines) or "no published length of this target is known"
    quantised = " of this quantised target" if evidence.is_target_quantised else ""
    return Shown(
        f"{words}; nothing was found; whether {served.measured.length.value:.2f} is good for it{quantised}"
        f" cannot be told here: {others}"
    )


def _not_found(evidence: Evidence) -> Shown:
    served = evidence.judged
    words = f"acceptance length {served.measured.length.value:.2f} at k={served.k}"
    if _is_dead(served.measured):
        words += (
            ", that of a dead drafter in every reading: never trained, or for another target of these shapes,"
            " as this one is once its residual stream is rotated (QuaRot, SpinQuant)"
        )
    elif evidence.expected is not None:
        words += f", below the {evidence.expected:g} that was expected, with nothing found"
    return Shown(words, (evidence.commands["probe"],))


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
        test=_rotated_target,
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
        test=_refused,
    ),
    Cause(
        "no-reference",
        DiagnosisEnding.COULD_NOT_LOOK,
        "reference",
        title="no run of the reference",
        how="whether the target, its weights, torch and the prompts are there",
        advice="Follow the sentence.",
        test=_no_reference,
    ),
    Cause(
        "other-reading",
        DiagnosisEnding.FILE,
        "reference",
        title="a file whose tensors or switches mean something else",
        how="the sensitivity probe: whether another reading drafts better by 3 % beyond chance",
        advice=("Run the printed `convert`, with `--fix-reading`, `--source-semantics` or `--aux-layers`."),
        test=_other_reading,
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
    ),
    Cause(
        "past-positions",
        DiagnosisEnding.PROMPTS,
        "reference",
        title="texts longer than it was trained on",
        how="where first draft tokens stop being right, and drafts past max_position_embeddings",
        advice="Serve shorter texts, or train on longer ones.",
        test=_past_positions,
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
    ),
    Cause(
        "engine-unfilled",
        DiagnosisEnding.ENGINE,
        "engine",
        title="parameters that the engine leaves unfilled",
        how="the parameters that no tensor of the file fills",
        advice="Run the printed `convert`.",
        test=_engine_unfilled,
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
        test=_engine_lower,
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
        test=_sampling,
    ),
    Cause(
        "template",
        DiagnosisEnding.PROMPTS,
        "measured",
        title="prompts without the target's chat template",
        how="plain prompts again, through the target's chat template",
        advice="Give chats as `messages`.",
        test=_template,
    ),
    Cause(
        "draft-vocabulary",
        DiagnosisEnding.TRAINING,
        "measured",
        title="a draft vocabulary without the tokens of the answers",
        how="the share of the answers' tokens that a reduced draft vocabulary holds, in all and by set",
        advice="Train with a draft vocabulary that is counted on the target's answers to such prompts.",
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
        test=_marked_rotation,
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
        test=partial(_warned, name="untrained"),
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
        test=_no_engine,
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
