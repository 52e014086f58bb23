"""The behaviour of one engine release, and the known facts on it, from its data file.

An entry states its releases, the range in which it holds, and the changes; later entries override earlier
ones key by key, and null removes a key (RFC 7396). The behaviour has the aux layers that an engine captures
for a config: the places of ids, their meaning, and the default without ids.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Meta, Struct, convert, field

from eaglectl.drafter.drafter import (
    DEEPEST,
    TRAINING_DEFAULT,
    AuxLayers,
    DefaultLayers,
    Target,
    to_boundaries,
)
from eaglectl.engines.data import cached, load, read
from eaglectl.formats.config_keys import at
from eaglectl.verdicts import ServedAs

RELEASE = re.compile(r"([0-9]+(?:\.[0-9]+)*)(?:\.post([0-9]+))?")
# the numbers of a release, and of its post-release; -1 for none
Order = tuple[tuple[int, ...], int]
COMPARISONS: Mapping[str, Callable[[Order, Order], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "<": operator.lt,
}


@cache
def is_within(specifier: str, release: str) -> bool:
    """Whether a release is in a range such as ">=0.22.0,<0.25.0"; an empty range holds all.

    Raises KeyError for another comparison, ValueError for another kind of release: the data files have none.
    packaging takes as long to load as everything that validate needs.
    """
    return all(compare(release_order(release), bound) for compare, bound in _bounds(specifier))


@cache
def _bounds(specifier: str) -> list[tuple[Callable[[Order, Order], bool], Order]]:
    pairs = re.findall(r"([<>=!~]+)([^,]+)", specifier)
    return [(COMPARISONS[comparison], release_order(bound)) for comparison, bound in pairs]


def is_since(first: str, release: str) -> bool:
    """Whether a release is `first` or a later one."""
    return is_within(f">={first}", release)


@cache
def release_order(release: str) -> Order:
    """Return the key that releases are compared by, without zeros at the end.

    Raises ValueError for a release with letters other than a post-release like .post1.
    """
    match = RELEASE.fullmatch(release)
    if not match:
        raise ValueError(f"{release}: releases are numbers")
    numbers = re.sub(r"(\.0+)+$", "", match[1]).split(".")
    return tuple(map(int, numbers)), int(match[2]) if match[2] else -1


def ranges(releases: Iterable[str], known: Sequence[str]) -> str:
    """Return releases in few words, with consecutive ones of `known` as ranges: "0.22.0 - 0.33.0"."""
    position = {release: index for index, release in enumerate(known)}
    runs: list[list[str]] = []
    for release in sorted(set(releases), key=position.__getitem__):
        if not runs or position[release] != position[runs[-1][-1]] + 1:
            runs.append([])
        runs[-1].append(release)
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} - {run[-1]}" for run in runs)


AddsOne = Literal["never", "always", "first id is 1", "no id is n"]
Value = TypeVar("Value", covariant=True)
# model types and classes are listed; no pattern is taken
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.]+$")]


class ByTarget(Struct, Generic[Value], frozen=True):
    """A value for targets of these model types or classes; none are all others."""

    value: Value
    targets: tuple[Name, ...] = ()

    def fits(self, *kinds: str) -> bool:
        """Whether the value is for a target of one of these model types or classes."""
        return not self.targets or any(kind in self.targets for kind in kinds)


class Runner(Struct, frozen=True, rename={"id_places": "ids"}):
    """How one runner of a release finds the layers to capture.

    `id_places` are paths in config.json, in the order of the lookup. `adds_one`: ids are outputs of layers;
    at `output_places` they always are. `hidden_by` has, for a path, the key that hides its ids if it is
    stated. `without_ids` names the source of layers in tables if there are no ids, `adds_one_by_target` if
    the meaning of ids depends on an unknown target.
    """

    label: str
    id_places: tuple[str, ...]
    adds_one: tuple[ByTarget[AddsOne], ...]
    sorts_ids: bool
    default_layers: tuple[ByTarget[str], ...]
    drafts_in_parallel: bool
    output_places: tuple[str, ...] = ()
    hidden_by: Mapping[str, str] = {}
    without_ids: str = "none: default"
    adds_one_by_target: str = "+1 by target"


class Flag(Struct, frozen=True):
    """The places of a switch in a config.

    The first path of `first` with a value decides; without one, true at any path of `any`.
    """

    first: tuple[str, ...] = ()
    any: tuple[str, ...] = ()


class AuxCount(Struct, frozen=True):
    """The number of aux states that fc is built for.

    A number or a list's length at the first path that states it.
    """

    paths: tuple[str, ...]
    otherwise: int


class Behaviour(Struct, frozen=True):
    """How a release reads a config and tensor names; classes are llama, mla and qwen3.

    `prefixes` are removed by a class's loader, except from names that begin with a part of `unprefixed`. The
    first of `weight_patterns` that fits a file is opened, without files that end with a part of
    `skipped_weights`; no pattern means that it is unknown. `quantised_runners` run a quantised target; none
    means that it is as any other.
    """

    runners: Mapping[str, Runner]
    default_runner: tuple[ByTarget[tuple[str, ...]], ...]
    aux_count: Mapping[str, AuxCount]
    prefixes: Mapping[str, tuple[str, ...]]
    flags: Mapping[str, Flag]
    unprefixed: tuple[str, ...] = ()
    speculators_defaults: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    weight_patterns: tuple[str, ...] = ()
    skipped_weights: tuple[str, ...] = ()
    quantised_runners: tuple[str, ...] = ()

    @property
    def parallel_runners(self) -> tuple[str, ...]:
        """The runners that draft in parallel."""
        return tuple(name for name, runner in self.runners.items() if runner.drafts_in_parallel)

    def runners_for(
        self, model_type: str | None, *, is_parallel: bool = False, is_quantised: bool = False
    ) -> tuple[str, ...]:
        """Return the runners that the release may use for a target's model_type (None: unknown)."""
        if is_parallel and self.parallel_runners:
            return self.parallel_runners
        if is_quantised and self.quantised_runners:
            return self.quantised_runners
        if model_type:  # the last rule fits every model type
            return next(rule.value for rule in self.default_runner if rule.fits(model_type))
        return tuple(name for name in self.runners if any(name in rule.value for rule in self.default_runner))


