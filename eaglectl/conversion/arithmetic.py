"""The steps that change elements: float64 arithmetic, casts, and joining an absorbed kv_b_proj."""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from eaglectl.drafter.tensors import Absorbed, Computed, Tensor, cut
from eaglectl.errors import RefusedError
from eaglectl.files.checkpoint import Checkpoint

_WIDTHS = {8: "<u1", 16: "<u2", 32: "<u4", 64: "<u8"}
_FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
_STORED = {"BF16": "<u2", **_FLOATS}
Array = npt.NDArray[np.float64]
BLOCK = 1 << 24  # numbers that are held as float64 at once, 128 MiB, where rows can be made one by one


def evaluate(tensor: Tensor, checkpoint: Checkpoint) -> Array:
    """A tensor's numbers as float64, from any origin, without rounding.

    Raises RefusedError for dtypes that are not floats.
    """
    match tensor.origin:
        case Computed(sources=(), make=make, by_rows=True):
            whole: Array = make(0, tensor.shape[0])
            return whole
        case Computed(sources=sources, make=make):
            made: Array = make(*(evaluate(source, checkpoint) for source in sources))
            return made
        case Absorbed(w_kc, w_vc):
            raw = b"".join(join_absorbed(checkpoint, w_kc, w_vc))
        case segments:
            raw = b"".join(checkpoint.read(s.stored, s.start, s.stop) for s in segments)
    return decode(raw, tensor.dtype, tensor.name).reshape(tensor.shape)


def encoded(tensor: Tensor, checkpoint: Checkpoint) -> Iterator[bytes]:
    """A computed tensor's bytes, in blocks of rows where its arithmetic goes by rows."""
    if not _goes_by_rows(tensor):
        yield encode(evaluate(tensor, checkpoint), tensor.dtype, tensor.name)
        return
    rows = max(1, BLOCK // prod(tensor.shape[1:]))
    for start in range(0, tensor.shape[0], rows):
        block = _rows(tensor, start, min(start + rows, tensor.shape[0]))
        yield encode(evaluate(block, checkpoint), tensor.dtype, tensor.name)


def _goes_by_rows(tensor: Tensor) -> bool:
    match tensor.origin:
        case Computed(sources=sources, by_rows=by_rows):
            return by_rows and all(_goes_by_rows(source) for source in sources)
        case Absorbed():
            return False
    return True


def _rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Rows [start, stop) of a tensor that goes by rows."""
    shape = (stop - start, *tensor.shape[1:])
    match tensor.origin:
        case Computed(sources=(), make=make) as computed:
            return replace(tensor, shape=shape, origin=replace(computed, make=lambda *_: make(start, stop)))
        case Computed(sources=sources) as computed:
            parts = tuple(_rows(source, start, stop) for source in sources)
            return replace(tensor, shape=shape, origin=replace(computed, sources=parts))
        case Absorbed():
            raise AssertionError
        case segments:
            size = sum(segment.stop - segment.start for segment in segments) // tensor.shape[0]
            return replace(tensor, shape=shape, origin=cut(segments, start * size, stop * size))


def decode(raw: bytes, dtype: str, name: str) -> Array:
    """Floats of a stored dtype as float64, flat. Raises RefusedError for other dtypes."""
    if dtype not in _STORED:
        raise RefusedError(f"{name} is {dtype}; arithmetic needs one of {', '.join(_STORED)}")
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like any other
        return _as_floats(np.frombuffer(raw, _STORED[dtype]), dtype).astype(np.float64)


def encode(values: Array, dtype: str, name: str) -> bytes:
    """float64 numbers in a stored dtype, rounded once to nearest even.

    Raises RefusedError where they are not finite.
    """
    with np.errstate(over="ignore"):
        result = _round_to_bfloat16(values) if dtype == "BF16" else values.astype(_FLOATS[dtype])
    if not bool(np.isfinite(_as_floats(result, dtype)).all()):
        raise RefusedError(
            f"{name}: the result has values that {dtype} cannot hold, or none at all; see that its inputs are"
            " finite"
        )
    return result.tobytes()


def _round_to_bfloat16(values: Array) -> npt.NDArray[np.uint16]:
    # rounding to float32 first could round twice; to odd keeps what decides the second rounding
    single = values.astype("<f4")
    bits = single.view("<u4").copy()
    inexact = (single.astype(np.float64) != values) & np.isfinite(single)
    is_above = np.abs(single.astype(np.float64)) > np.abs(values)
    bits = np.where(inexact & is_above, bits - 1, bits)
    bits = np.where(inexact, bits | 1, bits).astype("<u4")
    return _to_bfloat16(bits.view("<f4"))


def cast(raw: bytes, before: str, after: str, name: str) -> bytes:
    """Floats in `raw` cast from one of BF16, F16, F32 to another, rounded to nearest even.

    Raises RefusedError where a finite value would become infinite: that is not rounding.
    """
    values = _as_floats(np.frombuffer(raw, _STORED[before]), before).astype("<f4")
    with np.errstate(over="ignore"):
        result = _to_bfloat16(values) if after == "BF16" else values.astype(_FLOATS[after])
    is_finite = np.isfinite(values)
    if bool((is_finite & ~np.isfinite(_as_floats(result, after))).any()):
        raise RefusedError(
            f"{name} has values up to {float(np.abs(values[is_finite]).max()):g}, which {after} cannot hold;"
            " leave --dtype out or choose BF16"
        )
    return result.tobytes()


def _as_floats(stored: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Elements of a stored dtype as numpy floats: BF16, which numpy lacks, as float32."""
    return (stored.astype("<u4") << 16).view("<f4") if dtype == "BF16" else stored


def _to_bfloat16(values: "np.typing.NDArray[np.float32]") -> "np.typing.NDArray[np.uint16]":
    bits = values.view("<u4").astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    # a NaN's payload may round up to infinity, so it is cut instead, and kept quiet
    return np.where(np.isnan(values), ((bits >> 16) | 0x40).astype("<u2"), rounded)


def join_absorbed(checkpoint: Checkpoint, w_kc: str, w_vc: str) -> Iterator[bytes]:
    """kv_b_proj [heads*(nope+value), rank] from w_kc [heads, nope, rank] and w_vc [heads, rank, value].

    Per head: the key rows as they are, then the value columns turned into rows.
    """
    keys, values = checkpoint.tensors[w_kc], checkpoint.tensors[w_vc]
    if keys.dtype != values.dtype:
        raise RefusedError(f"{w_kc} is {keys.dtype} and {w_vc} is {values.dtype}; kv_b_proj needs one dtype")
    heads, rank, size = values.shape
    width = values.nbytes * 8 // (heads * rank * size)
    for head in range(heads):
        yield checkpoint.read(w_kc, head * keys.row_bytes, (head + 1) * keys.row_bytes)
        raw = checkpoint.read(w_vc, head * values.row_bytes, (head + 1) * values.row_bytes)
        yield np.frombuffer(raw, _WIDTHS[width]).reshape(rank, size).T.tobytes()
