"""Compare two drafters, A and B: their facts, their tensors by canonical name, and their spelling.

A fact that one file leaves open is never equal to a stated one. Draft vocabularies are compared as target
tokens, from offsets or absolute ids, in any order. Tensor data is read block by block.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite, prod, sqrt
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from eaglectl.base import Count, Result
from eaglectl.conversion.rewriting import encoded, in_ascending_order, join_absorbed
from eaglectl.drafter.drafter import (
    TRAINING_DEFAULT,
    AuxLayers,
    Drafter,
    Feature,
    Rope,
    Target,
    with_one_factor,
)
from eaglectl.drafter.tensors import (
    Absorbed,
    Computed,
    Dimensions,
    Segment,
    Tensor,
    as_int64,
    numbers,
    read_vocabulary,
)
from eaglectl.errors import RefusedError, UsageError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.header import DTYPE_BITS
from eaglectl.files.hub import HubSource
from eaglectl.files.layout import VOCABULARY_PICKLES
from eaglectl.files.source import FolderSource
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.config_keys import Keys, mask_token
from eaglectl.formats.format import Answers
from eaglectl.formats.writer import named_for_engines
from eaglectl.judge.samples import FLOAT_FORMATS
from eaglectl.judge.scanning import Floats, as_floats
from eaglectl.progress import ByteCounter, OnProgress
from eaglectl.text import listed
from eaglectl.verdicts import DiffVerdict, FactState, TensorState

# defaults of a scaling (transformers 5.19 modeling_rope_utils.py, vLLM 0.32.0 yarn_scaling_rope.py)
YARN: Mapping[str, float] = {"beta_fast": 32, "beta_slow": 1}
SLIDING = ("sliding_window", "layer_types")
# facts that are left out if neither drafter has them, and facts of MLA only
OPTIONAL_DIMS = Dimensions.__struct_fields__
OF_MLA = ("rope_interleave", "rope_factors")
DEPTH = "the default depends on the target's depth; pass --target"
WRITTEN_ALIKE = "neither file states what {}, and both are written alike"
DRAFT_TOKENS = "draft_tokens"
CONVENTIONS = {"boundary": "boundaries", "output": "outputs of layers", None: "of unknown meaning"}
MAPS = ("d2t", "t2d")  # compared as lists of tokens
SAME = (TensorState.EQUAL, TensorState.ZEROS, TensorState.NOT_COMPARED)
HEAD = "lm_head.weight"
# bytes, and numbers, of a block; as float64 a number takes eight bytes
BLOCK, NUMBER_BLOCK = 4 << 20, 128 << 10
# a tensor's data in blocks of so many bytes
Blocks = Callable[[int], Iterator[bytes]]


class Side(Struct, frozen=True):
    """A or B: the source as given, its headers, its drafter, and its config without nesting.

    `target` is the target that it was read with, `answers` those to its open questions.
    """

    source: str
    checkpoint: Checkpoint
    drafter: Drafter
    flat: Mapping[str, Any]
    target: Target
    answers: Answers


class Fact(Struct, frozen=True):
    """A property of the drafters, in A and in B; `why` explains a state that the values do not show."""

    name: str
    a: Annotated[Any, Meta(description="The value in A, of any type; null if there is none")]
    b: Annotated[Any, Meta(description="The value in B")]
    state: FactState
    why: str = ""


class TensorSide(Struct, frozen=True):
    """A canonical tensor of A or B; `origin` are the names of the stored tensors that it is made of."""

    dtype: str
    shape: tuple[Count, ...]
    origin: Annotated[tuple[str, ...], Meta(description="Names in the file that the tensor is made of")] = (
        field(name="from")
    )


class Numbers(Struct, frozen=True):
    """The differences of two tensors of equal shape.

    `max_abs` and `relative_rms` (the RMS of A - B over the RMS of A) are over finite numbers; None for
    integers, and if they cannot be computed. `not_finite` counts places where A or B is NaN or infinite.
    """

    count: Count
    differing: Count
    max_abs: Annotated[
        float | None,
        Meta(
            description="The largest |A - B| of finite numbers; null for whole numbers",
            extra_json_schema={"minimum": 0},
        ),
    ] = None
    relative_rms: Annotated[
        float | None,
        Meta(
            description="RMS of A - B over RMS of A, of finite numbers; null for whole numbers and if A is"
            " all zeros",
            extra_json_schema={"minimum": 0},
        ),
    ] = None
    not_finite: Annotated[Count, Meta(description="Places where A or B is NaN or infinite")] = 0


class TensorPair(Struct, frozen=True):
    """A canonical tensor in A and in B. ZEROS: a bias on one side only that adds nothing."""

    name: Annotated[
        str, Meta(description="The canonical name; for a tensor that no drafter has, its stored name")
    ]
    state: Annotated[
        TensorState,
        Meta(description="zeros: a bias on one side only that adds nothing, which is no difference"),
    ]
    a: TensorSide | None
    b: TensorSide | None
    numbers: Numbers | None = None
    remark: str = ""

    @property
    def differs(self) -> bool:
        """Whether this tensor makes A and B different drafters."""
        return self.state not in SAME


class Written(Struct, frozen=True):
    """A difference in writing: a config key, the names of a tensor, or another difference in words.

    A config key is None if it is absent or null, which mean the same.
    """

    name: str
    a: Annotated[Any, Meta(description="null if a config key is absent or null")]
    b: Any


class Spelling(Struct, frozen=True):
    """Differences in how A and B are written, which do not make them different drafters."""

    remarks: tuple[Written, ...]
    names: tuple[Written, ...]
    keys: tuple[Written, ...] = field(name="config")

    @property
    def differs(self) -> bool:
        """Whether anything is written differently."""
        return bool(self.remarks or self.names or self.keys)


class Comparison(Result, frozen=True):
    """The result of `diff`. `has_values`: whether tensor data was compared.

    `served` are the verdicts of the newest release of each engine on A and on B, as stored. `errors` are the
    tensor faults of A and of B that make every draft be rejected.
    """

    a: Side
    b: Side
    facts: tuple[Fact, ...]
    tensors: tuple[TensorPair, ...]
    spelling: Spelling
    has_values: bool
    notes: tuple[str, ...] = ()
    served: tuple[Fact, ...] = ()
    errors: tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]] = ((), ())

    @property
    def verdict(self) -> DiffVerdict:
        """The outcome; SAME_HEADERS: nothing differs, and no tensor data was compared."""
        a, b = ({rule for rule, _ in faults} for faults in self.errors)
        is_same = self.meaning in (DiffVerdict.EQUAL, DiffVerdict.SAME_HEADERS)
        return DiffVerdict.DIFFERS if is_same and a != b else self.meaning

    @property
    def meaning(self) -> DiffVerdict:
        """The outcome by facts and tensors, whether or not an engine reads them."""
        states = {fact.state for fact in self.facts}
        if FactState.DIFFERS in states or any(pair.differs for pair in self.tensors):
            return DiffVerdict.DIFFERS
        if FactState.UNKNOWN in states:
            return DiffVerdict.COULD_NOT_LOOK
        return DiffVerdict.EQUAL if self.has_values else DiffVerdict.SAME_HEADERS


def compare_facts(a: Side, b: Side) -> Iterator[Fact]:
    """Yield every fact but the draft vocabulary, which is tensor data."""
    values_b, is_mla = _fact_values(b.drafter), "MLA" in (a.drafter.dims.attention, b.drafter.dims.attention)
    judged = {"norm_output": _norm_output(a, b), "boundaries": _boundaries(a, b)}
    if judged["norm_output"]:
        judged["eagle"] = judged["norm_output"][0], "norm_output decides it"
    for name, value in _fact_values(a.drafter).items():
        other = values_b[name]
        is_of_both = name not in OPTIONAL_DIMS or (value, other) != (None, None)
        if is_of_both and (is_mla or name not in OF_MLA):
            state = FactState.EQUAL if value == other else FactState.DIFFERS
            outcome = judged.get(name) or _open_fact(name, a, b, is_same=value == other)
            yield Fact(name, value, other, *(outcome or (state, "")))
    # questions on what is in no fact, such as unread keys; those on aux layers are in `boundaries`
    open_a, open_b = _open_subjects(a), _open_subjects(b)
    for name in sorted({*open_a, *open_b} - {*values_b, "aux layers"}):
        value, other = ("open" if name in texts else "no question" for texts in (open_a, open_b))
        outcome = _open_fact(name, a, b, is_same=open_a.get(name) == open_b.get(name))
        yield Fact(name, value, other, *(outcome or (FactState.UNKNOWN, "")))


def _open_subjects(side: Side) -> Mapping[str, tuple[str, ...]]:
    # the texts of a side's open questions, by their subjects
    subjects: dict[str, tuple[str, ...]] = {}
    for note in side.drafter.notes_at("question"):
        subjects[note.about] = (*subjects.get(note.about, ()), note.text)
    return subjects


def _open_fact(name: str, a: Side, b: Side, *, is_same: bool) -> tuple[FactState, str] | None:
    """Return the state of a fact that a side leaves open; None if no side does."""
    if not (why := "; ".join(questions(a, b, (name,)))):
        return None
    if is_same and a.drafter.producer == b.drafter.producer:
        return FactState.EQUAL, WRITTEN_ALIKE.format("it means")
    return FactState.UNKNOWN, why


def _fact_values(drafter: Drafter) -> dict[str, Any]:
    # what changes the drafter's function, by the fact's name
    dims, norms, rope, features = drafter.dims, drafter.norms, drafter.rope, drafter.features()
    # the config keys that no other part of the drafter was read from, without nulls
    carried = {key: value for key, value in drafter.carried.items() if value is not None}
    is_sliding = Feature.SLIDING_WINDOW in features
    return {
        "kind": drafter.kind,
        "eagle": drafter.version,
        "boundaries": _shown_layers(drafter.aux),
        "fc_norm": norms.fc_norm,
        "norm_output": norms.norm_output,
        "norm_before_fc": norms.norm_before_fc,
        "norm_before_residual": norms.norm_before_residual,
        "attention": dims.attention,
        **{name: getattr(dims, name) or None for name in OPTIONAL_DIMS},
        "rope_theta": rope.theta,
        "rope_scaling": _scaling(rope, is_mla=dims.attention == "MLA"),
        "rope_interleave": rope.is_interleaved,
        "rope_factors": list(rope.mla_factors),
        "partial_rotary_factor": (rope.scaling or {}).get("partial_rotary_factor")
        or carried.get("partial_rotary_factor", 1.0),
        **drafter.settings,
        "sliding_window": {key: carried.get(key) for key in SLIDING} if is_sliding else None,
        "mask_token_id": mask_token(carried) if Feature.PARALLEL in features else None,
        "logit_scale": carried.get("logit_scale", 1.0),
        "quantisation": drafter.quantisation and named_for_engines(drafter),
    }


def _scaling(rope: Rope, *, is_mla: bool) -> Mapping[str, Any] | None:
    # a scaling in one form, so that spellings that mean the same compare as equal
    settings = {
        key: value
        for key, value in (rope.scaling or {}).items()
        if value is not None and key != "partial_rotary_factor"
    }
    if settings.get("rope_type", "default") == "default" and len(settings) <= 1:
        return None
    if settings.get("rope_type") != "yarn":
        return settings
    return {**YARN, **(settings if is_mla else with_one_factor(settings))}


def _norm_output(a: Side, b: Side) -> tuple[FactState, str] | None:
    # how an open norm_output compares: equal if the same producer wrote the same switch; None if it is open
    # in neither file
    values = a.drafter.norms.norm_output, b.drafter.norms.norm_output
    if None not in values:
        return None
    switches = [Keys(side.flat).value("norm_output") for side in (a, b)]
    is_alike = values[0] is values[1] and switches[0] == switches[1]
    if is_alike and a.drafter.producer == b.drafter.producer:
        return FactState.EQUAL, WRITTEN_ALIKE.format("was trained")
    return FactState.UNKNOWN, "; ".join(questions(a, b, ("norm_output",)))


def questions(a: Side, b: Side, subjects: Collection[str]) -> Iterator[str]:
    """Yield the open questions on `subjects`, each once, with the sides that have it."""
    sides: dict[str, list[str]] = {}
    for name, side in (("A", a), ("B", b)):
        for note in side.drafter.notes_at("question"):
            if note.about in subjects:
                sides.setdefault(note.text, []).append(name)
    return (f"{' and '.join(names)}: {text}" for text, names in sides.items())


def _boundaries(a: Side, b: Side) -> tuple[FactState, str] | None:
    # the state of the aux layers, and why; None if both are known, so that values decide
    aux_a, aux_b = a.drafter.aux, b.drafter.aux
    if aux_a.boundaries is not None and aux_b.boundaries is not None:
        return None
    if aux_a.is_default and aux_b.is_default:
        return FactState.EQUAL, ""
    is_one_default = aux_a.is_default == aux_b.is_default and aux_a.boundaries is aux_b.boundaries
    if a.drafter.producer == b.drafter.producer and is_one_default and aux_a.ids == aux_b.ids:
        return FactState.EQUAL, WRITTEN_ALIKE.format("its ids mean")
    boundaries = aux_a.boundaries or aux_b.boundaries
    if boundaries and (aux_a.is_default or aux_b.is_default) and not TRAINING_DEFAULT.may_be(boundaries):
        return FactState.DIFFERS, "in every way of reading them"
    return FactState.UNKNOWN, "; ".join(
        [*questions(a, b, ("aux layers",)), *[DEPTH] * (aux_a.is_default or aux_b.is_default)]
    )


def _shown_layers(aux: AuxLayers) -> Any:
    if aux.boundaries is not None:
        return list(aux.boundaries)
    if aux.is_default:
        return TRAINING_DEFAULT.terms
    return f"ids {', '.join(map(str, aux.ids))}, of unknown meaning" if aux.ids else "not stated"


class VocabularyReading(Struct, frozen=True):
    """The possible meanings of d2t and t2d of one side, as lists of target tokens.

    There is one list if the meaning is known, and none if the maps are broken; `how` explains that, and
    `form` is `how` without its confirmation. `is_absent`: the files have no map. `raw` are the stored
    integers as bytes.
    """

    lists: tuple[tuple[int, ...], ...]
    how: str
    raw: tuple[bytes | None, ...]
    form: str = ""
    is_absent: bool = False

    @property
    def tokens(self) -> tuple[int, ...] | None:
        """The target token of each draft token; None if unknown."""
        return self.lists[0] if len(self.lists) == 1 else None


def read_tokens(side: Side, answer: str | None) -> VocabularyReading:
    """Read the draft vocabulary; `answer` ("offset", "absolute") decides a d2t that fits as both.

    Raises UnreadableError.
    """
    drafter, source = side.drafter, side.checkpoint.source
    maps = [drafter.tensors.get(name) for name in MAPS]
    if not any(maps) and not drafter.has_reduced_vocabulary:
        return VocabularyReading(
            (tuple(range(drafter.dims.vocab)),), "no map: all tokens, in order", (None, None)
        )
    raw = tuple(None if tensor is None else side.checkpoint.read(tensor.stored[0]) for tensor in maps)
    if maps[0] is None and (maps[1] is None or by_name(drafter.producer).has_unordered_rows):
        # pickles beside the weights are compared as bytes
        beside = [name for name in VOCABULARY_PICKLES if name in source.names()]
        where = f"; it is in {beside[0]}, a pickle, which only `convert` opens" if beside else ""
        return VocabularyReading(
            (), f"d2t is missing{where}", (*raw, *map(source.read, beside)), is_absent=True
        )
    try:
        return _from_maps(drafter, maps, raw, answer)
    except RefusedError as error:
        return VocabularyReading((), str(error), raw)


def _from_maps(
    drafter: Drafter, maps: Sequence[Tensor | None], raw: Sequence[bytes | None], answer: str | None
) -> VocabularyReading:
    # the draft vocabulary by d2t and t2d; both readings if d2t fits as offsets and as ids
    d2t, t2d = (
        None if tensor is None else numbers(tensor.name, tensor.dtype, data or b"")
        for tensor, data in zip(maps, raw, strict=True)
    )
    stored = tuple(None if value is None else as_int64(value) for value in (d2t, t2d))
    read_as = partial(read_vocabulary, d2t, t2d, drafter.dims.draft_vocab, drafter.dims.vocab)
    try:
        only = read_as(None)
    except UsageError as error:  # d2t fits as both
        if answer is None:
            both = tuple(read_as(meaning).targets for meaning in ("offset", "absolute"))
            return VocabularyReading(both, str(error), stored)
        only = read_as(answer)
    return VocabularyReading((only.targets,), only.how, stored, only.form)


def compare_tokens(a: VocabularyReading, b: VocabularyReading, sizes: tuple[int, int]) -> Fact:
    """Compare the tokens that both can draft; `sizes` are the numbers of draft tokens."""
    if a.tokens is None or b.tokens is None:
        why = "; ".join(
            f"{name}: {reading.how}" for name, reading in (("A", a), ("B", b)) if reading.tokens is None
        )
        size_a, size_b = (
            f"{size} tokens{', unknown which' * (reading.tokens is None)}"
            for size, reading in zip(sizes, (a, b), strict=True)
        )
        return Fact(DRAFT_TOKENS, size_a, size_b, _unknown_state(a, b), why)
    size_a, size_b = f"{len(a.tokens)} tokens", f"{len(b.tokens)} tokens"
    only_a, only_b = set(a.tokens) - set(b.tokens), set(b.tokens) - set(a.tokens)
    if not only_a and not only_b:
        return Fact(DRAFT_TOKENS, size_a, size_b, FactState.EQUAL)
    shown_a, shown_b = f"{size_a}, {len(only_a)} only here", f"{size_b}, {len(only_b)} only here"
    return Fact(DRAFT_TOKENS, shown_a, shown_b, FactState.DIFFERS)


def _unknown_state(a: VocabularyReading, b: VocabularyReading) -> FactState:
    if a.is_absent == b.is_absent and a.raw == b.raw:
        return FactState.EQUAL
    if a.is_absent or b.is_absent:
        t2d = a.raw[1], b.raw[1]
        return FactState.DIFFERS if None not in t2d and t2d[0] != t2d[1] else FactState.UNKNOWN
    return FactState.UNKNOWN if set(a.lists) & set(b.lists) else FactState.DIFFERS


def head_rows(a: VocabularyReading, b: VocabularyReading) -> list[int] | None:
    """Return the row of B's lm_head for each of A's, if both have the same tokens in two orders."""
    if a.tokens is None or b.tokens is None or a.tokens == b.tokens or set(a.tokens) != set(b.tokens):
        return None
    rows = {token: row for row, token in enumerate(b.tokens)}
    return [rows[token] for token in a.tokens]


def token_remarks(a: VocabularyReading, b: VocabularyReading) -> Iterator[Written]:
    """Yield the differences in writing the same tokens."""
    if a.tokens is not None and b.tokens is not None and set(a.tokens) == set(b.tokens):
        words = [reading.form or reading.how for reading in (a, b)]
        if a.tokens != b.tokens:
            words[1] += ", in another order, in which lm_head's rows are compared"
        if words[0] != words[1]:
            yield Written("draft tokens", *words)


def tensors_of(side: Side) -> dict[str, Tensor]:
    """Return canonical tensors, and unknown tensors under their own names."""
    tensors = {name: tensor for name, tensor in side.drafter.tensors.items() if name not in MAPS}
    for name in side.drafter.unknown:
        stored = side.checkpoint.tensors[name]
        tensors.setdefault(name, Tensor(name, stored.dtype, stored.shape, (Segment(name, 0, stored.nbytes),)))
    return tensors


def compare_spelling(a: Side, b: Side) -> Spelling:
    """Return every difference in how the files are written, without the draft vocabulary's."""
    words_a, words_b = _written_words(a), _written_words(b)
    remarks = [
        Written(about, text, words_b[about]) for about, text in words_a.items() if text != words_b[about]
    ]
    tensors_b = tensors_of(b)
    names = [
        Written(name, tensor.stored, tensors_b[name].stored)
        for name, tensor in tensors_of(a).items()
        if name in tensors_b and tensor.stored != tensors_b[name].stored
    ]
    keys_a, keys_b = dict(_flat_keys(a.flat)), dict(_flat_keys(b.flat))
    keys = [
        Written(key, keys_a.get(key), keys_b.get(key))
        for key in dict.fromkeys((*keys_a, *keys_b))
        if keys_a.get(key) != keys_b.get(key)
    ]
    return Spelling(tuple(remarks), tuple(names), tuple(keys))


