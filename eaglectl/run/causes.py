"""The causes of low acceptance that `diagnose` knows, in the order in which they are tested.

A cause is a function with `@cause`: its docstring states what it looks at, its title, ending and advice stand
beside it, and docs/troubleshooting.md is made of them. It returns what shows the cause, why the evidence has
nothing on it, or None where the evidence rules it out.
"""

from collections.abc import Callable, Sequence

from eaglectl.drafter.vocabulary import FROM_D2T, FROM_T2D
from eaglectl.formats.catalogue import default_format, layout_for
from eaglectl.run.candidates import MADE_OF_T2D
from eaglectl.run.diagnosis import (
    NOT_RUN,
    Cause,
    Evidence,
    NotLooked,
    Phase,
    Shown,
    Test,
    as_shown,
    bar,
    is_dead,
    is_low,
    is_thin,
    may_be_low,
    sampled_ratio,
    serving_errors,
    templated_ratio,
    unchecked_rules,
    warned,
)
from eaglectl.run.measurement import (
    FEWEST_DRAFTS,
    FEWEST_PROMPTS,
    Estimate,
    Measurement,
    p_words,
    prompts_to_tell,
    ratio,
)
from eaglectl.run.report import MAX_REGRESSION, SmokeReport
from eaglectl.run.sensitivity import LEAST_GAIN, LEAST_PROMPTS, MOST_TIMES, Variant
from eaglectl.text import listed
from eaglectl.verdicts import DiagnosisEnding, ReadingOutcome, ServedAs

# between sets: healthy drafters accept twice as much of one as of another (fixtures/real/acceptance.json)
LEAST_TIMES = 3
NOTHING_TO_JUDGE_BY = "no figure of a run like this one; --like makes one, --expected states training's"
NO_ENGINE = "no engine was asked for; give --engine"
CONTRADICTION = "d2t-t2d"
CHOICE = "; the first command takes t2d for the right one, the second d2t"
ROTATED = "rotated-target"
SWITCHED = {"true": "false", "false": "true"}

_declared: list[Cause] = []


def cause(
    id_: str, ending: DiagnosisEnding, phase: Phase, *, title: str, advice: str
) -> Callable[[Test], Test]:
    """Declare the function below as the test of a cause."""

    def declare(test: Test) -> Test:
        _declared.append(Cause(id_, ending, phase, title, advice, test))
        return test

    return declare


@cause(
    "rotated-target",
    DiagnosisEnding.PAIR,
    "reading",
    title="a target whose residual stream is rotated",
    advice="Run the printed `convert --target-rotation`.",
)
def rotated_target(evidence: Evidence) -> Shown | NotLooked | None:
    """The target's embedding: the lengths and angles of the drafter's own rows, and other values (EGL710)."""
    found = [finding for finding in evidence.validated.findings if finding.rule.name == ROTATED]
    if not found:
        reasons = [entry.reason for entry in evidence.validated.unchecked if entry.rule.name == ROTATED]
        return NotLooked(reasons[0]) if reasons else None
    return as_shown(found, *_rotation_commands(evidence, found[0].fix))


def _rotation_commands(evidence: Evidence, fix: str) -> tuple[str, ...]:
    """The conversion that a fix names, in the layout for the engine that was asked for."""
    layout = layout_for(evidence.engine_name or "")
    option = "" if layout == default_format().name else f" --for {layout}"
    commands = tuple(part + option for part in fix.split("`")[1::2])
    return commands or (evidence.commands["validate"],)


@cause(
    "other-target",
    DiagnosisEnding.PAIR,
    "reading",
    title="a target of other shapes or another vocabulary",
    advice="Pass the target that the drafter was trained for.",
)
def other_target(evidence: Evidence) -> Shown | NotLooked | None:
    """Errors of `validate` on the target (EGL7xx)."""
    shown = as_shown(list(serving_errors(evidence, of_target=True)), evidence.commands["validate"])
    return shown or unchecked_rules(evidence, of_target=True)


