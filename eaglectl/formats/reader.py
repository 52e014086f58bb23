"""Read a checkpoint as the canonical drafter, and a target's config as what is known of it.

What a file leaves open is settled by the user, eaglectl.json, a publication, or an assumption. Doubts about a
producer's files stay with a drafter through conversions, in eaglectl.json.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
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
    Target,
    options,
    question,
    to_boundaries,
)
from eaglectl.drafter.tensors import Dimensions, Tensor
from eaglectl.errors import EaglectlError, RefusedError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint, history
from eaglectl.files.files import sha256
from eaglectl.files.layout import CONFIG, QUANTISATION, RECORD, VOCABULARY_PICKLES
from eaglectl.files.source import split_name
from eaglectl.files.text_part import text_part
from eaglectl.formats.catalogue import by_name, detect, known_answers, known_formats, tensor_names
from eaglectl.formats.config_keys import (
    LAYERS,
    OBJECTS,
    TARGET_DEPTH,
    Keys,
    are_ids,
    at,
    mask_token,
    number_notes,
    unread_questions,
)
from eaglectl.formats.format import (
    SCALINGS,
    Answers,
    CheckpointSummary,
    Format,
    ModelClass,
    Origin,
    RopeAnswer,
)
from eaglectl.formats.names import (
    MLA_SIZE_KEYS,
    SIZE_KEYS,
    Names,
    note_names,
    read_dimensions,
    read_head,
    read_names,
    read_tensors,
)
from eaglectl.formats.network import (
    TENSOR_FLAGS,
    ids_places,
    norms_by_record,
    partial_rotary,
    read_aux_layers,
    read_norms,
    read_quantisation,
    read_rope,
    read_settings,
    rope_keys,
    target_rope,
)
from eaglectl.formats.other_drafters import refuse_other_families
from eaglectl.formats.published import PublishedDrafter, published_drafter

# --source-semantics that any drafter may need, with their values; producers declare their own
# (Format.answers)
SEMANTICS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(TENSOR_FLAGS, ("false",)),
    "norm_output": ("true", "false"),
    "norm_before_residual": ("true", "false"),
    "hidden_norm": ("once", "twice"),
    "rope": ("10000", "stored", "target", *SCALINGS, "10000,plain", "target,plain"),  # or another base
    "rope_interleave": ("true", "false"),
    "d2t": ("offset", "absolute"),
    "mask_token_id": (),  # a number
    "rms_norm_eps": ("1e-06", "1e-05"),
    "harmless": (),  # config keys
}

# of a drafter; those with quantised layers have some hundred
MAX_TENSORS = 4_096
# a longer number is no answer
MAX_DIGITS = 19
FREE = {"mask_token_id": "N", "harmless": "KEY,KEY"}

# keys that are read of every drafter, and those about how the file was written, or what the tensors decide
READ = (
    *SIZE_KEYS,
    *("fc_norm", "norm_before_fc", "norm_output", "norm_before_residual"),
    *("rms_norm_eps", "max_position_embeddings", "hidden_act", "attention_bias", "mlp_bias"),
    "tie_word_embeddings",
    "architectures",
    "model_type",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "_name_or_path",
    "num_nextn_predict_layers",
    "attn_implementation",
    "_attn_implementation",
)


class _Stored(Struct, frozen=True):
    """What the files say, whatever is answered; the notes on it are those of `keys`."""

    checkpoint: Checkpoint
    summary: CheckpointSummary
    format: Format
    evidence: str
    keys: Keys
    names: Names
    dims: Dimensions
    target: Target
    quantisation: Mapping[str, Any] | None
    tensors: Mapping[str, Tensor]


def read_drafter(checkpoint: Checkpoint, answers: Answers, target: Target) -> Drafter:
    """Read the canonical drafter of `checkpoint`, with the answers to what its files leave open.

    Raises RefusedError if it is no drafter, or contradicts itself.
    """
    check_answers(answers)
    refuse_other_families(checkpoint.source.place, checkpoint.config, checkpoint.tensors)
    check(
        (
            (count := len(checkpoint.tensors)) > MAX_TENSORS,
            f"{checkpoint.source.place} has {count} tensors; no drafter has more than {MAX_TENSORS}",
            "not-a-drafter",
        ),
        error=RefusedError,
    )
    summary = CheckpointSummary(
        checkpoint.config,
        tuple(checkpoint.tensors),
        checkpoint.metadata,
        checkpoint.sidecars.get(QUANTISATION, {}),
    )
    format, evidence = detect(summary)
    _check_objects(checkpoint.config)
    keys = Keys(format.flat(checkpoint.config), checkpoint.config)
    _check_objects(keys.config)
    names = read_names(checkpoint.tensors, tensor_names(), format.layout.prefix if format.layout else "")
    dims = read_dimensions(keys, names, target)
    target = _read_target(keys, format, target, dims.aux)
    weights = read_quantisation(keys, checkpoint)
    stored = _Stored(
        checkpoint,
        summary,
        format,
        evidence,
        keys,
        names,
        dims,
        target,
        weights,
        read_tensors(keys, names, dims, is_quantised=weights is not None),
    )
    return settled_drafter(partial(_read, stored), answers, checkpoint)


def _read(stored: _Stored, answers: Answers) -> Drafter:
    format, summary, names, dims = stored.format, stored.summary, stored.names, stored.dims
    keys, tensors, target = replace(stored.keys, notes=list(stored.keys.notes)), stored.tensors, stored.target
    record, sidecar = stored.checkpoint.record, stored.checkpoint.sidecars.get(RECORD, {})
    answers = replace(answers, semantics={**format.settles(summary), **answers.semantics})
    norms = read_norms(keys, format, summary, answers, tensors, dims)
    taken = _taken(stored)
    unread = keys.unread(taken, format)
    ids = {place: value for place, value in unread.items() if are_ids(place, value)}
    aux = read_aux_layers(keys, format, dims.aux, target, answers, ids)
    rope = read_rope(
        keys, answers, target, is_mla=dims.attention == "MLA", has_mla_factors=format.has_mla_factors
    )
    settings = read_settings(keys, format, answers, tensors, rope)
    # other producers' doubts show in a config whose producer's nesting is undone
    recorded = recorded_doubts(sidecar, replace(summary, config=keys.config), answers)
    keys.notes.extend([*number_notes(keys.config), *producer_doubts(format, summary, answers), *recorded])
    keys.notes.extend(partial_rotary(keys.config, answers))
    norms = norms_by_record(keys, norms, format.name, record.get("hidden_twice"))
    _note_target(keys, dims, target)
    tensors = read_head(keys, tensors, dims, names.unknown)
    has_token_list = bool(set(VOCABULARY_PICKLES) & set(stored.checkpoint.source.names()))
    note_names(keys, names, tensors, dims, has_token_list=has_token_list)
    mask = _read_mask_token(keys, tensors, answers)
    # the answers stand in the place of what is answered: the next reader would have to ask again
    answered = {*answers.semantics.get("harmless", "").split(","), *(ids if answers.aux_layers else ())}
    left = {place: value for place, value in unread.items() if place not in answered}
    keys.notes.extend(unread_questions(left, format))
    rotations = (entry.get("target_rotation") for entry in history(record))
    dtypes = {tensor.dtype for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    return Drafter(
        producer=format.name,
        evidence=stored.evidence,
        kind="peagle" if format.is_parallel or "mask_hidden" in tensors else "eagle3",
        dims=dims,
        norms=norms,
        aux=aux,
        rope=rope,
        target=target,
        tensors=tensors,
        settings=settings,
        carried={**keys.rest((*taken, *answered.intersection(unread))), **mask},
        strays=names.strays,
        unknown=names.unknown,
        quantisation=stored.quantisation,
        notes=tuple(dict.fromkeys(keys.notes)),
        dtypes=tuple(sorted(dtypes)),
        rotation=next((rotation for rotation in rotations if isinstance(rotation, Mapping)), None),
    )


def _taken(stored: _Stored) -> tuple[str, ...]:
    format, quantisation = stored.format, stored.quantisation
    return (
        *READ,
        *(MLA_SIZE_KEYS if stored.dims.attention == "MLA" else ()),
        *ids_places(format),
        *rope_keys(stored.keys),
        *format.retires,
        *(() if quantisation else ("quantization_config",)),
    )


def _check_objects(config: Mapping[str, Any]) -> None:
    for key in OBJECTS:
        check(
            (
                not isinstance(value := config.get(key), Mapping | None),
                f"config.json: {key} is {value!r}; an object was expected",
                "value-types",
                f"config.json:{key}",
            ),
            error=RefusedError,
        )


def read_target(config: Mapping[str, Any], name: str | None) -> Target:
    """Read a target from its config.json (from the text model's part of a multimodal one)."""
    inner = text_part(config)

    def number(*keys: str) -> int | None:
        value = next(
            (place[key] for key in keys for place in (inner, config) if place.get(key) is not None), None
        )
        return value if type(value) is int and value > 0 else None

    outer, classes = config.get("model_type"), config.get("architectures")
    kind = inner.get("model_type") or outer
    quantised = _quantised_changes(config, inner)
    return Target(
        name,
        kind if isinstance(kind, str) else None,
        number("num_hidden_layers", "num_layers"),  # LongCat states num_layers
        number("hidden_size"),
        number("vocab_size"),
        rope=target_rope(inner),
        architectures=tuple(
            filter(
                lambda architecture: isinstance(architecture, str),
                classes if isinstance(classes, list) else (),
            )
        ),
        outer_type=outer if isinstance(outer, str) and outer != kind else None,
        changes=quantised,
        is_quantised=bool(quantised),
    )


def model_class_of(tensors: Mapping[str, Tensor], dims: Dimensions) -> ModelClass:
    """Return the engine class that a drafter needs: MLA, q/k norms (Qwen3), or plain Llama."""
    if dims.attention == "MLA":
        return "mla"
    return "qwen3" if any(name.endswith("q_norm.weight") for name in tensors) else "llama"


def known_semantics() -> Mapping[str, tuple[str, ...]]:
    """Return the keys of --source-semantics with their values; no values for an open set."""
    return {**SEMANTICS, **known_answers()}


def check_answers(answers: Answers) -> None:
    """Raise UsageError where an answer is to no question that is ever asked."""
    semantics = known_semantics()
    for key, value in answers.semantics.items():
        if value in semantics.get(key, ()) or _is_free_answer(key, value, answers):
            continue
        listed = "; ".join(f"{name}={'|'.join(values) or FREE[name]}" for name, values in semantics.items())
        raise UsageError(
            f"--source-semantics {key}={value} is not known; these are: {listed}",
            options=("--source-semantics",),
        )


def _is_free_answer(key: str, value: str, answers: Answers) -> bool:
    if key == "rope":
        try:
            base = RopeAnswer.of(answers).base
        except ValueError:
            return False
        return base is not None and len(base) < MAX_DIGITS
    is_number = value.isascii() and value.isdecimal() and len(value) < MAX_DIGITS
    return (key == "mask_token_id" and is_number) or (key == "harmless" and bool(value))


def _note_target(keys: Keys, dims: Dimensions, target: Target) -> None:
    keys.note(target.origin, "note", "target", target.origin)
    for change in target.changes:
        keys.note(True, "note", "target", change, "changed-target")
    keys.note(
        target.hidden not in (None, dims.target_hidden),
        "problem",
        "target",
        f"the target is {target.hidden} wide and this drafter's aux states are {dims.target_hidden}; it"
        " belongs to another target",
        "target-mismatch",
    )
    if target.vocab is not None and target.vocab != dims.vocab:
        is_problem = target.vocab < dims.vocab and not dims.draft_vocab < dims.vocab
        keys.note(
            True,
            "problem" if is_problem else "warning",
            "target",
            f"the target has {target.vocab} tokens and this drafter was made for {dims.vocab}; check that it"
            " belongs to this target",
            "target-vocabulary" if is_problem else "target-vocabulary-size",
        )


def _read_mask_token(keys: Keys, tensors: Mapping[str, Tensor], answers: Answers) -> Mapping[str, int]:
    if "mask_hidden" not in tensors or mask_token(keys.config) is not None:
        return {}
    if answer := answers.semantics.get("mask_token_id"):
        return {"mask_token_id": int(answer)}
    keys.notes.append(
        question(
            "mask_token_id",
            "a parallel drafter (mask_hidden) whose config names no mask token, without which vLLM does not"
            " start",
            "mask-token",
            [Choice("--source-semantics", "mask_token_id=N", "as it was trained", is_free=True)],
        )
    )
    return {}


def _read_depth(keys: Keys, aux: int, target_depth: int | None) -> int | None:
    """Return the target's number of layers by the config; None if it states none, or several."""
    places = [place for key in TARGET_DEPTH for place in (key, f"eagle_config.{key}")]
    # a key of that name may count the aux layers, or the drafter's own layers, at most four
    depths = {
        place: value
        for place in places
        if type(value := at(keys.config, place)) is int and value > max(aux, 4)
    }
    place, depth = next(iter(depths.items()), ("", None))
    about = place.rpartition(".")[2]
    if len(set(depths.values())) > 1:
        listed = ", ".join(f"{place}: {value}" for place, value in depths.items())
        keys.note(
            True,
            "warning",
            about,
            f"config states the target's depth as {listed}; none is believed, pass --target",
            "target-depth",
        )
        return None
    keys.note(
        depth is not None and target_depth is not None and depth != target_depth,
        "warning",
        about,
        f"config says that the target has {depth} layers ({about}), and the target has {target_depth}; check"
        " that the drafter belongs to this target",
        "target-depth",
    )
    return depth


def _read_target(keys: Keys, format: Format, target: Target, aux: int) -> Target:
    # the target, with what the drafter's config states of it where it is unknown
    verifier = at(keys.config, format.target_key)
    named = verifier if isinstance(verifier, str) else None
    is_path = named is not None and named.startswith((".", "/", "~"))
    name = target.name or (target.repo or named if is_path else named or target.repo)
    model_type, copied = keys.config.get("target_model_type"), keys.config.get("num_hidden_layers")
    stated_depth = _read_depth(keys, aux, target.depth)  # which leaves notes in any case
    depth = target.depth or stated_depth
    # a drafter has no more than four layers
    if format.copies_target and depth is None and type(copied) is int and copied > 4:
        depth = copied
    return replace(
        target,
        name=name,
        model_type=(target.model_type or (model_type if isinstance(model_type, str) else None)),
        depth=depth,
    )


def _quantised_changes(*places: Mapping[str, Any]) -> tuple[str, ...]:
    quantisation = next((value for place in places if (value := place.get("quantization_config"))), None)
    if not isinstance(quantisation, Mapping):
        return ()
    parts = (quantisation.get(key) for key in ("quant_method", "quant_algo", "format"))
    words = " ".join(part for part in parts if isinstance(part, str))
    return (
        f"the target is quantised ({words or 'of no name'}): a drafter of the unquantised model is served"
        " with it as it is, but a method that rotates the residual stream first takes nearly all acceptance"
        " (vllm-ascend 7038); measure with this target",
    )


Read = Callable[[Answers], Drafter]
RECORDED = "as eaglectl.json records: "
AUX, ROPE, NORM_OUTPUT = "aux layers", ("rope_theta", "rope_scaling"), "norm_output"
SEMANTICS_OPTION = "--source-semantics"
AUX_KEYS = {"--aux-layers", "--aux-convention"}


class _Record(Struct, frozen=True):
    """What eaglectl.json states of facts that a source may leave open; nothing where there is none.

    `is_edited`: config.json is not the file that was written with it. `claim`: why it is no evidence of these
    files; what it states beside them is then asked about where it contradicts them, and answers nothing.
    `unread` is the part of the weights that alone was compared with it.
    """

    settled: tuple[Settlement, ...] = ()
    boundaries: list[int] | None = None
    rope: dict[str, Any] | None = None
    norm_output: bool | None = None
    layout: str = ""
    layers_from: str = "written by eaglectl, which did not record from what"
    is_edited: bool = False
    claim: str = ""
    unread: str = ""


def settled_drafter(read: Read, given: Answers, checkpoint: Checkpoint) -> Drafter:
    """Return the drafter, read with the user's answers and with all else that settles open facts.

    `read` reads the checkpoint with given answers. Raises UsageError for an answer about the source of a
    conversion instead of its output.
    """
    record = _read_record(checkpoint)
    answers = _without_source_convention(read, given, record)
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
    questions = _answered_questions(read, given) | questions
    carried = _held(_carried(drafter, given, record), drafter, record)
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
        if not record.claim or entry.by == "assumed" or entry.fact != _fact(drafter, entry.about)
    ]


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
            questions = {
                choice.key: note
                for note in reversed(read(Answers()).notes_at("question"))
                for choice in note.choices
            }
    return questions


