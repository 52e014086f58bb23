"""What a checkpoint is."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from eaglectl.api.keywords import StrPath, with_keywords
from eaglectl.api.options import InspectOptions
from eaglectl.api.targets import choose_target, fitting_target, with_places_looked_at
from eaglectl.checkpoint.checkpoint import Checkpoint, read_checkpoint
from eaglectl.checkpoint.layout import CONFIG, INDEX, RECORD
from eaglectl.checkpoint.opening import hub_name, open_source
from eaglectl.checkpoint.record import history
from eaglectl.checkpoint.source import FolderSource
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.engines.engine import Verdict
from eaglectl.engines.registry import (
    ENGINES,
    EngineRequest,
    as_served,
    aux_readings,
    default_requests,
    every_release,
    launch_commands,
    parse_engine,
    verdicts,
)
from eaglectl.engines.targets import notes_on_pair
from eaglectl.errors import UsageError
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.commands import command, completing
from eaglectl.formats.reader import read_drafter
from eaglectl.results import Inspection
from eaglectl.validation.judge import errors_for_engines
from eaglectl.validation.subject import GivenTarget, Subject
from eaglectl.verdicts import ServedAs


@with_keywords
def inspect(source: StrPath, options: InspectOptions | None = None, **fields: Any) -> Inspection:
    """What a checkpoint is and what engines do with it; config and headers are read, no tensor data.

    Raises UnreadableError (missing, truncated, pickled), RefusedError (no EAGLE-3 drafter, or contradictory),
    UsageError.
    """
    options, source = options or InspectOptions(), os.fspath(source)
    wanted, answers = [parse_engine(text) for text in options.engines], options.answers
    opened = open_source(source, takes_gguf=True)
    checkpoint = read_checkpoint(opened)
    choice = fitting_target(choose_target(checkpoint.source, options.target), checkpoint, answers)
    known, target_config = choice.read()
    drafter = read_drafter(checkpoint, answers, known)
    complete = completing(source, choice.text, answers)
    explained = (
        replace(note, text=with_places_looked_at(note.text, choice)) if note.level == "question" else note
        for note in drafter.notes
    )
    notes = (*explained, *_serving_notes(drafter), *_massive_notes(checkpoint, drafter))
    drafter = replace(drafter, notes=notes).completed(complete)
    names, config = tuple(checkpoint.tensors), checkpoint.config
    if by_name(drafter.producer).gguf_names:
        return _of_gguf(checkpoint, drafter, options)
    flat = by_name(drafter.producer).flat(config)

    given = GivenTarget(known, None, target_config, choice.text)
    subject = Subject(opened, given, answers=answers, headers_only=True, read=(checkpoint, drafter))
    errors = tuple(f"{rule}: {complete(message)}" for rule, message in errors_for_engines(subject) if rule)

    def judge(one: EngineRequest) -> tuple[Verdict, ...]:
        found = verdicts(drafter, config, flat, names, one, target_config)
        return tuple(_with(errors, verdict) for verdict in found)

    every = tuple(verdict for request in _shown_releases() for verdict in judge(request))
    asked = tuple(verdict for one in wanted for verdict in judge(one))
    readings = aux_readings(
        flat if "speculators_model_type" not in config else {**flat, "eagle_config": None}, drafter.target
    )
    place, revision = hub_name(source) or (source, None)
    return Inspection(
        checkpoint.source.label,
        drafter,
        checkpoint,
        tuple(readings.values()),
        every,
        asked,
        as_served(
            launch_commands(drafter, place, revision=revision, target_text=choice.text),
            every,
            is_sound=not errors,
        ),
        command("convert", source, target=choice.text, answers=answers),
        opened.uncompared(_read_files(checkpoint)) if isinstance(opened, FolderSource) else opened.unchecked,
    )


def _of_gguf(checkpoint: Checkpoint, drafter: Drafter, options: InspectOptions) -> Inspection:
    """A GGUF file, on which no engine is judged: what is known of them is of folders."""
    title = by_name(drafter.producer).title
    if options.engines:
        raise UsageError(f"--engine judges a checkpoint's folder, and this is a GGUF file in {title}")
    text = "llama.cpp would read this of the file; validate and --engine judge the folder that it is made of"
    notes = (*drafter.notes, Note("note", "engines", text))
    return Inspection(checkpoint.source.label, replace(drafter, notes=notes), checkpoint, (), (), (), {}, "")


def _serving_notes(drafter: Drafter) -> Iterator[Note]:
    """What is known of serving such a drafter, or such a target, in parallel or with structured output."""
    for name, engine in ENGINES.items():
        for known in notes_on_pair(name, engine.releases[-1], drafter):
            yield Note("note", engine.title, f"{engine.title}, {known.text} ({known.source})")


def _massive_notes(checkpoint: Checkpoint, drafter: Drafter) -> Iterator[Note]:
    """The target's massive tokens and channels, where the drafter was converted with statistics of a run.

    No file of a target states them, and nothing is run here.
    """
    for entry in history(checkpoint.sidecars.get(RECORD, {})):
        match entry:
            case {"upgrade": {"calibration": {"massive": {"tokens": int(count)} as stated}}} if count:
                text = _massive_words(stated, drafter.aux.boundaries or ())
                if text:
                    yield Note("note", "target", f"{text} (as calibrate saw them)")
                return


def _massive_words(stated: Mapping[str, Any], boundaries: tuple[int, ...]) -> str:
    """What a record states of massive tokens; empty where it states no such thing of these boundaries."""
    from eaglectl.conversion.calibration import MassiveTokens

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


def _read_files(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The files of which bytes were read."""
    beside = {CONFIG, INDEX, *checkpoint.sidecars} & set(checkpoint.source.names())
    return (*checkpoint.weight_files, *beside)


def _with(errors: tuple[str, ...], verdict: Verdict) -> Verdict:
    """The verdict; no fact shows what the engine does with a checkpoint that validate finds an error in."""
    if not errors or not verdict.outcome.is_served:
        return verdict
    return replace(verdict, outcome=ServedAs.UNKNOWN, reasons=errors)