@cause(
    "file-rule",
    DiagnosisEnding.FILE,
    "reading",
    title="a file that contradicts itself or misses tensors",
    advice="Run the printed `convert`; what it cannot repair has to be restored from the trainer.",
)
def file_rule(evidence: Evidence) -> Shown | NotLooked | None:
    """Errors of `validate` that change what every engine serves."""
    errors = list(serving_errors(evidence, of_target=False))
    if certain := [finding for finding in errors if finding.rule.name != CONTRADICTION]:
        return as_shown(certain, *_known(evidence, "fix"))
    if errors:
        return NotLooked(f"{errors[0].rule.id} {CONTRADICTION}: which of the two is right is measured first")
    if problem := evidence.validated.problem:
        return Shown(problem, (evidence.commands["validate"],))
    return unchecked_rules(evidence, of_target=False)


def _known(evidence: Evidence, *names: str) -> tuple[str, ...]:
    """The commands of these names that are not known to fail."""
    return tuple(evidence.commands[name] for name in names if name in evidence.commands)


@cause(
    "tables",
    DiagnosisEnding.FILE,
    "reference",
    title="d2t and t2d that name other tokens",
    advice="Run the printed `convert`; where it is not told which of them is right, choose.",
)
def tables(evidence: Evidence) -> Shown | None:
    """EGL305, and the sensitivity probe: whether the tokens of t2d draft better than those of d2t."""
    errors = serving_errors(evidence, of_target=False)
    if not (found := [finding for finding in errors if finding.rule.name == CONTRADICTION]):
        return None
    probed = evidence.reference and evidence.reference.probed
    variants = probed.variants if probed else ()
    variant = next((variant for variant in variants if variant.name == MADE_OF_T2D), None)
    both = _known(evidence, FROM_T2D, FROM_D2T)
    words = f"{found[0].rule.id} {CONTRADICTION}: {found[0].match.message}"
    if not both:  # rows in another order than t2d's
        return Shown(f"{words}; fix: {found[0].fix}")
    if variant is None:
        gap = evidence.refusal("reference") or evidence.gap("reference") or NOT_RUN
        return Shown(f"{words}; which of them is right was not measured: {gap}{CHOICE}", both)
    words += (
        f"; with the tokens of t2d it drafts x{variant.ratio.value:.2f} [{variant.ratio.low:.2f},"
        f" {variant.ratio.high:.2f}] as much as with those of d2t"
    )
    if variant.is_better:
        return Shown(words, both[:1])
    if variant.ratio.high < 1:
        return Shown(words, both[1:])
    return Shown(f"{words}, which {variant.measured.prompts} prompts cannot tell from chance{CHOICE}", both)


@cause(
    "refused",
    DiagnosisEnding.FILE,
    "reference",
    title="a file that is not read without an answer",
    advice="Follow the sentence; `inspect` lists the questions.",
)
def refused(evidence: Evidence) -> Shown | None:
    """Whether the reference refuses the drafter."""
    if not evidence.refusal("reference"):
        return None
    return Shown(evidence.refusal("reference"), (evidence.commands["inspect"],))


@cause(
    "no-reference",
    DiagnosisEnding.COULD_NOT_LOOK,
    "reference",
    title="no run of the reference",
    advice="Follow the sentence.",
)
def no_reference(evidence: Evidence) -> Shown | None:
    """Whether the target, its weights, torch and the prompts are there."""
    if not evidence.gap("reference"):
        return None
    return Shown(f"{evidence.gap('reference')}; then diagnose again", (evidence.commands["diagnose"],))


