"""Facts about engines that the terminal and the JSON document of `engines` share."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches

from eaglectl.engines.behaviour import unversioned
from eaglectl.engines.engine import Engine
from eaglectl.engines.facts import Evidence
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.targets import serving_notes
from eaglectl.errors import UsageError


def chosen_engines(name: str | None) -> tuple[str, ...]:
    """Return the engine of this name, or all without one. Raises UsageError for an unknown name."""
    every = (*ENGINES, *unversioned()["engines"])
    if name is not None and name not in every:
        near = get_close_matches(name.lower(), every, 3, 0.5) or every
        raise UsageError(f"engines {name}: no such engine; near it: {', '.join(near)}")
    return every if name is None else (name,)


def unversioned_notes(chosen: Collection[str]) -> Mapping[str, Sequence[str]]:
    """Return notes on those of the chosen engines whose releases are not followed, by engine."""
    rows = unversioned()["engines"].items()
    return {name: known["notes"] for name, known in rows if name in chosen}


def serving_lines(engine: str) -> Iterator[str]:
    """Yield what is known of serving in parallel and with structured output."""
    for note in serving_notes(engine):
        span = f"{note.releases}, " if note.releases else ""
        yield f"{span}{note.text} ({note.source})"


def unversioned_evidence(engine: str) -> Evidence:
    """Return how an engine is known whose releases are not followed."""
    return "run" if unversioned()["engines"][engine]["run_in"] else "read"


def model_runners(engine: Engine, release: str) -> tuple[str, ...]:
    """Return the model runners that a release may take; none of an engine that never had several."""
    has_several = any(len(engine.behaviour(known).runners) > 1 for known in engine.releases)
    return engine.behaviour(release).runners_for(None) if has_several else ()
