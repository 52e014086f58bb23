"""Work in forks of this process: what a case starts goes with it, and none outstays its time."""

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.engine.agreement.cases import Case
from tests.engine.agreement.judging import targets
from tests.engine.agreement.records import Record, read, write
from tests.engine.logits import rounded

SIDE_BY_SIDE = 4
BATCH = 20
HEAD = 110  # characters kept of a message
CRASH = 70


@dataclass(frozen=True, slots=True)
class Death:
    """How a fork ended that gave no answer."""

    reason: str


def forked(
    root: Path,
    names: Sequence[str],
    work: Callable[[str], Any],
    patience: float,
    side_by_side: int = SIDE_BY_SIDE,
) -> dict[str, Any]:
    """What `work` returns for each name (a JSON value), or its Death. An exception in `work` ends the run."""
    waiting, running, found = list(names), dict[int, tuple[str, float]](), dict[str, Any]()
    for folder in ("logs", "answers"):
        (root / folder).mkdir(exist_ok=True)
    while waiting or running:
        while waiting and len(running) < side_by_side:
            name = waiting.pop(0)
            child = os.fork()
            if child == 0:
                _child(root, name, work)
            running[child] = name, time.monotonic() + patience
        for child, (name, deadline) in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended and time.monotonic() < deadline:
                continue
            _end(child, is_alive=not ended)
            del running[child]
            if ended and os.WIFEXITED(status) and os.WEXITSTATUS(status) == CRASH:
                sys.exit(f"{name}: the runner itself failed\n{_log(root, name).read_text()[-2000:]}")
            reason = f"ended with {_ending(status)}" if ended else "no end within the time given"
            found[name] = _answer(root, name, reason)
        time.sleep(0.02)
    return found


def run_cases(
    cases: Mapping[str, Case],
    work: Callable[[Path, str], Any],
    patience: float,
    side_by_side: int = SIDE_BY_SIDE,
    prepare: Callable[[Path, Sequence[str]], None] = lambda root, names: None,
) -> None:
    """Write the records that `work` gives of cases: [verdict, reason, ...]; those of the file stay.

    The command line has the file, and names of cases; without any those run of which it has no record as they
    are. `prepare` is given the folder, with all targets in it, and the names.
    """
    out, asked = Path(sys.argv[1]), sys.argv[2:]
    known = {} if asked else read(out)
    names = asked or [name for name, case in cases.items() if not is_recorded(case, known.get(name))]
    patience = float(os.environ.get("AGREEMENT_PATIENCE", patience))
    side_by_side = int(os.environ.get("AGREEMENT_WORKERS", side_by_side))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        targets(root / "targets")
        prepare(root, names)
        for place in range(0, len(names), BATCH):
            batch = names[place : place + BATCH]
            for name, answer in forked(root, batch, partial(work, root), patience, side_by_side).items():
                values = ("dies", answer.reason) if isinstance(answer, Death) else answer
                known[name] = as_record(cases[name].files().digest(), *values)
            write(out, known if asked else {name: known[name] for name in cases if name in known})
            print(f"{place + len(batch)} of {len(names)}", file=sys.stderr, flush=True)


def as_record(
    digest: str, verdict: Any, reason: str, difference: float | None = None, *names: list[Any]
) -> Record:
    """The record of what a fork answers."""
    figure = None if difference is None else rounded(difference)
    return Record(digest, verdict, reason[:HEAD], figure, *map(tuple, names))


def is_recorded(case: Case, record: Record | None) -> bool:
    """Whether there is a record of the case as it is."""
    return record is not None and record.digest == case.files().digest()


def reason(error: BaseException) -> str:
    """One line that says what was raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:2])}"


def _log(root: Path, name: str) -> Path:
    return root / "logs" / name.replace("/", "--")


def _answer(root: Path, name: str, reason: str) -> Any:
    path = root / "answers" / name.replace("/", "--")
    return json.loads(path.read_text()) if path.exists() else Death(reason)


def _ending(status: int) -> str:
    return (
        signal.Signals(os.WTERMSIG(status)).name
        if os.WIFSIGNALED(status)
        else f"code {os.WEXITSTATUS(status)}"
    )


def _end(child: int, *, is_alive: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if is_alive:
        os.waitpid(child, 0)


def _child(root: Path, name: str, work: Callable[[str], Any]) -> None:
    """In the fork: run, write the answer, leave."""
    os.setsid()
    log = os.open(_log(root, name), os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = CRASH
    try:
        torch.set_num_threads(1)
        (root / "answers" / name.replace("/", "--")).write_text(json.dumps(work(name)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
