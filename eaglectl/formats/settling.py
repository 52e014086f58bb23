"""How what a file leaves open is settled: by the user, eaglectl.json, a publication, or an assumption.

Doubts about a producer's files stay with a drafter through conversions, in eaglectl.json.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from eaglectl.drafter.drafter import HIDDEN_NORM, Choice, Drafter, Note, Settlement, options, question
from eaglectl.errors import EaglectlError, UsageError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.hub_cache import split_name
from eaglectl.files.layout import CONFIG, RECORD
from eaglectl.formats.catalogue import by_name, known_formats
from eaglectl.formats.config_keys import LAYERS
from eaglectl.formats.format import Answers, CheckpointSummary, Format, Origin, RopeAnswer
from eaglectl.formats.published import PublishedDrafter, published_drafter

Read = Callable[[Answers], Drafter]
KNOWN = Path(__file__).with_name("known_drafters.json")
RECORDED = "as eaglectl.json records: "
AUX, ROPE, NORM_OUTPUT = "aux layers", ("rope_theta", "rope_scaling"), "norm_output"
SEMANTICS = "--source-semantics"
AUX_KEYS = {"--aux-layers", "--aux-convention"}


class KnownDrafter(Struct, frozen=True):
    """A published drafter whose training is public: the digest of its config, and what settles open facts."""

    name: str
    config: str
    choices: tuple[Choice, ...]
    source: str


class _Record(Struct, frozen=True):
    """What eaglectl.json states of facts that a source may leave open; nothing where there is none.

    `is_edited`: config.json is not the file that was written with it. `claim`: why it is no evidence of these
    files; what it states beside them is then asked about where it contradicts them, and answers nothing.
    """

    settled: tuple[Settlement, ...] = ()
    boundaries: list[int] | None = None
    rope: dict[str, Any] | None = None
    norm_output: bool | None = None
    layout: str = ""
    layers_from: str = "written by eaglectl, which did not record from what"
    is_edited: bool = False
    claim: str = ""


def settled_drafter(read: Read, answers: Answers, checkpoint: Checkpoint) -> Drafter:
    """The drafter, read with the user's answers and with all else that settles what they leave open.

    `read` reads the checkpoint with given answers. Raises UsageError for an answer that is about the source
    of a conversion and not about its output.
    """
    record, given = _read_record(checkpoint), answers
    answers = _without_source_convention(read, given, record)
    drafter = read(answers)
    asked: dict[str, Note] = {}
    tried, recorded = set[str](), set[str]()
    while step := next(
        (
            (note, choice, origin)
            for note in drafter.notes_at("question")
            for choice, origin in _candidates(note, drafter, answers, record, checkpoint)
            if str(choice) not in tried
        ),
        None,
    ):
        note, choice, origin = step
        asked.setdefault(choice.key, note)
        tried.add(str(choice))
        if origin is None:
            recorded.add(choice.key)
        answers = answers.choosing(choice, origin)
        drafter = read(answers)
    asked = {**_answered_questions(read, given), **asked}
    carried = [
        entry for entry in _carried(drafter, given, record) if not record.claim or not _holds(entry, drafter)
    ]
    new = [
        _settlement(drafter, choice, answers, asked.get(choice.key), read)
        for choice in answers.choices
        if choice.key not in recorded
    ]
    published = _published(checkpoint, drafter) if any(entry.by == "published" for entry in new) else None
    return replace(
        drafter,
        publication=published.name if published else None,
        aux=replace(drafter.aux, how=_how(drafter, new, record)),
        notes=tuple(dict.fromkeys(_all_notes(drafter, carried, new, record))),
        settled=(*carried, *new),
    )


def _without_source_convention(read: Read, answers: Answers, record: _Record) -> Answers:
    if record.boundaries and answers.aux_layers is None and answers.aux_convention:
        stripped = replace(answers, aux_convention=None)  # it is about the source's ids
        if _fact(read(stripped), AUX) == record.boundaries:
            return stripped
    return answers


def _answered_questions(read: Read, answers: Answers) -> dict[str, Note]:
    questions: dict[str, Note] = {}
    if answers.choices:
        with suppress(EaglectlError):
            notes = read(Answers()).notes_at("question")
            questions = {choice.key: note for note in reversed(notes) for choice in note.choices}
    return questions


def _all_notes(
    drafter: Drafter, carried: Sequence[Settlement], new: Sequence[Settlement], record: _Record
) -> Iterator[Note]:
    yield from (_with_recorded_layers(note, record) for note in drafter.notes)
    edited = [entry for entry in carried if not _holds(entry, drafter)]
    for entry in edited:
        yield _question_of_edit(drafter, entry.about, entry.fact, f"{entry.answer} {entry.by}")
    yield from _edited_facts(drafter, (*carried, *new), record)
    yield from (_settled_note(entry, RECORDED) for entry in carried if entry not in edited)
    yield from (_settled_note(entry, "") for entry in new if entry.by != "given")
    if record.claim:
        yield Note(
            "note", RECORD, f"what {RECORD} states is its author's claim, and no evidence: it {record.claim}"
        )


def fact_record(drafter: Drafter) -> dict[str, Any]:
    """What eaglectl.json states of facts that a file may leave open, and how each of them was settled."""
    entries = [replace(entry, fact=_fact(drafter, entry.about)) for entry in drafter.settled]
    return {
        "boundaries": _fact(drafter, AUX),
        "layers_from": drafter.aux.how.removeprefix(RECORDED),
        "rope": _fact(drafter, ROPE[0]),
        "norm_output": _fact(drafter, NORM_OUTPUT),
        "hidden_twice": _fact(drafter, HIDDEN_NORM),
        "settled": msgspec.to_builtins(entries),
    }


def config_digest(config: Mapping[str, Any]) -> str:
    """SHA-256 of a config, independent of its order and spacing."""
    return sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@cache
def known_drafters() -> Mapping[str, KnownDrafter]:
    """The published drafters whose training is public, by name."""
    listed = msgspec.json.decode(KNOWN.read_bytes(), type=tuple[KnownDrafter, ...])
    return {known.name: known for known in listed}


def _read_record(checkpoint: Checkpoint) -> _Record:
    stated = checkpoint.sidecars.get(RECORD, {})
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(_Record):
        with suppress(KeyError, msgspec.ValidationError):  # absent, or written by others
            fields[field.name] = msgspec.convert(stated[field.name], field.type)
    is_edited = bool(stated) and is_config_edited(checkpoint)
    return _Record(**{**fields, "is_edited": is_edited, "claim": checkpoint.claim})


def is_config_edited(checkpoint: Checkpoint) -> bool:
    """Whether config.json is another file than the one whose SHA-256 eaglectl.json states."""
    match checkpoint.sidecars.get(RECORD, {}):
        case {"output": {"files": {"config.json": {"sha256": str(recorded)}}}}:
            return sha256(checkpoint.source.read(CONFIG)).hexdigest() != recorded
    return False


def _with_recorded_layers(note: Note, record: _Record) -> Note:
    if note.about != AUX or note.level != "question" or not record.boundaries:
        return note
    (recorded,) = _restated(AUX, record.boundaries, "what eaglectl.json records")
    others = [choice for choice in note.choices if choice.value != recorded.value]
    return question(AUX, note.why, note.topic, (recorded, *others))


def _edited_facts(drafter: Drafter, settled: Sequence[Settlement], record: _Record) -> Iterator[Note]:
    """The questions about facts that no answer is about, and that an edited config.json states otherwise."""
    answered = {ROPE[0] if entry.about in (*ROPE, "rope") else entry.about for entry in settled}
    answered.update(note.about for note in drafter.notes_at("question"))
    written = {AUX: record.boundaries, ROPE[0]: record.rope, NORM_OUTPUT: record.norm_output}
    for about, fact in written.items() if record.is_edited else ():
        if about not in answered and fact not in (None, _fact(drafter, about)):
            yield _question_of_edit(drafter, about, fact, record.layers_from if about == AUX else "")


def _candidates(
    note: Note, drafter: Drafter, answers: Answers, record: _Record, checkpoint: Checkpoint
) -> Iterator[tuple[Choice, Origin | None]]:
    """What answers a question: eaglectl.json, what is known or was measured, the producer's usual value."""
    if not record.claim and (recorded := _recorded_choice(note, drafter, record)):
        yield recorded, None
    keys = {choice.key for choice in note.choices} | (AUX_KEYS if note.about == AUX else set())
    known = known_drafters().get(split_name(checkpoint.source.label)[0])
    if known and known.config == config_digest(checkpoint.config):
        yield from ((choice, Origin("known", known.source)) for choice in known.choices if choice.key in keys)
    if (published := _published(checkpoint, drafter)) is not None:
        origin = Origin("published", f"{published.name}: {published.figures[0].origin}")
        texts = list(map(str, note.whole_choices))
        yield from ((choice, origin) for choice in published.reading if str(choice) in texts)
    if answers.assume:
        yield from ((choice, Origin("assumed")) for choice in note.choices if choice.is_usual)


