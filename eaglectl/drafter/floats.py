"""Stored floats as float64 and back, rounded once."""

from typing import Any

import numpy as np

from eaglectl.errors import RefusedError

_FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
_STORED = {"BF16": "<u2", **_FLOATS}
Numbers = np.ndarray[Any, np.dtype[Any]]
Array = np.ndarray[Any, np.dtype[np.float64]]


def decode(raw: bytes, dtype: str, name: str) -> Array:
    """Return the numbers of a stored dtype as float64, flat. Raises RefusedError for other dtypes."""
    if dtype not in _STORED:
        raise RefusedError(f"{name} is {dtype}; arithmetic needs one of {', '.join(_STORED)}")
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like any other
        return _as_floats(np.frombuffer(raw, _STORED[dtype]), dtype).astype(np.float64)


def encode(values: Array, dtype: str, name: str) -> bytes:
    """Return float64 numbers in a stored dtype, rounded once to nearest even.

    Raises RefusedError where they are not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        result = _to_bfloat16(values) if dtype == "BF16" else values.astype(_FLOATS[dtype])
    if not bool(np.isfinite(values).all() and np.isfinite(_as_floats(result, dtype)).all()):
        raise RefusedError(
            f"{name} would have values up to {float(np.abs(values).max()):g}, which {dtype} cannot hold;"
            " check that its inputs are finite, and leave --dtype out or choose BF16",
            options=("--dtype",),
        )
    return result.tobytes()


def rounded(values: Array, dtype: str) -> Array:
    """Return numbers as `dtype` stores them, for arithmetic on what the file will hold."""
    return decode(encode(values, dtype, "a scale"), dtype, "a scale").reshape(values.shape)


def _to_bfloat16(values: Array) -> np.ndarray[Any, np.dtype[np.uint16]]:
    # rounding to float32 first could round twice; to odd keeps what decides the second rounding
    single = values.astype("<f4")
    bits, back = single.view("<u4").astype(np.uint64), single.astype(np.float64)
    bits = np.where(back != values, (bits - (np.abs(back) > np.abs(values))) | 1, bits)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _as_floats(stored: Numbers, dtype: str) -> Numbers:
    return (stored.astype("<u4") << 16).view("<f4") if dtype == "BF16" else stored
