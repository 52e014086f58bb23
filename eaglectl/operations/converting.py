"""`convert`: rewriting a drafter in another layout."""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.plan import ConversionPlan
from eaglectl.conversion.planning import make_plan
from eaglectl.conversion.request import DEFAULT_LAYOUT
from eaglectl.conversion.rewriting import MATERIALIZE, find_rotation, find_target_matrix
from eaglectl.conversion.writing import WriteOptions, link_notes, write_plan
from eaglectl.drafter.drafter import Note, Target, are_stated
from eaglectl.engines.registry import (
    ENGINES,
    output_commands,
    parse_engine,
)
from eaglectl.engines.releases import ranges
from eaglectl.errors import RefusedError, UsageError, check
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.opening import on_disk, open_folder
from eaglectl.files.source import FolderSource, Source
from eaglectl.files.writer import check_apart
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.commands import Complete, command, completing, whole_commands
from eaglectl.formats.reader import read_drafter
from eaglectl.judge.judgement import Judgement
from eaglectl.judge.outputs import (
    implausible,
    judge_output,
    judge_plan,
    serving_layout,
    unserved,
    value_errors,
)
from eaglectl.keywords import StrPath, path_text, with_keywords
from eaglectl.operations.copies import (
    OpenedSource,
    opened,
    selected_tokens_of,
)
from eaglectl.operations.open_questions import measure_open_questions
from eaglectl.operations.options import ConvertOptions
from eaglectl.progress import OnProgress
from eaglectl.results import Conversion, OutputServing
from eaglectl.target import (
    TargetChoice,
    asking_for,
    choose_target,
    fitting_target,
    special_tokens,
    weights_folder,
)
from eaglectl.verdicts import ServedAs

if TYPE_CHECKING:
    from eaglectl.run.answering import MeasuredAnswer

# the rule on a d2t of zeros
IDENTITY = "EGL307"
# names of folders that trainers give, which tell no drafter from another
UNTELLING = re.compile(r"source|model|final|latest|(checkpoint|epoch|step)[-_]?\d+")
OnPlan = Callable[[ConversionPlan], None]