def _published(checkpoint: Checkpoint, drafter: Drafter) -> PublishedDrafter | None:
    label, config = split_name(checkpoint.source.label)[0], checkpoint.config
    return published_drafter(label, config_digest(config), config, drafter.target.repo)


def _recorded_choice(note: Note, drafter: Drafter, record: _Record) -> Choice | None:
    is_of_layout, boundaries = record.layout == drafter.producer, record.boundaries or []
    if note.about == AUX and is_of_layout and len(boundaries) == drafter.aux.count:
        is_edited = drafter.aux.ids is not None and note.topic == "aux-lists"
        return None if is_edited else Choice("--aux-layers", ",".join(map(str, boundaries)))
    if note.about in ROPE and record.rope == _fact(drafter, note.about):
        return Choice(SEMANTICS, "rope=stored") if _is_rope_settled(drafter, record) else None
    texts = list(map(str, note.whole_choices))
    answers = [entry.answer for entry in record.settled if str(entry.answer) in texts]
    return answers[0] if answers and is_of_layout else None


def _is_rope_settled(drafter: Drafter, record: _Record) -> bool:
    # it was settled, or written in a layout of whose limits convert warned
    layout = by_name(drafter.producer).layout
    has_limits = record.layout == drafter.producer and layout is not None and layout.rope is not None
    return has_limits or any(entry.about in ROPE for entry in record.settled)


