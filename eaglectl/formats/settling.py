"""Settle what a file leaves open: by the user, eaglectl.json, a publication, or an assumption.

Doubts about a producer's files stay with a drafter through conversions, in eaglectl.json.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from eaglectl.drafter.drafter import (
    HIDDEN_NORM,
    AuxLayers,
    Choice,
    Convention,
    Drafter,
    Note,
    Settlement,
    options,
    question,
    to_boundaries,
)
from eaglectl.errors import EaglectlError, UsageError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.files import sha256
from eaglectl.files.layout import CONFIG, RECORD
from eaglectl.files.source import split_name
from eaglectl.formats.catalogue import by_name, known_formats
from eaglectl.formats.config_keys import LAYERS
from eaglectl.formats.format import Answers, CheckpointSummary, Format, Origin, RopeAnswer
from eaglectl.formats.published import PublishedDrafter, published_drafter

Read = Callable[[Answers], Drafter]
RECORDED = "as eaglectl.json records: "
AUX, ROPE, NORM_OUTPUT = "aux layers", ("rope_theta", "rope_scaling"), "norm_output"
SEMANTICS_OPTION = "--source-semantics"
AUX_KEYS = {"--aux-layers", "--aux-convention"}


class _Record(Struct, frozen=True):
    """What eaglectl.json states of facts that a source may leave open; nothing where there is none.

    `is_edited`: config.json is not the file that was written with it. `distrust`: why it is no evidence of
    these files; what it states beside them is then asked about where it contradicts them, and answers
    nothing. `unread` is the part of the weights that alone was compared with it.
    """

    settled: tuple[Settlement, ...] = ()
    boundaries: list[int] | None = None
    rope: dict[str, Any] | None = None
    norm_output: bool | None = None
    layout: str = ""
    layers_from: str = "written by eaglectl, which did not record from what"
    is_edited: bool = False
    distrust: str = ""
    unread: str = ""


def settled_drafter(read: Read, user_answers: Answers, checkpoint: Checkpoint) -> Drafter:
    """Return the drafter, read with the user's answers and with all else that settles open facts.

    `read` reads the checkpoint with given answers. Raises UsageError for an answer about the source of a
    conversion instead of its output.
    """
    record = _read_record(checkpoint)
    answers = _without_source_convention(read, user_answers, record)
    drafter = read(answers)
    label = split_name(checkpoint.source.label)[0]
    published = published_drafter(label, checkpoint.config, drafter.target.repo)
    questions: dict[str, Note] = {}
    recorded, tried = set[str](), set[str]()
    while step := next(
        (
            (note, choice, origin)
            for note in drafter.notes_at("question")
            for choice, origin in _candidates(note, drafter, answers, record, published)
            if str(choice) not in tried
        ),
        None,
    ):
        note, choice, origin = step
        questions.setdefault(choice.key, note)
        tried.add(str(choice))
        if origin is None:
            recorded.add(choice.key)
        answers = answers.choosing(choice, origin)
        drafter = read(answers)
    questions = _answered_questions(read, user_answers) | questions
    carried = _held(_carried(drafter, user_answers, record), drafter, record)
    new = [
        _settlement(drafter, choice, answers, questions.get(choice.key), read)
        for choice in answers.choices
        if choice.key not in recorded
    ]
    is_as_published = published and any(entry.by == "published" for entry in new)
    return replace(
        drafter,
        publication=published.name if published and is_as_published else None,
        aux=_with_source(drafter, new, record),
        notes=tuple(dict.fromkeys(_all_notes(drafter, carried, new, record))),
        settled=(*carried, *new),
    )


def _held(entries: Iterable[Settlement], drafter: Drafter, record: _Record) -> Sequence[Settlement]:
    """Return the entries, without those of an unproven record unless it assumes or contradicts a fact."""
    return [
        entry
        for entry in entries
        if not record.distrust or entry.by == "assumed" or entry.fact != _fact(drafter, entry.about)
    ]


def _without_source_convention(read: Read, answers: Answers, record: _Record) -> Answers:
    if record.boundaries and answers.aux_layers is None and answers.aux_convention:
        stripped = replace(answers, aux_convention=None)  # it is about the source's ids
        if _fact(read(stripped), AUX) == record.boundaries:
            return stripped
    return answers


def _answered_questions(read: Read, answers: Answers) -> dict[str, Note]:
    # the questions that the user's answers settle, by the key of the answer
    questions: dict[str, Note] = {}
    if answers.choices:
        with suppress(EaglectlError):
            questions = {
                choice.key: note
                for note in reversed(read(Answers()).notes_at("question"))
                for choice in note.choices
            }
    return questions


def _all_notes(
    drafter: Drafter, carried: Sequence[Settlement], new: Sequence[Settlement], record: _Record
) -> Iterator[Note]:
    # the drafter's notes, then what the record contradicts, how facts were settled, and what of the record
    # was not compared
    yield from drafter.notes
    edited = [entry for entry in carried if entry.fact != _fact(drafter, entry.about)]
    for entry in edited:
        yield _question_of_edit(drafter, entry.about, entry.fact, f"{entry.answer} {entry.by}")
    if record.is_edited:
        yield from _edited_facts(drafter, (*carried, *new), record)
    yield from (_settled_note(entry, is_recorded=True) for entry in carried if entry not in edited)
    yield from (_settled_note(entry, is_recorded=False) for entry in new if entry.by != "given")
    if record.distrust:
        yield Note("note", RECORD, f"{RECORD} is not evidence of these files: it {record.distrust}")
    if record.unread:
        text = f"of the weights only {record.unread} were compared with {RECORD}, and not their bytes"
        yield Note("note", RECORD, f"{text}; verify and validate compare these")


def _edited_facts(drafter: Drafter, settled: Sequence[Settlement], record: _Record) -> Iterator[Note]:
    # questions on facts that config.json and the record state differently, unless they are answered or asked
    # already
    answered = {ROPE[0] if entry.about in (*ROPE, "rope") else entry.about for entry in settled}
    answered.update(note.about for note in drafter.notes_at("question"))
    for about, fact in {
        AUX: record.boundaries,
        ROPE[0]: record.rope,
        NORM_OUTPUT: record.norm_output,
    }.items():
        if about not in answered and fact not in (None, _fact(drafter, about)):
            yield _question_of_edit(drafter, about, fact, record.layers_from if about == AUX else "")


def fact_record(drafter: Drafter) -> dict[str, Any]:
    """Return the entry of eaglectl.json on facts that a file may leave open, and how each was settled."""
    entries = [replace(entry, fact=_fact(drafter, entry.about)) for entry in drafter.settled]
    return {
        "boundaries": _fact(drafter, AUX),
        "layers_from": drafter.aux.recorded or drafter.aux.how,
        "rope": _fact(drafter, ROPE[0]),
        "norm_output": _fact(drafter, NORM_OUTPUT),
        "hidden_twice": _fact(drafter, HIDDEN_NORM),
        "settled": msgspec.to_builtins(entries),
    }


def _read_record(checkpoint: Checkpoint) -> _Record:
    # the fields of eaglectl.json that have the expected form; others count as absent
    sidecar = checkpoint.sidecars.get(RECORD, {})
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(_Record):
        with suppress(KeyError, msgspec.ValidationError):  # absent, or written by others
            fields[field.name] = msgspec.convert(sidecar[field.name], field.type)
    is_edited = False
    match sidecar:
        case {"output": {"files": {"config.json": {"sha256": str(digest)}}}}:
            is_edited = sha256(checkpoint.source.read(CONFIG)).hexdigest() != digest
    return _Record(
        **{**fields, "is_edited": is_edited, "distrust": checkpoint.distrust, "unread": checkpoint.unread}
    )


def _candidates(
    note: Note,
    drafter: Drafter,
    answers: Answers,
    record: _Record,
    published: PublishedDrafter | None,
) -> Iterator[tuple[Choice, Origin | None]]:
    # answers to a question in the order of their weight: the record, a publication, an assumption on request
    if not record.distrust and (recorded := _recorded_choice(note, drafter, record)):
        yield recorded, None
    keys = {choice.key for choice in note.choices} | (AUX_KEYS if note.about == AUX else set())
    texts = list(map(str, note.whole_choices))
    for choice, origin in published.offers if published else ():
        if choice.key in keys if origin.by == "known" else str(choice) in texts:
            yield choice, origin
    if answers.assume:
        yield from ((choice, Origin("assumed")) for choice in note.choices if choice.is_usual)


def _recorded_choice(note: Note, drafter: Drafter, record: _Record) -> Choice | None:
    # the answer that the record gives to a question, if it is about files of this layout
    is_of_layout, boundaries = record.layout == drafter.producer, record.boundaries or []
    if note.about == AUX and len(boundaries) == drafter.aux.count:
        return _recorded_layers(note, drafter, boundaries, is_of_layout=is_of_layout)
    if note.about in ROPE and record.rope == _fact(drafter, note.about):
        return Choice(SEMANTICS_OPTION, "rope=stored") if _is_rope_settled(drafter, record) else None
    texts = list(map(str, note.whole_choices))
    choices = [entry.answer for entry in record.settled if str(entry.answer) in texts]
    if note.about == NORM_OUTPUT:
        choices += _restated(NORM_OUTPUT, record.norm_output, "")
    return choices[0] if choices and is_of_layout else None


def _recorded_layers(
    note: Note, drafter: Drafter, boundaries: list[int], *, is_of_layout: bool
) -> Choice | None:
    # in files of another layout the ids must mean them; lists that disagree were edited
    ids, depth = drafter.aux.ids, drafter.target.depth
    meanings = [
        convention
        for convention in get_args(Convention)
        if list(to_boundaries(ids or (), convention)) == boundaries
    ]
    is_edited = ids is not None and note.topic == "aux-lists"
    if is_edited or not (is_of_layout or meanings) or (depth is not None and max(boundaries) > depth):
        return None
    if meanings and note.topic == "aux-convention":  # the ids stay those of the file
        return Choice("--aux-convention", meanings[0])
    return Choice("--aux-layers", ",".join(map(str, boundaries)))


def _is_rope_settled(drafter: Drafter, record: _Record) -> bool:
    # it was settled, or written in a layout of whose limits convert warned
    layout = by_name(drafter.producer).layout
    has_limits = record.layout == drafter.producer and layout is not None and layout.scalings is not None
    return has_limits or any(entry.about in ROPE for entry in record.settled)


def _fact(drafter: Drafter, about: str) -> Any:
    """Return the value that was read for an open fact, in JSON's types; None if the drafter holds none."""
    boundaries, rope, norms = drafter.aux.boundaries, drafter.rope, drafter.norms
    facts = {
        AUX: None if boundaries is None else list(boundaries),
        NORM_OUTPUT: norms.norm_output,
        HIDDEN_NORM: norms.hidden_twice,
        **{key: {"theta": rope.theta, "scaling": msgspec.to_builtins(rope.scaling)} for key in ROPE},
    }
    return facts.get(about)


