"""The tensors of two drafters by canonical name, each pair held together by shape, dtype and data."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.comparison.comparison import Side, Stored, TensorPair
from eaglectl.comparison.contents import Content, Files
from eaglectl.comparison.vocabulary import Rows
from eaglectl.conversion.aux_blocks import in_order
from eaglectl.drafter.drafter import Drafter
from eaglectl.drafter.tensors import Segment, Tensor
from eaglectl.errors import Refused
from eaglectl.validation.scanning import FORMS

MAPS = ("d2t", "t2d")  # compared as the tokens that they mean
Told = Callable[[int, int], None]
Digests = Mapping[str, str]
Headers = tuple[TensorPair, Tensor | None, Tensor | None]


@dataclass(frozen=True, slots=True)
class Known:
    """SHA-256 of whole files of each side, where both sides' are known without reading: equal ones need not be read."""

    a: Digests
    b: Digests


def in_one_order(a: Side, b: Side) -> tuple[Side, Side, tuple[str, ...]]:
    """Both with fc's blocks by ascending boundary, where the files list their layers in different orders; and what could not be."""
    if a.drafter.aux.order == b.drafter.aux.order:
        return a, b, ()
    try:
        found = [replace(side, drafter=in_order(side.drafter)[0]) for side in (a, b)]
    except Refused as error:
        return a, b, (f"fc is compared as it lies, its blocks in two orders: {error}",)
    return found[0], found[1], ()


def tensors_of(side: Side) -> dict[str, Tensor]:
    """Canonical tensors, and those without a place in a drafter under their own names."""
    found = {name: tensor for name, tensor in side.drafter.tensors.items() if name not in MAPS}
    for name in side.drafter.unknown:
        stored = side.checkpoint.tensors[name]
        found.setdefault(name, Tensor(name, stored.dtype, stored.shape, (Segment(name, 0, stored.nbytes),)))
    return found


def pair_headers(a: Side, b: Side, rows: Rows | None = None) -> Iterator[Headers]:
    """Every pair as headers tell it, "not-compared" where they tell no difference; heads cut down to the tokens that both have."""
    mine, theirs = tensors_of(a), tensors_of(b)
    for name in dict.fromkeys((*mine, *theirs)):
        one, other, remark = mine.get(name), theirs.get(name), ""
        if (
            name == "lm_head.weight"
            and rows
            and one
            and other
            and _has_rows(a.drafter, one)
            and _has_rows(b.drafter, other)
        ):
            if not rows.a:
                yield TensorPair(name, "bytes", stored(one), stored(other), remark="no token is in both"), None, None
                continue
            remark = f"the rows of {len(rows.a)} tokens that are in both"
            one, other = one.with_rows(rows.a), other.with_rows(rows.b)
        yield _pair(name, one, other, remark), one, other


def _has_rows(drafter: Drafter, head: Tensor) -> bool:
    return bool(head.shape) and head.shape[0] == drafter.dims.draft_vocab and isinstance(head.origin, tuple)


def _pair(name: str, one: Tensor | None, other: Tensor | None, remark: str) -> TensorPair:
    if one is None or other is None:
        return TensorPair(name, "only-a" if other is None else "only-b", stored(one), stored(other))
    if one.shape != other.shape:
        return TensorPair(name, "shape", stored(one), stored(other), remark=remark)
    state = "dtype" if one.dtype != other.dtype else "not-compared"
    return TensorPair(name, state, stored(one), stored(other), remark=remark)  # type: ignore[arg-type]


def stored(tensor: Tensor | None) -> Stored | None:
    """A tensor as a pair names it."""
    return None if tensor is None else Stored(tensor.dtype, tensor.shape, tensor.stored)


def is_known_equal(a: Checkpoint, b: Checkpoint, one: Tensor | None, other: Tensor | None, known: Known) -> bool:
    """Whether two tensors of one shape and dtype are the same bytes of files that are the same."""
    if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    places = _places(a, one, known.a)
    return places is not None and places == _places(b, other, known.b)


def _places(checkpoint: Checkpoint, tensor: Tensor, known: Digests) -> list[tuple[str, int, int]] | None:
    if not isinstance(tensor.origin, tuple):
        return None
    found = []
    for segment in tensor.origin:
        whole = checkpoint.tensors[segment.stored]
        if whole.file not in known:
            return None
        found.append((known[whole.file], whole.start + segment.start, whole.start + segment.stop))
    return found


def files_to_read(checkpoint: Checkpoint, pairs: Iterable[Headers], side: Literal["a", "b"]) -> set[str]:
    """Weight files of one side whose data `pairs` need."""
    tensors = (one if side == "a" else other for _, one, other in pairs)
    return {checkpoint.tensors[name].file for tensor in tensors if tensor for name in tensor.stored}


def pair_values(a: Checkpoint, b: Checkpoint, pairs: Sequence[Headers], known: Known, told: Told | None = None) -> Iterator[TensorPair]:  # fmt: skip
    """Every pair with its data looked at. `told` hears how many bytes of A of how many are read. Raises Unreadable."""
    from eaglectl.comparison import values

    total, done = sum(_nbytes(one or other) for _, one, other in pairs), 0

    def read(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if told:
            told(min(done, total), total)

    with Files(a) as mine, Files(b) as theirs:
        for pair, one, other in pairs:
            if is_known_equal(a, b, one, other, known):
                yield replace(pair, state="equal")
                read(_nbytes(one))
            elif one and other:
                yield _looked_at(pair, Content(one, mine), Content(other, theirs), read)
            elif one or other:
                alone = Content(one, mine) if one else Content(other, theirs)  # type: ignore[arg-type]
                yield _alone(pair, alone, values.digest(alone, read))
            else:
                yield pair


def _looked_at(pair: TensorPair, one: Content, other: Content, read: Callable[[int], None]) -> TensorPair:
    from eaglectl.comparison import values

    assert pair.a and pair.b
    found = values.digests(one, other, read)
    pair = replace(pair, a=replace(pair.a, sha256=found.a), b=replace(pair.b, sha256=found.b))
    if pair.state == "shape":
        return pair
    if pair.state == "not-compared":
        pair = replace(pair, state="equal" if found.a == found.b else "bytes")
    return pair if pair.state == "equal" else replace(pair, numbers=values.distance(one, other))


def _alone(pair: TensorPair, content: Content, sha256: str) -> TensorPair:
    """A tensor that one side lacks. A bias of zeros adds nothing: vLLM asks for one beside q, k and v biases, and convert writes it."""
    from eaglectl.comparison import values

    a, b = (side and replace(side, sha256=sha256) for side in (pair.a, pair.b))
    if pair.name.endswith(".bias") and content.tensor.dtype in FORMS and values.is_zero(content):
        return replace(pair, a=a, b=b, state="zeros", remark="zeros, which add nothing")
    return replace(pair, a=a, b=b)


def _nbytes(tensor: Tensor | None) -> int:
    if tensor is None:
        return 0
    if isinstance(tensor.origin, tuple):
        return sum(segment.stop - segment.start for segment in tensor.origin)
    return 0