@cause(
    "other-reading",
    DiagnosisEnding.FILE,
    "reference",
    title="a file whose tensors or switches mean something else",
    advice="Run the printed `convert`, with `--fix-reading`, `--source-semantics` or `--aux-layers`.",
)
def other_reading(evidence: Evidence) -> Shown | NotLooked | None:
    """The sensitivity probe: whether another reading drafts better by 3 % beyond chance."""
    if evidence.reference is None or evidence.reference.probed is None:
        return NotLooked(NOT_RUN)
    probed = evidence.reference.probed
    if (best := probed.best) is None:
        return _unsettled(probed.variants)
    if best.is_of_layers and evidence.layers and evidence.layers.found and evidence.layers.found.is_better:
        return NotLooked(f"{best.name} draft better, and so do layers that the search found")
    words = (
        f"read with {best.name} it drafts x{best.ratio.value:.2f} [{best.ratio.low:.2f},"
        f" {best.ratio.high:.2f}] as much, beyond chance (p {p_words(best.p_value)} after"
        f" {len(probed.variants)} readings)"
    )
    return Shown(words, (evidence.commands["repair"],), _title(best))


def _title(best: Variant) -> str:
    """What is wrong in the file, with the acceptance length as stated and as this reading has it."""
    name, _, value = best.name.rpartition(" ")
    words = f"it drafts better read with {best.name}"
    if value in SWITCHED:
        words = f"{name} is {SWITCHED[value]} and should be {value}"
    return f"{words}: {best.stated_length:.2f}, and {best.measured.length.value:.2f} read so"


def _unsettled(variants: Sequence[Variant]) -> NotLooked | None:
    """Why it is not settled that no reading is better; None where it is."""
    if not variants:
        return NotLooked("no reading was tried")
    if (prompts := variants[0].measured.prompts) < LEAST_PROMPTS:
        return NotLooked(f"{prompts} prompts show no reading to be better; {LEAST_PROMPTS} or more can")
    few = [variant for variant in variants if variant.outcome == ReadingOutcome.TOO_FEW_PROMPTS]
    return NotLooked(f"too few prompts to tell of {listed(variant.name for variant in few)}") if few else None


@cause(
    "other-layers",
    DiagnosisEnding.FILE,
    "reference",
    title="other aux layers than the file states",
    advice="Run the printed `convert --aux-layers`, after a look into the trainer's config.",
)
def other_layers(evidence: Evidence) -> Shown | NotLooked | None:
    """Other boundaries of the target, moved one by one while first draft tokens get better on half of the
    prompts, and judged on the other half.
    """
    if (search := evidence.layers) is None:
        return NotLooked(evidence.gap("layers") or NOT_RUN)
    if (found := search.found) is None:
        return None
    words = (
        f"from {found.name} it drafts x{found.ratio.value:.2f} [{found.ratio.low:.2f},"
        f" {found.ratio.high:.2f}] as much as from {','.join(map(str, search.stated))} that the file states,"
        f" on {found.measured.prompts} prompts that did not choose them among {search.tried} sets"
    )
    if not found.is_better:
        return NotLooked(f"{words}: too few to tell from chance")
    stated = listed(map(str, search.stated))
    if search.alike:
        alike = listed((",".join(map(str, boundaries)) for boundaries in search.alike), " or ")
        words += (
            f"; from {alike} it drafts as well, as far as these prompts tell: the trainer's config decides"
        )
    else:
        words += "; from each set with one boundary one off it drafts less"
    title = (
        f"trained on boundaries {found.name.removeprefix('aux boundaries ')}, and the file states {stated}:"
        f" {found.stated_length:.2f}, and {found.measured.length.value:.2f} read so"
    )
    return Shown(words, (evidence.commands["layers"],), title)


@cause(
    "past-positions",
    DiagnosisEnding.PROMPTS,
    "reference",
    title="texts longer than it was trained on",
    advice="Serve shorter texts, or train on longer ones.",
)
def past_positions(evidence: Evidence) -> Shown | NotLooked | None:
    """Where first draft tokens stop being right, and drafts past max_position_embeddings."""
    if evidence.reference is None or evidence.reference.probed is None:
        return NotLooked(NOT_RUN)
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


