"""fc's blocks, one for each aux layer, in the order in which engines hand the states over; a layer named twice gets one block."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from eaglectl.conversion.arithmetic import Array
from eaglectl.conversion.tensor_steps import ITEM
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import Computed, Segment, Tensor
from eaglectl.errors import Refused

Places = Sequence[Sequence[int]]


def in_order(drafter: Drafter) -> tuple[Drafter, tuple[Note, ...]]:
    """The drafter with its blocks by ascending boundary; engines sort ids and drop repeated ones in silence (formats.md, C35).

    Bytes move where every layer is named once. Where one is named twice its blocks are added, which is exact: both see the same
    state. Raises Refused where they cannot be.
    """
    places = drafter.aux.order
    if places is None:
        return drafter, ()
    fc = drafter.tensors["fc.weight"]
    if fc.dtype not in ITEM:
        raise Refused(
            f"fc.weight is {fc.dtype}; the blocks of a quantised fc cannot be moved or added: write the ids in ascending order"
            " when training"
        )
    is_merged = any(len(where) > 1 for where in places)
    tensors = dict(drafter.tensors)
    tensors |= _merged(drafter, places) if is_merged else _moved(drafter, [where[0] for where in places])
    for place in range(len(places), drafter.dims.aux):
        tensors.pop(f"fc_norm.{place}.weight", None)
    aux = replace(drafter.aux, count=len(places), order=None)
    result = replace(drafter, tensors=tensors, aux=aux, dims=replace(drafter.dims, aux=len(places)))
    return result, tuple(_told(drafter, places)) if is_merged else ()


def _moved(drafter: Drafter, order: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in drafter.tensors.items():
        if name == "fc.weight":
            yield name, replace(tensor, origin=_blocks(tensor, tensor.shape[0], order))
        elif name in ("input_norm.weight", "mask_hidden"):
            yield name, replace(tensor, origin=_blocks(tensor, 1, order))
    yield from _norms(drafter, order)


def _norms(drafter: Drafter, order: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    if drafter.norms.fc_norm:
        for new, old in enumerate(order):
            name = f"fc_norm.{new}.weight"
            yield name, replace(drafter.tensors[f"fc_norm.{old}.weight"], name=name)


def _blocks(tensor: Tensor, rows: int, order: Sequence[int]) -> tuple[Segment, ...]:
    """The bytes of a tensor of `rows`, each one block for every aux layer, with the blocks in this order."""
    count, stretched = len(order), replace(tensor, shape=(rows * len(order),))
    moved = stretched.with_rows([row * count + place for row in range(rows) for place in order]).origin
    assert isinstance(moved, tuple)
    return moved


def _merged(drafter: Drafter, places: Places) -> Iterator[tuple[str, Tensor]]:
    if "input_norm.weight" in drafter.tensors or "mask_hidden" in drafter.tensors:
        what = (
            "input_norm norms over both of them"
            if "input_norm.weight" in drafter.tensors
            else "mask_hidden has a state for each"
        )
        raise Refused(
            f"aux layer ids {list(drafter.aux.ids or ())} name a layer twice, and {what}; its two blocks of fc cannot be added:"
            " train with distinct layers"
        )
    fc, width = drafter.tensors["fc.weight"], drafter.dims.target_hidden
    norms = (
        tuple(drafter.tensors[f"fc_norm.{place}.weight"] for place in range(drafter.dims.aux))
        if drafter.norms.fc_norm
        else ()
    )
    yield "fc.weight", replace(
        fc, shape=(fc.shape[0], len(places) * width), origin=Computed("blocks of one aux layer added", (fc, *norms), _sum(places, width))
    )  # fmt: skip
    yield from _norms(drafter, [where[0] for where in places])
    for new, where in enumerate(places):
        if norms and len(where) > 1:
            name, ones = (
                f"fc_norm.{new}.weight",
                Computed("ones: its weights are in fc", (norms[where[0]],), np.ones_like),
            )
            yield name, replace(norms[where[0]], name=name, origin=ones)


def _sum(places: Places, width: int) -> Callable[..., Array]:
    def make(fc: Array, *norms: Array) -> Array:
        blocks = [fc[:, place * width : (place + 1) * width] for place in range(fc.shape[1] // width)]
        found = []
        for where in places:
            is_weighted = bool(norms) and len(where) > 1
            found.append(sum(blocks[place] * norms[place] if is_weighted else blocks[place] for place in where))
        return np.concatenate(found, axis=1)

    return make


def _told(drafter: Drafter, places: Places) -> Iterator[Note]:
    twice = [b for b, where in zip(drafter.aux.boundaries or (), places, strict=True) if len(where) > 1]
    yield Note(
        "note", "fc.weight", f"boundaries {twice} were named more than once; their blocks of fc are added into one"
    )
