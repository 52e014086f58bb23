"""Readings of a checkpoint that --fix-reading repairs, mostly by moving bytes: rows, columns, whole tensors.

A reading is a way in which the tensors may be stored other than their names and the config state. Its moves
make of them what is stated; the sensitivity probe runs the drafter with the same moves.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.plan import TransformedDrafter
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import Computed, Tensor, is_norm, is_quantised_part
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.catalogue import by_name

TABLES = ("d2t", "t2d")
MOST_ORDERED_STATES = 4  # all orders of more aux states are too many to try
MOST_ROTATED_HEADS = 8  # of more heads, only rotations by powers of two are tried


class FixReading(Struct, frozen=True):
    """A way in which tensors may be stored, as `--fix-reading KEY=VALUE` names it, and what it means."""

    key: str
    value: str
    title: str

    @property
    def text(self) -> str:
        """KEY=VALUE."""
        return f"{self.key}={self.value}"


class Move(Struct, frozen=True):
    """A tensor of the repaired drafter, made of the stored `source`.

    `rows` are the rows of `source` in their new order; `blocks` is the new order of as many equal blocks of
    columns (of elements, for a vector). None: as they are. `added` is added to each number; `dtype` is that
    of the words, where it is not the stated one.
    """

    name: str
    source: str
    rows: tuple[int, ...] | None = None
    blocks: tuple[int, ...] | None = None
    added: int = 0
    dtype: str = ""


def readings(drafter: Drafter) -> Iterator[FixReading]:
    """Every reading that this drafter's tensors allow and the probe tries.

    Not those of tables: t2d changes no draft, and d2t is tried where t2d says otherwise (run/probes.py). Nor
    that of a dtype, which the numbers show.
    """
    for key, declared in READINGS.items():
        for value in () if key in (*TABLES, "dtype") else declared.values(drafter):
            items = value.split(",")
            shown = value if len(items) <= MOST_ROTATED_HEADS else f"{','.join(items[:3])},..."
            yield FixReading(key, value, declared.title.format(value=shown))


def moves(drafter: Drafter, key: str, value: str) -> tuple[Move, ...]:
    """What turns the tensors of a reading into those that their names state.

    Raises UsageError for a reading that is not known, or that this drafter's tensors do not allow.
    """
    if key not in READINGS:
        raise UsageError(f"--fix-reading {key}: one of {', '.join(READINGS)} was expected")
    declared = READINGS[key]
    allowed, order = tuple(declared.values(drafter)), _order(value)
    count = len(_order(allowed[0])) if allowed and "," in allowed[0] else 0  # of those, the others work too
    if value in allowed or (count and sorted(order) == list(range(count))):
        return tuple(declared.moves(drafter, value))
    wanted = f"an order of the numbers 0 to {count - 1}, like {allowed[0]}" if count else " or ".join(allowed)
    if not allowed:
        raise UsageError(f"--fix-reading {key}={value}: the shapes of this drafter do not allow that reading")
    raise UsageError(f"--fix-reading {key}={value}: {wanted} was expected")


def with_sizes(drafter: Drafter, key: str, value: str) -> Drafter:
    """The drafter with the sizes that a reading gives it; all but one give it none."""
    if key != HEAD_SIZE:
        return drafter
    dims, size = drafter.dims, int(value)
    heads, kv_heads = (count * dims.head_dim // size for count in (dims.heads, dims.kv_heads))
    return replace(drafter, dims=replace(dims, head_dim=size, heads=heads, kv_heads=kv_heads))


def with_readings_fixed(drafter: Drafter, fixes: Sequence[tuple[str, str]]) -> TransformedDrafter:
    """The drafter with its tensors moved as each of `fixes` names it, one after the other.

    Bytes move and nothing is computed, but for norms. Raises UsageError as `moves` does, RefusedError for
    quantised tensors.
    """
    notes = []
    for key, value in fixes:
        asked = moves(drafter, key, value)
        drafter = with_sizes(with_moves(drafter, asked), key, value)
        change = READINGS[key].change.format(value=value.replace("-", " "))
        names = ", ".join(move.name for move in asked) or "heads"
        kept = "one is added to or taken off each number" if key == NORM_WEIGHTS else "no value changes"
        notes.append(
            Note("note", "reading", f"{key}={value}: {names} {change} as asked by --fix-reading; {kept}")
        )
    record = {"fixed_readings": [f"{key}={value}" for key, value in fixes]} if fixes else {}
    return TransformedDrafter(drafter, tuple(notes), record)


def unquantised_weight(drafter: Drafter, module: str) -> Tensor:
    """The weight of a module.

    Raises RefusedError where a quantiser has put tensors beside it or in its place.
    """
    if any(name.rpartition(".")[0] == module and is_quantised_part(name) for name in drafter.tensors):
        raise RefusedError(
            f"{module} is quantised, and its rows cannot be moved or computed with: convert the unquantised"
            " drafter, then quantise it"
        )
    return drafter.tensors[f"{module}.weight"]


def with_moves(drafter: Drafter, moves: Iterable[Move]) -> Drafter:
    """The drafter with tensors moved; each is made of those that it had before."""
    moved: dict[str, Tensor] = {}
    for move in moves:
        module, _, part = move.source.rpartition(".")
        tensor = drafter.tensors.get(move.source)
        if tensor is None or (part == "weight" and len(tensor.shape) > 1):
            tensor = unquantised_weight(drafter, module)
        if move.rows is not None:
            tensor = tensor.with_rows(move.rows)
        if move.blocks is not None:
            tensor = tensor.with_blocks(move.blocks)
        if move.added:
            tensor = replace(
                tensor,
                origin=Computed(
                    f"{move.added:+d} to each number", (tensor,), partial(operator.add, move.added)
                ),
            )
        if move.dtype:
            tensor = replace(tensor, dtype=move.dtype)
        moved[move.name] = replace(tensor, name=move.name)
    return replace(drafter, tensors={**drafter.tensors, **moved})


class _Declared(Struct, frozen=True):
    """A key: its title, its values for a drafter (none where shapes forbid it), and the moves of a value.

    Where the values are orders of numbers, they are those that are tried, and every other works too. `change`
    says what happens to the tensors.
    """

    title: str
    values: Callable[[Drafter], Iterator[str]]
    moves: Callable[[Drafter, str], Iterator[Move]]
    change: str = "moved"


def _order(value: str) -> tuple[int, ...]:
    try:
        return tuple(int(item) for item in value.split(","))
    except ValueError:
        return ()


def query_weights(drafter: Drafter) -> list[str]:
    """The module of each layer whose rows are the query's heads."""
    name = "q_b_proj" if drafter.dims.q_lora_rank else "q_proj"
    return [f"layers.{layer}.self_attn.{name}" for layer in range(drafter.dims.layers)]


