"""`convert`: rewriting a drafter in another layout."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial, reduce
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from msgspec import Struct, field
from msgspec.structs import replace

import eaglectl
from eaglectl import shell
from eaglectl.api.options import ConvertOptions, Deployment, MeasureOptions
from eaglectl.api.outputs import (
    all_releases,
    judge_output,
    judge_plan,
    judge_planned,
    only,
    plausibility_notes,
    serving_layout,
    unserved,
    value_errors,
)
from eaglectl.api.sources import OpenedSource, opened, selected_tokens_of
from eaglectl.conversion.plan import DEFAULT_LAYOUT, ConversionPlan, ConversionRequest
from eaglectl.conversion.planning import OtherFiles, make_plan
from eaglectl.conversion.readings import draft_vocabulary
from eaglectl.conversion.rewriting import MATERIALIZE, find_rotation, find_target_matrix
from eaglectl.conversion.writing import (
    WriteOptions,
    conversion_card,
    link_notes,
    provenance,
    shards_of,
    write_plan,
)
from eaglectl.drafter.drafter import (
    JOINED_NORMS,
    TRAINING_DEFAULT,
    Choice,
    Drafter,
    Feature,
    Note,
    Target,
    are_stated,
    question,
)
from eaglectl.drafter.tensors import EMBEDDINGS, matrix
from eaglectl.engines.behaviour import ranges
from eaglectl.engines.registry import (
    ENGINES,
    EngineRequest,
    output_commands,
    requested_places,
    started,
    usual_release,
)
from eaglectl.errors import EaglectlError, OpenFactError, RefusedError, UnreadableError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint, on_disk, open_folder, read_checkpoint
from eaglectl.files.layout import CARD
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.source import FolderSource, Source
from eaglectl.files.writer import check_apart
from eaglectl.formats.catalogue import by_name, writable
from eaglectl.formats.commands import Complete, command, whole_commands
from eaglectl.formats.format import Answers, Origin
from eaglectl.formats.reader import read_drafter
from eaglectl.judge.judgement import Judgement, Subject, judge_drafter
from eaglectl.options import StrPath, path_text, with_keywords
from eaglectl.progress import LOADING, OnProgress, notify, report_step
from eaglectl.results import Conversion, OutputServing
from eaglectl.target.choice import TargetChoice, asking_for, choose_target, special_tokens
from eaglectl.verdicts import ServedAs

if TYPE_CHECKING:
    from eaglectl.api.keywords import ConvertFields
    from eaglectl.run.answering import LoadedReading, MeasuredAnswer, Options
    from eaglectl.run.gate import JoinedNorm
    from eaglectl.run.job import Stage


# bytes that are compared at once
SPAN = 1 << 24
# the rules on a d2t of zeros
IDENTITY = ("EGL307", "EGL312")
FORCE = "--force-unserved writes it anyway"
# folder names that trainers choose and that do not identify a drafter
UNTELLING = re.compile(r"source|model|final|latest|(checkpoint|epoch|step)[-_]?\d+")
OnPlan = Callable[[ConversionPlan], None]


class Prepared(Struct, frozen=True):
    """A source that is opened for a conversion, its target, and the options with measured answers.

    `complete` completes the commands in a text. `start` is the time.perf_counter() of the beginning.
    """

    files: OpenedSource
    target: Target
    options: ConvertOptions
    complete: Complete
    measured: "tuple[MeasuredAnswer, ...]"
    start: float

    def finished(self, conversion: Conversion) -> Conversion:
        """Return the conversion with whole commands, the measured answers and the time taken."""
        layout = self.options.layout and by_name(self.options.layout).layout
        named = [row for row in conversion.serving if row.is_named]
        # an engine's layout is written for that engine
        engines = layout.engines if layout and not named else ()
        named += [row for row in conversion.serving if row.verdict.engine in engines]
        return replace(
            conversion,
            plan=conversion.plan.completed(self.complete),
            measured=self.measured,
            trust_remote_code=self.target.trusts_code,
            seconds=time.perf_counter() - self.start,
            is_missed=not self.options.force_unserved
            and any(row.verdict.outcome.is_known_wrong for row in named),
        )


@contextmanager
def prepared(
    source: str,
    out: StrPath | None,
    options: ConvertOptions,
    on_progress: OnProgress | None = None,
    *,
    needs_target: bool = False,
) -> Iterator[Prepared]:
    """Open a source and measure its open questions; errors state the targets searched and the measurements.

    `needs_target`: fail without the target's weights. A dry run reads the headers of pickles only.
    """
    start, original = time.perf_counter(), open_folder(source)
    options = replace(options, target=options.target.on_disk()) if needs_target else options
    check_options(original, out, options)
    options.target.known(options.target_name)
    is_looked_at = options.dry_run and options.version != "3.1"
    with opened(original, path_text(out), is_looked_at=is_looked_at) as files:
        choice = choose_target(
            files.original,
            options.target,
            options.answers,
            lambda: files.checkpoint,
            needs_weights=needs_target,
            # the named target's config, if the boundaries depend on its depth
            may_fetch=options.target.place is None
            and read_drafter(files.checkpoint, options.answers, Target()).aux.boundaries is None,
        )
        trusts_code = options.measure is not None and options.measure.trust_remote_code
        choice = Deployment(trusts_code=trusts_code).of(options.deployment.of(choice))
        target, options = choice.known(options.target_name), replace(options, target=choice)
        questions = measure_open_questions(files, target, options, on_progress)
        options = options.answered(questions.answers, questions.record)
        complete = Complete(source, choice, options.answers)
        with asking_for(choice), questions.explaining(), whole_commands(complete):
            yield Prepared(files, target, options, complete, questions.measured, start)


@with_keywords
def convert(
    source: StrPath,
    out: StrPath | None = None,
    options: ConvertOptions | None = None,
    *,
    on_plan: OnPlan | None = None,
    on_progress: OnProgress | None = None,
    **fields: "Unpack[ConvertFields]",
) -> Conversion:
    """Convert a drafter to another layout; `out` defaults to NAME-eagleVERSION in the current folder.

    `on_plan` is called with the plan before anything is written. Raises UsageError for an open question,
    RefusedError if the layout cannot express the drafter, UnreadableError for input that cannot be read.
    """
    with prepared(os.fspath(source), out, options or ConvertOptions(), on_progress) as ready:
        show = on_plan and (lambda plan: on_plan(plan.completed(ready.complete)))
        plan = served_plan(ready.files, ready.target, ready.options)
        plan = with_measured_norm(ready, plan, on_progress)
        return ready.finished(carry_out(ready.files, plan, ready.options, out, show, on_progress))


def with_measured_norm(
    ready: Prepared, plan: ConversionPlan, on_progress: OnProgress | None
) -> ConversionPlan:
    """Return the plan with what its one norm in the place of two changes, measured on the target.

    Returns it unchanged if nothing was joined, or if the target's weights are not here.
    """
    options, doubts = ready.options, {note.topic: note for note in plan.drafter.notes}
    if JOINED_NORMS not in doubts or not options.measure or options.dry_run or not options.target.weights:
        return plan
    try:
        measured = _measured_norm(ready, plan, options.measure, on_progress)
    except EaglectlError as error:
        notify(f"what one norm in the place of two changes was not measured: {error}")
        return plan
    note, row = doubts[JOINED_NORMS], measured.row
    noted = {JOINED_NORMS: replace(note, why=measured.words, deviation=measured.deviation)}
    notes, drafter_notes = (
        tuple(noted.get(note.topic, note) for note in notes) for notes in (plan.notes, plan.drafter.notes)
    )
    record = {
        **plan.record["norms_joined"],
        "measured": {
            "size_changes": [measured.low, measured.high],
            "states": measured.states,
            "acceptance_length": {"before": row.before.length.value, "after": row.after.length.value},
            "ratio": [row.ratio.value, *row.ratio.interval],
            "prompts": row.before.prompts,
            "k": row.k,
        },
    }
    return replace(
        plan,
        drafter=replace(plan.drafter, notes=drafter_notes),
        notes=notes,
        record={**plan.record, "norms_joined": record},
    )


def _measured_norm(
    ready: Prepared, plan: ConversionPlan, measure: MeasureOptions, on_progress: OnProgress | None
) -> "JoinedNorm":
    # run both networks: as trained, in the layout of a trainer that norms twice, and as planned
    folder = measurable_target(plan.drafter, (), ready.options.target)
    from eaglectl.run.gate import measure_joined_norm
    from eaglectl.run.job import EngineJob
    from eaglectl.run.prompts import choose_prompts

    layout = next(name for name in writable() if (other := by_name(name).layout) and other.norms_twice)
    trained = plan_conversion(ready.files, ready.target, replace(ready.options, layout=layout, engines=()))
    with scratch_folder() as scratch:
        for place, written in (("twice", trained), ("once", plan)):
            _write_scratch(ready.files, written, scratch / place)
        twice = EngineJob(
            scratch / "twice",
            trained.drafter,
            folder,
            choose_prompts(measure.prompts, measure.sample, measure.seed).prompts,
            k=K,
            max_tokens=measure.max_tokens,
            device=measure.device,
            trust_remote_code=measure.trust_remote_code,
            ignores_eos=measure.ignore_eos,
            on_progress=on_progress,
        )
        once = replace(twice, folder=scratch / "once", drafter=plan.drafter)
        return measure_joined_norm(twice, once, plan.record["norms_joined"]["scale"])


def _write_scratch(files: OpenedSource, plan: ConversionPlan, place: Path) -> None:
    originals = files.pickles or files.checkpoint.weight_files
    write_plan(plan, files.checkpoint, files.original, originals, WriteOptions(place, link=not files.pickles))


def carry_out(
    files: OpenedSource,
    plan: ConversionPlan,
    options: ConvertOptions,
    out: StrPath | None,
    on_plan: OnPlan | None = None,
    on_progress: OnProgress | None = None,
) -> Conversion:
    """Write a plan for opened files, unless it is a dry run."""
    place = Path(out) if out is not None else default_output(files.original, plan.drafter.version)
    check_options(files.original, place, options)
    if on_plan:
        on_plan(plan)
    if options.dry_run:
        return Conversion(
            plan, None, files.pickles, 0.0, serving=_planned_serving(files, plan, place, options)
        )
    return Conversion(
        plan, place, files.pickles, 0.0, serving=write_conversion(files, plan, place, options, on_progress)
    )


def check_options(original: FolderSource, out: StrPath | None, options: ConvertOptions) -> None:
    """Raise UsageError for options that do not go together, or an `out` that is an input."""
    is_upgrade, is_rotated = options.version == "3.1", options.target_rotation is not None
    check(
        (
            not is_rotated and options.trained_target is not None,
            "--trained-target needs --target-rotation; leave it out",
            ("--trained-target",),
        ),
        (
            is_rotated and is_upgrade,
            "--target-rotation cannot be combined with --to 3.1: leave --to 3.1 out, and convert the output"
            " with it",
            ("--target-rotation",),
        ),
        (
            is_rotated and options.has_target_head,
            "--materialize-lm-head would copy the rotated target's lm_head; leave it out: with"
            " --target-rotation the lm_head comes from --trained-target",
            ("--materialize-lm-head",),
        ),
    )
    inputs = [original.root, *map(Path, filter(None, (options.target.place, options.trained_target)))]
    if options.pruning:
        inputs.append(options.pruning.counts)
    if out is not None:
        for path in inputs:
            check_apart(Path(out), path)


def plan_conversion(files: OpenedSource, target: Target, options: ConvertOptions) -> ConversionPlan:
    """Plan a conversion; a warning names each engine that would not run the output as trained."""
    drafter, request = read_drafter(files.checkpoint, options.answers, target), options
    if request.pruning and request.pruning.kept is None:
        request = replace(request, pruning=replace(request.pruning, kept=special_tokens(options.target)))
    copied = _copied_embedding(files.checkpoint, drafter, options)
    others = OtherFiles(selected_tokens_of(files.original, drafter), copied=copied)
    if options.target_rotation is not None:
        if options.target.place is None:
            raise UsageError(
                "--target-rotation needs the rotated target; pass --target with its weights",
                options=("--target-rotation", "--target"),
            )
        layout = by_name(options.layout or DEFAULT_LAYOUT).layout
        trained = options.trained_target and read_checkpoint(open_folder(options.trained_target))
        rotation = find_rotation(
            options.target_rotation,
            files.checkpoint,
            drafter,
            read_checkpoint(open_folder(options.target.place)),
            trained or None,
            is_shared=layout is not None and any(ENGINES[name].shares_embedding for name in layout.engines),
        )
        others = replace(others, rotation=rotation)
    if options.has_target_head:
        if options.target.place is None:
            raise UsageError(
                "--materialize-lm-head copies the target's lm_head; pass --target with the target's weights",
                options=("--materialize-lm-head", "--target"),
            )
        head = read_checkpoint(open_folder(options.target.place))
        others = replace(others, head=find_target_matrix(head, MATERIALIZE, is_head=True))
    plan = make_plan(files.checkpoint, drafter, request, options.answers, others)
    numbers = plausibility_notes(files.checkpoint, plan.drafter, options.target.config)
    notes = (*plan.notes, *numbers, *_engine_warnings(plan, options.engines))
    if options.link and not files.pickles:
        notes += link_notes(plan, files.checkpoint, options.max_shard_size)
    return replace(plan, notes=notes)


def _copied_embedding(checkpoint: Checkpoint, drafter: Drafter, options: ConvertOptions) -> str:
    """Return the stored name of an embedding that lacks rows of the target's and equals its first rows.

    "" if the layout is no engine's, or if the drafter's embedding has all rows that are looked up.
    """
    tensor = drafter.tensors.get("embed_tokens.weight")
    if tensor is None or len(tensor.stored) > 1 or tensor.shape[0] >= (drafter.target.tokens or 0):
        return ""
    layout = by_name(options.layout or DEFAULT_LAYOUT).layout
    if not (layout and layout.engines and options.target.weights):
        return ""
    target, (name,) = read_checkpoint(options.target.weights), tensor.stored
    other, ours = matrix(target.tensors, EMBEDDINGS), checkpoint.tensors[name]
    theirs = target.tensors.get(other or "", ours)
    if other is None or (theirs.dtype, theirs.shape[1:]) != (ours.dtype, ours.shape[1:]):
        return ""
    size = min(ours.nbytes, theirs.nbytes)
    spans = [(start, min(start + SPAN, size)) for start in range(0, size, SPAN)]
    is_copy = all(checkpoint.read(name, *span) == target.read(other, *span) for span in spans)
    return name if is_copy else ""


def write_conversion(
    files: OpenedSource,
    plan: ConversionPlan,
    out: Path,
    options: ConvertOptions,
    on_progress: OnProgress | None = None,
) -> tuple[OutputServing, ...]:
    """Write a plan, all or nothing, and return each engine's verdict; copies of pickles are never linked.

    Tensor values are checked while they are copied, unless `force_unserved`. Raises RefusedError for an
    output that `validate` would fail.
    """
    serving: list[OutputServing] = []
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_value_errors, files, plan, options)

        def check_written(folder: Path) -> None:
            # the tokens that counts choose can be the first ones
            skipped = IDENTITY if options.pruning else ()
            errors, config = reading.result(), options.target.config
            judgement = judge_output(folder, plan, errors, config, options.engines, skipped)
            serving.extend(_checked_serving(files, plan, judgement, out, options))

        how = WriteOptions(
            out, options.force, options.link and not files.pickles, options.max_shard_size, check_written
        )
        write_plan(
            plan,
            files.checkpoint,
            files.original,
            files.pickles or files.checkpoint.weight_files,
            how,
            on_progress,
        )
    return tuple(serving)


def _planned_serving(
    files: OpenedSource, plan: ConversionPlan, out: Path, options: ConvertOptions
) -> tuple[OutputServing, ...]:
    """Judge a planned output. Raises RefusedError if it would not be written, UnreadableError for a record
    that its card cannot state.
    """
    errors = _value_errors(files, plan, options)
    judgement = judge_planned(plan, all_releases(options.engines), options.target.config, errors)
    rows = _checked_serving(files, plan, judgement, out, options)
    if CARD not in plan.copied_files:
        conversion_card(plan, provenance(plan, files.checkpoint, {}))
    if options.engines:
        rows = tuple(row for row in rows if row.is_named or row.is_worse)
    return tuple(replace(row, serving="", command="") for row in rows)


def _value_errors(
    files: OpenedSource, plan: ConversionPlan, options: ConvertOptions
) -> tuple[tuple[str, str], ...] | None:
    """Return the errors in the tensor values that a plan copies; None with `force_unserved`."""
    if options.force_unserved:
        return None
    # rows are compared with the target's if its weights are here: none are downloaded for that
    return value_errors(files.checkpoint, plan, options.target.weights, is_planned=options.dry_run)


def _checked_serving(
    files: OpenedSource, plan: ConversionPlan, judgement: Judgement, out: Path, options: ConvertOptions
) -> tuple[OutputServing, ...]:
    """Judge a planned or written output for engines. Raises RefusedError for a broken or worse one."""
    _check_output(judgement, files.original_path, options)
    serving = output_serving(files, plan, judgement, out, options)
    _check_not_worse(serving, options)
    return serving


def _check_output(judgement: Judgement, source: str, options: ConvertOptions) -> None:
    # raise RefusedError if the output breaks a rule, unless the user forces it; the fix that a conversion can
    # make is preferred
    faults = judgement.faults
    if not faults or options.force_unserved:
        return
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    (rule, text), complete = faults[0], Complete(source, options.target.as_opened, options.answers)
    advice = f"`{command('validate', source, target=options.target.as_opened)}` shows how to repair it"
    for repair in (finding.repair for finding in judgement.findings if finding.rule.id == rule):
        if repair.conversions:
            advice = replace(repair, end="").completed(complete).text
            break
    raise RefusedError(
        f"the output would be broken: {rule} {text}{more}; {advice}; {FORCE}", options=("--force-unserved",)
    )


def _is_start(options: ConvertOptions) -> bool:
    """Whether the output is a starting point for training, which no engine serves."""
    return options.recipe is not None and options.recipe.is_start


def served_plan(files: OpenedSource, target: Target, options: ConvertOptions) -> ConversionPlan:
    """Plan a conversion that the requested engines run as trained, otherwise raise RefusedError.

    The error names an engine that does. With `force_unserved`, the record lists the engines that do not.
    """
    plan, config = plan_conversion(files, target, options), options.target.config
    shards_of(plan, files.checkpoint, options.max_shard_size)  # raises UsageError, in a dry run too
    missing = () if _is_start(options) else unserved(plan, options.engines, options.layout, config)
    if not missing:
        return plan
    if options.force_unserved:
        return replace(plan, record={**plan.record, "unserved": [engine.record for engine in missing]})

    def plan_for(layout: str) -> ConversionPlan:
        return plan_conversion(files, plan.drafter.target, replace(options, layout=layout))

    names = dict.fromkeys([*(engine.engine for engine in missing), *ENGINES])
    advice = "no known release of any engine does, in any layout"
    if (other := serving_layout(names, plan_for, config)) is not None:
        engine, releases = ENGINES[other[0]], other[1]
        request = shell.join([f"--engine={engine.name}>={releases[0]}"])
        option = f"use {request}" if other[2] == plan.layout else f"use --for {other[2]}"
        advice = f"{engine.title} {ranges(releases, engine.releases)} does: {option}"
    raise RefusedError(
        f"{'; '.join(engine.text for engine in missing)}; {advice}; {FORCE}", options=("--force-unserved",)
    )


def _check_not_worse(serving: Sequence[OutputServing], options: ConvertOptions) -> None:
    # raise RefusedError if an engine that was named, or that the named layout is for, would run the output
    # worse than the source
    layout = by_name(options.layout or DEFAULT_LAYOUT).layout
    wanted = layout.engines if layout and options.layout else ()
    for row in serving if not options.force_unserved else ():
        is_wanted = row.is_named or row.verdict.engine in wanted
        if is_wanted and row.is_worse and row.verdict.outcome.is_known_wrong:
            raise RefusedError(
                f"{ENGINES[row.verdict.engine].title} {row.verdict.release} would run the output worse than"
                f" the source: {row.verdict.outcome}, and the source: {row.before}:"
                f" {'; '.join(row.verdict.reasons)}; serve the source; {FORCE}",
                options=("--force-unserved",),
            )


def output_serving(
    files: OpenedSource, plan: ConversionPlan, judgement: Judgement, out: Path, options: ConvertOptions
) -> tuple[OutputServing, ...]:
    """Return each engine's verdict on the output: of the requested releases, otherwise of the newest known.

    Nothing for a starting point for training.
    """
    if _is_start(options):
        return ()
    commands = output_commands(plan.drafter, str(out), options.target.place)
    judged = {(verdict.engine, verdict.release): verdict for verdict in judgement.releases}
    places = requested_places(options.engines)
    named, rows = {engine for engine, _ in places}, []
    for name, engine in ENGINES.items():
        serving = [release for release in engine.releases if judged[name, release].outcome.is_served]
        span = ranges(serving, engine.releases)
        for release in [release for other, release in places if other == name] or engine.releases[-1:]:
            verdict = judged[name, release]
            start = started(commands[name], verdict.options)
            rows.append(OutputServing(verdict, span, start, name in named))
    others = [verdict for verdict in judgement.releases if verdict.engine not in ENGINES]
    rows += [OutputServing(verdict, "", "", verdict.engine in named) for verdict in others]
    return _beside_source(files, plan, judgement, rows, str(out), options)


def _beside_source(
    files: OpenedSource,
    plan: ConversionPlan,
    judgement: Judgement,
    rows: Sequence[OutputServing],
    out: str,
    options: ConvertOptions,
) -> tuple[OutputServing, ...]:
    """Return the rows with their releases' verdicts on the source."""
    read = files.checkpoint, read_drafter(files.checkpoint, options.answers, plan.drafter.target)
    same = tuple(only(row.verdict) for row in rows)
    target, answers = judgement.subject.target, options.answers
    source = judge_drafter(Subject(files.original, target, same, answers, headers_only=True, read=read))
    before = {(verdict.engine, verdict.release): verdict.outcome for verdict in source.releases}
    complete = Complete(out, options.target.as_opened)
    return tuple(
        replace(row, verdict=row.verdict.completed(complete), before=before[only(row.verdict).places[0]])
        for row in rows
    )


