"""The aux layers that an engine captures for a config.

Where it finds ids, what they mean to it, its default without them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from eaglectl.drafter.boundaries import TRAINING_DEFAULT, AuxLayers, DefaultLayers, to_boundaries
from eaglectl.drafter.drafter import Target
from eaglectl.engines.behaviour import AddsOne, Runner

IDS = "eagle_aux_hidden_state_layer_ids"
# places of ids as reports name them; other paths name themselves
NESTED = f"eagle_config.{IDS}"
PLACES = {IDS: "top level", NESTED: "eagle_config"}


class CapturedLayers(Struct, frozen=True):
    """The aux layers that one runner of an engine captures.

    `ids` is None where none are found, and `default` is then what it takes; `boundaries` is None where the
    target decides.
    """

    engine: str
    key: str
    ids: tuple[int, ...] | None
    boundaries: tuple[int, ...] | None
    default: DefaultLayers | None = None

    @property
    def is_default(self) -> bool:
        """Whether the engine finds no ids and takes its default layers."""
        return self.default is not None

    @property
    def words(self) -> str:
        """The layers as messages name them."""
        if self.boundaries is not None:
            return f"{'the default, ' if self.is_default else ''}boundaries {list(self.boundaries)}"
        return self.default.words if self.default else f"ids {list(self.ids or ())}"

    def same_as(self, trained: AuxLayers) -> bool | None:
        """Whether this runner captures what was trained on; None where that cannot be known."""
        if trained.boundaries is not None and self.boundaries is not None:
            # in fc's order, or sorted by an engine that does not keep it, which facts report
            return self.boundaries in (trained.boundaries, trained.listed)
        if self.default is None:
            return None
        if trained.is_default:
            return self.default.same_as(TRAINING_DEFAULT)
        if trained.boundaries is not None and not self.default.may_be(trained.boundaries):
            return False
        return None


def value_at(config: Mapping[str, Any], path: str) -> Any:
    """The value at a path like eagle_config.fc_norm; None where it is absent."""
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def ids_at(config: Mapping[str, Any], path: str) -> tuple[int, ...] | None:
    """A non-empty list of whole numbers in a config.

    None otherwise (engines read an empty list as absent).
    """
    value = value_at(config, path)
    return tuple(value) if isinstance(value, list) and value and all(type(i) is int for i in value) else None


def capture(runner: Runner, config: Mapping[str, Any], target: Target) -> CapturedLayers:
    """The layers that `runner` captures for a drafter with this config."""
    for path in runner.id_places:
        if ids := ids_at(config, path):
            return _explicit(runner, path, ids, target)
        if value_at(config, path):  # of another type: vLLM looks no further (run, 0.22.0 to 0.33.0)
            break
    # of a target of unknown model_type, what it takes for most
    fitting = (rule.value for rule in runner.default_layers if rule.fits(*target.kinds))
    default = DefaultLayers(next(fitting))
    boundaries = default.at(target.depth) if target.depth else None
    return CapturedLayers(runner.label, runner.without_ids, None, boundaries, default)


def _explicit(runner: Runner, path: str, ids: tuple[int, ...], target: Target) -> CapturedLayers:
    place = PLACES.get(path, path)
    is_output = path in runner.output_places
    adds = is_output or adds_one(runner, ids, target)
    if adds is None:
        return CapturedLayers(runner.label, f"{place}, {runner.adds_one_by_target}", ids, None)
    boundaries = to_boundaries(ids, "output" if adds else "boundary")
    if runner.sorts_ids:
        boundaries = tuple(sorted(set(boundaries)))
    if is_output or (adds and len(runner.adds_one) > 1):
        place += ", +1"
    return CapturedLayers(runner.label, place, ids, boundaries)


def adds_one(runner: Runner, ids: Sequence[int], target: Target) -> bool | None:
    """Whether `runner` takes ids as outputs of layers.

    None where the target's model_type decides and is not known.
    """
    rules = runner.adds_one
    if target.kinds:
        rules = (next(rule for rule in rules if rule.fits(*target.kinds)),)
    answers = {_adds_one(rule.value, ids, target.depth) for rule in rules}
    return answers.pop() if len(answers) == 1 else None


def _adds_one(when: AddsOne, ids: Sequence[int], depth: int | None) -> bool:
    match when:
        case "first id is 1":
            return ids[0] == 1
        case "no id is n":
            return max(ids) != depth
    return when == "always"