def _all_notes(
    drafter: Drafter, carried: Sequence[Settlement], new: Sequence[Settlement], record: _Record
) -> Iterator[Note]:
    yield from drafter.notes
    edited = [entry for entry in carried if entry.fact != _fact(drafter, entry.about)]
    for entry in edited:
        yield _question_of_edit(drafter, entry.about, entry.fact, f"{entry.answer} {entry.by}")
    if record.is_edited:
        yield from _edited_facts(drafter, (*carried, *new), record)
    yield from (_settled_note(entry, RECORDED) for entry in carried if entry not in edited)
    yield from (_settled_note(entry, "") for entry in new if entry.by != "given")
    if record.claim:
        yield Note(
            "note", RECORD, f"what {RECORD} states is its author's claim, and no evidence: it {record.claim}"
        )
    if record.unread:
        text = f"of the weights only {record.unread} were compared with {RECORD}, and not their bytes"
        yield Note("note", RECORD, f"{text}, as verify and validate do")


def _edited_facts(drafter: Drafter, settled: Sequence[Settlement], record: _Record) -> Iterator[Note]:
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
        **{**fields, "is_edited": is_edited, "claim": checkpoint.claim, "unread": checkpoint.unread}
    )


def _candidates(
    note: Note,
    drafter: Drafter,
    answers: Answers,
    record: _Record,
    published: PublishedDrafter | None,
) -> Iterator[tuple[Choice, Origin | None]]:
    if not record.claim and (recorded := _recorded_choice(note, drafter, record)):
        yield recorded, None
    keys = {choice.key for choice in note.choices} | (AUX_KEYS if note.about == AUX else set())
    texts = list(map(str, note.whole_choices))
    for choice, origin in published.offers if published else ():
        if choice.key in keys if origin.by == "known" else str(choice) in texts:
            yield choice, origin
    if answers.assume:
        yield from ((choice, Origin("assumed")) for choice in note.choices if choice.is_usual)


