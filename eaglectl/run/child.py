"""Common to the child processes that run an engine: requests, answers, phases, and errors as data."""

import difflib
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from eaglectl.errors import error_text

UNKNOWN_ARGUMENT = re.compile(r"[Uu]nexpected keyword argument:? '(\w+)'")
NEAREST = 3
REQUEST, ANSWER = "request.json", "answer.json"

# how vLLM's AutoWeightsLoader, and loaders of models, call the tensor that they are at and its weight
LOADER_VARIABLES = (("weight_qualname", "weight_data"), ("name", "loaded_weight"))

Request = dict[str, Any]
Answer = dict[str, Any]


class OldReleaseError(Exception):
    """A release of the engine that cannot be measured; `needs` is what can be."""

    def __init__(self, message: str, needs: str) -> None:
        super().__init__(message)
        self.needs = needs


class _Parent:
    """The pipe to the parent process; None where the module runs without one."""

    pipe: IO[str] | None = None


def serve_requests(
    modes: Mapping[str, Callable[[Request], Answer]],
    version: Callable[[], str],
    names: Callable[[], Sequence[str]],
) -> None:
    """Answer each request in the folder of the first argument, of which a line on stdin tells, until it ends.

    `version` imports the engine; `names` are those of its arguments. A line on stdout says that an answer was
    written, or what is being done. An error that another process of the engine has written as the answer is
    the cause, and stays.
    """
    folder = Path(sys.argv[1])
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # nothing that an engine asks is answered
    _Parent.pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # engines print to stdout too
    for _ in requests:
        request = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
        answer: Answer = {}
        try:
            report_phase("importing")
            answer["version"] = version()
            answer |= modes[request["mode"]](request)
        except Exception as error:
            write_error(folder / ANSWER, answer | error_answer(error, request["engine_arguments"], names))
        else:
            write_json(folder / ANSWER, answer)
        _send({})


def report_phase(phase: str, done: int = 0, total: int | None = None) -> None:
    """Tell the parent what is being done, and of how many prompts."""
    _send({"phase": phase, "done": done, "total": total})


def _send(message: Mapping[str, Any]) -> None:
    if _Parent.pipe is not None:
        _Parent.pipe.write(f"{json.dumps(message)}\n")
        _Parent.pipe.flush()


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
    """What `faults` judges an error by; `given` are the user's arguments of the engine.

    "frames" are [module, function] of its traceback, the outermost first, "fields" the arguments that a
    pydantic error is about.
    """
    fields, cause = _invalid_fields(error)
    answer: Answer = {
        "error": error_text(error),
        "needs_code": "trust_remote_code" in str(error),
        "frames": [*_frames(error.__traceback__), *(_frames(cause.__traceback__) if cause else ())],
        "fields": fields,
        "tensor": _tensor(cause or error),
    }
    unknown = UNKNOWN_ARGUMENT.search(str(error)) if isinstance(error, TypeError) else None
    if unknown and unknown[1] in (given or {}):
        close = difflib.get_close_matches(unknown[1], names(), NEAREST)
        answer |= {"unknown": unknown[1], "nearest": close}
    elif unknown and "EngineArgs" in str(error):  # an argument that eaglectl sets
        answer["fields"] = [unknown[1]]
    if isinstance(error, OldReleaseError):
        answer["needs"] = error.needs
    return answer


def _invalid_fields(error: Exception) -> tuple[list[str], BaseException | None]:
    """The arguments that a pydantic error is about, and the error that one of its validators raised."""
    if type(error).__name__ != "ValidationError" or not hasattr(error, "errors"):
        return [], None
    details = error.errors()
    fields = [str(detail["loc"][0]) for detail in details if detail["loc"]]
    causes = (detail.get("ctx", {}).get("error") for detail in details)
    return fields, next((cause for cause in causes if isinstance(cause, BaseException)), None)


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, str]]:
    """The module and function of each frame; a child's own module has its name, and not __main__."""
    for frame, _ in traceback.walk_tb(trace):
        module = str(frame.f_globals.get("__name__"))
        yield (__package__ or "" if module == "__main__" else module), frame.f_code.co_name


def _tensor(error: BaseException) -> str:
    """The tensor that a loader was at: the name beside the weight that it passed on; "" where none shows."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame, called in reversed([*pairwise(frames)]):
        for variables in LOADER_VARIABLES:
            name, weight = map(frame.f_locals.get, variables)
            # a loop that has ended leaves its last name behind, but passes no weight on
            is_passed = weight is not None and any(value is weight for value in called.f_locals.values())
            if is_passed and isinstance(name, str):
                return name
    return ""


def machine_memory() -> dict[str, int]:
    """Bytes of this machine's memory that are free, and all; nothing where that is not known."""
    meminfo = Path("/proc/meminfo")
    lines = meminfo.read_text(encoding="ascii").splitlines() if meminfo.exists() else []
    sizes = {name: int(value.split()[0]) << 10 for name, _, value in (line.partition(":") for line in lines)}
    return {"free_bytes": sizes["MemAvailable"], "total_bytes": sizes["MemTotal"]} if sizes else {}