def _written_words(side: Side) -> dict[str, str]:
    drafter, aux = side.drafter, side.drafter.aux
    ids = f"{', '.join(map(str, aux.ids))} ({CONVENTIONS[aux.convention]})" if aux.ids else "none"
    return {
        "producer": by_name(drafter.producer).title,
        "layer ids": ids,
        "files": listed(side.checkpoint.weight_files),
        "target": drafter.target.name or "not named",
        "strays": listed(drafter.strays) or "none",
    }


def _flat_keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield keys as "object.key" with values; null is left out, as it means the same as an absent key."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat_keys(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def in_one_order(a: Side, b: Side) -> tuple[Side, Side, tuple[str, ...]]:
    """Return both sides with fc's blocks by ascending boundary, if their orders differ; and notes."""
    if a.drafter.aux.order == b.drafter.aux.order:
        return a, b, ()
    try:
        ordered = [replace(side, drafter=in_ascending_order(side.drafter).drafter) for side in (a, b)]
    except RefusedError as error:
        return a, b, (f"fc is compared as stored, with its blocks in different orders: {error}",)
    return ordered[0], ordered[1], ()


def pair_headers(a: Side, b: Side) -> Iterator[TensorPair]:
    """Yield every pair by its headers, "not-compared" if they do not differ."""
    tensors_a, tensors_b = tensors_of(a), tensors_of(b)
    for name in dict.fromkeys((*tensors_a, *tensors_b)):
        side_a, side_b = (
            None if tensor is None else TensorSide(tensor.dtype, tensor.shape, tensor.stored)
            for tensor in (tensors_a.get(name), tensors_b.get(name))
        )
        state = TensorState.NOT_COMPARED
        if side_a is None or side_b is None:
            state = TensorState.ONLY_A if side_b is None else TensorState.ONLY_B
        elif side_a.shape != side_b.shape or side_a.dtype != side_b.dtype:
            state = TensorState.SHAPE if side_a.shape != side_b.shape else TensorState.DTYPE
        yield TensorPair(name, state, side_a, side_b)


