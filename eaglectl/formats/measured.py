"""Sizes measured on tensors and compared with the config; the tensors win, and a difference is noted."""

from collections.abc import Mapping

from msgspec import Struct

from eaglectl.drafter.drafter import Note
from eaglectl.drafter.tensors import is_quantised_part
from eaglectl.errors import RefusedError
from eaglectl.formats.config_keys import Keys, Reading
from eaglectl.formats.names import Names


class Shapes(Struct, frozen=True):
    """Shapes by canonical name, without packed (quantised) weights."""

    of: Mapping[str, tuple[int, ...]]

    def axis(self, name: str, axis: int) -> int | None:
        """The size of one axis, None where the tensor is absent; a tensor of too few axes is refused."""
        shape = self.of.get(name)
        if shape is None:
            return None
        if axis >= len(shape):
            raise RefusedError(
                f"{name} is {list(shape)}; {axis + 1} axes or more were expected",
                "tensor-shape",
                f"tensor:{name}",
            )
        return shape[axis]

    def first(self, *places: tuple[str, int]) -> int | None:
        """The first of several (name, axis) that is there."""
        return next((size for name, axis in places if (size := self.axis(name, axis)) is not None), None)


def plain_shapes(names: Names) -> Shapes:
    """Shapes of all tensors whose stored shape is their real one."""
    tables = {**names.plain, **names.fused, **names.absorbed}
    packed = {name.rpartition(".")[0] for name in tables if name.endswith((".weight_packed", ".qweight"))}
    four_bit = {
        name
        for name, t in tables.items()
        if t.dtype in ("U8", "I8", "F4")
        and f"{name}_scale" in tables
        and name.endswith(".weight")
        and t.dtype != "I8"
    }
    kept = {
        n: t.shape
        for n, t in tables.items()
        if not is_quantised_part(n) and n.rpartition(".")[0] not in packed and n not in four_bit
    }
    return Shapes(kept)


def agreed(keys: Keys, key: str, measured: int | None, *, always: bool = False) -> Reading[int]:
    """A dimension: `measured` on the tensors, or else as the config states it.

    Raises RefusedError where neither gives it.
    """
    stated = keys.count(key)
    value = stated if measured is None else measured
    if value is None:
        raise RefusedError(
            f"config.json has no {key}, and no tensor gives it; add it to config.json",
            keys.absence(key),
            "config.json",
        )
    notes: tuple[Note, ...] = ()
    if stated is not None and stated != value:
        text = f"config says {key}: {stated}, and the tensors say {value}; the tensors are believed"
        topic = "layer-count" if key == "num_hidden_layers" else "config-dimensions"
        notes = (Note("warning", key, text, topic),)
    elif stated is None and always:
        notes = (Note("note", key, f"config has no {key}; the tensors say {value}"),)
    return Reading(value, (key,), notes)


def whole(name: str, rows: int, by: int, what: str) -> int:
    """The quotient of rows that must divide evenly; `what` names the divisor. Raises RefusedError."""
    if rows % by:
        raise RefusedError(
            f"{name} has {rows} rows, which {what} = {by} does not divide; correct config.json",
            "config-dimensions",
            "config.json",
        )
    return rows // by