def _recorded_choice(note: Note, drafter: Drafter, record: _Record) -> Choice | None:
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
                f"{choice}: eaglectl wrote this file with {entry.answer}, as an assumption; pass"
                f" {options(entry.choices)}, or convert the source again with {choice}",
                options=(choice.option,),
            )
        elif not (keys | {entry.answer.key, entry.about}) & set(choices):
            yield entry


def _settlement(
    drafter: Drafter, choice: Choice, answers: Answers, note: Note | None, read: Read
) -> Settlement:
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


def _settled_note(entry: Settlement, prefix: str) -> Note:
    if entry.by == "assumed":
        return Note(
            "warning",
            entry.about,
            f"{prefix}{entry.question}; {entry.answer} was assumed (--assume-defaults) and nothing confirms"
            " it",
            entry.topic,
            is_open=True,
            choices=entry.choices,
            advice=f"; settle it by {options(entry.choices)}",
        )
    text = f"{prefix}{_words(entry)}"
    if entry.by == "published":
        how = f" ({entry.evidence})" if entry.evidence else ""
        text = f"{prefix}{entry.answer}, as its authors ran it{how}, though {entry.question}"
    if entry.by in ("published", "known") and not prefix:
        text += "; its name and config alone vouch for the weights, of which no digest is published"
    return Note("note", entry.about, text, is_open=entry.by == "published")