def _engine_warnings(plan: ConversionPlan, engines: Sequence[EngineRequest]) -> Iterator[Note]:
    """Yield a warning for each requested engine, by default the layout's, that would not run it as trained.

    A doubt that the plan's notes already state is not repeated.
    """
    layout = by_name(plan.layout).layout
    releases: dict[tuple[str, ServedAs, tuple[tuple[str, str], ...]], list[str]] = {}
    requests = engines or [usual_release(name) for name in (layout.engines if layout else ())]
    for verdict in judge_plan(plan, *requests):
        if not verdict.outcome.is_served:
            kind = verdict.engine, verdict.outcome, verdict.keyed_reasons
            releases.setdefault(kind, []).append(verdict.release)
    for (engine, outcome, reasons), same_releases in releases.items():
        if not outcome.is_open or not are_stated(dict(reasons), plan.notes):
            span = f"{engine} {' to '.join(dict.fromkeys((same_releases[0], same_releases[-1])))}".strip()
            yield Note(
                "warning",
                span,
                f"{span}, with this output: {outcome}: {'; '.join(reason for _, reason in reasons)}",
            )


def default_output(original: Source, version: str) -> Path:
    """Return the default output folder of a conversion, in the current folder.

    It is named after the source; after a parent folder if the source is called `model` or `checkpoint-100`.
    """
    name = original.label.rpartition("/")[2]
    if isinstance(original, FolderSource) and UNTELLING.fullmatch(name):
        above = (folder.name for folder in original.root.resolve().parents)
        name = next((other for other in above if other and not UNTELLING.fullmatch(other)), name)
    return Path(f"{name}-eagle{version}")


