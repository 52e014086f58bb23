"""Common to the child processes that run an engine: the request, the answer, and errors as text."""

import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

KEPT_LINES = 2  # of an error message; pydantic names the fault in the second line
UNKNOWN_ARGUMENT = re.compile(r"[Uu]nexpected keyword argument:? '(\w+)'")
NEAREST = 3

Request = dict[str, Any]
Answer = dict[str, Any]


class OldReleaseError(Exception):
    """A release of the engine that cannot be measured; `needs` is what can be."""

    def __init__(self, message: str, needs: str) -> None:
        super().__init__(message)
        self.needs = needs


def answer_request(
    modes: Mapping[str, Callable[[Request], Answer]],
    version: Callable[[], str],
    names: Callable[[], Sequence[str]],
) -> None:
    """Read the request in the file of the first argument and write the answer to the second.

    `version` imports the engine; `names` are those of its arguments. An error that another process of the
    engine has written there is the cause, and stays.
    """
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answer: Answer = {}
    try:
        answer["version"] = version()
        answer |= modes[request["mode"]](request)
    except Exception as error:
        write_error(Path(sys.argv[2]), answer | error_answer(error, request["engine_arguments"], names))
        return
    write_json(Path(sys.argv[2]), answer)


def write_error(path: Path, answer: Answer) -> None:
    """Write an answer with an error, unless there is one: what follows from an error is not the cause."""
    if not path.exists():
        write_json(path, answer)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a file that is there whole or not at all."""
    whole = path.with_name(f"{path.name}.{os.getpid()}")
    whole.write_text(json.dumps(document), encoding="utf-8")
    whole.replace(path)


def error_answer(
    error: Exception, given: Mapping[str, Any] | None = None, names: Callable[[], Sequence[str]] = tuple
) -> Answer:
    """What the parent needs to know of an error; `given` are the user's arguments of the engine."""
    answer: Answer = {"error": error_text(error), "needs_code": "trust_remote_code" in str(error)}
    unknown = UNKNOWN_ARGUMENT.search(str(error)) if isinstance(error, TypeError) else None
    if unknown and unknown[1] in (given or {}):
        close = difflib.get_close_matches(unknown[1], names(), NEAREST)
        answer |= {"unknown": unknown[1], "nearest": close}
    if isinstance(error, OldReleaseError):
        answer["needs"] = error.needs
    return answer


def error_text(error: Exception) -> str:
    """The class and message of an exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:KEPT_LINES])[:400] or '(no message)'}"
