"""What one engine release reads and captures, and the facts known of it, from its data file.

An entry states the releases that came with it, the range in which it holds, and what changed with them; later
entries override earlier ones key by key, and null removes a key (RFC 7396).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Meta, Struct, convert, field

from eaglectl.engines.data import cached, load, read
from eaglectl.engines.releases import is_within
from eaglectl.verdicts import ServedAs

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

    `id_places` are paths in config.json, in the order in which they are looked up; `adds_one` is whether ids
    there are outputs of layers, which they always are at `output_places`. `without_ids` and
    `adds_one_by_target` name, in tables, the source of layers where there are no ids and ids whose meaning
    depends on a target that is not known.
    """

    label: str
    id_places: tuple[str, ...]
    adds_one: tuple[ByTarget[AddsOne], ...]
    sorts_ids: bool
    default_layers: tuple[ByTarget[str], ...]
    drafts_in_parallel: bool
    output_places: tuple[str, ...] = ()
    without_ids: str = "none: default"
    adds_one_by_target: str = "+1 by target"


class Flag(Struct, frozen=True):
    """Where a switch is read.

    The `first` path that states it decides, else `any` that states true.
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
    """What a release does with a config and with tensor names; classes are llama, mla and qwen3.

    `prefixes` are those that a class's loader removes, but not from names that begin with a part of
    `unprefixed`. Of `weight_patterns` the first that fits a file is opened, without files whose names end as
    `skipped_weights` say; none: what it opens is not known.
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

    @property
    def parallel_runners(self) -> tuple[str, ...]:
        """The runners that draft in parallel."""
        return tuple(name for name, runner in self.runners.items() if runner.drafts_in_parallel)

    def runners_for(self, model_type: str | None, *, is_parallel: bool = False) -> tuple[str, ...]:
        """The runners that the release may take for a target's model_type, None where it is not known."""
        if is_parallel and self.parallel_runners:
            return self.parallel_runners
        if model_type:
            return next(rule.value for rule in self.default_runner if rule.fits(model_type))
        possible = {name for rule in self.default_runner for name in rule.value}
        return tuple(name for name in self.runners if name in possible)


def unversioned() -> Mapping[str, Any]:
    """What is known of engines whose releases are not followed."""
    return read("unversioned.json")


def judged_unversioned() -> Mapping[str, str]:
    """The titles, by name, of those whose layers are known well enough to be judged."""
    engines = unversioned()["engines"].items()
    return {name: known["title"] for name, known in engines if "behaviour" in known}


def unversioned_behaviour(engine: str) -> Behaviour:
    """What an engine does whose releases are not followed."""
    return convert(unversioned()["engines"][engine]["behaviour"], Behaviour)


@cached
def stated(engine: str, release: str) -> Mapping[str, Any]:
    """All that the entries of a release state, merged."""
    merged: Mapping[str, Any] = {}
    for entry in load(engine)["behaviour"]:
        if is_within(entry["range"], release):
            merged = merge(merged, entry)
    return merged


def merge(before: Mapping[str, Any], change: Mapping[str, Any]) -> Mapping[str, Any]:
    """One JSON object with the changes of another (RFC 7396)."""
    merged = dict(before)
    for key, value in change.items():
        if isinstance(value, Mapping):
            inner = merged.get(key)
            merged[key] = merge(inner if isinstance(inner, Mapping) else {}, value)
        else:
            merged[key] = value
    return {key: value for key, value in merged.items() if value is not None}


# run: a recorded case shows it on the engine itself; read: its sources show it
EvidenceKind = Literal["run", "read"]
# what an engine reads otherwise than was trained, where nothing else of its network differs
Misread = Literal[
    "aux layers", "rope base", "fc_norm", "norm_before_fc", "norm_output", "norm_before_residual"
]


class Fact(Struct, frozen=True):
    """One fact of an engine: in `releases` (PEP 508, empty for all), for drafters of `classes`, this happens.

    `message` has places for a checkpoint's values; `summary`, `why` and `fix` are the rule's documentation.
    `remedy` is the smallest change that helps: config keys to write, "convert", "restore" (only the trainer
    can) or "upgrade" (the engine). `reported_by` are rules that report the same defect whatever the engine.
    Where a final fact holds, no other is reported. `misread`: the fact is that this is read otherwise than it
    was trained, and no more. `run_in` has the releases in which the engine itself
    showed the fact, each with the recorded case; in all others it was read in the sources.
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
    run_in: Mapping[str, str]
    reported_by: tuple[str, ...] = ()
    is_final: bool = False
    misread: Misread | None = None


class AppliedFact(Struct, frozen=True):
    """A fact that holds for one checkpoint in one release.

    `text` is its message with that checkpoint's values.
    """

    fact: Fact
    text: str