def _carried(drafter: Drafter, user_answers: Answers, record: _Record) -> Iterator[Settlement]:
    """Yield the recorded settlements that the user's answers do not replace; a repeated one is confirmed."""
    choices, rope = {choice.key: choice for choice in user_answers.choices}, RopeAnswer.of(user_answers)
    halves = {ROPE[0]: rope.base, ROPE[1]: rope.scaling}
    for entry in record.settled:
        keys = {choice.key for choice in entry.choices}
        holds = entry.fact == _fact(drafter, entry.about)
        choice, half = choices.get(entry.answer.key), halves.get(entry.about, "none")
        is_of_source = entry.about == HIDDEN_NORM or (half == "stored" and holds)
        if choice == entry.answer and holds:
            yield replace(entry, by="given", evidence="", choices=())
        elif choice and half is None:
            yield entry  # the other half of the rope was answered
        elif choice and entry.by == "assumed" and (choice.key not in keys or is_of_source):
            raise UsageError(
                f"{choice}: eaglectl wrote this file with {entry.answer} as an assumption; pass"
                f" {options(entry.choices)}, or convert the source again with {choice}",
                options=(choice.option,),
            )
        elif not (keys | {entry.answer.key, entry.about}) & set(choices):
            yield entry


def _settlement(
    drafter: Drafter, choice: Choice, answers: Answers, note: Note | None, read: Read
) -> Settlement:
    # how an answer settled a fact; an assumed one keeps the question's choices, to be settled later
    origin = answers.origins.get(choice.key, Origin())
    if note is None:
        about = AUX if choice.key in AUX_KEYS else {"rope": ROPE[0]}.get(choice.key, choice.key)
        return Settlement(choice, origin.by, origin.evidence, about, fact=_fact(drafter, about))
    choices = tuple(_output_choices(note, drafter, answers, read)) if origin.by == "assumed" else ()
    return Settlement(
        choice,
        origin.by,
        origin.evidence,
        note.about,
        note.topic,
        note.why,
        choices,
        _fact(drafter, note.about),
    )


