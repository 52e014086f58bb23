"""`convert`: rewriting a drafter in another layout."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.api.copies import pinned_folder, without_pickles
from eaglectl.api.inputs import open_target, special_tokens
from eaglectl.api.targets import TargetChoice, asking_for, choose_target, fitting_target
from eaglectl.checkpoint.checkpoint import Checkpoint, read_checkpoint
from eaglectl.checkpoint.layout import VOCABULARY_PICKLES, pickle_files
from eaglectl.checkpoint.opening import open_folder
from eaglectl.checkpoint.pinned import PinnedSource
from eaglectl.checkpoint.source import FolderSource, Source
from eaglectl.conversion.plan import ConversionPlan
from eaglectl.conversion.request import ConversionRequest
from eaglectl.conversion.serving import output_verdicts
from eaglectl.drafter.drafter import Drafter, Note, Target
from eaglectl.engines.catalogue import ENGINES, as_served, launch_commands, parse_engine
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.catalogue import FORMATS, by_name
from eaglectl.formats.commands import completing
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.progress import OnProgress
from eaglectl.results import Conversion
from eaglectl.verdicts import ServedAs

if TYPE_CHECKING:
    from eaglectl.conversion.target_head import TargetHead

OnPlan = Callable[[ConversionPlan], None]


class ConvertOptions(ConversionRequest, frozen=True):
    """What `convert` writes (see ConversionRequest), what is known of the source, and how files are written.

    `target` is the target model's folder, config.json or Hub repository; `target_name` is what published
    files call it. `link` hard-links weight files that do not change; `max_shard_size` is in bytes. `gguf` is
    the GGUF file to write beside the folder.
    """

    target: str | None = None
    target_name: str | None = None
    answers: Answers = field(default_factory=Answers)
    dry_run: bool = False
    force: bool = False
    link: bool = False
    max_shard_size: int | None = None
    gguf: Path | None = None


class OpenedSource(Struct, frozen=True):
    """A source whose headers are read: the files as given, their pickles, and the same without pickles."""

    original: PinnedSource
    pickles: tuple[str, ...]
    readable: FolderSource
    checkpoint: Checkpoint

    @property
    def path(self) -> str:
        """The folder or file of the checkpoint without pickles."""
        return _path(self.readable)

    @property
    def original_path(self) -> str:
        """The folder or file as given."""
        return _path(self.original)


def _path(source: FolderSource) -> str:
    return str(source.root / (source.only or ""))


def convert(
    source: str,
    out: str | Path | None = None,
    options: ConvertOptions | None = None,
    *,
    on_plan: OnPlan | None = None,
    on_progress: OnProgress | None = None,
) -> Conversion:
    """Rewrite a drafter in another layout; `out` defaults to NAME-eagleVERSION in the current folder.

    `on_plan` is called with the plan before anything is written. Raises UsageError for what only the user
    knows, RefusedError for what cannot be done, UnreadableError for input that cannot be read.
    """
    start = time.perf_counter()
    original, options = open_folder(source), options or ConvertOptions()
    check_options(original, out, options)
    given = None if options.target is None else open_inputs(options)
    with opened(original, out, is_looked_at=options.dry_run) as files:
        choice = TargetChoice(options.target) if given else target_of(files, options.answers)
        complete = completing(source, choice.text, options.answers)
        target, options = given or open_inputs(options, choice)
        with asking_for(choice):
            plan = plan_conversion(files, target, options)
        place = Path(out) if out is not None else default_place(original, plan.drafter.version)
        check_options(original, place, options)
        if on_plan:
            on_plan(plan.completed(complete))
        if options.gguf is not None:
            _check_gguf(plan, options, options.gguf, place)
        if options.dry_run:
            return Conversion(plan.completed(complete), None, files.pickles, time.perf_counter() - start)
        write_conversion(files, plan, place, options, on_progress)
    if options.gguf is not None:
        _write_gguf(place, target, options.gguf, force=options.force)
    seconds, commands = time.perf_counter() - start, output_commands(plan, place, options.target)
    return Conversion(
        plan.completed(complete), place, files.pickles, seconds, commands=commands, gguf=options.gguf
    )


def _check_gguf(plan: ConversionPlan, options: ConvertOptions, gguf: Path, out: Path) -> None:
    """Raise an EaglectlError where the file cannot be written, or would not be drafted with as trained."""
    from eaglectl.conversion.gguf_file import check_drafter, check_gguf

    check_gguf(gguf, out, force=options.force)
    check_drafter(plan.drafter, {step.name: step.dtype for step in plan.steps})
    for span, outcome, reasons in _differences(plan, ConversionRequest(plan.layout)):
        raise RefusedError(
            f"--gguf: {span}, with this output: {outcome}: {'; '.join(reasons)}; without --gguf the folder is"
            " written"
        )


def _write_gguf(folder: Path, target: Target, gguf: Path, *, force: bool) -> None:
    """Write the GGUF file of a folder that was written."""
    from eaglectl.conversion.gguf_file import write_gguf

    checkpoint = read_checkpoint(open_folder(str(folder)))
    drafter = read_drafter(checkpoint, Answers(), target)
    write_gguf(drafter, checkpoint, gguf, name=folder.name, force=force)


def check_options(original: FolderSource, out: str | Path | None, options: ConvertOptions) -> None:
    """Raise UsageError for an engine that is not known, and where writing `out` could touch an input."""
    from eaglectl.checkpoint.writer import check_apart

    for engine in options.engines:
        parse_engine(engine)
    _check_gguf_options(options)
    inputs = [original.root]
    if options.target is not None:
        inputs.append(Path(options.target))
    if options.pruning:
        inputs.append(options.pruning.counts)
    for path in inputs:
        if out is not None:
            check_apart(Path(out), path)
        if options.gguf is not None:
            check_apart(options.gguf, path, "--gguf")


def _check_gguf_options(options: ConvertOptions) -> None:
    """Raise UsageError for --gguf with a layout or a version that no engine loads as GGUF."""
    if options.gguf is None:
        return
    layouts = [format for format in FORMATS if format.layout and format.layout.has_gguf]
    if options.version == "3.1" or by_name(options.layout) not in layouts:
        named = " or ".join(f"--for {format.name}" for format in layouts)
        raise UsageError(f"--gguf goes with {named}, and EAGLE-3; llama.cpp alone loads GGUF files")


def target_of(files: OpenedSource, answers: Answers, *, needs_weights: bool = False) -> TargetChoice:
    """The target that the checkpoint names and that fits it; its config may be fetched where it is needed."""
    drafter = read_drafter(files.checkpoint, answers, Target())
    may_fetch = drafter.aux.boundaries is None
    choice = choose_target(files.original, None, needs_weights=needs_weights, may_fetch=may_fetch)
    return fitting_target(choice, files.checkpoint, answers)


def open_inputs(options: ConvertOptions, choice: TargetChoice | None = None) -> tuple[Target, ConvertOptions]:
    """The target's config, and the options completed with the target's special tokens and lm_head.

    `choice` is a target that was found, where none was given.
    """
    if choice is not None:
        options = replace(options, target=choice.place)
    target = open_target(options.target, options.target_name)
    if choice is not None:
        target = replace(target, origin=choice.how)
    if options.pruning and options.pruning.kept is None:
        kept = special_tokens(options.target)
        options = replace(options, pruning=replace(options.pruning, kept=kept))
    if options.has_target_head and options.head is None:
        options = replace(options, head=_target_head(options.target))
    return target, options


def _target_head(target: str | None) -> "TargetHead":
    from eaglectl.conversion.target_head import find_target_head

    if target is None:
        raise UsageError(
            "--materialize-lm-head copies the target's lm_head; pass --target with the target's weights"
        )
    return find_target_head(read_checkpoint(open_folder(target)))


def plan_conversion(files: OpenedSource, target: Target, options: ConvertOptions) -> ConversionPlan:
    """The plan of a conversion, with a warning for each engine that would not run the output as trained."""
    from eaglectl.conversion.planning import make_plan

    drafter = read_drafter(files.checkpoint, options.answers, target)
    selected = _selected_tokens(files.original, drafter)
    plan = make_plan(files.checkpoint, drafter, options, options.answers, selected)
    notes = [*plan.notes, *_engine_warnings(plan, options)]
    if options.link and not files.pickles:
        from eaglectl.conversion.writing import link_notes

        notes += link_notes(plan, files.checkpoint, options.max_shard_size)
    return replace(plan, notes=tuple(notes))


def write_conversion(
    files: OpenedSource,
    plan: ConversionPlan,
    out: Path,
    options: ConvertOptions,
    on_progress: OnProgress | None = None,
) -> None:
    """Write a plan, all or nothing; weights that were pickles are never linked."""
    from eaglectl.conversion.writing import WriteOptions, write_plan

    originals = files.pickles or files.checkpoint.weight_files
    is_linked = options.link and not files.pickles
    how = WriteOptions(out, options.force, is_linked, options.max_shard_size)
    write_plan(plan, files.checkpoint, files.original, originals, how, on_progress)


def output_commands(plan: ConversionPlan, out: Path, target: str | None) -> Mapping[str, str]:
    """The command that serves what a plan wrote, for each engine whose newest release runs it as trained.

    llama.cpp serves a GGUF file, which its own commands make first (commands_after_conversion).
    """
    newest = [verdict for engine in ENGINES for verdict in output_verdicts(plan, engine)]
    commands = as_served(launch_commands(plan.drafter, str(out), target_text=target), newest)
    return {engine: text for engine, text in commands.items() if engine in ENGINES and engine != "llama.cpp"}


def _engine_warnings(plan: ConversionPlan, request: ConversionRequest) -> Iterator[Note]:
    """A warning per requested engine (by default the layout's) that would not run the output as trained."""
    for span, outcome, reasons in _differences(plan, request):
        yield Note("warning", span, f"{span}, with this output: {outcome}: {'; '.join(reasons)}")


def _differences(
    plan: ConversionPlan, request: ConversionRequest
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The releases that would not run the output as trained, what they would do, and why."""
    layout = by_name(plan.layout).layout
    releases: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for text in request.engines or (layout.engines if layout else ()):
        for verdict in output_verdicts(plan, text):
            if verdict.outcome != ServedAs.AS_TRAINED:
                same = releases.setdefault((verdict.engine, verdict.outcome, verdict.reasons), [])
                same.append(verdict.release)
    for (engine, outcome, reasons), same in releases.items():
        span = f"{engine} {same[0]}"
        if len(same) > 1:
            span += f" to {same[-1]}"
        yield span, outcome, reasons


def default_place(original: Source, version: str) -> Path:
    """Where a conversion is written by default: in the current folder."""
    return Path(f"{original.label.rpartition('/')[2]}-eagle{version}")


@contextmanager
def readable_folder(source: str) -> Iterator[str]:
    """`source` itself, or a temporary folder with its weights as safetensors where they are pickles.

    Raises UnreadableError at the end where its config or weights changed meanwhile.
    """
    original = open_folder(source)
    with pinned_folder(original) as pinned, without_pickles(pinned) as (readable, pickles):
        for name in read_checkpoint(pinned).weight_files if not pickles else ():
            pinned.pinned(name)
        yield str(readable.root) if pickles else source
        pinned.check_unchanged(is_status_compared=False)


@contextmanager
def opened(
    original: FolderSource, out: str | Path | None = None, *, is_looked_at: bool = False
) -> Iterator[OpenedSource]:
    """The source with its headers read; pickles are rewritten for the time, near `out` if possible.

    With `is_looked_at` that is left out where their tables and a few ranges are enough for a plan.
    """
    near = None if out is None else Path(out).parent
    if is_looked_at and (pickles := pickle_files(original)):
        with pinned_folder(original) as pinned:
            checkpoint = read_checkpoint(pinned)
            if not checkpoint.scattered:
                yield OpenedSource(pinned, pickles, pinned, checkpoint)
                return
    with pinned_folder(original) as pinned, without_pickles(pinned, near) as (readable, pickles):
        yield OpenedSource(pinned, pickles, readable, read_checkpoint(readable))


def _selected_tokens(original: FolderSource, drafter: Drafter) -> tuple[int, ...] | None:
    """The draft tokens of a trainer's side file, where the weights have no d2t."""
    has_side_file = any(name in VOCABULARY_PICKLES for name in original.names())
    if not drafter.has_reduced_vocabulary or "d2t" in drafter.tensors or not has_side_file:
        return None
    from eaglectl.checkpoint.pickles import selected_tokens

    return selected_tokens(original)
