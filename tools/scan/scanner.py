"""Compare the sources of an engine release with its data file, and make the entry that the file lacks.

Nothing is imported from the sources.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from eaglectl.engines.behaviour import is_within, stated
from eaglectl.engines.data import read
from eaglectl.engines.registry import parse_engine
from eaglectl.errors import UnreadableError
from eaglectl.files.files import MIB, read_small_file
from eaglectl.text import printable
from tools.scan import interface, sglang_checks, vllm_checks
from tools.scan.extraction import Found, extract
from tools.scan.plan import Difference, ScanPlan
from tools.scan.sources import Sources

MAX_SCAN = 256 * MIB
PLANS: Mapping[str, ScanPlan] = {plan.engine.name: plan for plan in (vllm_checks.PLAN, sglang_checks.PLAN)}


class Rerun(Struct, frozen=True):
    """Recorded cases that the sources call for again.

    The cases were run with `release`; `functions` (file and name) are others than they were then. `concerns`
    has kinds of drafters (llama, mla, qwen3) and ids of facts, the words of `python -m tests.engine.again`.
    """

    release: str
    functions: tuple[str, ...]
    concerns: tuple[str, ...]


class Scan(Struct, frozen=True):
    """The sources of one release, what they were compared with, and what came of it.

    `entry` is the one to add to the engine's data file, None where the release is known already; `undecided`
    are statements that a person has to settle, `only_when_run` the ids of facts that sources do not show,
    `rerun` the recorded cases to run again, None where the scan is compared with another.
    """

    engine: str
    found: Found
    compared_with: str
    differences: tuple[Difference, ...]
    entry: Mapping[str, Any] | None
    undecided: tuple[str, ...]
    only_when_run: tuple[str, ...]
    rerun: Rerun | None = None


def scan(path: Path, against: str | None = None) -> Scan:
    """Scan a wheel or folder, and compare it with the data of a release or with another scan.

    `against` is a known release (the wheel's own, else the newest before it) or a JSON file of a scan.

    Raises UnreadableError, UsageError.
    """
    return held_to_data(extracted(path), against)


def held_to_data(found: Found, against: str | None = None) -> Scan:
    """What comes of all that sources show, compared as `scan` does.

    Raises UnreadableError, UsageError.
    """
    name = str(found["engine"])
    plan = PLANS[name]
    if against and against.endswith(".json"):
        return Scan(name, found, against, tuple(changes(_scan_file(against), found)), None, (), ())
    known = plan.engine.releases
    nearest = found["release"] if found["release"] in known else known[-1]
    release = parse_engine(f"{name}=={against}").releases[0] if against else nearest
    differences = tuple(compare(found, release))
    return Scan(
        name,
        found,
        f"the data of {release}",
        differences,
        None if found["release"] in known else entry(found, nearest),
        tuple(undecided(found, nearest)),
        plan.only_when_run,
        rerun(found, differences),
    )


def extracted(path: Path) -> Found:
    """All that the sources show, by the plan of their engine.

    Raises UnreadableError.
    """
    try:
        sources = Sources(path)
        plan = PLANS[sources.package]
        found = extract(sources, plan.parts, plan.watched)
        return {**found, "interface": interface.has_names(sources)}
    except RecursionError:
        raise UnreadableError(
            f"{printable(str(path))}: an expression in it is nested too deeply to be read"
        ) from None


def _scan_file(path: str) -> Found:
    try:
        value: Found = json.loads(read_small_file(Path(path), MAX_SCAN, "--against"))
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{printable(path)}: not a scan that can be read: {error}") from None
    if not isinstance(value, dict):
        raise UnreadableError(f"{printable(path)}: not a scan that can be read: no JSON object")
    return value


def compare(found: Found, release: str) -> list[Difference]:
    """Where the sources and the data of `release` differ: facts, claims, behaviour, tables, interface."""
    plan = PLANS[found["engine"]]
    ranges = {fact.id: fact.releases for fact in plan.engine.facts}
    rows = [
        (name, is_within(ranges[name], release), check(found))
        for name, check in plan.checks.items()
        if name in ranges
    ]
    rows += [(claim, is_within(held, release), check(found)) for claim, (held, check) in plan.claims.items()]
    known = plan.engine.behaviour(release)
    rows += [row for part in plan.rows for row in part(found, known)]
    return [
        *(
            Difference(what, expected, bool(seen))
            for what, expected, seen in rows
            if _differs(expected, seen)
        ),
        *plan.tables(found, release),
        *interface.differences(found, release),
    ]


def _differs(expected: bool, seen: bool | None) -> bool:
    return seen is not None and bool(seen) != expected


def changes(before: Found, after: Found, path: str = "") -> list[Difference]:
    """Every value that differs between two scans; what the earlier one did not look for is left out."""
    differences: list[Difference] = []
    for key in dict.fromkeys([*before, *after]) if path else before:
        where, old, new = f"{path}{key}", before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            differences += changes(old, new, f"{where}.")
        elif isinstance(old, list) and isinstance(new, list):
            differences += _list_changes(where, old, new)
        elif old != new and key != "release":
            differences.append(Difference(where, old, new))
    return differences


def _list_changes(where: str, old: list[Any], new: list[Any]) -> list[Difference]:
    gone = [Difference(f"{where}: {value}", True, False) for value in old if value not in new]
    return gone + [Difference(f"{where}: {value}", False, True) for value in new if value not in old]


def entry(found: Found, release: str) -> Mapping[str, Any]:
    """The entry for the sources' release: what changed since `release`, as far as sources show it."""
    plan = PLANS[found["engine"]]
    known, before = plan.engine.behaviour(release), stated(plan.engine.name, release)
    changed = plan.changed(found, known, before)
    return {
        "range": f">={found['release']}",
        "releases": [found["release"]],
        "source": "sources of the wheel, by `python -m tools.scan`",
        **{key: value for key, value in changed.items() if value and value != before.get(key)},
    }


def undecided(found: Found, release: str) -> Iterator[str]:
    """What differs from the data of `release` and no entry settles.

    Each text names what a person has to look at.
    """
    plan = PLANS[found["engine"]]
    if found["release"] == "unknown":
        yield "which release these sources are; the entry needs its number"
    if found["release"] not in read(f"{plan.engine.name}_targets.json")["read"]:
        yield (
            "which targets it captures layers of: record them with"
            f" `python -m tools.scan.record {plan.engine.name} SOURCES`"
        )
    differences = compare(found, release)
    for difference in differences:
        yield from _by_hand(plan, difference)
    yield from interface.consequences(found, differences)
    yield from plan.questions(found, plan.engine.behaviour(release))


def _by_hand(plan: ScanPlan, difference: Difference) -> Iterator[str]:
    holds = "hold" if difference.found else "no longer hold"
    fact = next((fact for fact in plan.engine.facts if fact.id == difference.what), None)
    if fact:
        yield f"{fact.rule} {fact.id} seems to {holds} in these sources: review its range {fact.releases!r}"
    elif difference.what in plan.claims:
        yield f"{difference.what!r} seems to {holds}: the code takes it for granted"
    elif difference.what.startswith(("architecture ", "model_type ")) or difference.what.endswith(
        " is listed"
    ):
        yield f"{difference.what!r} seems to {holds}: review the table of that name"


def rerun(found: Found, differences: tuple[Difference, ...]) -> Rerun:
    """The recorded cases to run again: of functions that are others now, and of facts that differ."""
    plan = PLANS[found["engine"]]
    made_with = read("recorded.json")[plan.engine.name]
    before, now = made_with["functions"], found["functions"]
    changed = [
        (path, name)
        for path in dict.fromkeys([*before, *now])
        for name in dict.fromkeys([*before.get(path, {}), *now.get(path, {})])
        if before.get(path, {}).get(name) != now.get(path, {}).get(name)
    ]
    concerns = [
        word
        for watched in plan.watched
        if any(watched.holds(path, name) for path, name in changed)
        for word in watched.concerns
    ]
    concerns += [difference.what for difference in differences if difference.what in plan.checks]
    classes = {fact.id: set(fact.classes) for fact in plan.engine.facts}
    # the cases of a kind are those of its facts too
    kept = [word for word in concerns if word not in classes or not classes[word] <= set(concerns)]
    return Rerun(
        str(made_with["release"]),
        tuple(f"{path}: {name}" for path, name in changed),
        tuple(dict.fromkeys(kept)),
    )
