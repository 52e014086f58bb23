"""Facts about engines that the terminal and the JSON document of `engines` share."""

from collections.abc import Mapping, Sequence

from eaglectl.engines import vllm
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
    """Return the model runners of a release; only vLLM has several."""
    if engine.name != "vllm":
        return ()
    return vllm.ENGINE.behaviour(release).runners_for(None)
