"""Asks an engine with a tiny target what it captures for several lists of ids, and makes a record of it."""

import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.engine.agreement.forks import Death, forked
from tests.engine.targets import models, records

PATIENCE = 60.0
# in the middle, one lower (an engine may add one), from the embedding, the last layer, behind the last layer
IDS = ([2, 4, 6], [1, 3, 5], [0, 2, 4], [2, 4, 7], [2, 4, 8])
DEFAULT: None = None
HEAD = 160  # characters kept of a reason
Capture = Callable[[list[int] | None], list[int | str]]


def record(answer: Callable[[Path, str], dict[str, Any]]) -> None:
    """Write what `answer(folder, architecture)` returns for those of the command line, each in a fork."""
    out, names = Path(sys.argv[1]), sys.argv[2:]
    known = records.read(out) if names else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names or models.ALL:
            found = forked(Path(folder), [name], partial(answer, Path(folder)), PATIENCE)
            known[name] = _record(name, found[name])
            records.write(out, known)


def _record(name: str, answer: Any) -> dict[str, Any]:
    if isinstance(answer, Death):
        answer = {"outcome": "not-run", "reason": answer.reason}
    return {"model_type": models.model_type(name)} | answer


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


def _apart(captured: Capture, root: Path, ids: Sequence[int] | None) -> Any:
    name = str(ids)
    answer = forked(root, [name], lambda _: _answer(captured, ids), PATIENCE)[name]
    return answer.reason if isinstance(answer, Death) else answer


def _answer(captured: Capture, ids: Any) -> Any:
    try:
        return captured(ids)
    except Exception as error:
        return reason(error)


def reason(error: BaseException) -> str:
    """One line that says what was raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:2])}"[:HEAD]
