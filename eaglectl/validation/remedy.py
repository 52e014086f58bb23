"""The smallest change with which every engine release asked for serves a checkpoint as it was trained."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eaglectl.engines.catalogue import ENGINES
from eaglectl.engines.facts import Applied, Engine, Fact, ranges
from eaglectl.engines.view import View
from eaglectl.validation.rule import CannotLook
from eaglectl.validation.serving import applied, edits, spelled, view
from eaglectl.validation.subject import Subject

UNKNOWN = "unknown"


def ways_out(subject: Subject, rules: Iterable[str], source: str) -> tuple[str, ...]:
    """One sentence for each engine of which some release does not serve it; only facts of `rules` count."""
    chosen = set(rules)
    try:
        found = applied(subject)
    except CannotLook:
        return ()
    ways = []
    for name in dict.fromkeys(engine for engine, _ in found):
        wrong = {
            release: [one for one in facts if one.fact.outcome != UNKNOWN and one.fact.rule in chosen]
            for (engine, release), facts in found.items()
            if engine == name
        }
        steps = list(_steps(ENGINES[name], view(subject, name), wrong, source))
        if steps:
            ways.append(f"{ENGINES[name].title}: {'; '.join(steps)}")
    return tuple(ways)


def _steps(engine: Engine, seen: View, wrong: Mapping[str, Sequence[Applied]], source: str) -> Iterator[str]:
    stuck = {release: one for release, facts in wrong.items() for one in facts if one.fact.way == "upgrade"}
    first = _first(engine, seen)
    early = set(engine.releases[: engine.releases.index(first)] if first else engine.releases) if stuck else set()
    # what a final fact hides of an early release can be no better
    stuck |= {r: facts[0] for r, facts in wrong.items() if r in early - set(stuck) and facts and facts[0].fact.is_final}
    yield from _change(
        engine, seen, {release: facts for release, facts in wrong.items() if release not in stuck}, source
    )
    if not stuck:
        return
    reasons = ", ".join(dict.fromkeys(one.text for one in stuck.values()))
    of = ranges(stuck, engine.releases)
    if first is None:
        yield f"no known release serves it whatever is written ({of} {reasons})"
    else:
        yield f"ask for {engine.name}>={first}, since nothing written makes earlier ones serve it ({of} {reasons})"


def _change(engine: Engine, seen: View, wrong: Mapping[str, Sequence[Applied]], source: str) -> Iterator[str]:
    """What to do to the checkpoint for those releases that can serve it."""
    facts = {one.fact.id: one.fact for each in wrong.values() for one in each}
    if not facts:
        return
    written: dict[str, Any] = {}
    for fact in facts.values():
        written |= edits(fact, seen)
    if all(edits(fact, seen) for fact in facts.values()) and _serves(engine, _with(seen, written), wrong):
        yield f"write {spelled(written)} into config.json"
        return
    yield from dict.fromkeys(fact.fix.rstrip(".") for fact in facts.values() if fact.way == "restore")
    if any(fact.way != "restore" for fact in facts.values()):
        target = " --target TARGET" if _needs_target(facts.values(), seen) else ""
        yield f"eaglectl convert {source} --for {engine.name}{target}"


def _needs_target(facts: Iterable[Fact], seen: View) -> bool:
    return seen.drafter.target.depth is None and any(fact.id == "aux-layers" for fact in facts)


def _with(seen: View, written: Mapping[str, Any]) -> View:
    return replace(seen, config={**seen.config, **written}, flat={**seen.flat, **written})


def _serves(engine: Engine, seen: View, releases: Iterable[str]) -> bool:
    return not any(one.fact.outcome != UNKNOWN for release in releases for one in engine.applied(seen, release))


def _first(engine: Engine, seen: View) -> str | None:
    """The release from which on no known one lacks anything that the drafter needs."""
    first = None
    for release in reversed(engine.releases):
        if any(one.fact.way == "upgrade" and one.fact.outcome != UNKNOWN for one in engine.applied(seen, release)):
            break
        first = release
    return first
