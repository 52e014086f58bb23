"""For every test: no sockets but loopback, no cache of the Hub, warnings as errors, fixtures by name;
and what makes tests fast.
"""

import gc
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import typer.main
from hypothesis import settings

from eaglectl import cli, terminal
from eaglectl.cli import app
from eaglectl.files import output_files
from eaglectl.options import CALLER
from tests.gpu.results import FIGURES
from tests.printed import commands_in, fault

# a target in the cache of who runs the tests would be taken where a checkpoint names it
os.environ["HF_HUB_CACHE"] = "/nonexistent/eaglectl-tests"

# how long an example takes says more of the machine than of the code
settings.register_profile("eaglectl", deadline=None)
settings.load_profile("eaglectl")

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
# parts of paths of tests that start vLLM or SGLang, some twenty seconds each
IN_ENGINE = {"engine", "test_vllm.py"}

# the application is built anew at each call, which costs as much as an inspect; no test changes it
make_app, typer.main.get_command = app.make_app, cache(typer.main.get_command)


one_app = cache(make_app)
# that with all commands is for tests that look at it
app.make_app = lambda name: make_app(None) if name is None else one_app(name)


def sampled(names: Iterable[Any], step: int) -> list[Any]:
    """Names as parameters of a test: one in `step` for the fast tests, the others slow."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=[slow] if place % step else []) for place, name in enumerate(names)]


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Make the cases of a test marked `fast(n)` slow, but for n.

    Of slow tests, and of those in a real engine, at most EAGLECTL_CASES cases are run, and none of `minutes`.
    """
    marked = [
        item for item in items if item.get_closest_marker("fast") and not item.get_closest_marker("slow")
    ]
    for item in _beyond(marked, lambda item: item.get_closest_marker("fast").args[0]):
        item.add_marker(pytest.mark.slow)
    if most := int(os.environ.get("EAGLECTL_CASES", "0")):
        counted = [
            item for item in items if item.get_closest_marker("slow") or IN_ENGINE & {*item.path.parts}
        ]
        left = {item for item in items if item.get_closest_marker("minutes")}
        left.update(_beyond(counted, lambda item: most, by_name=True))
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


def _beyond(
    items: Iterable[pytest.Item], count: Callable[[Any], int], *, by_name: bool = False
) -> Iterator[pytest.Item]:
    """The cases of each test beyond so many, which are spread over all of them.

    `by_name`: a test's name decides where they begin, so that one case of each is not always the first.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, group in cases.items():
        most = min(count(group[0]), len(group))
        begin = crc32(name.encode()) if by_name else 0
        kept = {(begin + place * len(group) // most) % len(group) for place in range(most)}
        yield from (item for place, item in enumerate(group) if place not in kept)


@pytest.fixture(autouse=True)
def command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let errors name options as the command line does, in all tests but those of Python's words."""
    monkeypatch.setattr(CALLER, "is_command_line", True)


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of every later garbage collection."""
    gc.collect()
    gc.freeze()


# the property in which tests of kills and of random changes record their figures
KILLS = "kills"
KILL_COLUMNS = (
    "case", "kills", "ended by SIGKILL", "ended by SIGTERM", "ended by SIGHUP", "ended before the signal",
    "left something",
)  # fmt: skip


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the figures of tests, and a table of the kills; they come with the reports of any worker."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    recorded = [pair for report in reports for pair in _properties(report)]
    for name, value in recorded:
        if name == FIGURES:
            terminalreporter.write_line(", ".join(f"{key} {figure}" for key, figure in dict(value).items()))
    rows = [dict(value) for name, value in recorded if name == KILLS]
    if not rows:
        return
    numbers = KILL_COLUMNS[1:]
    rows.append({"case": "all", **{key: sum(row.get(key, 0) for row in rows) for key in numbers}})
    terminalreporter.section("kills")
    for row in ({key: key for key in KILL_COLUMNS}, *rows):
        first, *others = (str(row.get(key, 0)) for key in KILL_COLUMNS)
        cells = (f"{cell:>{len(key)}}" for cell, key in zip(others, numbers, strict=True))
        terminalreporter.write_line(f"{first:<30}  {'  '.join(cells)}")


def _properties(report: Any) -> list[tuple[str, Any]]:
    """What a test recorded; nothing for a report of another kind."""
    return report.user_properties if getattr(report, "when", "") == "call" else []


# what the running test printed that may hold a command, each with the arguments of the call that printed it
PRINTED: list[tuple[tuple[str, ...], str]] = []
RUNNING: dict[str, tuple[str, ...]] = {"arguments": ()}


def _collect_printed() -> None:
    """Keep what is printed, and what reports write: `_write` prints all of it, `write_file` writes it."""
    write, order, write_file = terminal._write, cli.common_first, output_files.write_file

    def written(lines: Iterable[str], stream: Any) -> None:
        every = list(lines)
        text = "\n".join(every)
        # help stands line by line, as that of --help, which click prints
        if "eaglectl " in text and "--help-all" not in RUNNING["arguments"]:
            PRINTED.append((RUNNING["arguments"], text))
        write(every, stream)

    def filed(path: Path, text: str) -> None:
        if "eaglectl " in text:
            PRINTED.append((RUNNING["arguments"], text))
        write_file(path, text)

    def ordered(arguments: list[str]) -> list[str]:
        RUNNING["arguments"] = tuple(order(arguments))
        return order(arguments)

    terminal._write, cli.common_first, output_files.write_file = written, ordered, filed


_collect_printed()


@pytest.fixture(autouse=True)
def whole_commands() -> Iterator[None]:
    """Fail a test in which a command of eaglectl was printed that cannot be run as it is."""
    PRINTED.clear()
    RUNNING["arguments"] = ()
    yield
    lines = {(line, arguments) for arguments, text in PRINTED for line in commands_in(text)}
    faults = {line: why for line, arguments in lines if (why := fault(line, arguments))}
    assert faults == {}, "commands that are printed must be complete (CONTRIBUTING.md)"


@pytest.fixture(autouse=True)
def closed_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Raise where a test, or what it calls, would reach beyond this machine."""
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else ""
        if host not in ("", "127.0.0.1", "::1", "localhost"):
            raise OSError(f"tests do not reach {host}")
        real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    yield