ROPE = ("rope_theta", "rope_scaling")
K = 7  # deep drafts show most of what is fed back
D2T = (
    Choice("--source-semantics", "d2t=offset", "token = i + d2t[i]"),
    Choice("--source-semantics", "d2t=absolute", "token = d2t[i]"),
)


class OpenQuestions(Struct, frozen=True):
    """The answers to a drafter's open questions, given or measured.

    `measured` has the result of each measured question; `gap` is the reason if nothing was measured. `record`
    goes into eaglectl.json.
    """

    answers: Answers
    measured: "tuple[MeasuredAnswer, ...]" = ()
    gap: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Add what measuring gave to the text of an OpenFactError.

        That is each measurement that did not decide (its `choice` is None), or `gap`, why nothing was
        measured.
        """
        try:
            yield
        except OpenFactError as error:
            ties = [answer.text for answer in self.measured if answer.choice is None]
            raise error.reworded("; ".join(filter(None, [str(error), *ties, self.gap]))) from None


def measure_open_questions(
    files: OpenedSource, target: Target, options: ConvertOptions, on_progress: OnProgress | None = None
) -> OpenQuestions:
    """Measure the questions that a conversion's answers leave open; nothing if its `measure` is None.

    Given answers are not measured. Raises UsageError for prompts that cannot be read or do not fit the
    target.
    """
    answers, gap = options.answers, ""
    if options.measure is None:
        return OpenQuestions(answers)
    drafter = read_drafter(files.checkpoint, replace(answers, assume=False), target)
    notes = open_notes(files, drafter, answers)
    if not notes:
        return OpenQuestions(answers)
    try:
        folder = measurable_target(drafter, notes, options.target)
        gap = "not measured: "
        # a dry run has read the headers of pickles only
        is_unread = files.pickles and files.readable is files.original
        with opened(files.original) if is_unread else nullcontext(files) as whole:
            return _Pair(whole, target, options, folder, drafter, notes, on_progress).measured(
                options.measure
            )
    except UnreadableError as error:
        gap += str(error)
    if answers.assume:  # then no question states the gap
        notify(f"assuming the usual values; {gap}")
    return OpenQuestions(answers, gap=gap)


def measured_questions(
    source: str,
    target: TargetChoice,
    answers: Answers,
    options: MeasureOptions | None,
    on_progress: OnProgress | None = None,
) -> OpenQuestions:
    """Measure the open questions of a source that is not opened; nothing if `options` is None.

    The target defaults to the one that the checkpoint names. A drafter that cannot be read raises no error
    here; the next reader reports it.
    """
    if options is None:
        return OpenQuestions(answers)
    try:
        with opened(open_folder(on_disk(source))) as files:
            target = choose_target(
                files.original, target, answers, lambda: files.checkpoint, needs_weights=True
            )
            measuring = ConvertOptions(target=target, answers=answers, measure=options)
            return measure_open_questions(files, target.known(), measuring, on_progress)
    except RefusedError:
        return OpenQuestions(answers)


def open_notes(files: OpenedSource, drafter: Drafter, answers: Answers) -> tuple[Note, ...]:
    """Return what is open: questions, doubts with choices, and the meaning of d2t if both fit."""
    notes = [note for note in drafter.unsettled if note.choices]
    is_asked = any(note.about == "d2t" for note in notes)
    if "d2t" in drafter.tensors and not is_asked and not drafter.notes_at("problem"):
        try:
            draft_vocabulary(files.checkpoint, drafter, answers, None)
        except UsageError:
            notes.append(question("d2t", "d2t fits both as offsets and as absolute ids", "d2t-meaning", D2T))
        except RefusedError:
            pass  # the plan reports it
    return _joined(notes)


def _joined(notes: Sequence[Note]) -> tuple[Note, ...]:
    """Return the notes, with those on rope theta and scaling joined, since one option answers both."""
    halves = [note for note in notes if note.about in ROPE]
    others = [note for note in notes if note not in halves]
    if len(halves) < 2:
        return (*others, *halves)
    values = product(*([choice.value.removeprefix("rope=") for choice in note.choices] for note in halves))
    return (
        *others,
        question(
            "rope",
            "; ".join(note.why for note in halves),
            halves[0].topic,
            [Choice("--source-semantics", f"rope={','.join(pair)}") for pair in values],
        ),
    )


def is_measured(drafter: Drafter, target: TargetChoice) -> bool:
    """Whether a conversion with this target measures what the drafter leaves open."""
    # a token without a row in the drafter's own embedding would end the run
    is_narrower = (
        "embed_tokens.weight" in drafter.tensors and (drafter.target.vocab or 0) > drafter.dims.vocab
    )
    with suppress(EaglectlError):
        if not is_narrower and target.weights is not None:
            return bool(measurable_target(drafter, drafter.notes_at("question"), target))
    return False


def measurable_target(drafter: Drafter, notes: tuple[Note, ...], target: TargetChoice) -> Path:
    """Return the target's folder. Raises UnreadableError with the reason if the notes cannot be measured."""
    from eaglectl.run.answering import is_measurable
    from eaglectl.run.process import require_torch

    others = [note.about for note in notes if not is_measurable(note)]
    activation = drafter.settings["hidden_act"]
    check(
        *((True, f"not measured: {problem.text}") for problem in drafter.notes_at("problem")),
        *((True, f"not measured: {about} is open too, and drafting does not show it") for about in others),
        (
            drafter.quantisation is not None,
            "not measured: it is quantised; measure the unquantised drafter",
        ),
        (
            Feature.PARALLEL in drafter.features(),
            "not measured: it drafts in parallel, and the reference drafts token by token",
        ),
        (
            activation != "silu",
            f"not measured: hidden_act is {activation!r}, and the reference has SiLU only",
        ),
        error=UnreadableError,
    )
    if target.weights is None:
        raise UnreadableError("pass --target with the target's weights to measure it", options=("--target",))
    require_torch("measuring it runs the target and needs")
    return target.weights.root