def _exchange(first: str, second: str) -> _Declared:
    """Two modules exchanged in every layer that has both; the first layer's are of one shape."""

    def values(drafter: Drafter) -> Iterator[str]:
        one, other = (drafter.tensors.get(f"layers.0.{module}.weight") for module in (first, second))
        if one and other and one.shape == other.shape:
            yield "exchanged"

    def make(drafter: Drafter, _: str) -> Iterator[Move]:
        for layer in range(drafter.dims.layers):
            for part in ("weight", "bias"):
                names = (f"layers.{layer}.{first}.{part}", f"layers.{layer}.{second}.{part}")
                if all(name in drafter.tensors for name in names):
                    yield from (Move(names[0], names[1]), Move(names[1], names[0]))

    modules = (module.rpartition(".")[2] for module in (first, second))
    return _Declared(f"{' and '.join(modules)} {{value}}", values, make)


def _made_of(name: str, source: str) -> _Declared:
    """One table made of the other; t2d gives d2t where lm_head's rows are in its order."""

    def values(drafter: Drafter) -> Iterator[str]:
        has_both = drafter.has_reduced_vocabulary and set(TABLES) <= set(drafter.tensors)
        if has_both and (name == "t2d" or not by_name(drafter.producer).has_unordered_rows):
            yield f"from-{source}"

    return _Declared(
        f"{name} made of {source}", values, lambda *_: iter([Move(name, source)]), change="made {value}"
    )


# ---------------------------------------------------------------------------------------- rotary pairing

HALVES, PAIRS = "halves", "interleaved"


def _pairings(drafter: Drafter) -> Iterator[str]:
    """The pairing that the drafter's class does not rotate by, then its own made twice."""
    own, other = (PAIRS, HALVES) if drafter.dims.qk_rope_head_dim else (HALVES, PAIRS)
    size = drafter.dims.qk_rope_head_dim or drafter.dims.head_dim
    if size > 2:
        yield other
    if size > 4:  # of four rows, one order is its own inverse
        yield f"{own}-twice"


def rotary_moves(drafter: Drafter, value: str) -> Iterator[Move]:
    """Rows of the rotated parts; rows stored as pairs come into halves, rows stored as halves into pairs."""
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
    """Every order of the aux states but the stored one; of many, the reverse and exchanged neighbours."""
    stored = tuple(range(drafter.dims.aux))
    orders = list(permutations(stored)) if len(stored) <= MOST_ORDERED_STATES else [stored[::-1]]
    if len(stored) > MOST_ORDERED_STATES:
        orders += [(*stored[:at], at + 1, at, *stored[at + 2 :]) for at in stored[:-1]]
    yield from (",".join(map(str, order)) for order in orders if order != stored)


def _normed_orders(drafter: Drafter) -> Iterator[str]:
    has_norms = drafter.norms.fc_norm or "input_norm.weight" in drafter.tensors
    return _orders(drafter) if has_norms and "mask_hidden" not in drafter.tensors else iter(())


def _state_moves(drafter: Drafter, value: str) -> Iterator[Move]:
    """The blocks of fc with the norms before them."""
    order = _order(value)
    names = ("fc.weight", "input_norm.weight")
    yield from (Move(name, name, blocks=order) for name in names if name in drafter.tensors)
    if drafter.norms.fc_norm:
        yield from (Move(f"fc_norm.{new}.weight", f"fc_norm.{old}.weight") for new, old in enumerate(order))


