"""What is known of engine releases, as data: facts that say for which releases and drafters they hold, and what then happens."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from eaglectl.engines.engine import Outcome, Reading, Verdict
from eaglectl.engines.view import View

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

Condition = Callable[[View, str, tuple[Reading, ...]], bool]


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of an engine: in `releases` (PEP 508, empty for all), for drafters of `classes`, this happens.

    `says` is the message, with places for a checkpoint's words; `sentence`, `why` and `fix` are what rules tell. `way` is
    the smallest way out: the config keys to write, "convert", "restore" (only the trainer can) or "upgrade" (the engine).
    `said_by` are rules that report the same defect whatever the engine. Once a final fact holds, no other matters.
    """

    id: str
    rule: str
    releases: str
    classes: tuple[str, ...]
    outcome: Outcome
    says: str
    sentence: str
    why: str
    fix: str
    way: Mapping[str, Any] | str
    source: str
    said_by: tuple[str, ...] = ()
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Applied:
    """A fact that holds for one checkpoint in one release, in that checkpoint's words."""

    fact: Fact
    text: str


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine whose releases are followed. `readings`: the aux layers that a release may capture; `words` fill the messages."""

    name: str
    title: str
    conditions: Mapping[str, Condition]
    readings: Callable[[View, str], tuple[Reading, ...]]
    words: Callable[[View, tuple[Reading, ...]], Mapping[str, Any]]

    @property
    def data(self) -> Mapping[str, Any]:
        """The engine's file of facts."""
        return load(self.name)

    @property
    def releases(self) -> tuple[str, ...]:
        """Known releases, oldest first."""
        return tuple(self.data["releases"])

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Every fact, in the order of the file."""
        return facts(self.name)

    def applied(self, view: View, release: str) -> tuple[Applied, ...]:
        """The facts that hold for a checkpoint in `release`."""
        readings = self.readings(view, release)
        holding = list(self._holding(view, release, readings))
        holding = [fact for fact in holding if fact.is_final][:1] or holding
        words = self.words(view, readings) if holding else {}
        return tuple(Applied(fact, fact.says.format(**words)) for fact in holding)

    def _holding(self, view: View, release: str, readings: tuple[Reading, ...]) -> Iterator[Fact]:
        for fact in self.facts:
            is_meant = view.family in fact.classes and is_within(fact.releases, release)
            if is_meant and self.conditions[fact.id](view, release, readings):
                yield fact

    def verdict(self, view: View, release: str) -> Verdict:
        """What `release` does with a checkpoint as it lies."""
        reasons: list[tuple[Outcome, str]] = []
        # it may load all the same; facts say where it does not
        reasons += [("differs", note.text) for note in view.drafter.told("problem")]
        reasons += [("unknown", note.text) for note in view.drafter.told("question")]
        reasons += [(one.fact.outcome, one.text) for one in self.applied(view, release)]
        for outcome in ("fails", "differs", "unknown"):
            if texts := tuple(dict.fromkeys(text for kind, text in reasons if kind == outcome)):
                return Verdict(self.name, release, outcome, texts)
        return Verdict(self.name, release, "as trained", ())


@cache
def load(engine: str) -> Mapping[str, Any]:
    """The file of facts of an engine."""
    value: Mapping[str, Any] = json.loads(files("eaglectl.engines").joinpath(f"{engine}_releases.json").read_text())
    return value


@cache
def facts(engine: str) -> tuple[Fact, ...]:
    """The facts of an engine."""
    return tuple(_fact(row) for row in load(engine)["facts"])


def _fact(row: Mapping[str, Any]) -> Fact:
    lists: dict[str, Any] = {key: tuple(row.get(key, ())) for key in ("classes", "said_by")}
    return Fact(**{**row, **lists})


@cache
def _specifier(text: str) -> "SpecifierSet":
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(text)


@cache
def is_within(specifier: str, release: str) -> bool:
    """Whether a release is in a PEP 508 range; an empty range holds all."""
    return not specifier or release in _specifier(specifier)


def ranges(found: Iterable[str], known: Sequence[str]) -> str:
    """Releases in few words, consecutive ones of `known` as ranges: "0.22.0 - 0.33.0"."""
    position = {release: index for index, release in enumerate(known)}
    runs: list[list[str]] = []
    for release in sorted(set(found), key=position.__getitem__):
        if runs and position[release] == position[runs[-1][-1]] + 1:
            runs[-1].append(release)
        else:
            runs.append([release])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} - {run[-1]}" for run in runs)