def compare_data(
    a: Side, b: Side, rows: Sequence[int] | None, on_progress: OnProgress | None = None
) -> Iterator[TensorPair]:
    """Yield every pair with its data compared; `on_progress` gets bytes of A. Raises UnreadableError.

    `rows` are those of B's lm_head in the order of A's tokens (`head_rows`).
    """
    tensors_a, tensors_b = tensors_of(a), tensors_of(b)
    if rows is not None and HEAD in tensors_b and tensors_b[HEAD].shape[:1] == (len(rows),):
        tensors_b[HEAD] = tensors_b[HEAD].with_rows(rows)
    pairs = list(pair_headers(a, b))
    if have_same_files(a, b) and tensors_a == tensors_b:
        yield from (replace(pair, state=TensorState.EQUAL) for pair in pairs)
        return
    compared = (tensors_a.get(pair.name) or tensors_b[pair.name] for pair in pairs)
    sizes = [prod(tensor.shape) * DTYPE_BITS[tensor.dtype] // 8 for tensor in compared]
    counter = ByteCounter(on_progress, "comparing", sum(sizes))
    with _on_disk(a.checkpoint) as read_a, _on_disk(b.checkpoint) as read_b:
        for pair, nbytes in zip(pairs, sizes, strict=True):
            blocks_a = partial(_blocks, tensors_a[pair.name], read_a) if pair.a else None
            blocks_b = partial(_blocks, tensors_b[pair.name], read_b) if pair.b else None
            yield _with_data(pair, blocks_a, blocks_b)
            counter.add(nbytes)


def have_same_files(a: Side, b: Side) -> bool:
    """Whether the Hub lists the same digests for all weight files of two repositories."""
    digests = [
        [side.checkpoint.source.listed.of(name) for name in side.checkpoint.weight_files]
        for side in (a, b)
        if isinstance(side.checkpoint.source, HubSource)
    ]
    return len(digests) == 2 and digests[0] == digests[1] and None not in digests[0]


@contextmanager
def _on_disk(checkpoint: Checkpoint) -> Iterator[Checkpoint]:
    """Yield the checkpoint with its files on this machine, opened once; those of the Hub are downloaded.

    Raises UnreadableError, also for files in the Hub client's cache that differ from the download.
    """
    source = checkpoint.source
    if isinstance(source, HubSource):
        source = source.downloaded()
    assert isinstance(source, FolderSource)
    source.check_cached(checkpoint.weight_files)
    with replace(checkpoint, source=source).opened() as opened:
        yield opened


def _blocks(tensor: Tensor, checkpoint: Checkpoint, size: int) -> Iterator[bytes]:
    # a tensor's bytes in blocks of `size`, whatever parts they come in
    held = bytearray()
    for part in _tensor_bytes(tensor, checkpoint, size):
        held += part
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)