def unversioned() -> Mapping[str, Any]:
    """Return the data on engines whose releases are not followed."""
    return read("unversioned.json")


def judged_unversioned() -> Mapping[str, str]:
    """Return the titles, by name, of the unversioned engines whose layers can be judged."""
    return {name: data["title"] for name, data in unversioned()["engines"].items() if "behaviour" in data}


def unversioned_behaviour(engine: str) -> Behaviour:
    """Return the behaviour of an engine whose releases are not followed."""
    return convert(unversioned()["engines"][engine]["behaviour"], Behaviour)


@cached
def stated(engine: str, release: str) -> Mapping[str, Any]:
    """Return all that the entries of a release state, merged."""
    ranges = enumerate(entry["range"] for entry in load(engine)["behaviour"])
    return _merged_entries(
        engine, tuple(number for number, specifier in ranges if is_within(specifier, release))
    )


@cached
def _merged_entries(engine: str, entries: tuple[int, ...]) -> Mapping[str, Any]:
    # by beginnings, which most releases share
    if not entries:
        return {}
    return dict(merge(_merged_entries(engine, entries[:-1]), load(engine)["behaviour"][entries[-1]]))


def merge(before: Any, change: Any) -> Any:
    """Apply the changes of one JSON value to another (RFC 7396)."""
    if not isinstance(change, Mapping):
        return change
    original = before if isinstance(before, Mapping) else {}
    merged = {**original, **{key: merge(original.get(key), value) for key, value in change.items()}}
    return {key: value for key, value in merged.items() if value is not None}


# run: a recorded case shows it on the engine itself; read: its sources show it
EvidenceKind = Literal["run", "read"]
# what an engine reads differently than it was trained, if nothing else in its network differs
Misread = Literal[
    "aux layers", "rope base", "fc_norm", "norm_before_fc", "norm_output", "norm_before_residual"
]


class StartOption(Struct, frozen=True):
    """An option of an engine's command line with which it runs a checkpoint as trained, despite a fact.

    In a fact, `value` has placeholders as its message does. With `is_limit`, lower values do too. `source` is
    the engine's file and line that read the option.
    """

    name: Annotated[str, Meta(pattern=r"^--[a-z-]+$")]
    value: str
    source: Annotated[str, Meta(pattern=r"\.py [0-9.]+:[0-9]+")]
    is_limit: bool = False

    @property
    def words(self) -> str:
        """The option as a command line has it."""
        return f"{self.name} {self.value}"

    @property
    def argument(self) -> tuple[str, int | str]:
        """The name of the option in Python, and its value."""
        value = int(self.value) if self.value.isdecimal() else self.value
        return self.name.removeprefix("--").replace("-", "_"), value


class Fact(Struct, frozen=True):
    """One fact on an engine, in `releases` (PEP 508, empty for all), for drafters of `classes`.

    `message` has placeholders for a checkpoint's values; `summary`, `why` and `fix` are the rule's
    documentation. `remedy` is the smallest change that helps: config keys to write, "convert", "restore"
    (from the trainer), "anew" (convert the original source again) or "upgrade" (the engine). `reported_by`
    are rules that report the same defect for every engine. If a final fact holds, no other is reported.
    `misread` is what the engine reads differently than it was trained, if that is all. With `option`, the
    engine runs the checkpoint as trained, if the engine's condition for it holds. The fact was read in the
    engine's sources, at `source`; where it was also run is in the engine's runs (`FactRun`).
    """

    id: str
    rule: str
    releases: str
    classes: tuple[str, ...]
    outcome: ServedAs
    message: str
    summary: str
    why: str
    fix: str
    remedy: Mapping[str, Any] | str
    source: str
    reported_by: tuple[str, ...] = ()
    is_final: bool = False
    misread: Misread | None = None
    option: StartOption | None = None


