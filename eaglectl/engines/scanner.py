"""Compare the sources of a vLLM release with vllm_releases.json, and make the entry that the file lacks.

Nothing is imported from the sources.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglectl.checkpoint.files import MIB, read_small_file
from eaglectl.drafter.default_layers import DefaultLayers
from eaglectl.engines import vllm
from eaglectl.engines.behaviour import Behaviour, stated
from eaglectl.engines.catalogue import parse_engine
from eaglectl.engines.checks import CHECKS, CLAIMS, reads
from eaglectl.engines.extraction import Found, extract
from eaglectl.engines.layers import IDS
from eaglectl.engines.releases import is_within
from eaglectl.engines.wheels import Sources
from eaglectl.errors import UnreadableError
from eaglectl.text import printable

MAX_SCAN = 256 * MIB
ID_PLACES = (IDS, f"eagle_config.{IDS}", "target_layer_ids", "eagle_config.layer_ids")
# ids of other speculative methods, which the runners read in the same functions
OTHER_METHODS = ("dflash_config.", "dspark_")
PLACE_WORDS = {IDS: "at the top of the config", f"eagle_config.{IDS}": "in eagle_config"}
COUNT_WORDS = {3: "three"}


@dataclass(frozen=True, slots=True)
class Difference:
    """A statement on which the data and the sources do not agree.

    `expected` by the data, `found` in the sources.
    """

    what: str
    expected: object
    found: object


@dataclass(frozen=True, slots=True)
class Scan:
    """The sources of one release, what they were compared with, and what came of it.

    `entry` is the one to add to vllm_releases.json, None where the release is known already; `undecided` are
    statements that a person has to settle, `only_when_run` the ids of facts that sources do not show.
    """

    found: Found
    compared_with: str
    differences: tuple[Difference, ...]
    entry: Mapping[str, Any] | None
    undecided: tuple[str, ...]
    only_when_run: tuple[str, ...]


def scan(path: Path, against: str | None = None) -> Scan:
    """Scan a wheel or folder, and compare it with the data of a release or with another scan.

    `against` is a known release (the wheel's own, else the newest) or a JSON file of a scan.

    Raises UnreadableError, UsageError.
    """
    found = _extracted(path)
    if against and against.endswith(".json"):
        return Scan(found, against, tuple(changes(_scan_file(against), found)), None, (), ())
    known = vllm.releases()
    nearest = found["release"] if found["release"] in known else known[-1]
    release = parse_engine(f"vllm=={against}").releases[0] if against else nearest
    return Scan(
        found,
        f"the data of {release}",
        tuple(compare(found, release)),
        None if found["release"] in known else entry(found, nearest),
        tuple(undecided(found, nearest)),
        tuple(fact.id for fact in vllm.ENGINE.facts if fact.id not in CHECKS),
    )


def _extracted(path: Path) -> Found:
    try:
        return extract(Sources(path))
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
    """Where the sources and the data of `release` differ.

    Facts, claims, behaviour, architectures, targets, model types.
    """
    ranges = {fact.id: fact.releases for fact in vllm.ENGINE.facts}
    rows = [(fact_id, is_within(ranges[fact_id], release), check(found)) for fact_id, check in CHECKS.items()]
    rows += [(claim, is_within(held, release), check(found)) for claim, (held, check) in CLAIMS.items()]
    rows += _behaviour_rows(found, vllm.ENGINE.behaviour(release))
    return [
        *(
            Difference(what, expected, bool(seen))
            for what, expected, seen in rows
            if _differs(expected, seen)
        ),
        *_architectures(found, release),
        *_targets(found, release),
        *_model_types(found, release),
    ]


def _differs(expected: bool, seen: bool | None) -> bool:
    return seen is not None and bool(seen) != expected


Row = tuple[str, bool, bool | None]


def _behaviour_rows(found: Found, known: Behaviour) -> Iterator[Row]:
    """Statements on the release's behaviour, whether the data makes them, and whether the sources do."""
    yield from _runner_rows(found, known)
    for name in sorted({*known.runners, *found["aux_ids"]}):
        yield from _id_rows(found, known, name)
    for layers in sorted({_default_of(known, name) for name in known.runners}):
        yield f"without ids the layers are {_spaced(layers)}", True, _default_found(found) == layers
    is_default = found["runner"]["is_V2_default"]
    yield "the V2 runner is the default for every target", _is_second_only(known), is_default
    yield from _count_rows(found, known)
    default = known.speculators_defaults.get("eagle3", {}).get("norm_before_residual", False)
    yield "speculators configs without norm_before_residual mean true", default, _residual_default(found)


def _is_second_only(known: Behaviour) -> bool:
    return [rule.value for rule in known.default_runner] == [("V2",)]


def _runner_rows(found: Found, known: Behaviour) -> Iterator[Row]:
    if found.get("runners") is not None:
        for name in sorted({*known.runners, *found["runners"]}):
            yield f"the {name} runner has EAGLE-3", name in known.runners, name in found["runners"]
    if "V2" in known.runners and found["runner"]["unsupported"]:
        is_first_only = not known.runners["V2"].drafts_in_parallel
        yield "parallel drafting of EAGLE runs on the V1 runner", is_first_only, _refuses_parallel(found)


def _refuses_parallel(found: Found) -> bool:
    return any("parallel drafting" in feature for feature in found["runner"]["unsupported"])


def _id_rows(found: Found, known: Behaviour, name: str) -> Iterator[Row]:
    stated_places = known.runners[name].id_places if name in known.runners else ()
    places = _id_places(found, name)
    for path in dict.fromkeys((*ID_PLACES, *stated_places, *places)):
        where = PLACE_WORDS.get(path, f"in {path}")
        yield f"ids are read {where} ({name} runner)", path in stated_places, path in places
    if set(places) == set(stated_places):
        order = ", ".join(stated_places)
        yield f"ids are looked up in this order ({name} runner): {order}", True, places == stated_places


def _id_places(found: Found, name: str) -> tuple[str, ...]:
    """The places where a runner looks for the ids of EAGLE-3 drafters."""
    paths = found["aux_ids"].get(name) or ()
    return tuple(path for path in paths if not path.startswith(OTHER_METHODS))


def _count_rows(found: Found, known: Behaviour) -> Iterator[Row]:
    for kind, count in known.aux_count.items():
        drafter = found["classes"].get(kind)
        if drafter and count.paths:
            words = COUNT_WORDS.get(count.otherwise, str(count.otherwise))
            of = "" if kind == "llama" else f" ({kind})"
            claim = f"fc takes {words} aux states where nothing says how many{of}"
            yield claim, True, drafter["default_aux_count"] == count.otherwise
    yield (
        "Qwen3 counts the ids at the top too",
        IDS in known.aux_count["qwen3"].paths,
        reads(found, "qwen3", IDS),
    )


def _residual_default(found: Found) -> bool | None:
    reader = (found["speculators"] or {}).get("eagle3")
    return None if reader is None else reader["norm_before_residual"] is True


def _default_of(known: Behaviour, name: str) -> str:
    return str(known.runners[name].default_layers[-1].value)


def _default_found(found: Found) -> str | None:
    try:
        return str(DefaultLayers(found["default_aux_layers"] or ""))
    except ValueError:
        return None


def _spaced(default: str) -> str:
    return default.replace("//", " // ").replace("+", " + ").replace("-", " - ")


def _architectures(found: Found, release: str) -> list[Difference]:
    known = {name for name, releases in vllm.data()["architectures"].items() if is_within(releases, release)}
    registered = set(found["architectures"] or ())
    missing = sorted(name for name in known if not {name, f"Eagle3{name}"} & registered)
    new = sorted(name for name in registered - known if "peagle" not in name.lower())
    return [Difference(f"architecture {name}", True, False) for name in missing] + [
        Difference(f"architecture {name}", False, True) for name in new
    ]


def _targets(found: Found, release: str) -> list[Difference]:
    if found["listed_targets"] is None:
        return []
    known = {name for first, name in vllm.data()["targets"] if is_within(f">={first}", release)}
    listed = set(found["listed_targets"])
    return [
        Difference(f"target {name} is listed", name in known, name in listed)
        for name in sorted(known ^ listed)
    ]


def _model_types(found: Found, release: str) -> list[Difference]:
    rewritten = vllm.data()["rewritten_model_types"].items()
    known = {name for name, releases in rewritten if is_within(releases, release)}
    missing = known - set(found["rewritten_model_types"])
    return [Difference(f"model_type {name} is rewritten", True, False) for name in sorted(missing)]


def changes(before: Found, after: Found, path: str = "") -> list[Difference]:
    """Every value that differs between two scans."""
    differences: list[Difference] = []
    for key in dict.fromkeys([*before, *after]):
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
    known, before = vllm.ENGINE.behaviour(release), stated("vllm", release)
    changed: dict[str, Any] = {
        "runners": dict(_runner_changes(found, known, before["runners"])),
        "aux_count": dict(_count_changes(found, before["aux_count"])),
    }
    if found["runner"]["is_V2_default"]:
        changed["default_runner"] = [{"value": ["V2"]}]
    residual = _residual_default(found)
    if residual is not None:
        changed["speculators_defaults"] = {"eagle3": {"norm_before_residual": residual}}
    return {
        "range": f">={found['release']}",
        "releases": [found["release"]],
        "source": "sources of the wheel, by `eaglectl engines scan`",
        "run_in": {},
        **{key: value for key, value in changed.items() if value and value != before.get(key)},
    }


def _count_changes(found: Found, before: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kind, drafter in found["classes"].items():
        count = drafter and drafter["default_aux_count"]
        if count not in (None, before[kind]["otherwise"]):
            yield kind, {"otherwise": count}


def _runner_changes(
    found: Found, known: Behaviour, before: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    present = found.get("runners") or list(known.runners)
    for name in known.runners:
        if name not in present:
            yield name, None
            continue
        states = _runner_states(found, name)
        if changed := {key: value for key, value in states.items() if value != before[name][key]}:
            yield name, changed


def _runner_states(found: Found, name: str) -> Mapping[str, Any]:
    """The keys of a runner as the sources show them."""
    states: dict[str, Any] = {"ids": list(_id_places(found, name))}
    if default := _default_found(found):
        states["default_layers"] = default
    if name == "V2" and found["runner"]["unsupported"]:
        states["drafts_in_parallel"] = not _refuses_parallel(found)
    return states


def undecided(found: Found, release: str) -> Iterator[str]:
    """What differs from the data of `release` and no entry settles.

    Each text names what a person has to look at.
    """
    if found["release"] == "unknown":
        yield "which release these sources are; the entry needs its number"
    for difference in compare(found, release):
        yield from _by_hand(difference)
    known = vllm.ENGINE.behaviour(release)
    if _is_second_only(known) and not found["runner"]["is_V2_default"]:
        names = ", ".join(found["runner"]["architectures"]) or "no architecture"
        yield f"default_runner: V2 is no longer the default for every target; these sources name {names}"
    for name in sorted(set(found.get("runners") or ()) - set(known.runners)):
        yield f"the {name} runner is new: state all of its keys"


def _by_hand(difference: Difference) -> Iterator[str]:
    holds = "hold" if difference.found else "no longer hold"
    fact = next((fact for fact in vllm.ENGINE.facts if fact.id == difference.what), None)
    if fact:
        yield f"{fact.rule} {fact.id} seems to {holds} in these sources: review its range {fact.releases!r}"
    elif difference.what in CLAIMS:
        yield f"{difference.what!r} seems to {holds}: the code takes it for granted"
    elif difference.what.startswith(("architecture ", "target ", "model_type ")):
        yield f"{difference.what!r} seems to {holds}: review the table of that name"
