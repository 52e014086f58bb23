"""What a checkpoint is."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, overload

import msgspec
from msgspec.structs import replace

from eaglectl.base import Results
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.engines.layers import CapturedLayers
from eaglectl.engines.registry import (
    ENGINES,
    EngineRequest,
    as_served,
    aux_readings,
    default_requests,
    every_release,
    launch_commands,
    parse_engine,
)
from eaglectl.engines.targets import notes_on_pair
from eaglectl.files.checkpoint import Checkpoint, history, read_checkpoint
from eaglectl.files.layout import CONFIG, INDEX, STATE, STATE_CONFIG, config_name
from eaglectl.files.opening import hub_name, open_source
from eaglectl.files.source import FolderSource
from eaglectl.formats.commands import command, completing
from eaglectl.formats.reader import read_drafter
from eaglectl.judge.judgement import judge_drafter
from eaglectl.judge.outputs import notes_of
from eaglectl.judge.rules import rules
from eaglectl.judge.subject import GivenTarget, Subject
from eaglectl.keywords import StrPath, with_keywords
from eaglectl.operations.copies import pickles_copied
from eaglectl.operations.covering import cover_given
from eaglectl.operations.options import InspectOptions
from eaglectl.operations.several import SeveralResults, run_all
from eaglectl.progress import OnProgress
from eaglectl.results import FailedSource, Inspection
from eaglectl.target import (
    TargetChoice,
    choose_target,
    fitting_target,
    with_places_looked_at,
)

# of several sources, how many at the same time
JOBS = 8


@overload
def inspect(source: StrPath, options: InspectOptions | None = None, **fields: Any) -> Inspection: ...
@overload
def inspect(
    source: Sequence[StrPath], options: InspectOptions | None = None, **fields: Any
) -> tuple[Inspection | FailedSource, ...]: ...
@with_keywords
def inspect(
    source: StrPath | Sequence[StrPath], options: InspectOptions | None = None, **fields: Any
) -> Inspection | tuple[Inspection | FailedSource, ...]:
    """What a checkpoint is and what engines do with it.

    Of its tensors, d2t, t2d and norms are read, and of matrices on this machine a few rows.

    Of a list of sources, a result for each; one that cannot be inspected is a FailedSource. Raises
    UnreadableError (missing, truncated, pickled), RefusedError (no EAGLE-3 drafter, or contradictory),
    UsageError.
    """
    chosen = options or InspectOptions()
    if isinstance(source, str | os.PathLike):
        return inspect_files(os.fspath(source), chosen)
    names = [os.fspath(each) for each in source]
    results: SeveralResults[Inspection | FailedSource] = run_all(
        names, lambda name: inspect(name, chosen), lambda failure: failure, jobs=JOBS
    )
    return Results(results.reports)


def inspect_files(
    source: str, options: InspectOptions, on_progress: OnProgress | None = None, *, headers_only: bool = True
) -> Inspection:
    """`inspect`, which reads all numbers too where it is not `headers_only`."""
    requests, answers = tuple(map(parse_engine, options.engines)), options.answers
    opened = open_source(source)
    checkpoint = read_checkpoint(opened)
    choice = fitting_target(choose_target(checkpoint.source, options.target), checkpoint, answers)
    known, files, target_config = choice.read()
    drafter = read_drafter(checkpoint, answers, known)
    complete = completing(source, choice.text, answers)
    drafter = replace(drafter, notes=tuple(_notes(checkpoint, drafter, choice))).completed(complete)
    target = GivenTarget(known, files, target_config, choice.text)
    shown_requests = tuple(_shown_releases())
    with nullcontext() if headers_only else pickles_copied(opened) as copied:
        subject = Subject(
            opened,
            replace(target, source=None) if headers_only else target,
            (*shown_requests, *requests),
            answers,
            headers_only=headers_only,
            on_progress=on_progress,
            unpickled=copied,
            read=(checkpoint, drafter),
            takes_samples=isinstance(opened, FolderSource),
        )
        judgement = judge_drafter(subject, None if headers_only else rules())
    drafter = replace(
        drafter, notes=(*drafter.notes, *(note.completed(complete) for note in notes_of(judgement.findings)))
    )
    verdicts = {(each.engine, each.release): each.completed(complete) for each in judgement.releases}
    shown = [verdicts[place] for request in shown_requests for place in request.places]
    commands = _launch_commands(source, checkpoint, drafter, choice)
    return Inspection(
        checkpoint.source.label,
        drafter,
        checkpoint,
        _readings(subject),
        tuple(shown),
        tuple(verdicts[place] for request in requests for place in request.places),
        as_served(commands, shown, is_sound=not judgement.errors),
        command("convert", source, target=choice.text, answers=answers),
        opened.uncompared(_read_files(checkpoint)) if isinstance(opened, FolderSource) else opened.unchecked,
        target.words,
        target.digest,
        tuple(finding.completed(complete) for finding in judgement.findings),
        cover_given(checkpoint, drafter, options, source, choice.place),
    )


def _readings(subject: Subject) -> tuple[CapturedLayers, ...]:
    """Which aux layers each engine reads."""
    is_nested = "speculators_model_type" in subject.config
    flat = {**subject.flat, "eagle_config": None} if is_nested else subject.flat
    return tuple(aux_readings(flat, subject.drafter.target).values())


def _read_files(checkpoint: Checkpoint) -> tuple[str, ...]:
    names = checkpoint.source.names()
    beside = {config_name(names) or CONFIG, INDEX, *checkpoint.sidecars} & set(names)
    return (*checkpoint.weight_files, *beside)


def _launch_commands(
    source: str, checkpoint: Checkpoint, drafter: Drafter, choice: TargetChoice
) -> Mapping[str, str]:
    """The command of each engine, which takes a folder or a repository, and no file in it.

    None takes a trainer's state.
    """
    if config_name(checkpoint.source.names()) != CONFIG:
        return {}
    place, revision = hub_name(source) or (source, None)
    if checkpoint.source.only is not None:
        place = os.path.dirname(source) or "."  # noqa: PTH120
    return launch_commands(drafter, place, revision=revision, target_text=choice.text)


def _notes(checkpoint: Checkpoint, drafter: Drafter, choice: TargetChoice) -> Iterator[Note]:
    """The notes of reading, questions with where a target was looked for, and those on serving the pair."""
    for note in drafter.notes:
        text = with_places_looked_at(note.text, choice) if note.level == "question" else note.text
        yield replace(note, text=text)
    if config_name(checkpoint.source.names()) == STATE_CONFIG:
        from eaglectl.files.pickles import training_progress  # late: few sources are pickles

        progress = training_progress(checkpoint.source)
        state = f"a trainer's state ({progress})" if progress else "a trainer's state"
        yield Note(
            "note", "files", f"{STATE} is {state}, read with {STATE_CONFIG}; engines load what convert makes"
        )
    # of serving such a drafter, or such a target, in parallel or with structured output
    for name, engine in ENGINES.items():
        for known in notes_on_pair(name, engine.releases[-1], drafter):
            yield Note("note", engine.title, f"{engine.title}, {known.text} ({known.source})")
    # no file of a target states its massive tokens, and nothing is run here
    for entry in history(checkpoint.record):
        match entry:
            case {"upgrade": {"calibration": {"massive": {"tokens": int(count)} as stated}}} if count:
                if text := _massive_words(stated, drafter.aux.boundaries or ()):
                    yield Note("note", "target", f"{text} (as calibrate saw them)")
                return


def _massive_words(stated: Mapping[str, Any], boundaries: tuple[int, ...]) -> str:
    """What a record states of massive tokens; empty where it states no such thing of these boundaries."""
    from eaglectl.conversion.upgrade import MassiveTokens

    try:
        massive = msgspec.convert(stated, MassiveTokens)
    except msgspec.ValidationError:
        return ""
    return massive.described(boundaries) if len(massive.channels) == len(boundaries) else ""


def _shown_releases() -> Iterator[EngineRequest]:
    """Every release of vLLM; of other engines the one that is installed here, and the newest known."""
    default = default_requests()
    for name, engine in ENGINES.items():
        installed = [release for request in default if request.engine == name for release in request.releases]
        releases = tuple(dict.fromkeys([*installed, engine.releases[-1]]))
        yield every_release(name) if engine.is_shown_whole else EngineRequest(name, releases)