def _fact(drafter: Drafter, about: str) -> Any:
    """What reading makes of an open fact, in JSON's types; None for facts that are no value of a drafter."""
    boundaries, rope, norms = drafter.aux.boundaries, drafter.rope, drafter.norms
    facts = {
        AUX: None if boundaries is None else list(boundaries),
        NORM_OUTPUT: norms.norm_output,
        HIDDEN_NORM: norms.hidden_twice,
        **{key: {"theta": rope.theta, "scaling": msgspec.to_builtins(rope.scaling)} for key in ROPE},
    }
    return facts.get(about)


def _holds(entry: Settlement, drafter: Drafter) -> bool:
    return bool(entry.fact == _fact(drafter, entry.about))


def _carried(drafter: Drafter, given: Answers, record: _Record) -> Iterator[Settlement]:
    """The recorded settlements that the user's answers do not replace; one that they repeat is confirmed."""
    choices, rope = {choice.key: choice for choice in given.choices}, RopeAnswer.of(given)
    halves = {ROPE[0]: rope.base, ROPE[1]: rope.scaling}
    for entry in record.settled:
        own, holds = {choice.key for choice in entry.choices}, _holds(entry, drafter)
        choice, half = choices.get(entry.answer.key), halves.get(entry.about, "none")
        is_of_source = entry.about == HIDDEN_NORM or (half == "stored" and holds)
        if choice == entry.answer and holds:
            yield replace(entry, by="given", evidence="", choices=())
        elif choice and half is None:
            yield entry  # the other half of the rope was answered
        elif choice and entry.by == "assumed" and (choice.key not in own or is_of_source):
            raise UsageError(
                f"{choice}: eaglectl wrote this file with {entry.answer}, as an assumption; pass"
                f" {options(entry.choices)}, or convert the source again with {choice}"
            )
        elif not (own | {entry.answer.key, entry.about}) & set(choices):
            yield entry


def _settlement(
    drafter: Drafter, choice: Choice, answers: Answers, note: Note | None, read: Read
) -> Settlement:
    origin = answers.origins.get(choice.key, Origin())
    if note is None:
        about = AUX if choice.key in AUX_KEYS else {"rope": ROPE[0]}.get(choice.key, choice.key)
        return Settlement(choice, origin.by, origin.evidence, about, fact=_fact(drafter, about))
    choices = tuple(_output_choices(note, drafter, answers, read)) if origin.by == "assumed" else ()
    fact = _fact(drafter, note.about)
    return Settlement(choice, origin.by, origin.evidence, note.about, note.topic, note.why, choices, fact)