class Prepared(Struct, frozen=True):
    """A source that is opened for a conversion, its target, and the options with what was measured.

    `target_text` is what --target would be given, `complete` makes the commands in a text whole.
    """

    files: OpenedSource
    target: Target
    target_text: str | None
    options: ConvertOptions
    complete: Complete
    measured: "tuple[MeasuredAnswer, ...]"

    def finished(self, conversion: Conversion, *, is_trusting: bool = False) -> Conversion:
        """The conversion with whole commands, and with what was measured for it."""
        return replace(
            conversion,
            plan=conversion.plan.completed(self.complete),
            measured=self.measured,
            trust_remote_code=is_trusting or self.options.is_trusting,
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
    """Open a source, and measure what it leaves open; errors name what was looked for and measured.

    `needs_target`: the target's weights. Without these, a dry run needs no more than the headers of pickles.
    """
    original, named = open_folder(source), None
    if options.target is not None:
        place = on_disk(options.target) if needs_target else options.target
        named, options = TargetChoice(options.target, place), replace(options, target=place)
    check_options(original, out, options)
    given = named and named.known(options.target_name)
    is_looked_at = options.dry_run and options.version != "3.1"
    with opened(original, path_text(out), is_looked_at=is_looked_at) as files:
        choice = named
        if choice is None:  # what the checkpoint names; its config may be fetched where it is needed
            may_fetch = read_drafter(files.checkpoint, options.answers, Target()).aux.boundaries is None
            choice = choose_target(files.original, None, needs_weights=needs_target, may_fetch=may_fetch)
            choice = fitting_target(choice, files.checkpoint, options.answers)
        target, options = given or choice.known(options.target_name), replace(options, target=choice.place)
        questions = measure_open_questions(files, target, options, on_progress)
        options = options.answered(questions.answers, questions.record)
        complete = completing(source, choice.text, options.answers)
        with asking_for(choice), questions.explaining(), whole_commands(complete):
            yield Prepared(files, target, choice.text, options, complete, questions.measured)


@with_keywords
def convert(
    source: StrPath,
    out: StrPath | None = None,
    options: ConvertOptions | None = None,
    *,
    on_plan: OnPlan | None = None,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> Conversion:
    """Rewrite a drafter in another layout; `out` defaults to NAME-eagleVERSION in the current folder.

    `on_plan` is called with the plan before anything is written. Raises UsageError for what only the user
    knows, RefusedError for what cannot be done, UnreadableError for input that cannot be read.
    """
    start = time.perf_counter()
    with prepared(os.fspath(source), out, options or ConvertOptions(), on_progress) as ready:
        show = on_plan and (lambda plan: on_plan(plan.completed(ready.complete)))
        made = convert_files(ready.files, ready.target, ready.options, out, show, on_progress)
    return replace(ready.finished(made), seconds=time.perf_counter() - start)


def convert_files(
    files: OpenedSource,
    target: Target,
    options: ConvertOptions,
    out: StrPath | None,
    on_plan: OnPlan | None = None,
    on_progress: OnProgress | None = None,
) -> Conversion:
    """The conversion of opened files, written unless it is a dry run."""
    start = time.perf_counter()
    plan = served_plan(files, plan_conversion(files, target, options), options)
    place = Path(out) if out is not None else default_place(files.original, plan.drafter.version)
    check_options(files.original, place, options)
    if on_plan:
        on_plan(plan)
    if options.dry_run:
        return Conversion(plan, None, files.pickles, time.perf_counter() - start)
    serving = write_conversion(files, plan, place, options, on_progress)
    return Conversion(plan, place, files.pickles, time.perf_counter() - start, serving=serving)


def check_options(original: FolderSource, out: StrPath | None, options: ConvertOptions) -> None:
    """Raise UsageError for unknown engines, options that do not go together, or an `out` that is an input."""
    for engine in options.engines:
        parse_engine(engine)
    is_upgrade, is_rotated = options.version == "3.1", options.target_rotation is not None
    check(
        (
            not is_rotated and options.trained_target is not None,
            "--trained-target is for --target-rotation; leave it out",
        ),
        (
            is_rotated and is_upgrade,
            "--target-rotation is a conversion of its own: leave --to 3.1 out, and convert the output with"
            " it",
        ),
        (
            is_rotated and options.has_target_head,
            "--materialize-lm-head would copy the rotated target's lm_head; leave it out: --target-rotation"
            " takes the head from --trained-target",
        ),
    )
    inputs = [original.root, *map(Path, filter(None, (options.target, options.trained_target)))]
    if options.pruning:
        inputs.append(options.pruning.counts)
    if out is not None:
        for path in inputs:
            check_apart(Path(out), path)


def plan_conversion(files: OpenedSource, target: Target, options: ConvertOptions) -> ConversionPlan:
    """The plan of a conversion, with a warning for each engine that would not run the output as trained."""
    drafter = read_drafter(files.checkpoint, options.answers, target)
    request = options.request
    if request.pruning and request.pruning.kept is None:
        request = replace(request, pruning=replace(request.pruning, kept=special_tokens(options.target)))
    if options.target_rotation is not None:
        if options.target is None:
            raise UsageError("--target-rotation needs the rotated target; pass --target with its weights")
        rotated = read_checkpoint(open_folder(options.target))
        layout = by_name(options.layout or DEFAULT_LAYOUT).layout
        trained = options.trained_target and read_checkpoint(open_folder(options.trained_target))
        is_shared = layout is not None and any(ENGINES[name].shares_embedding for name in layout.engines)
        rotation = find_rotation(
            options.target_rotation, files.checkpoint, drafter, rotated, trained or None, is_shared=is_shared
        )
        request = replace(request, rotation=rotation)
    if options.has_target_head:
        if options.target is None:
            raise UsageError(
                "--materialize-lm-head copies the target's lm_head; pass --target with the target's weights"
            )
        target_files = read_checkpoint(open_folder(options.target))
        request = replace(request, head=find_target_matrix(target_files, MATERIALIZE, is_head=True))
    selected = selected_tokens_of(files.original, drafter)
    plan = make_plan(files.checkpoint, drafter, request, options.answers, selected)
    *_, config = TargetChoice(options.target, options.target).read()
    numbers = implausible(files.checkpoint, plan.drafter, config)
    notes = [*plan.notes, *numbers, *_engine_warnings(plan, options.engines)]
    if options.link and not files.pickles:
        notes += link_notes(plan, files.checkpoint, options.max_shard_size)
    return replace(plan, notes=tuple(notes))


def write_conversion(
    files: OpenedSource,
    plan: ConversionPlan,
    out: Path,
    options: ConvertOptions,
    on_progress: OnProgress | None = None,
) -> tuple[OutputServing, ...]:
    """Write a plan, all or nothing, and what engines do with it; weights that were pickles are never linked.

    The numbers are looked at while they are copied, but with `force_unserved`. Raises RefusedError for an
    output that `validate` would fail.
    """
    originals = files.pickles or files.checkpoint.weight_files
    is_linked = options.link and not files.pickles
    judged: list[Judgement] = []
    with ThreadPoolExecutor(1) as pool:
        # rows are looked at beside the target's where its weights are here: none are fetched for that
        *_, config = TargetChoice(options.target, options.target).read()
        weights = weights_folder(options.target)
        target = None if weights is None else FolderSource(weights)
        reading = (
            None if options.force_unserved else pool.submit(value_errors, files.checkpoint, plan, target)
        )

        def check_written(folder: Path) -> None:
            errors = None if reading is None else reading.result()
            judged.append(judge_output(folder, plan, errors, config))
            _check_output(judged[0], files.original_path, options)

        how = WriteOptions(out, options.force, is_linked, options.max_shard_size, check_written)
        write_plan(plan, files.checkpoint, files.original, originals, how, on_progress)
    return output_serving(plan, judged[0], out, options)


def _check_output(judgement: Judgement, source: str, options: ConvertOptions) -> None:
    # the tokens that counts choose may well be the first ones
    faults = [
        fault for fault in judgement.faults if options.pruning is None or not fault.startswith(IDENTITY)
    ]
    if options.force_unserved or not faults:
        return
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    complete = completing(source, options.target, options.answers)
    fixes = [complete(each.fix) for each in judgement.findings if faults[0].startswith(f"{each.rule.id} ")]
    repair = next((fix.rstrip(".") for fix in fixes if "`eaglectl convert" in fix), "")
    advice = repair or f"`{command('validate', source, target=options.target)}` says how to mend it"
    raise RefusedError(
        f"the output would be broken: {faults[0]}{more}; {advice}; --force-unserved writes it all the same"
    )


def served_plan(files: OpenedSource, plan: ConversionPlan, options: ConvertOptions) -> ConversionPlan:
    """The plan, which states in its record the engines asked for that do not run the output as trained.

    Raises RefusedError for those without `force_unserved`, with an engine that would.
    """
    is_start = options.recipe is not None and options.recipe.is_start  # a trainer's, for no engine
    missing = () if is_start else unserved(plan, options.engines, options.layout)
    if not missing:
        return plan
    if options.force_unserved:
        return replace(plan, record={**plan.record, "unserved": [engine.record for engine in missing]})

    def plan_for(layout: str) -> ConversionPlan:
        return plan_conversion(files, plan.drafter.target, replace(options, layout=layout))

    names = dict.fromkeys([*(engine.engine for engine in missing), *ENGINES])
    advice = "no known release of any engine does, from a layout of its own"
    if (other := serving_layout(names, plan_for)) is not None:
        engine, releases = ENGINES[other[0]], other[1]
        advice = f"{engine.title} {ranges(releases, engine.releases)} does: write it --for {other[2]}"
    raise RefusedError(
        f"{'; '.join(engine.text for engine in missing)}; {advice}; --force-unserved writes it all the same"
    )


def output_serving(
    plan: ConversionPlan, judgement: Judgement, out: Path, options: ConvertOptions
) -> tuple[OutputServing, ...]:
    """What each engine does with what was written: the last release asked for, else the newest known.

    Nothing for a trainer's start.
    """
    if options.recipe is not None and options.recipe.is_start:
        return ()
    commands = output_commands(plan.drafter, str(out), options.target)
    requests = {request.engine: request.releases[-1:] for request in map(parse_engine, options.engines)}
    rows = []
    for name, engine in ENGINES.items():
        judged = {verdict.release: verdict for verdict in judgement.releases if verdict.engine == name}
        serving = [release for release, verdict in judged.items() if verdict.outcome.is_served]
        (release,) = requests.get(name) or engine.releases[-1:]
        rows.append(OutputServing(judged[release], ranges(serving, engine.releases), commands[name]))
    rows += [OutputServing(each, "", "") for each in judgement.releases if each.engine not in ENGINES]
    complete = completing(str(out), options.target)
    return tuple(replace(row, verdict=row.verdict.completed(complete)) for row in rows)


def _engine_warnings(plan: ConversionPlan, engines: Sequence[str]) -> Iterator[Note]:
    """A warning per requested engine (by default the layout's) that would not run the output as trained.

    A doubt that a note of the plan states already is not repeated.
    """
    layout = by_name(plan.layout).layout
    releases: dict[tuple[str, ServedAs, tuple[str, ...]], list[str]] = {}
    for text in engines or (layout.engines if layout else ()):
        for verdict in judge_plan(plan, parse_engine(text)):
            if not verdict.outcome.is_served:
                same = releases.setdefault((verdict.engine, verdict.outcome, verdict.reasons), [])
                same.append(verdict.release)
    for (engine, outcome, reasons), same in releases.items():
        if outcome == ServedAs.UNKNOWN and are_stated(reasons, plan.notes):
            continue
        span = f"{engine} {same[0]}"
        if len(same) > 1:
            span += f" to {same[-1]}"
        yield Note("warning", span, f"{span}, with this output: {outcome}: {'; '.join(reasons)}")


def default_place(original: Source, version: str) -> Path:
    """Where a conversion is written by default: in the current folder.

    It is named after the source, or after the folder above where the source is called `model` or
    `checkpoint-100`.
    """
    name = original.label.rpartition("/")[2]
    if isinstance(original, FolderSource) and UNTELLING.fullmatch(name):
        above = (folder.name for folder in original.root.resolve().parents)
        name = next((other for other in above if other and not UNTELLING.fullmatch(other)), name)
    return Path(f"{name}-eagle{version}")
