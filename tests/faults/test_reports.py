"""Files of --output and --page: no planted link is followed, and a killed run's part goes with the next."""

import os
import signal
from pathlib import Path

import pytest

from eaglectl.files import scratch
from eaglectl.files.scratch import write_file
from tests.builders import call, drafter_folder
from tests.faults.processes import names, paused


@pytest.fixture
def fixed_name(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name that the next scratch folder gets: somebody else knows it."""
    tokens = iter([bytes(4), bytes([1] * 4)])
    monkeypatch.setattr(scratch.os, "urandom", lambda size: next(tokens))
    return f".report.html.{'0' * 8}.partial"


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_what_was_planted_is_neither_followed_nor_written_to(
    tmp_path: Path, fixed_name: str, kind: str
) -> None:
    planted, victim = tmp_path / fixed_name, tmp_path / "victim"
    if kind != "dangling link":
        (planted if kind == "file" else victim).write_text("kept")
    if kind != "file":
        planted.symlink_to(victim)
    write_file(tmp_path / "report.html", "new")
    assert (tmp_path / "report.html").read_text() == "new"
    assert planted.is_symlink() is (kind != "file")
    assert victim.exists() is (kind == "link")
    assert kind == "dangling link" or planted.read_text() == "kept"


def test_the_mode_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "report.html", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o640


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("option", "number"),
    [
        ("--output", signal.SIGTERM),
        ("--page", signal.SIGTERM),
        ("--page", signal.SIGKILL),
        ("--output", signal.SIGKILL),
    ],
)
def test_a_killed_report_leaves_the_old_one_and_the_next_run_removes_its_part(
    tmp_path: Path, option: str, number: signal.Signals
) -> None:
    source, reports = drafter_folder(tmp_path), tmp_path / "reports"
    reports.mkdir()
    file = reports / "report.html"
    old = (
        "<!DOCTYPE html>\n<html><title>eaglectl</title> old"
        if option == "--page"
        else '{"schema": "eaglectl/validate/1"}'
    )
    file.write_text(old)
    command = ("validate", source, option, f"json={file}" if option == "--output" else file)
    with paused("eaglectl.files.scratch.sync_folder", *command) as process:
        assert file.read_text() != old  # renamed: the whole new file
        process.send_signal(number)
        process.communicate()
    assert process.returncode in (143, -9)
    with paused("eaglectl.files.scratch.os.fsync", *command) as process:
        assert len(names(reports)) == 2
        before = file.read_text()
        process.send_signal(number)
        process.communicate()
    assert process.returncode in (143, -9)
    assert file.read_text() == before
    assert len(names(reports)) == (2 if number == signal.SIGKILL else 1)
    assert call(*command).code in (0, 1)
    assert names(reports) == ["report.html"]


def test_a_part_that_is_being_written_is_not_swept(tmp_path: Path) -> None:
    with scratch.scratch(tmp_path, "report.html") as part:
        write_file(tmp_path / "report.html", "new")
        assert part.exists()
    assert names(tmp_path) == ["report.html"]