@cause(
    "engine-refuses",
    DiagnosisEnding.ENGINE,
    "engine",
    title="an engine that refuses the drafter",
    advice="Run the printed `convert`, or install a release that serves it.",
)
def engine_refuses(evidence: Evidence) -> Shown | NotLooked | None:
    """The run in the engine."""
    if evidence.refusal("engine"):
        return Shown(evidence.refusal("engine"), _changes(evidence))
    return _unless_run(evidence)


def _unless_run(evidence: Evidence) -> NotLooked | None:
    if evidence.engine is not None:
        return None
    return NotLooked(evidence.gap("engine") or NO_ENGINE)


def _changes(evidence: Evidence) -> tuple[str, ...]:
    """The smallest changes for the one engine that was asked for, without its name before them."""
    changes = (change.partition(": ")[2] for change in evidence.validated.smallest_changes)
    return tuple(change.strip("`") if change.count("`") == 2 else change for change in changes)


@cause(
    "engine-setting",
    DiagnosisEnding.ENGINE,
    "engine",
    title="an engine that uses other settings than the file means",
    advice="Run the printed `convert`.",
)
def engine_setting(evidence: Evidence) -> Shown | NotLooked | None:
    """Norm switches and aux layers that the engine resolved."""
    if evidence.engine is None:
        return _unless_run(evidence)
    if not evidence.engine.run.differences:
        return None
    return Shown("; ".join(evidence.engine.run.differences), _engine_commands(evidence))


def _engine_commands(evidence: Evidence) -> tuple[str, ...]:
    """What reading says has to change for this engine, or the conversion for it, if it changes anything."""
    conversion = evidence.commands.get("convert")
    return _changes(evidence) or ((conversion,) if conversion else ())


@cause(
    "engine-unfilled",
    DiagnosisEnding.ENGINE,
    "engine",
    title="parameters that the engine leaves unfilled",
    advice="Run the printed `convert`.",
)
def engine_unfilled(evidence: Evidence) -> Shown | NotLooked | None:
    """The parameters that no tensor of the file fills."""
    if evidence.engine is None:
        return _unless_run(evidence)
    unfilled = evidence.engine.run.resolved.get("unfilled")
    if unfilled is None:
        return NotLooked("the engine does not say which parameters nothing fills")
    if not unfilled:
        return None
    return Shown(f"parameters that nothing fills: {listed(unfilled)}", _engine_commands(evidence))


@cause(
    "engine-fact",
    DiagnosisEnding.ENGINE,
    "engine",
    title="a release that is known not to serve it as trained",
    advice="Write the keys that are named, run the printed `convert`, or install the release that is named.",
)
def engine_fact(evidence: Evidence) -> Shown | NotLooked | None:
    """What this release is known to do with such a file, unless its own run shows no loss."""
    if evidence.engine_name is None:
        return NotLooked(NO_ENGINE)
    releases = evidence.validated.releases
    if not releases:
        return NotLooked("which releases the server has is not asked; validate --engine takes one")
    failed = [verdict for verdict in releases if verdict.outcome.is_known_wrong]
    if _is_level(evidence):
        return None
    if not failed:
        is_open = any(verdict.outcome == ServedAs.UNKNOWN for verdict in releases)
        return NotLooked("its verdict is open: see `validate --engine`") if is_open else None
    last = failed[-1]
    words = f"{last.engine} {last.release} does not serve it as trained: {'; '.join(last.reasons)}"
    return Shown(words, _engine_commands(evidence))


def _both(evidence: Evidence) -> tuple[SmokeReport, SmokeReport] | None:
    engine, reference = evidence.engine, evidence.reference
    if engine is None or reference is None or engine.k != reference.k:
        return None
    if len(engine.run.results) != len(reference.run.results):
        return None
    return engine, reference


def _is_level(evidence: Evidence) -> bool:
    """Whether the engine's run accepts as much as the reference's."""
    both = _both(evidence)
    return both is not None and ratio(both[0].run.results, both[1].run.results).low >= MAX_REGRESSION


