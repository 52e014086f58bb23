"""Asks an engine with a tiny target what it captures for several lists of ids, and makes a record of it."""

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.engine.agreement.forks import Death, forked, reason
from tests.engine.targets import models, records

PATIENCE = 60.0
# in the middle, one lower (an engine may add one), from the embedding, the last layer, behind the last layer
IDS = ([2, 4, 6], [1, 3, 5], [0, 2, 4], [2, 4, 7], [2, 4, 8])
DEFAULT: None = None
HEAD = 160  # characters kept of a reason
Capture = Callable[[list[int] | None], list[int | str]]


class NotHereError(Exception):
    """Says in words why a target is not made here."""


def record(
    refusal: Callable[[str], str],
    start: Callable[[str, Path], Any],
    captured: Callable[[Any, models.States, list[int] | None], list[int | str]],
) -> None:
    """Write the records of the architectures of the command line, each in a fork.

    `refusal` says why the engine refuses one by its class, `start` loads a target into it, and `captured`
    returns the boundaries that it hands out for ids, by the target's states.
    """
    out, names = Path(sys.argv[1]), sys.argv[2:]
    known = records.read(out) if names else {}

    def answer(root: Path, name: str) -> dict[str, Any]:
        maker = ""
        try:
            if why := refusal(name):
                return {"outcome": "refused", "reason": why}
            if models.model_type(name) is None:
                raise NotHereError("transformers has no class of it")
            maker = "transformers: "
            states = models.write(name, root / name)
            maker = ""
            engine = start(name, root / name)
        except Exception as error:
            why = str(error) if isinstance(error, NotHereError) else maker + reason(error)[:HEAD]
            return {"outcome": "not-constructed", "reason": why}
        return ask(partial(captured, engine, states), root / name)

    with tempfile.TemporaryDirectory() as folder:
        for name in names or models.ALL:
            found = forked(Path(folder), [name], partial(answer, Path(folder)), PATIENCE)[name]
            if isinstance(found, Death):
                found = {"outcome": "not-run", "reason": found.reason}
            known[name] = {"model_type": models.model_type(name)} | found
            records.write(out, known)


def ask(captured: Capture, root: Path) -> dict[str, Any]:
    """The record of a target that takes ids.

    `captured` runs the prompt with these ids, or the engine's default for None, and returns boundaries, or
    words on states that are none. Each list runs in a fork of its own, as models keep what they were told.
    """
    answers = {str(ids): _apart(captured, root, ids) for ids in (*IDS, DEFAULT)}
    first, *others, default = answers.values()
    if isinstance(first, str):
        return {"outcome": "not-run", "reason": first}
    more = dict(zip([str(ids) for ids in IDS[1:]], others, strict=True))
    return {
        "outcome": "captured",
        "ids": IDS[0],
        "boundaries": first,
        "default_boundaries": default,
        "more": more,
    }


def matched(hidden: Any, aux: Any, states: models.States) -> list[int | str]:
    """The boundaries that captured states are; they say nothing where the engine's own output is another."""
    count = len(models.PROMPT)
    if not models.is_same_output(hidden[:count], states):
        raise RuntimeError("the output of the forward pass is not transformers'")
    return [models.nearest(state[:count], states) for state in aux]


def _apart(captured: Capture, root: Path, ids: list[int] | None) -> Any:
    def answer(_: str) -> Any:
        try:
            return captured(ids)
        except Exception as error:
            return reason(error)[:HEAD]

    found = forked(root, [str(ids)], answer, PATIENCE)[str(ids)]
    return found.reason if isinstance(found, Death) else found