def _output_choices(note: Note, drafter: Drafter, answers: Answers, read: Read) -> Iterator[Choice]:
    """Yield the choices of a question, as answers that hold for the converted output too."""
    for choice in (choice for choice in note.choices if not choice.is_free):
        try:
            other = read(answers.choosing(choice))
        except EaglectlError:
            continue
        meaning = choice.meaning.replace("the file", "its source")
        if note.about in (AUX, ROPE[0], NORM_OUTPUT):
            yield from _restated(note.about, _fact(other, note.about), meaning)
        elif note.about in ROPE and other.rope.scaling is None:
            yield Choice(SEMANTICS_OPTION, "rope=plain", meaning)
        # an output cannot be read as its source where its two norms were written as one, or were not
        elif choice.value != "rope=stored" and (note.about != HIDDEN_NORM or other.norms == drafter.norms):
            yield choice
    if note.about == AUX:
        yield LAYERS


def _words(entry: Settlement) -> str:
    return f"{entry.answer} {entry.by}{f' ({entry.evidence})' if entry.evidence else ''}"


def _settled_note(entry: Settlement, *, is_recorded: bool) -> Note:
    # How a fact was settled. "known": the public training of this published drafter states it; "published":
    # its authors served it so, which leaves the question open.
    prefix, evidence = RECORDED if is_recorded else "", f" ({entry.evidence})" if entry.evidence else ""
    if entry.by == "assumed":
        return Note(
            "warning",
            entry.about,
            f"{prefix}{entry.question}; {entry.answer} was assumed (--assume-defaults) and not confirmed",
            entry.topic,
            is_open=True,
            choices=entry.choices,
            advice=f"; settle it by {options(entry.choices)}",
        )
    if entry.by == "published":
        text = f"{prefix}{entry.answer}, as its authors ran it{evidence}; open: {entry.question}"
    else:
        text = f"{prefix}{_words(entry)}"
    if entry.by in ("published", "known") and not is_recorded:
        text += "; only its name and config identify the weights: no digest of them is published"
    return Note("note", entry.about, text, is_open=entry.by == "published")