@cause(
    "engine-lower",
    DiagnosisEnding.ENGINE,
    "engine",
    title="an engine that computes something else",
    advice="Try the printed `convert`, another release, and report it to the engine.",
)
def engine_lower(evidence: Evidence) -> Shown | NotLooked | None:
    """Acceptance in the engine over that in the reference, on the same prompts."""
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


@cause(
    "sampling",
    DiagnosisEnding.PROMPTS,
    "measured",
    title="sampling",
    advice="Lower the temperature, let vLLM sample drafts (`draft_sample_method`), or train on sampled"
    " answers.",
)
def sampling(evidence: Evidence) -> Shown | NotLooked | None:
    """Acceptance at `--temperature` below that at 0."""
    compared = sampled_ratio(evidence)
    if compared is None or evidence.sampled is None or evidence.reference is None:
        return NotLooked("measured greedily; give --temperature with that of production")
    sampled, greedy = evidence.sampled.measured.length, evidence.reference.measured.length
    if compared.high >= 1 or compared.value >= MAX_REGRESSION or is_thin(evidence.sampled.measured):
        return None
    return Shown(
        f"acceptance length {sampled.value:.2f} at temperature {evidence.sampled.temperature:g} and"
        f" {greedy.value:.2f} at 0 (ratio {compared.value:.2f} [{compared.low:.2f}, {compared.high:.2f}]),"
        " with greedy drafts: sampled tokens are harder to foresee; lower the temperature, have vLLM sample"
        " drafts too (draft_sample_method probabilistic in --speculative-config), or train it on sampled"
        " answers"
    )


@cause(
    "template",
    DiagnosisEnding.PROMPTS,
    "measured",
    title="prompts without the target's chat template",
    advice="Give chats as `messages`.",
)
def template(evidence: Evidence) -> Shown | NotLooked | None:
    """Plain prompts again, through the target's chat template."""
    compared = templated_ratio(evidence)
    if compared is None or evidence.templated is None or evidence.reference is None:
        if evidence.pair.has_unused_template and may_be_low(evidence):
            return NotLooked("the run through the target's chat template could not be made")
        if evidence.pair.has_unused_template:
            return NotLooked("asked only where acceptance may be low")
        return NotLooked("no plain prompts, or the target has no chat template")
    plain, templated = evidence.reference.measured.length, evidence.templated.measured.length
    if compared.low <= 1 or compared.value < LEAST_GAIN or is_thin(evidence.templated.measured):
        return None
    return Shown(
        f"acceptance length {templated.value:.2f} with the same texts in the target's chat template, and"
        f' {plain.value:.2f} as given: give chats as "messages", as a server gets them'
    )


@cause(
    "one-set",
    DiagnosisEnding.PROMPTS,
    "measured",
    title="one kind of prompts",
    advice="Train on prompts like those it loses on.",
)
def one_set(evidence: Evidence) -> Shown | NotLooked | None:
    """Sets of prompts of which it accepts less than a third of the draft tokens that it does of another."""
    served = evidence.served
    assert served is not None
    sets = {name: part for name, part in served.by_set.items() if not is_thin(part)}
    if len(sets) < 2:
        return NotLooked('the prompts are of one set; name sets in --prompts ("set")')
    most = max(part.length.low for part in sets.values()) - 1
    low = [name for name, part in sets.items() if part.length.high - 1 < most / LEAST_TIMES]
    if not low:
        return None
    figures = listed(f'"{name}" {part.length.value:.2f}' for name, part in sets.items())
    return Shown(
        f"acceptance lengths by set: {figures}; it loses on {listed(low)}: train it on prompts like those"
    )


