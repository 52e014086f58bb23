"""The causes of low acceptance that `diagnose` knows, in the order in which they are tested."""

from collections.abc import Iterator, Sequence

from eaglectl.acceptance.diagnosis import Cause, Evidence, NotLooked, Shown, Test
from eaglectl.acceptance.measurement import (
    DEAD_LENGTH,
    DEAD_POSITION_0,
    FEWEST_DRAFTS,
    FEWEST_PROMPTS,
    Measurement,
    ratio,
)
from eaglectl.acceptance.report import MAX_REGRESSION, SmokeReport
from eaglectl.acceptance.sensitivity import LEAST_PROMPTS, Variant
from eaglectl.text import listed
from eaglectl.validation.finding import Finding
from eaglectl.validation.verdicts import changes_serving
from eaglectl.verdicts import CheckVerdict, DiagnosisEnding, ReadingOutcome

# a drafter is called weak where its first draft token is accepted in less than half of drafts
WEAK_POSITION_0 = 0.5
NO_ENGINE = "no engine was asked for; give --engine"
NO_REFERENCE = "the reference did not run it"


def _findings(evidence: Evidence, *, of_target: bool) -> Iterator[Finding]:
    for finding in evidence.validated.findings:
        is_of_target = finding.rule.family == "target"
        if finding.severity == "error" and changes_serving(finding.rule) and is_of_target == of_target:
            yield finding


def _as_shown(findings: list[Finding], *commands: str) -> Shown | None:
    if not findings:
        return None
    first, more = findings[0], len(findings) - 1
    rest = f" (and {more} more: {listed(finding.rule.name for finding in findings[1:])})" if more else ""
    words = f"{first.rule.id} {first.rule.name}: {first.match.message}{rest}; fix: {first.fix}"
    return Shown(words, commands)


def _unchecked(evidence: Evidence, *, of_target: bool) -> NotLooked | None:
    rules = [
        entry.rule.id
        for entry in evidence.validated.unchecked
        if changes_serving(entry.rule) and (entry.rule.family == "target") == of_target
    ]
    return NotLooked(f"rules that could not look: {listed(rules)}") if rules else None


def _other_target(evidence: Evidence) -> Shown | NotLooked | None:
    shown = _as_shown(list(_findings(evidence, of_target=True)), evidence.commands["validate"])
    return shown or _unchecked(evidence, of_target=True)


def _rule(evidence: Evidence) -> Shown | NotLooked | None:
    if shown := _as_shown(list(_findings(evidence, of_target=False)), evidence.commands["fix"]):
        return shown
    if problem := evidence.validated.problem:
        return Shown(problem, (evidence.commands["validate"],))
    return _unchecked(evidence, of_target=False)


def _refused(evidence: Evidence) -> Shown | None:
    if not evidence.reference_refusal:
        return None
    return Shown(evidence.reference_refusal, (evidence.commands["inspect"],))


def _no_reference(evidence: Evidence) -> Shown | None:
    if not evidence.reference_gap:
        return None
    return Shown(evidence.reference_gap, (evidence.commands["smoke"],))