def _question_of_edit(drafter: Drafter, about: str, recorded: Any, origin: str) -> Note:
    # ask which of two values holds: a record that disagrees with config.json shows that one was edited, not
    # which
    current = _fact(drafter, about)
    of_file = [Choice(SEMANTICS_OPTION, "rope=stored", "what config.json says")]
    if about not in ROPE:
        of_file = list(_restated(about, current, "what config.json says"))
    return question(
        about,
        f"config.json says {json.dumps(current)} and eaglectl.json records {json.dumps(recorded)}"
        f"{f' ({origin})' if origin else ''}: one was edited after the conversion",
        "record-edited",
        (*of_file, *_restated(about, recorded, "what eaglectl.json records")),
    )


def _restated(about: str, fact: Any, meaning: str) -> Iterator[Choice]:
    match about, fact:
        case "aux layers", [*boundaries]:
            yield Choice("--aux-layers", ",".join(map(str, boundaries)), meaning)
        case (("rope_theta" | "rope_scaling"), {"theta": int() | float() as theta}) if theta == int(theta):
            yield Choice(SEMANTICS_OPTION, f"rope={int(theta)}", meaning)
        case "norm_output", bool(value):
            yield Choice(SEMANTICS_OPTION, f"norm_output={str(value).lower()}", meaning)