def _tensor_bytes(tensor: Tensor, checkpoint: Checkpoint, size: int) -> Iterator[bytes]:
    # a tensor's bytes in order, without reading more than a part of it at a time
    match tensor.origin:
        case Absorbed(w_kc, w_vc):
            yield from join_absorbed(checkpoint, w_kc, w_vc)
        case Computed():
            yield from encoded(tensor, checkpoint)
        case segments:
            for segment in segments:
                for start in range(segment.start, segment.stop, size):
                    yield checkpoint.read(segment.stored, start, min(start + size, segment.stop))


def _with_data(pair: TensorPair, a: Blocks | None, b: Blocks | None) -> TensorPair:
    """Compare the data of a pair.

    A bias of zeros adds nothing: vLLM requires one beside q, k and v biases, and convert writes it.
    """
    if a is None or b is None:
        side, content = pair.a or pair.b, a or b
        if not (side and content and pair.name.endswith(".bias") and side.dtype in FLOAT_FORMATS):
            return pair
        if any(_as_float64(side.dtype, block).any() for block in content(BLOCK)):
            return pair
        return replace(pair, state=TensorState.ZEROS, remark="zeros, which add nothing")
    if pair.state == TensorState.SHAPE:
        return pair
    if pair.state == TensorState.NOT_COMPARED:
        if all(block_a == block_b for block_a, block_b in zip(a(BLOCK), b(BLOCK), strict=True)):
            return replace(pair, state=TensorState.EQUAL)
        pair = replace(pair, state=TensorState.BYTES)
    return replace(pair, numbers=_distance(pair, a, b))


