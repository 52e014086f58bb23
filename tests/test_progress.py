"""What is shown while large files are hashed: a bar on a terminal, a line elsewhere, nothing with -q; stdout stays what it is."""

import io
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from eaglectl import api, terminal
from eaglectl.publishing import plan, verification
from eaglectl.terminal import Bar, Face
from tests.builders import call, drafter_folder


class Terminal(io.StringIO):
    """A stderr that people look at."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return drafter_folder(tmp_path)


@pytest.fixture
def download(folder: Path, tmp_path: Path) -> Path:
    """What `verify` is called on."""
    found = tmp_path / "download"
    found.mkdir()
    for file in api.upload(str(folder), "org/drafter", dry_run=True).plan.files:
        (found / file.name).write_bytes(bytes(file.content))  # type: ignore[arg-type]
    return found


def shown(monkeypatch: pytest.MonkeyPatch, calls: list[tuple[int, int]], *, is_on: bool = True) -> str:
    """What a terminal gets while `calls` come."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with Bar(Face(no_color=True), is_on=is_on) as bar:
        for done, total in calls:
            bar.hashing(done, total)
        assert bar.bar is None or calls[-1][0] < calls[-1][1]
    assert bar.bar is None
    return stream.getvalue()


def test_a_terminal_gets_a_bar_that_goes_when_all_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, [(1, 4), (2, 4), (4, 4)])
    assert "hashing" in text and text.endswith("\x1b[2K")


def test_a_bar_ends_with_the_call_where_hashing_stops_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "hashing" in shown(monkeypatch, [(1, 4)])


@pytest.mark.parametrize("calls", [[(4, 4)], [(0, 0)]])
def test_what_is_hashed_in_one_step_needs_no_bar(monkeypatch: pytest.MonkeyPatch, calls: list[tuple[int, int]]) -> None:
    assert shown(monkeypatch, calls) == ""


def test_a_quiet_call_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, [(1, 4), (4, 4)], is_on=False) == ""


@pytest.mark.parametrize("command", ["upload", "verify"])
def test_elsewhere_large_files_get_one_line(
    command: str, folder: Path, download: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (folder, "org/drafter", "--dry-run") if command == "upload" else (download,)
    few = call(command, *arguments)
    monkeypatch.setattr(terminal, "LARGE", 1000)
    many = call(command, *arguments)
    quiet = call("-q", command, *arguments)
    json = call(command, *arguments, "--json")
    assert (few.code, many.code, quiet.code, json.code) == (0, 0, 0, 0)
    assert "hashing" not in few.err and many.err.count("hashing 0.0 GB") == 1 and quiet.err == ""
    assert many.out == few.out
    assert json.document["schema"] == f"eaglectl/{command}/1"


def test_a_large_file_is_told_in_pieces(folder: Path, download: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[int, int]] = []
    monkeypatch.setattr(plan, "KEPT", 1000)
    monkeypatch.setattr(plan, "BLOCK", 1000)
    monkeypatch.setattr(verification, "BLOCK", 1000)
    for ask in (
        lambda told: api.upload(str(folder), "org/drafter", dry_run=True, hashed=told),
        lambda told: api.verify(str(download), told=told),
    ):
        heard.clear()
        ask(lambda done, total: heard.append((done, total)))
        total = heard[-1][1]
        assert heard[-1] == (total, total) and len(heard) > 10
        steps = [after - before for (before, _), (after, _) in pairwise(heard)]
        assert all(0 < step <= 4000 for step in steps)
