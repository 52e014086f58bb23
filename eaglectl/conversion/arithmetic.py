"""The few steps that touch elements: casting floats when asked, and putting an absorbed kv_b_proj back together."""

from collections.abc import Iterator

import numpy as np

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.errors import Refused

_WIDTHS = {8: "<u1", 16: "<u2", 32: "<u4", 64: "<u8"}


def cast(raw: bytes, before: str, after: str, name: str) -> bytes:
    """Floats in `raw` from one of BF16, F16, F32 to another, rounded to nearest even.

    Raises Refused where a finite value would become infinite: that is not rounding.
    """
    values = (
        (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        if before == "BF16"
        else np.frombuffer(raw, "<f2" if before == "F16" else "<f4").astype("<f4")
    )
    with np.errstate(over="ignore"):
        result = _to_bfloat16(values) if after == "BF16" else values.astype("<f2" if after == "F16" else "<f4")
    wide = (result.astype("<u4") << 16).view("<f4") if after == "BF16" else result
    if bool((np.isfinite(values) & ~np.isfinite(wide)).any()):
        raise Refused(
            f"{name} has values up to {float(np.abs(values[np.isfinite(values)]).max()):g}, which {after} cannot hold;"
            " leave --dtype out or choose BF16"
        )
    return result.tobytes()


def _to_bfloat16(values: "np.typing.NDArray[np.float32]") -> "np.typing.NDArray[np.uint16]":
    bits = values.view("<u4").astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    # a NaN's payload may round up to infinity, so it is cut instead, and kept quiet
    return np.where(np.isnan(values), ((bits >> 16) | 0x40).astype("<u2"), rounded)


def join_absorbed(checkpoint: Checkpoint, w_kc: str, w_vc: str) -> Iterator[bytes]:
    """kv_b_proj [heads*(nope+value), rank] from w_kc [heads, nope, rank] and w_vc [heads, rank, value]; no element changes.

    Per head: the key rows as they are, then the value columns turned into rows (formats.md, C7).
    """
    keys, values = checkpoint.tensors[w_kc], checkpoint.tensors[w_vc]
    if keys.dtype != values.dtype:
        raise Refused(f"{w_kc} is {keys.dtype} and {w_vc} is {values.dtype}; kv_b_proj needs one dtype")
    heads, rank, size = values.shape
    width = values.nbytes * 8 // (heads * rank * size)
    for head in range(heads):
        yield checkpoint.read(w_kc, head * keys.row_bytes, (head + 1) * keys.row_bytes)
        raw = checkpoint.read(w_vc, head * values.row_bytes, (head + 1) * values.row_bytes)
        yield np.frombuffer(raw, _WIDTHS[width]).reshape(rank, size).T.tobytes()
