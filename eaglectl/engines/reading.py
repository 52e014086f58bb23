"""The network that an engine makes of a checkpoint, where it is another one than was trained."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.facts import AppliedFact, Misread
from eaglectl.engines.layers import CapturedLayers
from eaglectl.engines.view import View, stated_theta

Switch = Literal["fc_norm", "norm_before_fc", "norm_output", "norm_before_residual"]
# of these the file has the tensors only where they were trained
WITH_TENSORS = ("fc_norm", "norm_before_fc")


class NetworkReading(Struct, frozen=True):
    """What an engine reads otherwise than was trained, where that is all in which its network differs.

    `boundaries` are those that it captures, `switches` the norm switches that it reads otherwise, `theta` the
    rope base that it takes; None and empty: as trained.
    """

    engine: str
    boundaries: tuple[int, ...] | None = None
    switches: Mapping[str, bool] = field(default_factory=dict)
    theta: float | None = None

    @property
    def words(self) -> str:
        """How a run of it is called."""
        if self.switches or self.theta is not None:
            return f"read as {self.engine} reads it"
        return f"at the layers that {self.engine} captures"

    @property
    def key(self) -> tuple[object, ...]:
        """What makes it another network, whichever engine reads so."""
        return self.boundaries, tuple(sorted(self.switches.items())), self.theta

    def of(self, drafter: Drafter) -> Drafter:
        """The drafter as the engine reads it; its layers are those of `boundaries`."""
        norms = replace(drafter.norms, **self.switches)
        rope = drafter.rope if self.theta is None else replace(drafter.rope, theta=self.theta)
        return replace(drafter, norms=norms, rope=rope)


def network_reading(
    engine: str, view: View, captured: Mapping[str, CapturedLayers], differing: Sequence[AppliedFact]
) -> NetworkReading | None:
    """The reading that makes up all facts that differ; None where one of them is anything else.

    `captured` are the layers by the runners that the release may take, which have to agree.
    """
    kinds: list[Misread | None] = [applied.fact.misread for applied in differing]
    values: dict[str, Any] = {}
    for kind in kinds:
        value = None if kind is None else _value(kind, view, captured.values())
        if value is None:
            return None
        values[str(kind)] = value
    switches = {name: values[name] for name in get_args(Switch) if name in values}
    return NetworkReading(engine, values.get("aux layers"), switches, values.get("rope base"))


def _value(kind: Misread, view: View, captured: Iterable[CapturedLayers]) -> Any:
    """What the engine reads; None where that is not known, or nothing that the tensors fit."""
    if kind == "aux layers":
        (boundaries, *others) = {layers.boundaries for layers in captured}
        if others or boundaries is None or len(boundaries) != view.drafter.dims.aux:
            return None
        return _ascending(boundaries, view.drafter.aux.listed)
    if kind == "rope base":
        theta = stated_theta(view)
        return float(theta) if isinstance(theta, int | float) else None
    trained = getattr(view.drafter.norms, kind)
    return None if trained is None or (kind in WITH_TENSORS and not trained) else not trained


def _ascending(captured: Sequence[int], trained: Sequence[int] | None) -> tuple[int, ...] | None:
    """What fc's blocks get, in the order of a conversion, which sorts them by the boundaries trained on.

    `captured` is in the order of the stored blocks; None where two of these are of one boundary.
    """
    if trained is None:
        return tuple(captured)
    if len(set(trained)) < len(trained):
        return None
    return tuple(layer for _, layer in sorted(zip(trained, captured, strict=True)))