class _Pair(Struct, frozen=True):
    """A drafter with open questions, and its target in `folder`."""

    files: OpenedSource
    target: Target
    options: ConvertOptions
    folder: Path
    drafter: Drafter
    notes: tuple[Note, ...]
    on_progress: OnProgress | None

    # choose the answers whose readings draft best with the target; if a tie remains, with more prompts;
    # ties are recorded too
    def measured(self, settings: MeasureOptions) -> OpenQuestions:
        from eaglectl.run.answering import measure_answers
        from eaglectl.run.job import EngineJob, Stage
        from eaglectl.run.prompts import choose_prompts, digest_prompts, more_prompts

        report_step(self.on_progress, LOADING)
        chosen, answers = (
            choose_prompts(settings.prompts, settings.sample, settings.seed),
            self.options.answers,
        )
        spare = more_prompts() if settings.prompts is None and settings.sample is None else ()
        with scratch_folder() as scratch:
            plan = self._first_plan()
            _write_scratch(self.files, plan, scratch / "0")
            job = EngineJob(
                scratch / "0",
                plan.drafter,
                self.folder,
                chosen.prompts + spare,
                k=K,
                max_tokens=settings.max_tokens,
                device=settings.device,
                trust_remote_code=settings.trust_remote_code,
                ignores_eos=settings.ignore_eos,
                on_progress=self.on_progress,
            )
            stage = Stage(job)
            read = partial(self._loaded, stage=stage, first=plan, scratch=scratch)
            texts, stage.texts = stage.texts, stage.texts[: len(chosen.prompts)]
            results = measure_answers(stage, self.notes, read)
            needed = [result.prompts_needed for result in results if result.prompts_needed is not None]
            if spare and needed and min(needed) <= len(texts):  # so many prompts may break a tie
                report_step(self.on_progress, f"a tie after {len(stage.texts)} prompts, running {len(texts)}")
                chosen, stage.texts = replace(chosen, prompts=chosen.prompts + spare), texts
                results = measure_answers(stage, self.notes, read)
        for result in results:
            if result.choice is not None:
                answers = answers.choosing(result.choice, Origin("measured", result.evidence))
        prompts, digest = len(chosen.prompts), digest_prompts(chosen.prompts)
        common = {
            "prompts": {"name": chosen.file or "built-in", "sha256": digest, "count": prompts},
            "target": self.target.name or self.target.repo or self.folder.name,
            "k": K,
            "eaglectl": eaglectl.__version__,
        }
        return OpenQuestions(
            answers,
            results,
            record={"measured": [result.record | common for result in results]} if results else {},
        )

    def _plan(self, choices: "Options") -> ConversionPlan:
        options, checkpoint = self.options, self.files.checkpoint
        answers = reduce(Answers.choosing, choices, replace(options.answers, assume=False))
        wanted = ConversionRequest(drop=options.drop, rope_style=options.rope_style, fixes=options.fixes)
        drafter = read_drafter(checkpoint, answers, self.target)
        return make_plan(
            checkpoint, drafter, wanted, answers, OtherFiles(selected_tokens_of(self.files.original, drafter))
        )

    def _loaded(
        self, choices: "Options", stage: "Stage", first: ConversionPlan, scratch: Path
    ) -> "LoadedReading | None":
        """Return the boundaries and a loader of the drafter as read with `choices`; None if these do not fit.

        A reading with the same plan steps as `first` shares its weights.
        """
        from eaglectl.reference.model import DraftModel, load_drafter

        try:
            plan = self._plan(choices)
        except (UsageError, RefusedError):
            return None
        drafter, loaded = plan.drafter, stage.drafter

        def load() -> DraftModel:
            if plan.steps == first.steps:
                return DraftModel(
                    loaded.weights, drafter.dims, drafter.norms, drafter.rope, loaded.eps, drafter.windows
                )
            place = scratch / str(sum(1 for _ in scratch.iterdir()))
            _write_scratch(self.files, plan, place)
            return load_drafter(place, drafter, dtype=stage.dtype, device=stage.device)

        assert drafter.aux.boundaries is not None
        return drafter.aux.boundaries, load

    def _first_plan(self) -> ConversionPlan:
        """Plan the first combination of choices, one for each open question, that fits the files.

        A question on layers that offers no complete answer (`first_choices`) gets the producer's default
        layers, or as many evenly spread ones if these do not fit the drafter: the search of layers begins
        there. Raises UnreadableError, with the last refusal alone, if no combination fits.
        """
        from eaglectl.run.answering import first_choices

        depth, count, refusal = self.target.depth or 0, self.drafter.dims.aux, ""
        layers = (by_name(self.drafter.producer).training_default or TRAINING_DEFAULT).at(depth)
        if len(set(layers)) != count or list(layers) != sorted(layers) or layers[0] < 0:
            layers = tuple(round(depth * (place + 1) / (count + 1)) for place in range(count))
        for choices in product(*(first_choices(note, layers) for note in self.notes)):
            try:
                return self._plan(choices)
            except (UsageError, RefusedError) as error:
                refusal = str(error)
        raise UnreadableError(refusal)