@cause(
    "too-few",
    DiagnosisEnding.COULD_NOT_LOOK,
    "measured",
    title="too few prompts",
    advice="Give more `--prompts`.",
)
def too_few(evidence: Evidence) -> Shown | None:
    """Numbers of prompts and drafts, and intervals that hold both answers."""
    served = evidence.served
    assert served is not None
    measured = served.measured
    if is_thin(measured):
        return Shown(
            f"{measured.prompts} prompts with {measured.drafts} drafts are too few to judge by;"
            f" {FEWEST_PROMPTS} and {FEWEST_DRAFTS} are needed, and 16 prompts or more are better: give more"
            " --prompts, or more --max-tokens"
        )
    if not is_dead(measured) and (open_reading := _open_reading(evidence)) is not None:
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
    return _open_run(evidence) or _unclear(evidence, measured)


def _open_run(evidence: Evidence) -> Shown | None:
    """Sampling that costs, or a chat template that gains, where a few more prompts could show it."""
    sampled, templated = sampled_ratio(evidence), templated_ratio(evidence)
    if sampled is not None and sampled.value < MAX_REGRESSION and sampled.high >= 1:
        return _too_few_for(evidence, sampled, "at the temperature that was asked for")
    if templated is not None and templated.value >= LEAST_GAIN and templated.low <= 1:
        return _too_few_for(evidence, templated, "in the target's chat template")
    return None


def _too_few_for(evidence: Evidence, compared: Estimate, where: str) -> Shown | None:
    """How many prompts would tell; None where that is many times those given, as of chance."""
    assert evidence.reference is not None
    prompts = evidence.reference.measured.prompts
    needed = prompts_to_tell(compared, 1.0, prompts)
    if needed is None or needed > MOST_TIMES * prompts:
        return None
    return Shown(
        f"{where} the prompts have x{compared.value:.2f} [{compared.low:.2f}, {compared.high:.2f}] of their"
        f" acceptance, which {prompts} prompts cannot tell from chance: give about {needed}"
    )


