"""The blocks of fc, one per aux layer, in the order in which engines pass the states."""

from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np
from msgspec.structs import replace

from eaglectl.conversion.arithmetic import Array
from eaglectl.conversion.plan import TransformedDrafter
from eaglectl.conversion.tensor_steps import ITEM_SIZE
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import Computed, Tensor
from eaglectl.errors import RefusedError

BlockGroups = Sequence[
    Sequence[int]
]  # for each aux layer in ascending order, the blocks of fc that take its state


def in_ascending_order(drafter: Drafter) -> TransformedDrafter:
    """The drafter with its blocks by ascending boundary: engines sort ids and drop repeated ones (C35).

    Bytes move where every layer is named once. Where one is named twice its blocks are added, which is exact:
    both take the same state. Raises RefusedError where they cannot be added.
    """
    groups = drafter.aux.order
    if groups is None:
        return TransformedDrafter(drafter)
    fc = drafter.tensors["fc.weight"]
    if fc.dtype not in ITEM_SIZE:
        raise RefusedError(
            f"fc.weight is {fc.dtype}; the blocks of a quantised fc cannot be moved or added: write the ids"
            " in ascending order when training"
        )
    tensors = dict(drafter.tensors)
    notes: tuple[Note, ...] = ()
    if any(len(group) > 1 for group in groups):
        # what takes the two states of a repeated layer apart before fc
        obstacles = {
            "input_norm.weight": "input_norm norms over both of them",
            "mask_hidden": "mask_hidden has a state for each",
        }
        if why := next((why for name, why in obstacles.items() if name in tensors), None):
            raise RefusedError(
                f"aux layer ids {list(drafter.aux.ids or ())} name a layer twice, and {why}; its two blocks"
                " of fc cannot be added: train with distinct layers"
            )
        tensors |= _added(drafter, groups)
        boundaries = zip(drafter.aux.boundaries or (), groups, strict=True)
        repeated = [boundary for boundary, group in boundaries if len(group) > 1]
        text = f"boundaries {repeated} were named more than once; their blocks of fc are added into one"
        notes = (Note("note", "fc.weight", text),)
    else:
        tensors |= _moved(drafter, [group[0] for group in groups])
    for block in range(len(groups), drafter.dims.aux):
        tensors.pop(f"fc_norm.{block}.weight", None)
    aux = replace(drafter.aux, count=len(groups), order=None)
    ordered = replace(drafter, tensors=tensors, aux=aux, dims=replace(drafter.dims, aux=len(groups)))
    return TransformedDrafter(ordered, notes)


def _moved(drafter: Drafter, order: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in drafter.tensors.items():
        if name == "fc.weight":
            yield name, tensor.with_blocks(order)
        elif name in ("input_norm.weight", "mask_hidden"):
            flat = replace(tensor, shape=(prod(tensor.shape),))
            yield name, replace(flat.with_blocks(order), shape=tensor.shape)
    yield from _reordered_norms(drafter, order)


def _reordered_norms(drafter: Drafter, order: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    for new, old in enumerate(order if drafter.norms.fc_norm else ()):
        name = f"fc_norm.{new}.weight"
        yield name, replace(drafter.tensors[f"fc_norm.{old}.weight"], name=name)


def _added(drafter: Drafter, groups: BlockGroups) -> Iterator[tuple[str, Tensor]]:
    fc, width = drafter.tensors["fc.weight"], drafter.dims.target_hidden
    norms: tuple[Tensor, ...] = ()
    if drafter.norms.fc_norm:
        norms = tuple(drafter.tensors[f"fc_norm.{block}.weight"] for block in range(drafter.dims.aux))
    added = Computed("blocks of one aux layer added", (fc, *norms), _sum(groups, width))
    yield "fc.weight", replace(fc, shape=(fc.shape[0], len(groups) * width), origin=added)
    yield from _reordered_norms(drafter, [group[0] for group in groups])
    for new, group in enumerate(groups):
        if norms and len(group) > 1:
            name = f"fc_norm.{new}.weight"
            ones = Computed("ones: its weights are in fc", (norms[group[0]],), np.ones_like)
            yield name, replace(norms[group[0]], name=name, origin=ones)


def _sum(groups: BlockGroups, width: int) -> Callable[..., Array]:
    """Adds the blocks of each group of fc [hidden, aux*width], weighted by a repeated layer's norms."""

    def make(fc: Array, *norms: Array) -> Array:
        blocks = [fc[:, block * width : (block + 1) * width] for block in range(fc.shape[1] // width)]
        sums = []
        for group in groups:
            parts = [blocks[block] for block in group]
            if norms and len(group) > 1:
                parts = [blocks[block] * norms[block] for block in group]
            sums.append(sum(parts))
        return np.concatenate(sums, axis=1)

    return make
