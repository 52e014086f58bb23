"""Which keys of config.json each engine reads, by release and runner, from the data of eaglectl/engines."""

from collections.abc import Iterator, Mapping
from math import isclose
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.drafter.drafter import Drafter, Feature, yarn_factor
from eaglectl.engines.behaviour import Behaviour, capture, is_within, unversioned_behaviour
from eaglectl.engines.data import load
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.view import Case, View
from eaglectl.formats.config_keys import at

IDS, COUNT, MASK = "aux layers", "number of aux states", "mask token"
NOT_FOLLOWED = "(not followed)"
FOLLOWED = ("vllm", "sglang", "llama.cpp")
UNVERSIONED = ("tensorrt-llm", "tokenspeed", "atom")


class KeyReader(Struct, frozen=True):
    """Where one engine looks for one fact of a drafter, in these of its releases.

    `keys` are paths in config.json, the first that states it first. `runner` and `model_class` are "" where
    all of them read so.
    """

    engine: str
    runner: str
    model_class: str
    fact: str
    keys: tuple[str, ...]
    releases: tuple[str, ...]


def key_readers(engine: str) -> list[KeyReader]:
    """The readers of an engine, by fact; releases that read alike are in one."""
    found: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for release, known in _releases(engine):
        for runner, model_class, fact, keys in _reads(engine, release, known):
            found.setdefault((fact, runner, model_class, keys), []).append(release)
    rows = [
        KeyReader(engine, runner, model_class, fact, keys, tuple(listed))
        for (fact, runner, model_class, keys), listed in found.items()
    ]
    facts = list(dict.fromkeys(row.fact for row in rows))
    return sorted(rows, key=lambda row: (facts.index(row.fact), row.runner, row.model_class))


def left_out(config: Mapping[str, Any], drafter: Drafter, engine: str) -> dict[tuple[str, str], list[str]]:
    """By fact and runner, the releases that have a key for the fact and read another value than was trained.

    `config` is what a layout has of `drafter`, and states its decoder's keys at the top.
    """
    missing: dict[tuple[str, str], list[str]] = {}
    view = View(drafter, config, config, tuple(drafter.tensors))
    for release, known in _releases(engine):
        case = Case(view, engine, release, known, {})
        for fact, runner in _misread(case, known):
            missing.setdefault((fact, runner), []).append(release)
    return missing


def _misread(case: Case, known: Behaviour) -> Iterator[tuple[str, str]]:
    drafter = case.view.drafter
    for name, runner in known.runners.items():
        captured = capture(runner, case.view.config, drafter.target).boundaries
        if runner.id_places and captured != drafter.aux.boundaries:
            yield IDS, name
    counted = known.aux_count.get(case.view.model_class)
    if counted and counted.paths and case.aux_count != drafter.dims.aux:
        yield COUNT, ""
    for flag in known.flags:
        if case.flag(flag) != bool(getattr(drafter.norms, flag)):
            yield flag, ""
    unused = _unused(case.view)
    for fact, keys in _stated(case.engine, case.release).items():
        is_there = any(at(case.view.config, key) is not None for key in keys)
        if keys and not is_there and fact not in unused:
            yield from ((fact, runner) for runner in (known.parallel_runners if fact == MASK else ("",)))


def _unused(view: View) -> set[str]:
    """The facts that a drafter does not need, for which it has the value that every engine takes."""
    drafter, rope = view.drafter, view.drafter.rope
    is_used = {
        MASK: drafter.kind == "peagle",
        "attention bias": Feature.ATTENTION_BIAS in view.features,
        "head width": drafter.dims.attention != "MLA",
        "rotated part of a head": rope.rotated_part != 1,
        "factor of yarn": drafter.dims.attention != "MLA"
        and not isclose(rope.attention_factor, yarn_factor(rope.scaling, ())),
        "ramp of yarn": False,  # training has extrapolation_factor 1, which engines take without the key
        # engines scale by mscale without a key that says otherwise
        "factor of MLA": drafter.dims.attention == "MLA"
        and rope.mla_factors != replace(rope, has_mla_factors=True).mla_factors,
    }
    return {fact for fact, is_needed in is_used.items() if not is_needed}


def _releases(engine: str) -> Iterator[tuple[str, Behaviour]]:
    if engine in UNVERSIONED:
        yield NOT_FOLLOWED, unversioned_behaviour(engine)
        return
    for release in ENGINES[engine].releases:
        yield release, ENGINES[engine].behaviour(release)


def _reads(engine: str, release: str, known: Behaviour) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Of a release: the runner, the class, the fact and its keys."""
    for name, runner in known.runners.items():
        yield name if len(known.runners) > 1 or engine == "vllm" else "", "", IDS, runner.id_places
    for kind, count in known.aux_count.items():
        yield "", kind, COUNT, count.paths
    for flag, places in known.flags.items():
        yield "", "", flag, places.first or places.any
    for fact, keys in _stated(engine, release).items():
        runners = known.parallel_runners if fact == MASK else ("",)
        yield from ((runner, "", fact, keys) for runner in runners if keys)


def _stated(engine: str, release: str) -> dict[str, tuple[str, ...]]:
    """The keys of a release by fact, where no part of its behaviour states them."""
    stated = {} if engine in UNVERSIONED else load(engine).get("keys", {})
    return {
        fact: tuple(key for key, since in keys.items() if is_within(since, release))
        for fact, keys in stated.items()
    }
