"""Readings of a checkpoint that --fix-reading repairs, mostly by moving bytes: rows, columns, whole tensors.

A reading is an assumption that tensors are stored differently from their names and the config. Its moves
rearrange them as stated; the sensitivity probe runs the drafter with the same moves.
"""

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, permutations, product
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.plan import Pruning, TransformedDrafter
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import (
    BOTH_FIT,
    BOTH_WHOLE,
    HALF_DTYPES,
    SAMPLED_ROWS,
    Computed,
    DraftVocabulary,
    Tensor,
    from_tokens,
    identity,
    is_norm,
    is_quantised_part,
    joined,
    moved_back,
    offset_targets,
    read_vocabulary,
    recorded_meaning,
    repeated_offsets,
    row_copies,
)
from eaglectl.errors import OpenFactError, OptionNeededError, RefusedError, UnreadableError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.files import MIB, read_small_file, sha256
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.format import Answers
from eaglectl.formats.tables import (
    LATE,
    TABLE_ROWS,
    TABLE_TOKENS,
    stored_numbers,
    table_readings,
    vocabulary_marks,
)
from eaglectl.text import listed

TABLES = ("d2t", "t2d")
MOST_ORDERED_STATES = 4  # all orders of more aux states are too many to try
MOST_ROTATED_HEADS = 8  # of more heads, only rotations by powers of two are tried


class FixReading(Struct, frozen=True):
    """An assumption on how tensors are stored: the KEY=VALUE of --fix-reading, and a title."""

    key: str
    value: str
    title: str

    @property
    def text(self) -> str:
        """KEY=VALUE."""
        return f"{self.key}={self.value}"


class Move(Struct, frozen=True):
    """A tensor of the repaired drafter, made of the stored `source`.

    `rows` are the rows of `source` in their new order, numbered on through the tensors of `beside`. `blocks`
    is the new order of equal blocks of columns (of elements, for a vector). None: as they are. `added` is
    added to each number. `dtype` is the dtype of the stored words, None for the stated one.
    """

    name: str
    source: str
    rows: tuple[int, ...] | None = None
    blocks: tuple[int, ...] | None = None
    added: int = 0
    dtype: str = ""
    beside: tuple[str, ...] = ()


def readings(drafter: Drafter) -> Iterator[FixReading]:
    """Yield every reading that this drafter's tensors allow and the probe tries.

    Readings of tables are left out: t2d changes no draft, and the probe tries d2t if t2d contradicts it
    (run/probes.py). The reading of a dtype is left out too, since the numbers show it.
    """
    for key, declared in READINGS.items():
        for value in () if key in (*TABLES, *SHIFTS, "dtype") else declared.values(drafter):
            items = value.split(",")
            text = value if len(items) <= MOST_ROTATED_HEADS else f"{','.join(items[:3])},..."
            yield FixReading(key, value, declared.title.format(value=text))


def moves(drafter: Drafter, key: str, value: str) -> tuple[Move, ...]:
    """Return the moves that repair the tensors of a reading.

    Raises UsageError for an unknown reading, or one that this drafter's tensors do not allow.
    """
    if key not in READINGS:
        raise UsageError(
            f"--fix-reading {key}: one of {', '.join(READINGS)} was expected", options=("--fix-reading",)
        )
    allowed = tuple(READINGS[key].values(drafter))
    count = len(_order(allowed[0])) if allowed and "," in allowed[0] else 0  # any order of the numbers works
    if value in allowed or (count and sorted(_order(value)) == list(range(count))):
        return tuple(READINGS[key].moves(drafter, value))
    wanted = f"an order of the numbers 0 to {count - 1}, like {allowed[0]}" if count else " or ".join(allowed)
    if not allowed:
        raise UsageError(
            f"--fix-reading {key}={value}: this drafter's shapes do not fit that reading",
            options=("--fix-reading",),
        )
    raise UsageError(f"--fix-reading {key}={value}: {wanted} was expected", options=("--fix-reading",))


