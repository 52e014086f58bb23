"""What a scan of an engine's sources is held to: checks of facts, and statements on behaviour."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from eaglectl.drafter.drafter import DefaultLayers
from eaglectl.engines.behaviour import IDS, Behaviour
from eaglectl.engines.engine import Engine
from eaglectl.engines.targets import TargetClass, target_class, target_classes
from tools.scan.extraction import Found, Part, Watched

# whether the sources show something; None where they hold nothing to look at
Check = Callable[[Found], bool | None]
# a statement, whether the data makes it, and whether the sources do
Row = tuple[str, bool, bool | None]
PLACE_WORDS = {IDS: "at the top of the config", f"eagle_config.{IDS}": "in eagle_config"}
COUNT_WORDS = {3: "three"}
ID_PLACES = (IDS, f"eagle_config.{IDS}", "target_layer_ids", "eagle_config.layer_ids")
# ids of another speculative method, which engines read in the same functions
OTHER_METHODS = ("dspark_",)

LAST = "with the last state"
# names of drafters' classes end so; they take no layers of their own
DRAFTERS = ("NextN", "Eagle", "Eagle3", "MTP", "AssistantForCausalLM", "DraftModel", "Speculator")


class Difference(Struct, frozen=True):
    """A statement on which the data and the sources do not agree.

    `expected` by the data, `found` in the sources.
    """

    what: str
    expected: object
    found: object


class ScanPlan(Struct, frozen=True):
    """What is looked for in an engine's sources, and how it is held to the engine's data.

    `parts` make the scan, with digests of the functions `watched`. `checks` say by fact id whether a fact
    holds, `claims` what holds in a range of releases and no data file states; `rows` are statements on a
    release's behaviour, `tables` the differences from other tables of the data. `changed` has the keys of a
    new entry, `questions` what a person has to settle beside the differences. `in_tables` are the facts that
    rows and tables show.
    """

    engine: Engine
    parts: Mapping[str, Part]
    watched: tuple[Watched, ...]
    checks: Mapping[str, Check]
    claims: Mapping[str, tuple[str, Check]]
    rows: tuple[Callable[[Found, Behaviour], Iterator[Row]], ...]
    tables: Callable[[Found, str], list[Difference]]
    changed: Callable[[Found, Behaviour, Mapping[str, Any]], Mapping[str, Any]]
    questions: Callable[[Found, Behaviour], Iterator[str]]
    in_tables: tuple[str, ...] = ()

    @property
    def only_when_run(self) -> tuple[str, ...]:
        """The facts that no sources show."""
        return tuple(fact.id for fact in self.engine.facts if fact.id not in (*self.checks, *self.in_tables))


def reads(found: Found, kind: str, key: str, place: str = "top") -> bool | None:
    """Whether a drafter class reads a key at a place; None where the release has no such class."""
    drafter = found["classes"][kind]
    return None if drafter is None else place in drafter["reads"].get(key, ())


def shows(kind: str, key: str, *, expected: bool = True) -> Check:
    """Whether a part of a drafter class is as expected."""

    def check(found: Found) -> bool | None:
        drafter = found["classes"][kind]
        return None if drafter is None else bool(drafter[key]) is expected

    return check


def lacks(kind: str, key: str, place: str = "top") -> Check:
    """Whether a drafter class reads no such key at a place."""

    def check(found: Found) -> bool | None:
        is_read = reads(found, kind, key, place)
        return None if is_read is None else not is_read

    return check


def id_rows(found: Found, known: Behaviour) -> Iterator[Row]:
    """Where each runner looks for layer ids, and in which order."""
    for name in sorted({*known.runners, *found["aux_ids"]}):
        yield from _ids_of(found, known, name)


def _ids_of(found: Found, known: Behaviour, name: str) -> Iterator[Row]:
    runner = f" ({name} runner)" if {*known.runners, *found["aux_ids"]} != {"default"} else ""
    stated_places = known.runners[name].id_places if name in known.runners else ()
    places = id_places(found, name)
    for path in dict.fromkeys((*ID_PLACES, *stated_places, *places)):
        where = PLACE_WORDS.get(path, f"in {path}")
        yield f"ids are read {where}{runner}", path in stated_places, path in places
    if set(places) == set(stated_places):
        order = ", ".join(stated_places)
        yield f"ids are looked up in this order{runner}: {order}", True, places == stated_places


def id_places(found: Found, name: str) -> tuple[str, ...]:
    """The places where a runner looks for the ids of EAGLE-3 drafters."""
    paths = found["aux_ids"].get(name) or ()
    return tuple(path for path in paths if not path.startswith(OTHER_METHODS))


def target_differences(found: Found, release: str) -> list[Difference]:
    """Differences from the table of targets; none where the sources hold no table that is known."""
    shown = {name: row for name, row in (found.get("targets") or {}).items() if not name.endswith(DRAFTERS)}
    if not shown:
        return []
    engine = str(found["engine"])
    stated = {name: target_class(engine, release, name) for name in target_classes(engine)}
    known = {name: row for name, row in stated.items() if row and row.captures != "absent"}
    return [
        Difference(f"target {name}", _words(known.get(name)), _words(shown.get(name)))
        for name in sorted({*known, *shown})
        if _words(known.get(name)) != _words(shown.get(name))
    ]


def _words(row: TargetClass | Mapping[str, Any] | None) -> str:
    """What a row says, where it stands left out."""
    if row is None:
        return "not registered"
    if isinstance(row, TargetClass):
        parts: tuple[object, ...] = (
            row.captures,
            row.adds_one,
            row.default,
            row.language_model,
            row.backend,
            row.state,
            LAST if row.last else "",
        )
    else:
        keys = ("adds_one", "default", "language_model", "backend", "state")
        shown = (*(row.get(key) for key in keys), LAST if row.get("last") else "")
        parts = ("captures" if row["captures"] else "lacks", *shown)
    return ", ".join(str(part) for part in parts if part)


def count_rows(found: Found, known: Behaviour) -> Iterator[Row]:
    """How many aux states fc takes where nothing says how many."""
    for kind, count in known.aux_count.items():
        drafter = found["classes"].get(kind)
        if drafter and count.paths:
            words = COUNT_WORDS.get(count.otherwise, str(count.otherwise))
            of = "" if kind == "llama" else f" ({kind})"
            claim = f"fc takes {words} aux states where nothing says how many{of}"
            yield claim, True, drafter["default_aux_count"] == count.otherwise


def count_changes(found: Found, before: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What an entry states of the number of aux states, where it is another."""
    for kind, drafter in found["classes"].items():
        count = drafter and drafter["default_aux_count"]
        if count not in (None, before[kind]["otherwise"]):
            yield kind, {"otherwise": count}


def default_layers(text: str | None) -> str | None:
    """Default layers as the data writes them; None where the sources' are of another form."""
    try:
        return str(DefaultLayers(text or ""))
    except ValueError:
        return None


def spaced(default: str) -> str:
    """Default layers as messages show them."""
    return default.replace("//", " // ").replace("+", " + ").replace("-", " - ")
