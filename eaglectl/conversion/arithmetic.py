"""The steps that change elements: float64 arithmetic, rounded once, and joining an absorbed kv_b_proj."""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from eaglectl.drafter.tensors import Absorbed, Computed, Tensor, cut
from eaglectl.errors import RefusedError
from eaglectl.files.checkpoint import Checkpoint

_WIDTHS = {8: "<u1", 16: "<u2", 32: "<u4", 64: "<u8"}
_FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
_STORED = {"BF16": "<u2", **_FLOATS}
Array = npt.NDArray[np.float64]
BLOCK = 1 << 24  # numbers that are held as float64 at once, 128 MiB, where rows can be made one by one


def evaluate(tensor: Tensor, checkpoint: Checkpoint, rows: tuple[int, int] | None = None) -> Array:
    """A tensor's numbers as float64, from any origin, without rounding; of some, rows [start, stop).

    Raises RefusedError for dtypes that are not floats.
    """
    start, stop = rows or (0, tensor.shape[0])
    match tensor.origin:
        case Computed(sources=sources, make=make, by_rows=by_rows):
            values = [evaluate(source, checkpoint, rows if by_rows else None) for source in sources]
            made: Array = make(start, stop) if by_rows and not sources else make(*values)
            return made
        case Absorbed(w_kc, w_vc):
            raw = b"".join(join_absorbed(checkpoint, w_kc, w_vc))
        case segments:
            size = sum(segment.stop - segment.start for segment in segments) // tensor.shape[0]
            parts = cut(segments, start * size, stop * size)
            raw = b"".join(checkpoint.read(part.stored, part.start, part.stop) for part in parts)
    return decode(raw, tensor.dtype, tensor.name).reshape(stop - start, *tensor.shape[1:])


def encoded(tensor: Tensor, checkpoint: Checkpoint) -> Iterator[bytes]:
    """A computed tensor's bytes, in blocks of rows where its arithmetic goes by rows."""
    count = step = tensor.shape[0]
    if _goes_by_rows(tensor):
        step = max(1, BLOCK // prod(tensor.shape[1:]))
    for start in range(0, count, step):
        values = evaluate(tensor, checkpoint, (start, min(start + step, count)))
        yield encode(values, tensor.dtype, tensor.name)


def _goes_by_rows(tensor: Tensor) -> bool:
    match tensor.origin:
        case Computed(sources=sources, by_rows=by_rows):
            return by_rows and all(map(_goes_by_rows, sources))
    return not isinstance(tensor.origin, Absorbed)


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
    with np.errstate(over="ignore", invalid="ignore"):
        result = _to_bfloat16(values) if dtype == "BF16" else values.astype(_FLOATS[dtype])
    if not bool(np.isfinite(values).all() and np.isfinite(_as_floats(result, dtype)).all()):
        raise RefusedError(
            f"{name} would have values up to {float(np.abs(values).max()):g}, which {dtype} cannot hold; see"
            " that its inputs are finite, and leave --dtype out or choose BF16"
        )
    return result.tobytes()


def rounded(values: Array, dtype: str) -> Array:
    """Numbers as `dtype` stores them: what is computed from them must use the stored ones."""
    return decode(encode(values, dtype, "a scale"), dtype, "a scale").reshape(values.shape)


def _to_bfloat16(values: Array) -> npt.NDArray[np.uint16]:
    # rounding to float32 first could round twice; to odd keeps what decides the second rounding
    single = values.astype("<f4")
    bits, back = single.view("<u4").astype(np.uint64), single.astype(np.float64)
    bits = np.where(back != values, (bits - (np.abs(back) > np.abs(values))) | 1, bits)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _as_floats(stored: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Elements of a stored dtype as numpy floats: BF16, which numpy lacks, as float32."""
    return (stored.astype("<u4") << 16).view("<f4") if dtype == "BF16" else stored


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
