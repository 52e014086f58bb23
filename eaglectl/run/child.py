"""Common to the child processes that run an engine: requests, answers, phases, and errors as data."""

import difflib
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from eaglectl.errors import error_text

UNKNOWN_ARGUMENT = re.compile(r"[Uu]nexpected keyword argument:? '(\w+)'")
NEAREST = 3
ANSWER = "answer.json"  # of another process of the engine than the child

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

    pipe: "Connection[Any, Any] | None" = None


def serve_requests(
    modes: Mapping[str, Callable[[Request], Answer]],
    version: Callable[[], str],
    names: Callable[[], Sequence[str]],
) -> None:
    """Answer each request that comes through the pipe of the second argument, until it ends.

    `version` imports the engine; `names` are those of its arguments.
    """
    descriptor = int(sys.argv[2])
    os.set_inheritable(descriptor, False)
    pipe: Connection[Any, Any] = Connection(descriptor)
    _Parent.pipe = pipe
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        answer: Answer = {}
        try:
            report_phase("importing")
            answer["version"] = version()
            answer |= modes[request["mode"]](request)
        except Exception as error:
            answer |= error_answer(error, request["engine_arguments"], names)
        _send({"answer": answer})


def report_phase(phase: str, done: int = 0, total: int | None = None) -> None:
    """Tell the parent what is being done, and of how many prompts."""
    _send({"phase": phase, "done": done, "total": total})


def _send(message: Mapping[str, Any]) -> None:
    if _Parent.pipe is not None:
        _Parent.pipe.send_bytes(json.dumps(message).encode())


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


def load_over_nan(model: Any, load: Callable[[], object]) -> dict[str, Any]:
    """The parameters by name that `load` leaves NaN, wholly or in part; they get back what they had."""
    before = {}
    for name, parameter in model.named_parameters():
        if parameter.dtype.is_floating_point:
            before[name] = (parameter, former := parameter.detach().float().clone())
            # a number of 8 bits is not filled otherwise
            parameter.data.copy_(former.new_full(former.shape, float("nan")))
    load()
    holes = {}
    for name, (parameter, former) in before.items():
        values = parameter.detach().float()
        if values.shape == former.shape and bool((is_hole := values.isnan()).any()):
            parameter.data.copy_(former.where(is_hole, values))
            holes[name] = parameter
    return holes