def with_sizes(drafter: Drafter, key: str, value: str) -> Drafter:
    """Return the drafter with the sizes that a reading gives it; only one kind of reading changes them."""
    if key != HEAD_SIZE:
        return drafter
    dims, size = drafter.dims, int(value)
    heads, kv_heads = (count * dims.head_dim // size for count in (dims.heads, dims.kv_heads))
    return replace(drafter, dims=replace(dims, head_dim=size, heads=heads, kv_heads=kv_heads))


def with_readings_fixed(drafter: Drafter, fixes: Sequence[tuple[str, str]]) -> TransformedDrafter:
    """Return the drafter with its tensors moved as `fixes` name, one after the other.

    Bytes move and nothing is computed, except for norms. Raises UsageError as `moves` does, RefusedError for
    quantised tensors.
    """
    notes = []
    for key, value in fixes:
        key_moves = moves(drafter, key, value)
        drafter = with_sizes(with_moves(drafter, key_moves), key, value)
        change = READINGS[key].change.format(value=value.replace("-", " "))
        effect = "1 is added to or subtracted from each" if key == NORM_WEIGHTS else "no value changes"
        text = f"{', '.join(move.name for move in key_moves) or 'heads'} {change} by --fix-reading; {effect}"
        notes.append(Note("note", "reading", f"{key}={value}: {text}"))
    return TransformedDrafter(
        drafter, tuple(notes), {"fixed_readings": [f"{key}={value}" for key, value in fixes]} if fixes else {}
    )


def unquantised_weight(drafter: Drafter, module: str) -> Tensor:
    """Return the weight of a module.

    Raises RefusedError if a quantiser has put tensors beside it or in its place.
    """
    if any(name.rpartition(".")[0] == module and is_quantised_part(name) for name in drafter.tensors):
        raise RefusedError(
            f"{module} is quantised, and its rows cannot be moved or used in arithmetic: convert the"
            " unquantised drafter, then quantise it"
        )
    return drafter.tensors[f"{module}.weight"]


def with_moves(drafter: Drafter, moves: Iterable[Move]) -> Drafter:
    """Return the drafter with tensors moved; each move reads the tensors from before all moves."""
    moved: dict[str, Tensor] = {}
    for move in moves:
        tensor = joined([_movable(drafter, name) for name in (move.source, *move.beside)])
        if move.rows is not None:
            tensor = tensor.with_rows(move.rows)
        if move.blocks is not None:
            tensor = tensor.with_blocks(move.blocks)
        if move.added:
            how, add = f"{move.added:+d} to each number", partial(operator.add, move.added)
            tensor = replace(tensor, origin=Computed(how, (tensor,), add))
        moved[move.name] = replace(tensor, name=move.name, dtype=move.dtype or tensor.dtype)
    return replace(drafter, tensors={**drafter.tensors, **moved})


def _movable(drafter: Drafter, name: str) -> Tensor:
    module, _, part = name.rpartition(".")
    tensor = drafter.tensors.get(name)
    if tensor is None or (part == "weight" and len(tensor.shape) > 1):
        return unquantised_weight(drafter, module)
    return tensor


class _Declared(Struct, frozen=True):
    """A key: its title, its values for a drafter (none if shapes do not fit), and the moves of a value.

    Values that are orders of numbers are those that the probe tries; every other order works too. `change` is
    the effect on the tensors, in words.
    """

    title: str
    values: Callable[[Drafter], Iterable[str]]
    moves: Callable[[Drafter, str], Iterable[Move]]
    change: str = "moved"


def _order(value: str) -> tuple[int, ...]:
    try:
        return tuple(int(item) for item in value.split(","))
    except ValueError:
        return ()


def query_weights(drafter: Drafter) -> list[str]:
    """Return the module of each layer whose rows are the query's heads."""
    name = "q_b_proj" if drafter.dims.q_lora_rank else "q_proj"
    return [f"layers.{layer}.self_attn.{name}" for layer in range(drafter.dims.layers)]


def _exchange(first: str, second: str) -> _Declared:
    """Declare two modules exchanged in every layer that has both; those of the first layer have one shape."""

    def values(drafter: Drafter) -> list[str]:
        first_weight, second_weight = (
            drafter.tensors.get(f"layers.0.{module}.weight") for module in (first, second)
        )
        return (
            ["exchanged"]
            if first_weight and second_weight and first_weight.shape == second_weight.shape
            else []
        )

    def make(drafter: Drafter, _: str) -> Iterator[Move]:
        for layer in range(drafter.dims.layers):
            for part in ("weight", "bias"):
                names = (f"layers.{layer}.{first}.{part}", f"layers.{layer}.{second}.{part}")
                if all(name in drafter.tensors for name in names):
                    yield from (Move(names[0], names[1]), Move(names[1], names[0]))

    modules = (module.rpartition(".")[2] for module in (first, second))
    return _Declared(f"{' and '.join(modules)} {{value}}", values, make)


def _made_of(name: str, source: str) -> _Declared:
    # the reading that computes one vocabulary table from the other, if the file has both; lm_head's rows must
    # have the order of t2d for d2t to follow from it
    def values(drafter: Drafter) -> list[str]:
        has_both = drafter.has_reduced_vocabulary and set(TABLES) <= set(drafter.tensors)
        is_ordered = name == "t2d" or not by_name(drafter.producer).has_unordered_rows
        return [f"from-{source}"] if has_both and is_ordered else []

    return _Declared(
        f"{name} computed from {source}", values, lambda *_: [Move(name, source)], "computed {value}"
    )


# ------------------------------------------------------------------------------------------ fused matrices

# how a fused matrix is ordered: by groups (a head of keys with its queries, a neuron), part after part, or by
# shards; CUT_AS: part after part, but read as if by shards or in another order of the parts
GROUPED, WHOLE, CUT_AS = "per-group", "part-by-part", "cut-as-"
SHARDS = {f"{count}-shards": count for count in (2, 4, 8)}


class _Fused(Struct, frozen=True):
    """Modules whose rows were cut out of their fused matrix in the wrong places.

    Megatron, GPT-NeoX and Falcon fuse q, k and v (and k and v) by groups of heads, others part by part;
    NeMo RL's export cut Megatron's matrix as if it were the other (pull request 2802). Concatenated shards of
    tensor parallelism have the parts of each shard together.
    """

    modules: tuple[str, ...]

    @property
    def parts(self) -> list[str]:
        return [module.rpartition(".")[2].partition("_")[0] for module in self.modules]

    @property
    def orders(self) -> Mapping[str, tuple[int, ...]]:
        """The orders of three parts, by name; k and v exchanged are another reading, as are two parts."""
        orders = [order for order in permutations(range(len(self.parts))) if len(order) > 2 and order[0]]
        return {"".join(self.parts[part] for part in order): order for order in orders}

    def layout(self, drafter: Drafter, value: str) -> tuple[int, ...]:
        """Return the rows of all parts, numbered part by part, in the matrix's order; empty if none."""
        counts = _stored_rows(drafter, self.modules)
        units = counts[0] if counts and self.modules[0].startswith("mlp.") else drafter.dims.kv_heads
        groups = {GROUPED: units, WHOLE: units, **SHARDS}.get(value, 1)
        if not counts or not groups or units % groups or any(count % units for count in counts):
            return ()
        starts = [0, *accumulate(counts)]
        return tuple(
            starts[part] + group * (counts[part] // groups) + row
            for group in range(groups)
            for part in self.orders.get(value, range(len(counts)))
            for row in range(counts[part] // groups)
        )

    def places(self, drafter: Drafter, value: str) -> tuple[int, ...]:
        """Return where each row of the parts is stored; empty if the matrix cannot have that order."""
        order = self.layout(drafter, value.removeprefix(CUT_AS))
        if value == WHOLE or value.startswith(CUT_AS):
            return order
        return tuple(sorted(range(len(order)), key=order.__getitem__))  # row order[i] is stored as row i

    def values(self, drafter: Drafter) -> Iterator[str]:
        seen = {(), self.layout(drafter, "")}
        others = [*SHARDS, *self.orders]
        for value in (GROUPED, WHOLE, *others, *(CUT_AS + name for name in others)):
            if (places := self.places(drafter, value)) not in seen:
                seen.add(places)
                yield value

    def moves(self, drafter: Drafter, value: str) -> Iterator[Move]:
        places, starts = self.places(drafter, value), [0, *accumulate(_stored_rows(drafter, self.modules))]
        for layer, part in product(range(drafter.dims.layers), ("weight", "bias")):
            names = [f"layers.{layer}.{module}.{part}" for module in self.modules]
            if all(name in drafter.tensors for name in names):
                for name, start, stop in zip(names, starts, starts[1:], strict=False):
                    yield Move(name, names[0], places[start:stop], beside=tuple(names[1:]))


def _fused(*modules: str) -> _Declared:
    fused = _Fused(modules)
    return _Declared(f"rows of fused {'/'.join(fused.parts)} {{value}}", fused.values, fused.moves)


def _stored_rows(drafter: Drafter, modules: Sequence[str]) -> list[int]:
    # the rows of the first layer's modules; none unless all are stored, of one dtype and width
    weights = [drafter.tensors.get(f"layers.0.{module}.weight") for module in modules]
    stored = [weight for weight in weights if weight and isinstance(weight.origin, tuple)]
    kinds = {(weight.shape[1:], weight.dtype) for weight in stored}
    return [weight.shape[0] for weight in stored] if len(stored) == len(modules) and len(kinds) == 1 else []


# ---------------------------------------------------------------------------------------- rotary pairing

HALVES, PAIRS = "halves", "interleaved"


def _pairings(drafter: Drafter) -> Iterator[str]:
    """Yield the pairing that the drafter's class does not rotate by, then its own applied twice."""
    class_pairing, other_pairing = (PAIRS, HALVES) if drafter.dims.qk_rope_head_dim else (HALVES, PAIRS)
    size = drafter.dims.qk_rope_head_dim or drafter.dims.head_dim
    if size > 2:
        yield other_pairing
    if size > 4:  # of four rows, one order is its own inverse
        yield f"{class_pairing}-twice"


def rotary_moves(drafter: Drafter, value: str) -> Iterator[Move]:
    """Yield the moves of rotated rows, from pairs to halves or from halves to pairs."""
    dims = drafter.dims
    size, nope, latent = dims.qk_rope_head_dim or dims.head_dim, dims.qk_nope_head_dim, dims.kv_lora_rank
    places = [*range(0, size, 2), *range(1, size, 2)]
    if not value.startswith(PAIRS):
        places = [place for low in range(size // 2) for place in (low, low + size // 2)]
    for module in query_weights(drafter):
        layer = module.rpartition(".")[0]
        key = f"{layer}.kv_a_proj_with_mqa" if latent else f"{layer}.k_proj"
        optional = (
            (f"{module}.bias", dims.heads, nope),
            (f"{key}.bias", dims.kv_heads, 0),
            (f"{layer}.q_norm.weight", 1, 0),
            (f"{layer}.k_norm.weight", 1, 0),
        )
        parts = [
            (f"{module}.weight", dims.heads, nope),
            (f"{key}.weight", 1 if latent else dims.kv_heads, latent),
        ]
        parts += [part for part in optional if part[0] in drafter.tensors]
        for name, heads, still in parts:  # the first rows of each head do not rotate
            head = [*range(still), *(still + place for place in places)]
            yield Move(name, name, tuple(i * len(head) + row for i in range(heads) for row in head))


# ----------------------------------------------------------------------------------------- aux states


def _orders(drafter: Drafter) -> Iterator[str]:
    """Yield every order of the aux states but the stored one; of many, the reverse and swapped neighbours."""
    stored = tuple(range(drafter.dims.aux))
    orders = list(permutations(stored)) if len(stored) <= MOST_ORDERED_STATES else [stored[::-1]]
    if len(stored) > MOST_ORDERED_STATES:
        orders += [(*stored[:at], at + 1, at, *stored[at + 2 :]) for at in stored[:-1]]
    yield from (",".join(map(str, order)) for order in orders if order != stored)


def _normed_orders(drafter: Drafter) -> Iterable[str]:
    has_norms = drafter.norms.fc_norm or "input_norm.weight" in drafter.tensors
    return _orders(drafter) if has_norms and "mask_hidden" not in drafter.tensors else ()


def _state_moves(drafter: Drafter, value: str) -> Iterator[Move]:
    order = _order(value)
    names = ("fc.weight", "input_norm.weight")
    yield from (Move(name, name, blocks=order) for name in names if name in drafter.tensors)
    if drafter.norms.fc_norm:
        yield from (Move(f"fc_norm.{new}.weight", f"fc_norm.{old}.weight") for new, old in enumerate(order))


# ------------------------------------------------------------------------------------ norms and inputs


def _input_moves(drafter: Drafter, _: str) -> Iterator[Move]:
    parts = ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa")
    names = (f"layers.0.self_attn.{part}.weight" for part in parts)
    return (Move(name, name, blocks=(1, 0)) for name in names if name in drafter.tensors)


# ---------------------------------------------------------------------------------------------- heads


def _head_orders(drafter: Drafter) -> Iterator[str]:
    """Yield orders of the query heads: rotated, and the two ways to lay out groups."""
    count, groups = drafter.dims.heads, drafter.dims.kv_heads
    steps: Sequence[int] = range(1, count)
    if count > MOST_ROTATED_HEADS:
        powers = [2**power for power in range(count.bit_length()) if 2**power < count]
        steps = sorted({step % count for power in powers for step in (power, -power)})
    orders = [tuple((head + step) % count for head in range(count)) for step in steps]
    for columns in (groups, count // groups) if 1 < groups < count else ():
        # for heads that were written by rows of so many, read by columns
        orders.append(tuple(place for first in range(columns) for place in range(first, count, columns)))
    yield from (",".join(map(str, order)) for order in dict.fromkeys(orders))


def _head_moves(drafter: Drafter, value: str) -> Iterator[Move]:
    dims, order = drafter.dims, _order(value)
    size = dims.qk_nope_head_dim + dims.qk_rope_head_dim or dims.head_dim
    rows = tuple(head * size + row for head in order for row in range(size))
    for module in query_weights(drafter):
        yield Move(f"{module}.weight", f"{module}.weight", rows)
        if (name := f"{module}.bias") in drafter.tensors:
            yield Move(name, name, rows)


def _head_sizes(drafter: Drafter) -> Iterator[str]:
    """Yield half and twice the head size, if the rows of q_proj and k_proj are whole heads of that size."""
    dims = drafter.dims
    is_normed = any(name.endswith(("q_norm.weight", "k_norm.weight")) for name in drafter.tensors)
    rows = (dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim)
    for size in (dims.head_dim // 2, dims.head_dim * 2) if dims.attention != "MLA" and not is_normed else ():
        if size >= LEAST_HEAD and size % 2 == 0 and all(count % size == 0 for count in rows):
            yield str(size)


# ---------------------------------------------------------------------------------------------- numbers

NORM_WEIGHTS, HEAD_SIZE, LEAST_HEAD = "norm-weights", "head-size", 8
# the number to add to norm weights that are stored so
STEPS: Mapping[str, int] = {"less-one": 1, "plus-one": -1}


def _other_words(drafter: Drafter) -> Iterator[str]:
    dtypes = {tensor.dtype for tensor in drafter.tensors.values()}
    yield from (name for name, dtype in HALF_DTYPES.items() if dtypes & (set(HALF_DTYPES.values()) - {dtype}))


def _word_moves(drafter: Drafter, value: str) -> Iterator[Move]:
    for name, tensor in drafter.tensors.items():
        if tensor.dtype in HALF_DTYPES.values() and tensor.dtype != HALF_DTYPES[value]:
            yield Move(name, name, dtype=HALF_DTYPES[value])


# -------------------------------------------------------------------------------------------- moved tables


def table_shift(key: str, late: int) -> FixReading:
    """Return the name and title of the reading of a d2t whose entries stand `late` rows below their place.

    The entries are its offsets (TABLE_ROWS) or the tokens that they give; above their place if negative.
    `with_table_moved` moves them.
    """
    # such as "2-late"
    value = next(value for value, rows in LATE.items() if rows == late)
    name, (count, side) = "d2t" if key == TABLE_ROWS else "d2t's tokens", value.split("-")
    return FixReading(key, value, f"{name} {count} row{'s' * (abs(late) > 1)} {side}")


def _late_values(drafter: Drafter) -> Iterable[str]:
    return LATE if drafter.has_reduced_vocabulary and "d2t" in drafter.tensors else ()


def with_table_moved(
    checkpoint: Checkpoint, drafter: Drafter, answers: Answers, key: str, value: str
) -> tuple[TransformedDrafter, DraftVocabulary]:
    """Return the drafter and its draft vocabulary with d2t's numbers, or tokens, back in their rows.

    A row with a lost token is left out of lm_head, with a warning. Raises RefusedError if the result is no
    table, OpenFactError if it is one in two ways.
    """
    numbers, used = stored_numbers(checkpoint, drafter.tensors["d2t"]), vocabulary_marks(checkpoint, drafter)
    vocab, answer, is_of_rows = drafter.dims.vocab, answers.semantics.get("d2t"), key == TABLE_ROWS
    stored = {"offset": numbers if is_of_rows else offset_targets(numbers), "absolute": numbers}
    late, tables = LATE[value], list[tuple[int | None, ...]]()
    for kind in stored if answer is None else (answer,):
        are_offsets = is_of_rows and kind == "offset"
        table = moved_back(stored[kind], late, are_offsets=are_offsets, marked_tokens=used, vocab=vocab)
        tables += [table] if table else []
    head = drafter.tensors.get("lm_head.weight")
    if len(tables) > 1:
        raise OpenFactError(BOTH_FIT, options=("--source-semantics",))
    if not tables or head is None:
        raise RefusedError(
            f"--fix-reading {key}={value}: with that reading d2t is no table of {vocab} tokens, or lm_head"
            " is missing; restore it from the trainer",
            options=("--fix-reading",),
        )
    tokens_by_row = {row: token for row, token in enumerate(tables[0]) if token is not None}
    lost = [str(row) for row in range(len(numbers)) if row not in tokens_by_row]
    text = (
        "rows of lm_head left out, since their tokens are missing in d2t and the file does not show them:"
        f" {listed(lost)}; the drafter never drafts these tokens"
    )
    smaller = replace(
        drafter,
        tensors={**drafter.tensors, head.name: head.with_rows([*tokens_by_row])},
        dims=replace(drafter.dims, draft_vocab=len(tokens_by_row)),
    )
    notes = (Note("warning", "d2t", text),) if lost else ()
    return TransformedDrafter(smaller, notes), DraftVocabulary(
        tuple(tokens_by_row.values()), f"moved back ({value})"
    )


# in the order of the report; of several equally good readings, the first is named
READINGS: Mapping[str, _Declared] = {
    "rotary": _Declared("rotary rows {value}", _pairings, rotary_moves),
    "gate-up": _exchange("mlp.gate_proj", "mlp.up_proj"),
    "fc-order": _Declared(
        "fc blocks {value}",
        _orders,
        lambda _, value: [Move("fc.weight", "fc.weight", blocks=_order(value))],
    ),
    "state-order": _Declared("aux states {value}, with their norms", _normed_orders, _state_moves),
    "q-k": _exchange("self_attn.q_proj", "self_attn.k_proj"),
    "k-v": _exchange("self_attn.k_proj", "self_attn.v_proj"),
    "fused-qkv": _fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "fused-kv": _fused("self_attn.k_proj", "self_attn.v_proj"),
    "fused-gate-up": _fused("mlp.gate_proj", "mlp.up_proj"),
    "norms": _exchange("hidden_norm", "input_layernorm"),
    "input": _Declared("embedding and state {value}", lambda _: ["exchanged"], _input_moves),
    "heads": _Declared("query heads {value}", _head_orders, _head_moves),
    HEAD_SIZE: _Declared("heads of {value}", _head_sizes, lambda *_: (), change="read anew"),
    NORM_WEIGHTS: _Declared(
        "norm weights {value}",
        lambda _: STEPS,
        lambda drafter, value: [
            Move(name, name, added=STEPS[value]) for name in filter(is_norm, drafter.tensors)
        ],
        change="changed",
    ),
    "dtype": _Declared("words of {value}", _other_words, _word_moves, change="read as {value}"),
    # the plan makes a table's numbers of its source (vocabulary.draft_vocabulary)
    "d2t": _made_of("d2t", "t2d"),
    "t2d": _made_of("t2d", "d2t"),
    TABLE_ROWS: _Declared("d2t", _late_values, lambda *_: [Move("d2t", "d2t")], "moved back ({value})"),
    TABLE_TOKENS: _Declared("d2t", _late_values, lambda *_: [Move("d2t", "d2t")], "moved back ({value})"),
}
SHIFTS = (TABLE_ROWS, TABLE_TOKENS)


MAX_COUNTS = 256 * MIB
SMALL_SHARE = 0.9  # of the counts; a draft ends at every token without a row
FORMS = 'a JSON object {"id": count}, a JSON array with a count for every id, or a line "id count" for each'


def draft_vocabulary(
    checkpoint: Checkpoint, drafter: Drafter, answers: Answers, selected: Sequence[int] | None
) -> DraftVocabulary:
    """Return the draft vocabulary; `selected` are the token ids of a trainer's side file, for a missing d2t.

    Raises RefusedError for broken or contradicting tables, OpenFactError if a --fix-reading may repair them.
    """
    dims = drafter.dims
    d2t, t2d = (_own_table(drafter, name) for name in ("d2t", "t2d"))
    producer = by_name(drafter.producer)
    if selected is not None:
        return from_tokens(selected, dims.draft_vocab, dims.vocab)
    if d2t is None and t2d is None and not drafter.has_reduced_vocabulary:
        return identity(dims.vocab)
    if d2t is None and t2d is not None and producer.has_unordered_rows:
        raise RefusedError(
            f"d2t is missing, and {producer.title}'s lm_head rows are not in the order of t2d;"
            " restore d2t, or put speculative_token_map.pt beside the weights"
        )
    try:
        offsets = None if d2t is None else stored_numbers(checkpoint, d2t)
        mask = None if t2d is None else stored_numbers(checkpoint, t2d)
        vocabulary = read_vocabulary(
            offsets,
            mask,
            dims.draft_vocab,
            dims.vocab,
            answers.semantics.get("d2t", recorded_meaning(checkpoint.record, offsets)),
        )
    except RefusedError as refusal:
        readings, place = table_readings(checkpoint, drafter), (refusal.topic, refusal.where)
        if len(readings) > 1:
            options = tuple(f"--fix-reading {name}" for name in readings)
            raise OpenFactError(BOTH_WHOLE, *place, options) from None
        if readings:
            option = f"--fix-reading {readings[0]}"
            raise OptionNeededError(
                f"{refusal}; or pass {option}, since that table is intact", *place, (option,)
            ) from None
        raise
    _refuse_copied_rows(checkpoint, drafter, vocabulary)
    return vocabulary


def _own_table(drafter: Drafter, name: str) -> Tensor | None:
    """Return d2t or t2d unless it is computed from the other (--fix-reading)."""
    tensor = drafter.tensors.get(name)
    return tensor if tensor and tensor.stored[0].endswith(name) else None


def _refuse_copied_rows(checkpoint: Checkpoint, drafter: Drafter, vocabulary: DraftVocabulary) -> None:
    # raise RefusedError for an lm_head whose rows were selected by d2t's offsets instead of its tokens
    head = checkpoint.tensors.get("lm_head.weight")
    if head is not None and drafter.has_reduced_vocabulary:
        repeated, size = repeated_offsets(vocabulary.offsets, SAMPLED_ROWS), head.row_bytes
        pairs = (checkpoint.read(head.name, row * size, (row + 2) * size) for row in repeated)
        if row_copies([(pair[:size], pair[size:]) for pair in pairs]):
            raise RefusedError(
                "lm_head.weight repeats its row wherever d2t repeats its offset: it was pruned by rows of"
                " d2t, not of i + d2t (TorchSpec's pruning fault); export again from the unpruned checkpoint"
            )


class Counts(Struct, frozen=True):
    """The count of each token, the sum of all counts, and the file's name and digest."""

    by_token: Mapping[int, int]
    total: int
    name: str
    digest: str

    def share(self, tokens: Iterable[int]) -> float:
        """Return the share of the counts that these tokens have."""
        return sum(self.by_token.get(token, 0) for token in tokens) / self.total


def pruned(
    drafter: Drafter, vocabulary: DraftVocabulary, request: Pruning
) -> tuple[TransformedDrafter, DraftVocabulary]:
    """Return the drafter with its most counted tokens, sorted by target id, and their vocabulary.

    Raises UsageError for a size that does not fit, RefusedError for a drafter without an lm_head.
    """
    have, size = drafter.dims.draft_vocab, request.size
    head = drafter.tensors.get("lm_head.weight")
    if not 0 < size < have:
        raise UsageError(
            f"--draft-vocab {size}: this drafter has {have} draft tokens, and rows cannot be added; pass a"
            f" number below {have}",
            options=("--draft-vocab",),
        )
    if head is None:
        raise OptionNeededError(
            "this drafter uses the target's lm_head and has no rows of its own to leave out; pass"
            " --materialize-lm-head with --target",
            options=("--materialize-lm-head",),
        )
    counts = read_counts(request.counts, drafter.dims.vocab)
    rows = {target: row for row, target in enumerate(vocabulary.targets)}
    special_tokens = [token for token in request.kept or () if token in rows]
    if len(special_tokens) > size:
        raise UsageError(
            f"--draft-vocab {size}: {len(special_tokens)} special tokens always stay; pass at least"
            f" {len(special_tokens)}",
            options=("--draft-vocab",),
        )
    tokens = most_counted(counts.by_token, rows, size, special_tokens)
    kept_rows = [rows[token] for token in tokens]
    record = {
        "draft_vocab": size,
        "of": have,
        "share": counts.share(tokens),
        "share_before": counts.share(rows),
        "counts": counts.name,
        "sha256": counts.digest,
        "tokens_counted": counts.total,
        "always_kept": special_tokens,
    }
    smaller = replace(
        drafter,
        tensors={**drafter.tensors, head.name: head.with_rows(kept_rows)},
        dims=replace(drafter.dims, draft_vocab=size),
    )
    notes = tuple(_notes(counts, tokens, rows, request.kept))
    fewer = DraftVocabulary(tuple(tokens), f"the {size} most counted tokens of {counts.name}")
    return TransformedDrafter(smaller, notes, {"pruning": record}), fewer


def _notes(
    counts: Counts, tokens: Sequence[int], rows: Mapping[int, int], special: Sequence[int] | None
) -> Iterator[Note]:
    """Yield the share that stays, and possible faults; `special` are the target's tokens (None: unknown)."""
    about, before, after = "draft_vocab_size", counts.share(rows), counts.share(tokens)
    text = (
        f"{len(tokens)} of {len(rows)} tokens stay; they are {after:.2%} of the {counts.total:,} counted in"
        f" {counts.name}{f', {before:.2%} before' if before != 1.0 else ''}"
    )
    is_small = after < SMALL_SHARE
    advice = ": every other token ends a draft; pass a larger --draft-vocab" if is_small else ""
    yield Note("warning" if is_small else "note", about, text + advice)
    uncounted = sum(not counts.by_token.get(token) for token in set(tokens) - set(special or ()))
    missing = [token for token in special or () if token not in rows]
    warnings = (
        (
            uncounted,
            f"{uncounted} of the {len(tokens)} tokens were never counted: the lowest ids fill the vocabulary;"
            " count more text, or pass a smaller --draft-vocab",
        ),
        (
            special is None,
            "the tokens that end an answer are unknown and may have been removed; pass --target, whose"
            " configs state them",
        ),
        (
            special is not None and not special,
            "the target's config.json and generation_config.json have no bos_token_id and no eos_token_id;"
            " these tokens may have been removed",
        ),
        (
            missing,
            f"the target's special tokens {missing} have no row in this drafter; it never drafts them",
        ),
    )
    yield from (Note("warning", about, text) for is_present, text in warnings if is_present)


def most_counted(
    counts: Mapping[int, int], candidates: Iterable[int], size: int, kept: Sequence[int] = ()
) -> list[int]:
    """Return `kept` and the candidates with the highest counts, `size` in all; ties go to the lower id."""
    others = sorted(set(candidates) - set(kept), key=lambda token: (-counts.get(token, 0), token))
    return sorted([*kept, *others[: size - len(kept)]])


def read_counts(path: Path, vocab: int) -> Counts:
    """Read counts by token id: a JSON object, a JSON array, or lines "id count".

    Raises UnreadableError for a file that cannot be read, UsageError with the place of an error in it.
    """
    where = f"--token-counts {path}"
    raw = read_small_file(path, MAX_COUNTS, "--token-counts")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{where}: {error}") from None
    counts: dict[int, int] = {}
    for place, *fields in _entries(text, where):
        place, count = f"{where}, {place}", fields[-1]
        token = int(fields[0]) if re.fullmatch(r"[0-9]{1,18}", fields[0]) else -1
        is_count = type(count) is int
        check(
            (len(fields) != 2, f'{place}: {len(fields)} words; "id count" was expected'),
            (token < 0, f"{place}: not a token id; count tokens by id, not by text"),
            (
                token >= vocab,
                f"{place}: token {token} is outside of this drafter's vocabulary of {vocab}; use counts of"
                " this vocabulary",
            ),
            (token in counts, f"{place}: token {token} is listed twice; list each token once"),
            (not is_count, f"{place}: not a count; a whole number was expected"),
            (is_count and count < 0, f"{place}: a count of {count}; 0 or more was expected"),
        )
        counts[token] = count
    if not any(counts.values()):
        raise UsageError(f"{where} has no count above 0; {FORMS} was expected")
    return Counts(counts, sum(counts.values()), path.name, sha256(raw).hexdigest())


# no message quotes the file: it may be any file, with secrets
def _entries(text: str, where: str) -> Iterator[tuple[Any, ...]]:
    first = text.lstrip()[:1]
    if first not in ("{", "["):
        for number, line in enumerate(text.splitlines(), 1):
            if words := re.sub("[,;]", " ", line).split():
                numbers = (int(word) if re.fullmatch("-?[0-9]{1,18}", word) else word for word in words[1:])
                yield f"line {number}", words[0], *numbers
        return
    try:
        value = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
    if first == "[":
        yield from ((f"entry {token}", str(token), count) for token, count in enumerate(value))
    else:
        yield from ((f"key {number}", key, count) for number, (key, count) in enumerate(value, 1))