# ------------------------------------------------------------------------------------ norms and inputs


def _input_moves(drafter: Drafter, _: str) -> Iterator[Move]:
    """The halves of the first layer's input, embedding and state, in the weights that read it."""
    parts = ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa")
    names = (f"layers.0.self_attn.{part}.weight" for part in parts)
    return (Move(name, name, blocks=(1, 0)) for name in names if name in drafter.tensors)


# ---------------------------------------------------------------------------------------------- heads


def _head_orders(drafter: Drafter) -> Iterator[str]:
    """Query heads rotated, and the two ways to lay out groups."""
    count, groups = drafter.dims.heads, drafter.dims.kv_heads
    steps: list[int] = list(range(1, count))
    if count > MOST_ROTATED_HEADS:
        powers = [2**power for power in range(count.bit_length()) if 2**power < count]
        steps = sorted({step % count for power in powers for step in (power, -power)})
    orders = [tuple((head + step) % count for head in range(count)) for step in steps]
    for columns in (groups, count // groups) if 1 < groups < count else ():
        # read by columns, where they were written by rows of so many
        orders.append(tuple(place for first in range(columns) for place in range(first, count, columns)))
    for order in dict.fromkeys(orders):
        yield ",".join(map(str, order))


def _head_moves(drafter: Drafter, value: str) -> Iterator[Move]:
    """The query's rows by heads; o_proj stays."""
    dims, order = drafter.dims, _order(value)
    size = dims.qk_nope_head_dim + dims.qk_rope_head_dim or dims.head_dim
    rows = tuple(head * size + row for head in order for row in range(size))
    for module in query_weights(drafter):
        yield Move(f"{module}.weight", f"{module}.weight", rows)
        if (name := f"{module}.bias") in drafter.tensors:
            yield Move(name, name, rows)


def _head_sizes(drafter: Drafter) -> Iterator[str]:
    """Half and twice the head size, where the rows of q_proj and k_proj are whole heads of it."""
    dims = drafter.dims
    is_normed = any(name.endswith(("q_norm.weight", "k_norm.weight")) for name in drafter.tensors)
    rows = (dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim)
    for size in (dims.head_dim // 2, dims.head_dim * 2) if dims.attention != "MLA" and not is_normed else ():
        if size >= LEAST_HEAD and size % 2 == 0 and all(count % size == 0 for count in rows):
            yield str(size)


# ---------------------------------------------------------------------------------------------- numbers

NORM_WEIGHTS, HEAD_SIZE, LEAST_HEAD = "norm-weights", "head-size", 8
# what is added where norms are stored so
STEPS: Mapping[str, int] = {"less-one": 1, "plus-one": -1}
# as --fix-reading names a 16-bit dtype -> as safetensors does
WORDS: Mapping[str, str] = {"bfloat16": "BF16", "float16": "F16"}


def _other_words(drafter: Drafter) -> Iterator[str]:
    """The 16-bit dtypes that tensors are stated as the other one of."""
    stated = {tensor.dtype for tensor in drafter.tensors.values()}
    yield from (name for name, dtype in WORDS.items() if stated & (set(WORDS.values()) - {dtype}))


def _word_moves(drafter: Drafter, value: str) -> Iterator[Move]:
    others = set(WORDS.values()) - {WORDS[value]}
    stated = (name for name, tensor in drafter.tensors.items() if tensor.dtype in others)
    return (Move(name, name, dtype=WORDS[value]) for name in stated)


def _norm_moves(drafter: Drafter, value: str) -> Iterator[Move]:
    return (Move(name, name, added=STEPS[value]) for name in drafter.tensors if is_norm(name))


# the order of the report; where several readings win alike, the first is named
READINGS: Mapping[str, _Declared] = {
    "rotary": _Declared("rotary rows {value}", _pairings, rotary_moves),
    "gate-up": _exchange("mlp.gate_proj", "mlp.up_proj"),
    "fc-order": _Declared(
        "fc blocks {value}",
        _orders,
        lambda _, value: iter([Move("fc.weight", "fc.weight", blocks=_order(value))]),
    ),
    "state-order": _Declared("aux states {value}, with their norms", _normed_orders, _state_moves),
    "q-k": _exchange("self_attn.q_proj", "self_attn.k_proj"),
    "k-v": _exchange("self_attn.k_proj", "self_attn.v_proj"),
    "norms": _exchange("hidden_norm", "input_layernorm"),
    "input": _Declared("embedding and state {value}", lambda _: iter(["exchanged"]), _input_moves),
    "heads": _Declared("query heads {value}", _head_orders, _head_moves),
    HEAD_SIZE: _Declared("heads of {value}", _head_sizes, lambda *_: iter(()), change="read anew"),
    NORM_WEIGHTS: _Declared("norm weights {value}", lambda _: iter(STEPS), _norm_moves, change="changed"),
    "dtype": _Declared("words of {value}", _other_words, _word_moves, change="read as {value}"),
    # the plan makes a table's numbers of its source (vocabulary.draft_vocabulary)
    "d2t": _made_of("d2t", "t2d"),
    "t2d": _made_of("t2d", "d2t"),
}