def _question_of_edit(drafter: Drafter, about: str, recorded: Any, how: str) -> Note:
    current = _fact(drafter, about)
    of_file = [Choice(SEMANTICS_OPTION, "rope=stored", "what config.json says")]
    if about not in ROPE:
        of_file = list(_restated(about, current, "what config.json says"))
    return question(
        about,
        f"config.json says {json.dumps(current)} and eaglectl.json records {json.dumps(recorded)}"
        f"{f' ({how})' if how else ''}: one was edited after the conversion",
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
    is_recorded = record.boundaries and not settled and not record.claim
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
                    yield Note("warning", RECORD, text, topic, name, is_open="open" in entry)
                yield from doubts


def doubt_entries(doubts: Iterable[Note], summary: CheckpointSummary) -> list[dict[str, Any]]:
    """Return the entries of eaglectl.json for doubts; with a text if the files do not show the doubt."""
    entries = []
    for note in doubts:
        text = (
            {}
            if any(_shown(note.producer, note.topic, summary, Answers()))
            else {"text": note.text, **({"open": True} if note.is_open else {})}
        )
        entries.append({"producer": note.producer, "topic": note.topic, **text})
    return entries


def _shown(name: str, topic: str, summary: CheckpointSummary, answers: Answers) -> list[Note]:
    return [
        note
        for note in producer_doubts(by_name(name), summary, answers)
        if note.topic == topic and note.level in ("warning", "question")
    ]
