"""Modules outside of the layers in plain numbers, where an engine builds them without quantisation."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from msgspec.structs import replace

from eaglectl.conversion.plan import FLOATS, TransformedDrafter
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import (
    NOT_OF_WEIGHTS,
    Computed,
    Tensor,
    expected_shape,
    is_norm,
    is_quantised_part,
    quantised_modules,
)
from eaglectl.engines.quantised import EDGES, stops_at_head, unbuilt
from eaglectl.engines.registry import ENGINES, EngineRequest, usual_release
from eaglectl.errors import RefusedError, UsageError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.formats.format import Layout
from eaglectl.formats.writer import excluding

KEY = "quantization_config"


def with_plain_edges(
    checkpoint: Checkpoint, drafter: Drafter, layout: Layout, engines: Sequence[EngineRequest]
) -> TransformedDrafter:
    """Return the drafter with each fc, lm_head and embedding dequantised that a release does not take so.

    The releases are those of `engines`, else the usual one of each of the layout's. A method that the
    reference does not multiply out stays as it is. Raises UsageError without torch.
    """
    reasons = _reasons(drafter, engines or [*map(usual_release, layout.engines)])
    weights = {name: weight for name in reasons if (weight := _dequantised(checkpoint, drafter, name))}
    if not weights:
        return TransformedDrafter(drafter)
    notes = tuple(
        Note("note", name, f"{name} is written dequantised, as {weight.dtype}: {reasons[name]}")
        for name, weight in weights.items()
    )
    return TransformedDrafter(_with_weights(drafter, weights), notes, {"dequantised": [*weights]})


def _with_weights(drafter: Drafter, weights: Mapping[str, Tensor]) -> Drafter:
    # the drafter with plain weights, by module, in the place of quantised ones
    parts = {name: tensor for module in weights for name, tensor in _parts(drafter, module).items()}
    tensors = {name: tensor for name, tensor in drafter.tensors.items() if name not in parts}
    table = excluding(drafter.quantisation or {}, weights) if quantised_modules(tensors) else None
    carried = {key: value for key, value in drafter.carried.items() if key != KEY}
    return replace(
        drafter,
        tensors=tensors | {weight.name: weight for weight in weights.values()},
        quantisation=table,
        carried=carried | ({KEY: table} if table else {}),
        strays={**drafter.strays}
        | {tensor.stored[0]: "of a module that is dequantised" for tensor in parts.values()},
    )


def _reasons(drafter: Drafter, requests: Sequence[EngineRequest]) -> Mapping[str, str]:
    # the quantised modules that some release does not take so, and why: what the last such release does
    reasons = {}
    for request in requests:
        for release in request.releases if request.engine in ENGINES else ():
            name = f"{ENGINES[request.engine].title} {release}"
            if stops_at_head(request.engine, release, drafter):
                reasons["lm_head"] = f"{name} stops at a packed one with its V2 runner"
            modules = unbuilt(request.engine, release, drafter)
            reasons |= {
                module: f"{name} builds it without quantisation" for module in modules if module in EDGES
            }
    return reasons


def _parts(drafter: Drafter, module: str) -> Mapping[str, Tensor]:
    return {
        name: tensor
        for name, tensor in drafter.tensors.items()
        if name.rpartition(".")[0] == module and (name.endswith(".weight") or is_quantised_part(name))
    }


def _dequantised(checkpoint: Checkpoint, drafter: Drafter, module: str) -> Tensor | None:
    """Return a module's weight in plain numbers; None for a method that the reference does not read."""
    if find_spec("torch") is None:
        raise UsageError(
            f"dequantising {module} needs torch; install eaglectl with its torch extra: pip install"
            " '.[torch]' in a checkout"
        )
    # late: it loads torch
    from eaglectl.reference.quantised import WORD, ZERO, dequantised_rows, fitting, number_bits

    stored = {name: tensor.stored[0] for name, tensor in _parts(drafter, module).items()}
    parts = {name.rpartition(".")[2]: stored[name] for name in stored if not name.endswith(NOT_OF_WEIGHTS)}
    shape = expected_shape(name := f"{module}.weight", drafter.dims) or ()

    packed = parts.get("weight_packed")

    def make(start: int, stop: int) -> Any:
        size, rows, unit = shape[0], range(start, stop), WORD
        with fitting(module):
            if packed and ZERO in parts:
                unit = WORD // number_bits(shape[1], checkpoint.tensors[packed].shape[1])
            if "qweight" in parts or ZERO in parts:  # whole words
                rows = range(start // unit * unit, min(-(-stop // unit) * unit, size))
            taken = {part: _rows(checkpoint, place, size, rows, unit) for part, place in parts.items()}
            numbers = dequantised_rows(module, taken, drafter.quantisation)
            numbers = numbers[start - rows.start : stop - rows.start]
            if numbers.shape != (stop - start, *shape[1:]):
                raise ValueError(f"{list(numbers.shape)} numbers of {list(shape)}")
        return numbers

    try:
        make(0, 1)
    except RefusedError:
        return None
    # the dtype that the config states too
    dtypes = (tensor.dtype for name, tensor in drafter.tensors.items() if is_norm(name))
    dtype = next((dtype for dtype in dtypes if dtype in FLOATS), "BF16")
    return Tensor(name, dtype, shape, Computed("dequantised", (), make, True, tuple(parts.values())))


def _rows(
    checkpoint: Checkpoint, name: str, size: int, rows: range, unit: int
) -> tuple[str, tuple[int, ...], bytes]:
    """Return the dtype, shape and bytes of these rows of a stored part of a matrix with `size` rows.

    A word of packed zero points is of `unit` rows, by which `rows` are whole. A part that is not stored by
    rows is returned whole.
    """
    from eaglectl.reference.quantised import BY_WORDS, ZERO, block_size

    stored, step = checkpoint.tensors[name], checkpoint.tensors[name].row_bytes
    if name.endswith(BY_WORDS) and len(stored.shape) == 2:  # rows of the matrix are columns here
        count, table = size // stored.shape[1], np.frombuffer(checkpoint.read(name), np.uint8)
        columns = table.reshape(*stored.shape, -1)[:, rows.start // count : rows.stop // count]
        return stored.dtype, columns.shape[:2], columns.tobytes()
    if stored.shape[:1] in ((), (1,)) or name.endswith(("weight_shape", "g_idx")):
        return stored.dtype, stored.shape, checkpoint.read(name)
    block = block_size(size, stored.shape[0])
    if name.endswith(ZERO) and stored.dtype == "I32":
        first, last = rows.start // unit, -(-rows.stop // unit)
        shape = last - first, *stored.shape[1:]
        return stored.dtype, shape, checkpoint.read(name, first * step, last * step)
    places = rows.start // block * step, ((rows.stop - 1) // block + 1) * step
    # each row of a scale is of `block` rows
    stacked = np.frombuffer(checkpoint.read(name, *places), np.uint8).reshape(-1, step).repeat(block, 0)
    return stored.dtype, (len(rows), *stored.shape[1:]), stacked[rows.start % block :][: len(rows)].tobytes()
