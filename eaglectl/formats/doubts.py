"""Doubts about a producer's files, and how they stay with a drafter through conversions: in eaglectl.json."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from eaglectl.checkpoint.layout import RECORD
from eaglectl.drafter.drafter import Note
from eaglectl.formats.catalogue import by_name, known_formats
from eaglectl.formats.format import Answers, CheckpointSummary, Format


def all_doubts(
    format: Format,
    summary: CheckpointSummary,
    config: Mapping[str, Any],
    answers: Answers,
    record: Mapping[str, Any],
    settled: Mapping[str, Iterable[Note]],
) -> Iterator[Note]:
    """The producer's doubts and those of eaglectl.json, but for the topics that are settled, and their notes.

    `config` is that of the summary with the producer's nesting undone, in which other producers' doubts show.
    """
    recorded = _recorded_doubts(record, replace(summary, config=config), answers)
    for note in (*_producer_doubts(format, summary, answers), *recorded):
        if note.topic not in settled:
            yield note
    for notes in settled.values():
        yield from notes


def _producer_doubts(format: Format, summary: CheckpointSummary, answers: Answers) -> Iterator[Note]:
    """The producer's doubts; a warning that no answer has settled names the producer."""
    unanswered = set(format.doubts(summary, Answers()))
    for note in format.doubts(summary, answers):
        stays = note.level == "warning" and note in unanswered
        yield replace(note, producer=format.name) if stays else note


def _recorded_doubts(
    record: Mapping[str, Any], summary: CheckpointSummary, answers: Answers
) -> Iterator[Note]:
    """The doubts that eaglectl.json names, of the producers whose files the drafter was converted from.

    Where the files show the doubt, they say what it is now; where they cannot, the record's text stays.
    """
    entries = record.get("doubts")
    for entry in entries if isinstance(entries, list) else ():
        match entry:
            case {"producer": str(name), "topic": str(topic)} if name in known_formats():
                shown = _shown(name, topic, summary, answers)
                match entry:
                    case {"text": str(text)} if text and not shown:
                        yield Note("warning", RECORD, text, topic, name, is_open="open" in entry)
                    case _:
                        yield from shown


def doubt_entries(doubts: Iterable[Note], summary: CheckpointSummary) -> list[dict[str, Any]]:
    """Doubts as eaglectl.json has them beside these files: with a text where the files do not show them."""
    entries = []
    for note in doubts:
        is_shown = any(_shown(note.producer, note.topic, summary, Answers()))
        text = {} if is_shown else {"text": note.text, **({"open": True} if note.is_open else {})}
        entries.append({"producer": note.producer, "topic": note.topic, **text})
    return entries


def _shown(name: str, topic: str, summary: CheckpointSummary, answers: Answers) -> list[Note]:
    """The doubts of a producer on a topic that these files show."""
    notes = _producer_doubts(by_name(name), summary, answers)
    return [note for note in notes if note.topic == topic and note.level in ("warning", "question")]