def _better_reading(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.reference is None or evidence.reference.probed is None:
        return NotLooked(NO_REFERENCE)
    probed = evidence.reference.probed
    if (best := probed.best) is None:
        return _unsettled(probed.variants)
    words = (
        f"read with {best.name} it drafts x{best.ratio.value:.2f} [{best.ratio.low:.2f},"
        f" {best.ratio.high:.2f}] as much, beyond chance (p {best.p_value:.1g} after"
        f" {len(probed.variants)} readings)"
    )
    return Shown(words, (evidence.commands["repair"],))


def _unsettled(variants: Sequence[Variant]) -> NotLooked | None:
    """Why it is not settled that no reading is better; None where it is."""
    if not variants:
        return NotLooked("no reading was tried")
    if (prompts := variants[0].measured.prompts) < LEAST_PROMPTS:
        return NotLooked(f"{prompts} prompts show no reading to be better; {LEAST_PROMPTS} or more can")
    few = [variant for variant in variants if variant.outcome == ReadingOutcome.TOO_FEW_PROMPTS]
    return NotLooked(f"too few prompts to tell of {listed(variant.name for variant in few)}") if few else None


def _other_layers(evidence: Evidence) -> Shown | NotLooked | None:
    if (search := evidence.layers) is None:
        return NotLooked(evidence.layers_gap or NO_REFERENCE)
    if (found := search.found) is None:
        return None
    words = (
        f"from {found.name} it drafts x{found.ratio.value:.2f} [{found.ratio.low:.2f},"
        f" {found.ratio.high:.2f}] as much as from {','.join(map(str, search.stated))} that the file states,"
        f" on {found.measured.prompts} prompts that did not choose them among {search.tried} sets"
    )
    if not found.is_better:
        return NotLooked(f"{words}: too few to tell from chance")
    return Shown(words, (evidence.commands["layers"],))


def _past_positions(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.reference is None or evidence.reference.probed is None:
        return NotLooked(NO_REFERENCE)
    probed = evidence.reference.probed
    if probed.starts and probed.left_out == probed.starts:
        words = f"all {probed.starts} drafts begin past the drafter's max_position_embeddings"
        return Shown(f"{words}; give shorter prompts, or train it on longer texts")
    if probed.fall is None:
        return None
    fall = probed.fall
    words = (
        f"first draft tokens are right in {fall.below:.0%} before position {fall.position} and in"
        f" {fall.above:.0%} from there on: it was trained on shorter texts than these"
    )
    return Shown(f"{words}; train it on texts as long as those that are served")


def _engine_refuses(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.engine_refusal:
        return Shown(evidence.engine_refusal, _changes(evidence))
    return _unless_run(evidence)


def _unless_run(evidence: Evidence) -> NotLooked | None:
    if evidence.engine is not None:
        return None
    return NotLooked(evidence.engine_gap or NO_ENGINE)


def _engine_setting(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.engine is None:
        return _unless_run(evidence)
    if not evidence.engine.run.differences:
        return None
    return Shown("; ".join(evidence.engine.run.differences), _engine_commands(evidence))


def _engine_commands(evidence: Evidence) -> tuple[str, ...]:
    """What reading says has to change for this engine, or the conversion for it."""
    return _changes(evidence) or (evidence.commands["convert"],)


def _changes(evidence: Evidence) -> tuple[str, ...]:
    """The smallest changes for the one engine that was asked for, without its name before them."""
    changes = (change.partition(": ")[2] for change in evidence.validated.smallest_changes)
    return tuple(change.strip("`") if change.count("`") == 2 else change for change in changes)


def _engine_unfilled(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.engine is None:
        return _unless_run(evidence)
    unfilled = evidence.engine.run.resolved.get("unfilled")
    if unfilled is None:
        return NotLooked("the engine does not say which parameters nothing fills")
    if not unfilled:
        return None
    return Shown(f"parameters that nothing fills: {listed(unfilled)}", _engine_commands(evidence))


def _engine_fact(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.engine_name is None:
        return NotLooked(NO_ENGINE)
    releases = evidence.validated.releases
    if not releases:
        return NotLooked("which releases the server has is not asked; validate --engine takes one")
    failed = [verdict for verdict in releases if verdict.outcome == CheckVerdict.FAIL]
    if _is_level(evidence):
        return None
    if not failed:
        is_open = any(verdict.outcome == CheckVerdict.COULD_NOT_LOOK for verdict in releases)
        return NotLooked("its verdict is open: see `validate --engine`") if is_open else None
    last = failed[-1]
    words = f"{last.engine} {last.release} does not serve it as trained: {'; '.join(last.reasons)}"
    return Shown(words, _engine_commands(evidence))


def _is_level(evidence: Evidence) -> bool:
    """Whether the engine's run accepts as much as the reference's."""
    both = _both(evidence)
    return both is not None and ratio(both[0].run.results, both[1].run.results).low >= MAX_REGRESSION


def _both(evidence: Evidence) -> tuple[SmokeReport, SmokeReport] | None:
    engine, reference = evidence.engine, evidence.reference
    if engine is None or reference is None or engine.k != reference.k:
        return None
    if len(engine.run.results) != len(reference.run.results):
        return None
    return engine, reference


def _engine_lower(evidence: Evidence) -> Shown | NotLooked | None:
    if (gap := _unless_run(evidence)) is not None:
        return gap
    if (both := _both(evidence)) is None:
        return NotLooked("the engine's run has another number of drafts in a round than the reference's")
    compared = ratio(both[0].run.results, both[1].run.results)
    if compared.high >= MAX_REGRESSION or is_thin(both[0].measured):
        return None
    words = (
        f"{both[0].run.engine} {both[0].run.version} accepts x{compared.value:.2f} [{compared.low:.2f},"
        f" {compared.high:.2f}] of what the reference does with the same file, and says of no setting that it"
        " differs"
    )
    return Shown(words, _engine_commands(evidence))


def is_thin(measured: Measurement) -> bool:
    """Whether too little was measured for any verdict."""
    return measured.prompts < FEWEST_PROMPTS or measured.drafts < FEWEST_DRAFTS


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
    if not _is_dead(measured) and (open_reading := _open_reading(evidence)) is not None:
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


def _is_dead(measured: Measurement) -> bool:
    return measured.length.value <= DEAD_LENGTH or measured.per_position[0].value < DEAD_POSITION_0


def is_low(evidence: Evidence) -> bool:
    """Whether acceptance is below what was expected, or that of a weak drafter where nothing was."""
    served = evidence.served
    assert served is not None
    if evidence.expected is not None:
        return served.measured.length.high < evidence.expected
    return served.measured.per_position[0].value < WEAK_POSITION_0


def _sampling(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.sampled is None or evidence.reference is None:
        return NotLooked("measured greedily; give --temperature with that of production")
    sampled, greedy = evidence.sampled.measured.length, evidence.reference.measured.length
    if sampled.high >= greedy.low:
        return None
    return Shown(
        f"acceptance length {sampled.value:.2f} at temperature {evidence.sampled.temperature:g} and"
        f" {greedy.value:.2f} at 0: sampled tokens are harder to foresee; lower the temperature, or train it"
        " on sampled answers"
    )


def _one_set(evidence: Evidence) -> Shown | NotLooked | None:
    served = evidence.served
    assert served is not None
    sets = {name: part for name, part in served.by_set.items() if not is_thin(part)}
    if len(sets) < 2:
        return NotLooked('the prompts are of one set; name sets in --prompts ("set")')
    best = max(sets.values(), key=lambda part: part.length.low)
    low = [
        name
        for name, part in sets.items()
        if part.length.high < best.length.low and part.per_position[0].high < WEAK_POSITION_0
    ]
    if not low or best.per_position[0].low < WEAK_POSITION_0:
        return None
    figures = listed(f'"{name}" {part.length.value:.2f}' for name, part in sets.items())
    return Shown(
        f"acceptance lengths by set: {figures}; it loses on {listed(low)}: train it on prompts like those"
    )


def _template(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.templated is None or evidence.reference is None:
        if evidence.has_unused_template and is_low(evidence):
            return NotLooked("the run through the target's chat template could not be made")
        if evidence.has_unused_template:
            return NotLooked("asked only where acceptance is low")
        return NotLooked("no plain prompts, or the target has no chat template")
    plain, templated = evidence.reference.measured.length, evidence.templated.measured.length
    if templated.low <= plain.high or is_thin(evidence.templated.measured):
        return None
    return Shown(
        f"acceptance length {templated.value:.2f} with the same texts in the target's chat template, and"
        f' {plain.value:.2f} as given: give chats as "messages", as a server gets them'
    )


def _quantised(evidence: Evidence) -> Shown | None:
    if not evidence.is_target_quantised or not is_low(evidence):
        return None
    return Shown(
        "the target is quantised, and acceptance is low with nothing else found: measure with the target that"
        " the drafter was trained with; where that is good, train it on the quantised target's own states"
    )


def _warned(name: str) -> Test:
    """Whether a rule's warning stands beside low acceptance."""

    def test(evidence: Evidence) -> Shown | NotLooked | None:
        if reasons := [entry.reason for entry in evidence.validated.unchecked if entry.rule.name == name]:
            return NotLooked(reasons[0])
        found = [finding for finding in evidence.validated.findings if finding.rule.name == name]
        return _as_shown(found, evidence.commands["validate"]) if found and is_low(evidence) else None

    return test


def _other_revision(evidence: Evidence) -> Shown | NotLooked:
    if not evidence.has_own_embedding:
        return NotLooked("the file has no embedding of its own to compare with the target's")
    found = _warned("own-embedding")(evidence)
    if not isinstance(found, Shown):
        return found or NotLooked("its embedding is the target's, which revisions may share")
    advice = "; pass the revision that it was trained for, or train it on this one"
    return Shown(found.words.rpartition("; fix: ")[0] + advice, found.commands)


def _weak(evidence: Evidence) -> Shown | None:
    served = evidence.served
    assert served is not None
    if _is_dead(served.measured) or evidence.expected is not None or not is_low(evidence):
        return None
    first, length = served.measured.per_position[0], served.measured.length
    return Shown(
        f"acceptance length {length.value:.2f} [{length.low:.2f}, {length.high:.2f}], position 0 accepted in"
        f" {first.value:.0%}: alive, the same in every reading, and weak (below {WEAK_POSITION_0:.0%}, a line"
        " drawn by eaglectl): it needs more training, or prompts like those it was trained on"
    )


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
    if is_low(evidence) or _is_dead(served.measured):
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
    if _is_dead(measured):
        words += (
            ", that of a dead drafter in every reading: never trained, or for another target of these shapes"
        )
    elif evidence.expected is not None:
        words += f", below the {evidence.expected:g} that was expected, with nothing found"
    return Shown(words, (evidence.commands["probe"],))


CAUSES: tuple[Cause, ...] = (
    Cause(
        "other-target",
        DiagnosisEnding.PAIR,
        "reading",
        "a target of other shapes or another vocabulary",
        "errors of `validate` on the target (EGL7xx)",
        "Pass the target that the drafter was trained for.",
        _other_target,
    ),
    Cause(
        "file-rule",
        DiagnosisEnding.FILE,
        "reading",
        "a file that contradicts itself or misses tensors",
        "errors of `validate` that change what every engine serves",
        "Run the printed `validate --fix`; what it cannot repair has to be restored from the trainer.",
        _rule,
    ),
    Cause(
        "refused",
        DiagnosisEnding.FILE,
        "reference",
        "a file that is not read without an answer",
        "whether the reference refuses the drafter",
        "Follow the sentence; `inspect` lists the questions.",
        _refused,
    ),
    Cause(
        "no-reference",
        DiagnosisEnding.COULD_NOT_LOOK,
        "reference",
        "no run of the reference",
        "whether the target, its weights, torch and the prompts are there",
        "Follow the sentence.",
        _no_reference,
    ),
    Cause(
        "other-reading",
        DiagnosisEnding.FILE,
        "reference",
        "a file whose tensors or switches mean something else",
        "the sensitivity probe: whether another reading drafts better by 3 % beyond chance",
        "Run the printed `convert`, with `--fix-reading`, `--source-semantics` or `--aux-layers`.",
        _better_reading,
    ),
    Cause(
        "other-layers",
        DiagnosisEnding.FILE,
        "reference",
        "other aux layers than the file states",
        "other boundaries of the target, moved one by one while first draft tokens get better on half of the"
        " prompts, and judged on the other half",
        "Run the printed `convert --aux-layers`, after a look into the trainer's config.",
        _other_layers,
    ),
    Cause(
        "past-positions",
        DiagnosisEnding.PROMPTS,
        "reference",
        "texts longer than it was trained on",
        "where first draft tokens stop being right, and drafts past max_position_embeddings",
        "Serve shorter texts, or train on longer ones.",
        _past_positions,
    ),
    Cause(
        "engine-refuses",
        DiagnosisEnding.ENGINE,
        "engine",
        "an engine that refuses the drafter",
        "the run in the engine",
        "Run the printed `convert`, or install a release that serves it.",
        _engine_refuses,
    ),
    Cause(
        "engine-setting",
        DiagnosisEnding.ENGINE,
        "engine",
        "an engine that uses other settings than the file means",
        "norm switches and aux layers that the engine resolved",
        "Run the printed `convert`.",
        _engine_setting,
    ),
    Cause(
        "engine-unfilled",
        DiagnosisEnding.ENGINE,
        "engine",
        "parameters that the engine leaves unfilled",
        "the parameters that no tensor of the file fills",
        "Run the printed `convert`.",
        _engine_unfilled,
    ),
    Cause(
        "engine-fact",
        DiagnosisEnding.ENGINE,
        "engine",
        "a release that is known not to serve it as trained",
        "what this release is known to do with such a file, unless its own run shows no loss",
        "Write the keys that are named, run the printed `convert`, or install the release that is named.",
        _engine_fact,
    ),
    Cause(
        "engine-lower",
        DiagnosisEnding.ENGINE,
        "engine",
        "an engine that computes something else",
        "acceptance in the engine over that in the reference, on the same prompts",
        "Try the printed `convert`, another release, and report it to the engine.",
        _engine_lower,
    ),
    Cause(
        "too-few",
        DiagnosisEnding.COULD_NOT_LOOK,
        "measured",
        "too few prompts",
        "numbers of prompts and drafts, and intervals that hold both answers",
        "Give more `--prompts`.",
        _too_few,
    ),
    Cause(
        "sampling",
        DiagnosisEnding.PROMPTS,
        "measured",
        "sampling",
        "acceptance at `--temperature` below that at 0",
        "Lower the temperature, or train on sampled answers.",
        _sampling,
    ),
    Cause(
        "template",
        DiagnosisEnding.PROMPTS,
        "measured",
        "prompts without the target's chat template",
        "plain prompts again, through the target's chat template",
        "Give chats as `messages`.",
        _template,
    ),
    Cause(
        "one-set",
        DiagnosisEnding.PROMPTS,
        "measured",
        "one kind of prompts",
        "sets of prompts on which it is weak, beside one on which it is not",
        "Train on prompts like those it loses on.",
        _one_set,
    ),
    Cause(
        "other-revision",
        DiagnosisEnding.PAIR,
        "measured",
        "another revision of the target",
        "low acceptance, and an embedding that is not the target's (EGL704)",
        "Pass the revision that the drafter was trained for.",
        _other_revision,
    ),
    Cause(
        "quantised-target",
        DiagnosisEnding.PAIR,
        "measured",
        "a quantised target",
        "low acceptance, and a target with quantization_config",
        "Measure with the target of the training.",
        _quantised,
    ),
    Cause(
        "untrained",
        DiagnosisEnding.TRAINING,
        "measured",
        "a drafter that was not trained",
        "low acceptance, and tensors as initialised (EGL207)",
        "Train it.",
        _warned("untrained"),
    ),
    Cause(
        "weak",
        DiagnosisEnding.TRAINING,
        "measured",
        "too little training",
        "position 0 accepted in less than half of drafts, with nothing else found",
        "Train it longer, on prompts like those that are served.",
        _weak,
    ),
    Cause(
        "no-engine",
        DiagnosisEnding.COULD_NOT_LOOK,
        "measured",
        "no run of the engine",
        "whether the engine that was asked for ran",
        "Follow the sentence.",
        _no_engine,
    ),
    Cause(
        "healthy",
        DiagnosisEnding.HEALTHY,
        "measured",
        "nothing wrong",
        "acceptance that is not low",
        "Nothing to do.",
        _healthy,
    ),
    Cause(
        "not-found",
        DiagnosisEnding.NOT_FOUND,
        "measured",
        "no cause found",
        "what remains",
        "See what was ruled out and what was not looked at.",
        _not_found,
    ),
)