class ShownFact(Struct, frozen=True):
    """Whether a recorded case showed that a fact holds in a release, or that it does not."""

    holds: bool
    case: str


class RunnerRecord(Struct, frozen=True):
    """What one runner of a release did with recorded drafters.

    `drafters` is their number, and `agreed` of how many `validate` says the same. `facts` has the facts that
    one of them showed, by id.
    """

    drafters: int
    agreed: int
    facts: Mapping[str, ShownFact]


class FactRun(Struct, frozen=True):
    """A run that showed whether a fact holds: the release, its runner, and the recorded case."""

    release: str
    runner: str
    holds: bool
    case: str


class AppliedFact(Struct, frozen=True):
    """A fact that holds for one checkpoint in one release.

    `text` is its message with that checkpoint's values, `option` the option that makes the release run the
    checkpoint as trained, with its value; None if there is none.
    """

    fact: Fact
    text: str
    option: StartOption | None = None


IDS = "eagle_aux_hidden_state_layer_ids"
# the draft tokens of a round in the commands that start an engine
DRAFT_TOKENS = 3
# places of ids as reports name them; other paths name themselves
NESTED = f"eagle_config.{IDS}"
PLACES = {IDS: "top level", NESTED: "eagle_config"}


class CapturedLayers(Struct, frozen=True):
    """The aux layers that one runner of an engine captures.

    `ids` is None if the config has none; the runner then takes `default`. `boundaries` is None if they depend
    on the target.
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
    def count(self) -> int:
        """The number of captured states: each layer is captured once."""
        return len(set(self.boundaries or self.ids or (self.default.at(DEEPEST) if self.default else ())))

    @property
    def words(self) -> str:
        """The layers as messages name them."""
        if self.boundaries is not None:
            return f"{'the default, ' if self.is_default else ''}boundaries {list(self.boundaries)}"
        return self.default.words if self.default else f"ids {list(self.ids or ())}"

    def same_as(self, trained: AuxLayers) -> bool | None:
        """Return whether this runner captures the layers of training; None if that cannot be known.

        `boundaries` of training are sorted; `listed` has them in the order of fc's blocks. Without a known
        depth, a default has no boundaries, and only its rule can be compared: with the rule of training, or
        with boundaries that it may give at some depth.
        """
        if trained.boundaries is not None and self.boundaries is not None:
            # in fc's order, or sorted by an engine that does not keep it, which facts report
            return self.boundaries in (trained.boundaries, trained.listed)
        if self.default is None:
            return None
        if trained.is_default:
            return self.default.same_as(TRAINING_DEFAULT)
        is_other = trained.boundaries is not None and not self.default.may_be(trained.boundaries)
        return False if is_other else None


def ids_at(config: Mapping[str, Any], path: str) -> tuple[int, ...] | None:
    """Return a non-empty list of whole numbers in a config; None for anything else.

    Engines read an empty list as absent.
    """
    value = at(config, path)
    return tuple(value) if isinstance(value, list) and value and all(type(i) is int for i in value) else None


def capture(runner: Runner, config: Mapping[str, Any], target: Target) -> CapturedLayers:
    """Return the layers that `runner` captures for a drafter with this config."""
    for path in runner.id_places:
        if at(config, runner.hidden_by.get(path, "")):
            continue
        if ids := ids_at(config, path):
            return _layers_of_ids(runner, path, ids, target)
        if at(config, path):  # of another type: vLLM looks no further (run, 0.22.0 to 0.33.0)
            break
    # of a target of unknown model_type, what it takes for most
    default = DefaultLayers(next(rule.value for rule in runner.default_layers if rule.fits(*target.kinds)))
    boundaries = default.at(target.depth) if target.depth else None
    return CapturedLayers(runner.label, runner.without_ids, None, boundaries, default)


def _layers_of_ids(runner: Runner, path: str, ids: tuple[int, ...], target: Target) -> CapturedLayers:
    # the boundaries that a runner captures for these ids; None where its rule depends on a target that is not
    # known
    place, is_output = PLACES.get(path, path), path in runner.output_places
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
    """Return whether `runner` reads ids as outputs of layers.

    None if that depends on the target's model_type, and it is unknown.
    """
    holds: Mapping[AddsOne, bool] = {
        "never": False,
        "always": True,
        "first id is 1": ids[0] == 1,
        "no id is n": max(ids) != target.depth,
    }
    rules = runner.adds_one
    if target.kinds:
        rules = (next(rule for rule in rules if rule.fits(*target.kinds)),)
    answers = {holds[rule.value] for rule in rules}
    return answers.pop() if len(answers) == 1 else None