def _distance(pair: TensorPair, a: Blocks, b: Blocks) -> Numbers | None:
    """Return the differences of two tensors of equal shape; None for incomparable dtypes (packed ones)."""
    assert pair.a is not None and pair.b is not None
    dtypes, count = (pair.a.dtype, pair.b.dtype), prod(pair.a.shape)
    widths = [DTYPE_BITS[dtype] // 8 for dtype in dtypes]
    is_float, is_one_dtype = set(dtypes) <= set(FLOAT_FORMATS), dtypes[0] == dtypes[1]
    if not widths[0] or not (is_float or is_one_dtype):
        return None
    differing = not_finite = 0
    max_abs = squared_difference = squared_a = 0.0
    for raw_a, raw_b in zip(a(NUMBER_BLOCK * widths[0]), b(NUMBER_BLOCK * widths[1]), strict=True):
        if is_one_dtype:  # compare words: -0 differs from 0, and a NaN equals itself
            word = f"<u{widths[0]}"
            differing += int(np.count_nonzero(np.frombuffer(raw_a, word) != np.frombuffer(raw_b, word)))
        if not is_float:
            continue
        with np.errstate(all="ignore"):
            numbers_a, numbers_b = _as_float64(dtypes[0], raw_a), _as_float64(dtypes[1], raw_b)
            if not is_one_dtype:
                is_same = (numbers_a == numbers_b) | (np.isnan(numbers_a) & np.isnan(numbers_b))
                differing += int(np.count_nonzero(~is_same))
            is_finite = np.isfinite(numbers_a) & np.isfinite(numbers_b)
            not_finite += int(np.count_nonzero(~is_finite))
            finite_a, difference = numbers_a[is_finite], (numbers_a - numbers_b)[is_finite]
            squared_a += float(finite_a @ finite_a)
            squared_difference += float(difference @ difference)
            max_abs = max(max_abs, float(np.abs(difference).max(initial=0.0)))
    if not is_float:
        return Numbers(count, differing)
    is_known = squared_a and isfinite(squared_a + squared_difference)
    relative_rms = sqrt(squared_difference / squared_a) if is_known else None
    return Numbers(count, differing, max_abs if isfinite(max_abs) else None, relative_rms, not_finite)


def _as_float64(dtype: str, raw: bytes) -> Floats:
    """Return data as float64, with NaN for 8-bit words that are not finite."""
    with np.errstate(invalid="ignore"):
        values = as_floats(dtype, raw)
    form = FLOAT_FORMATS[dtype]
    if form.width == 1:
        words = np.frombuffer(raw, np.uint8)
        values[((words & form.magnitude) >= form.limit) | (words == form.nan)] = np.nan
    return values