def _with_source(drafter: Drafter, new: Sequence[Settlement], record: _Record) -> AuxLayers:
    """Return the aux layers with where they are known from: never from what eaglectl itself wrote."""
    settled = [entry for entry in new if entry.about == AUX]
    if words := [_words(entry) for entry in settled if entry.by != "given"]:
        return replace(drafter.aux, how=words[0])
    is_recorded = record.boundaries and not settled and not record.distrust
    is_same = is_recorded and _fact(drafter, AUX) == record.boundaries
    if not is_same:
        return drafter.aux
    return replace(drafter.aux, how=f"{RECORDED}{record.layers_from}", recorded=record.layers_from)


def producer_doubts(format: Format, summary: CheckpointSummary, answers: Answers) -> Iterator[Note]:
    """Yield the producer's doubts; a warning that no answer settled has the producer's name."""
    unanswered = set(format.doubts(summary, Answers()))
    for note in format.doubts(summary, answers):
        stays = note.level == "warning" and note in unanswered
        yield replace(note, producer=format.name) if stays else note


def recorded_doubts(
    record: Mapping[str, Any], summary: CheckpointSummary, answers: Answers
) -> Iterator[Note]:
    """Yield the doubts that eaglectl.json names, of the producers of the converted sources.

    If the files still show a doubt, its text is theirs; otherwise it is the record's.
    """
    entries = record.get("doubts")
    for entry in entries if isinstance(entries, list) else ():
        match entry:
            case {"producer": str(name), "topic": str(topic)} if name in known_formats():
                doubts = _shown(name, topic, summary, answers)
                text = entry.get("text")
                if isinstance(text, str) and text and not doubts:
                    part, is_open = entry.get("deviation"), "open" in entry
                    deviation = part if isinstance(part, float) else None
                    yield Note("warning", RECORD, text, topic, name, is_open, deviation=deviation)
                yield from doubts


def doubt_entries(doubts: Iterable[Note], summary: CheckpointSummary) -> list[dict[str, Any]]:
    """Return the entries of eaglectl.json for doubts.

    If the files show a doubt, its text is left out, as `recorded_doubts` takes it from them.
    """
    entries = []
    for note in doubts:
        values = {"text": note.text, "open": note.is_open or None, "deviation": note.deviation}
        is_shown = any(_shown(note.producer, note.topic, summary, Answers()))
        parts = {} if is_shown else {key: value for key, value in values.items() if value is not None}
        entries.append({"producer": note.producer, "topic": note.topic, **parts})
    return entries


def _shown(name: str, topic: str, summary: CheckpointSummary, answers: Answers) -> list[Note]:
    return [
        note
        for note in producer_doubts(by_name(name), summary, answers)
        if note.topic == topic and note.level in ("warning", "question")
    ]