def _output_choices(note: Note, drafter: Drafter, answers: Answers, read: Read) -> Iterator[Choice]:
    """The choices of a question in words that hold for the output too, which does not state what it was."""
    for choice in (choice for choice in note.choices if not choice.is_free):
        try:
            other = read(answers.choosing(choice))
        except EaglectlError:
            continue
        meaning = choice.meaning.replace("the file", "its source")
        if note.about in (AUX, ROPE[0], NORM_OUTPUT):
            yield from _restated(note.about, _fact(other, note.about), meaning)
        elif note.about in ROPE and other.rope.scaling is None:
            yield Choice(SEMANTICS, "rope=plain", meaning)
        # an output cannot be read as its source where its two norms were written as one, or were not
        elif choice.value != "rope=stored" and (note.about != HIDDEN_NORM or other.norms == drafter.norms):
            yield choice
    if note.about == AUX:
        yield LAYERS


def _words(entry: Settlement) -> str:
    return f"{entry.answer} {entry.by}{f' ({entry.evidence})' if entry.evidence else ''}"


def _settled_note(entry: Settlement, prefix: str) -> Note:
    if entry.by == "assumed":
        text = (
            f"{prefix}{entry.question}; {entry.answer} was assumed (--assume-defaults) and nothing confirms"
            f" it; settle it by {options(entry.choices)}"
        )
        return Note("warning", entry.about, text, entry.topic, is_open=True, choices=entry.choices)
    text = f"{prefix}{_words(entry)}"
    if entry.by == "published":
        text = text.replace(" published", ", as its authors ran it", 1) + f", though {entry.question}"
    return Note("note", entry.about, text, is_open=entry.by == "published")


def _question_of_edit(drafter: Drafter, about: str, recorded: Any, how: str) -> Note:
    found = _fact(drafter, about)
    why = (
        f"config.json says {json.dumps(found)} and eaglectl.json records {json.dumps(recorded)}"
        f"{f' ({how})' if how else ''}: one was edited after the conversion"
    )
    of_file = [*_restated(about, found, "what config.json says")]
    if about in ROPE:
        of_file = [Choice(SEMANTICS, "rope=stored", "what config.json says")]
    of_record = _restated(about, recorded, "what eaglectl.json records")
    return question(about, why, "record-edited", (*of_file, *of_record))


def _restated(about: str, fact: Any, meaning: str) -> Iterator[Choice]:
    match about, fact:
        case "aux layers", [*boundaries]:
            yield Choice("--aux-layers", ",".join(map(str, boundaries)), meaning)
        case (("rope_theta" | "rope_scaling"), {"theta": int() | float() as theta}) if theta == int(theta):
            yield Choice(SEMANTICS, f"rope={int(theta)}", meaning)
        case "norm_output", bool(value):
            yield Choice(SEMANTICS, f"norm_output={str(value).lower()}", meaning)


def _how(drafter: Drafter, new: Sequence[Settlement], record: _Record) -> str:
    """What the knowledge of the aux layers rests on: never on what eaglectl itself wrote."""
    settled = [entry for entry in new if entry.about == AUX]
    for entry in settled:
        if entry.by != "given":
            return _words(entry)
    is_recorded = record.boundaries and not settled and not record.claim
    if is_recorded and _fact(drafter, AUX) == record.boundaries:
        return f"{RECORDED}{record.layers_from}"
    return drafter.aux.how


def producer_doubts(format: Format, summary: CheckpointSummary, answers: Answers) -> Iterator[Note]:
    """The producer's doubts; a warning that no answer has settled names the producer."""
    unanswered = set(format.doubts(summary, Answers()))
    for note in format.doubts(summary, answers):
        stays = note.level == "warning" and note in unanswered
        yield replace(note, producer=format.name) if stays else note


def recorded_doubts(
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
                text = entry.get("text")
                if isinstance(text, str) and text and not shown:
                    yield Note("warning", RECORD, text, topic, name, is_open="open" in entry)
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
    notes = producer_doubts(by_name(name), summary, answers)
    return [note for note in notes if note.topic == topic and note.level in ("warning", "question")]