def _unclear(evidence: Evidence, measured: Measurement) -> Shown | None:
    """Where the length is below what it is judged by, and its interval is not."""
    length, judged = measured.length, bar(evidence)
    if judged is None or length.value >= MAX_REGRESSION * judged[0] or length.high < judged[0]:
        return None
    return Shown(
        f"acceptance length {length.value:.2f} [{length.low:.2f}, {length.high:.2f}] does not tell whether it"
        f" is below the {judged[0]:g} {judged[1]}: give more --prompts than {measured.prompts}"
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


@cause(
    "marked-rotation",
    DiagnosisEnding.PAIR,
    "measured",
    title="a target that its files mark as rotated",
    advice="Run the printed `convert --target-rotation`, unless it was trained on this target.",
)
def marked_rotation(evidence: Evidence) -> Shown | NotLooked | None:
    """Low acceptance, and QuaRot or SpinQuant in the target's files (EGL711)."""
    shown = warned("marked-rotation", evidence)
    if not isinstance(shown, Shown):
        return shown
    return Shown(shown.words, _rotation_commands(evidence, shown.words))


@cause(
    "other-revision",
    DiagnosisEnding.PAIR,
    "measured",
    title="another revision of the target",
    advice="Pass the revision that the drafter was trained for.",
)
def other_revision(evidence: Evidence) -> Shown | NotLooked:
    """Low acceptance, and an embedding that is not the target's (EGL704)."""
    if not evidence.pair.has_own_embedding:
        return NotLooked("the file has no embedding of its own to compare with the target's")
    found = warned("own-embedding", evidence)
    if not isinstance(found, Shown):
        return found or NotLooked("its embedding is the target's, which revisions may share")
    advice = "; pass the revision that it was trained for, or train it on this one"
    return Shown(found.words.rpartition("; fix: ")[0] + advice, found.commands)


@cause(
    "quantised-target",
    DiagnosisEnding.PAIR,
    "measured",
    title="a quantised target",
    advice="Measure with the target of the training.",
)
def quantised_target(evidence: Evidence) -> Shown | None:
    """Low acceptance, and a target with quantization_config."""
    if not evidence.pair.is_target_quantised or not is_low(evidence):
        return None
    return Shown(
        "the target is quantised, and acceptance is low with nothing else found: measure with the target that"
        " the drafter was trained with; where that is good, train it on the quantised target's own states"
    )


@cause(
    "untrained",
    DiagnosisEnding.TRAINING,
    "measured",
    title="a drafter that was not trained",
    advice="Train it.",
)
def untrained(evidence: Evidence) -> Shown | NotLooked | None:
    """Low acceptance, and tensors as initialised (EGL207)."""
    return warned("untrained", evidence)


@cause(
    "weak",
    DiagnosisEnding.TRAINING,
    "measured",
    title="too little training",
    advice="Train it longer, on prompts like those that are served.",
)
def weak(evidence: Evidence) -> Shown | NotLooked | None:
    """Acceptance below that of every drafter that others ran likewise, with nothing else found."""
    served, judged = evidence.served, bar(evidence)
    assert served is not None
    if judged is None:
        return NotLooked(NOTHING_TO_JUDGE_BY)
    if is_dead(served.measured) or evidence.expected is not None or not is_low(evidence):
        return None
    return Shown(
        f"{_figures(served)}: alive, the same in every reading, and below the {judged[0]:g} {judged[1]}: it"
        " needs more training, or prompts like those it was trained on"
    )


def _figures(served: SmokeReport) -> str:
    first, length = served.measured.per_position[0], served.measured.length
    return (
        f"acceptance length {length.value:.2f} [{length.low:.2f}, {length.high:.2f}] at k={served.k},"
        f" position 0 accepted in {first.value:.0%}"
    )


@cause(
    "no-engine",
    DiagnosisEnding.COULD_NOT_LOOK,
    "measured",
    title="no run of the engine",
    advice="Follow the sentence.",
)
def no_engine(evidence: Evidence) -> Shown | None:
    """Whether the engine that was asked for ran."""
    if not evidence.gap("engine"):
        return None
    return Shown(
        f"nothing was found in the file, the reference and the prompts, and the engine did not run:"
        f" {evidence.gap('engine')}"
    )


@cause(
    "healthy",
    DiagnosisEnding.HEALTHY,
    "measured",
    title="nothing found",
    advice="Nothing to do.",
)
def healthy(evidence: Evidence) -> Shown | None:
    """Acceptance that is not below what it can be judged by, with nothing found."""
    served, judged = evidence.served, bar(evidence)
    assert served is not None
    if is_low(evidence) or is_dead(served.measured):
        return None
    words = _figures(served)
    if evidence.expected is not None:
        return Shown(f"{words}, as far as these prompts tell that of training ({evidence.expected:g})")
    if judged is not None:
        return Shown(f"{words}, as others: not below the {judged[0]:g} {judged[1]}")
    lines = served.published.lines if served.published else ()
    others = "; ".join(lines) or "no published length of this target is known"
    quantised = " of this quantised target" if evidence.pair.is_target_quantised else ""
    value = served.measured.length.value
    return Shown(
        f"{words}; nothing was found; whether {value:.2f} is good for it{quantised} cannot be told here:"
        f" {others}"
    )


@cause(
    "not-found",
    DiagnosisEnding.NOT_FOUND,
    "measured",
    title="no cause found",
    advice="See what was ruled out and what was not looked at.",
)
def not_found(evidence: Evidence) -> Shown:
    """What remains."""
    served = evidence.served
    assert served is not None
    measured = served.measured
    words = f"acceptance length {measured.length.value:.2f} at k={served.k}"
    if is_dead(measured):
        words += (
            ", that of a dead drafter in every reading: never trained, or for another target of these shapes,"
            " as this one is once its residual stream is rotated (QuaRot, SpinQuant)"
        )
    elif evidence.expected is not None:
        words += f", below the {evidence.expected:g} that was expected, with nothing found"
    return Shown(words, (evidence.commands["probe"],))


CAUSES: tuple[Cause, ...] = tuple(_declared)
