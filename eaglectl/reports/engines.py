"""Facts about engines that the terminal and the JSON document of `engines` share."""

from collections.abc import Mapping, Sequence

from eaglectl.engines.behaviour import unversioned
from eaglectl.engines.engine import Engine
from eaglectl.engines.facts import Evidence


def unversioned_notes() -> Mapping[str, Sequence[str]]:
    """Return notes on the engines whose releases are not followed, by engine."""
    return {name: known["notes"] for name, known in unversioned()["engines"].items()}


def unversioned_evidence(engine: str) -> Evidence:
    """Return how an engine is known whose releases are not followed."""
    return "run" if unversioned()["engines"][engine]["run_in"] else "read"


def model_runners(engine: Engine, release: str) -> tuple[str, ...]:
    """Return the model runners that a release may take; none of an engine that never had several."""
    has_several = any(len(engine.behaviour(known).runners) > 1 for known in engine.releases)
    return engine.behaviour(release).runners_for(None) if has_several else ()
