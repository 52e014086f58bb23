"""`make fuzz`: every parser for some time, two at once, and a table of what was found.

  python -m tests.fuzz [--seconds 20 | --minutes N] [--parser header]... [--seed N] [--jobs 2] [DIR]

DIR (.fuzz) keeps what atheris learned, and the findings. Exit code 1 where there are findings.
"""

import argparse
import io
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.fuzz.parsers import Parser

SHARED = Path("/dev/shm")
ROW = "{:<12} {:>10} {:>8} {:>9}"
INSTRUMENTED = ("eaglectl", "pickletools", "tomllib", "zipfile")


class Outcome(NamedTuple):
    """What became of a parser; `ended`: how its process ended, where it came to no end of its own."""

    name: str
    inputs: int
    seconds: float
    places: Mapping[str, str]
    ended: str

    @property
    def findings(self) -> int:
        return len(self.places) + bool(self.ended)


@contextmanager
def instrumentation() -> Iterator[None]:
    """Instrument what is imported for atheris, where that is installed; it names each module on stderr."""
    if not find_spec("atheris"):
        yield
        return
    import atheris

    with redirect_stderr(io.StringIO()), atheris.instrument_imports(include=list(INSTRUMENTED)):
        yield


def start(parser: "Parser", seconds: float, seed: int, folder: Path) -> int:
    """Fuzz a parser in a fork, which has all imports; its process id."""
    from tests.fuzz.child import run_parser

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "figures.json").unlink(missing_ok=True)
    if child := os.fork():
        return child
    with (folder / "log.txt").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        run_parser(parser, seconds, seed, folder)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)


def outcome(name: str, code: int, folder: Path) -> Outcome:
    """What a process that ended with `code` left in its folder."""
    figures = {"inputs": 0, "seconds": 0.0, "places": {}}
    with suppress(OSError):
        figures = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    return Outcome(name, **figures, ended=f"ended with {code}; see {folder / 'log.txt'}" if code else "")


def fuzz(
    parsers: Sequence["Parser"], seconds: float, jobs: int, folder: Path, seed: int = 0
) -> list[Outcome]:
    """Run all parsers, `jobs` at once, and print a line for each."""
    waiting, running, outcomes = list(reversed(parsers)), dict[int, str](), list[Outcome]()
    while waiting or running:
        while waiting and len(running) < jobs:
            parser = waiting.pop()
            running[start(parser, seconds, seed, folder / parser.name)] = parser.name
        process, status = os.wait()
        name = running.pop(process)
        outcomes.append(outcome(name, os.waitstatus_to_exitcode(status), folder / name))
        last = outcomes[-1]
        print(ROW.format(name, f"{last.inputs:,}", f"{last.seconds:.0f}", last.findings), flush=True)
    return outcomes


def options_of(names: Sequence[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each parser")
    parser.add_argument("--minutes", type=float, help="for each parser")
    parser.add_argument("--parser", action="append", choices=sorted(names))
    parser.add_argument("--seed", type=int, default=0, help="of the mutations; 0: another each time")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(".fuzz"))
    return parser.parse_args()


def main() -> int:
    """Run, print the table, and return the exit code."""
    with instrumentation():
        from tests.fuzz import parsers
    options = options_of(list(parsers.PARSERS))
    seconds = options.seconds if options.minutes is None else 60 * options.minutes
    chosen = [parsers.PARSERS[name] for name in options.parser or parsers.PARSERS]
    has_atheris = find_spec("atheris") is not None
    engine = "atheris, led by coverage" if has_atheris else "hypothesis: atheris is not installed here"
    print(f"{len(chosen)} parsers, {seconds:g} s each, {options.jobs} at once; inputs by {engine}\n")
    print(ROW.format("parser", "inputs", "seconds", "findings"), flush=True)
    # files of one input, written anew for each: in memory where the system has that
    memory = SHARED if os.access(SHARED, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="eaglectl-fuzz-", dir=memory) as temporary:
        tempfile.tempdir = temporary
        with instrumentation():
            for parser in chosen:  # a seed, for the imports that come with that
                with suppress(Exception):
                    parser.read(next(iter(parser.seeds())))
        outcomes = fuzz(chosen, seconds, options.jobs, options.folder, options.seed)
    total, count = (sum(getattr(each, key) for each in outcomes) for key in ("inputs", "findings"))
    print(ROW.format("all", f"{total:,}", "", count))
    for each in outcomes:
        for place, name in each.places.items():
            print(f"{each.name}: {place}: {options.folder / each.name / 'findings' / name}")
        if each.ended:
            print(f"{each.name}: {each.ended}")
    return 1 if count else 0


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    sys.exit(main())
