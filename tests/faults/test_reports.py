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


@pytest.mark.parametrize("is_dangling", [True, False])
def test_a_planted_link_is_not_followed(tmp_path: Path, fixed_name: str, is_dangling: bool) -> None:
    victim = tmp_path / "victim"
    if not is_dangling:
        victim.write_text("kept")
    (tmp_path / fixed_name).symlink_to(victim)
    write_file(tmp_path / "report.html", "new")
    assert (tmp_path / "report.html").read_text() == "new"
    assert (tmp_path / fixed_name).is_symlink()
    assert victim.exists() is not is_dangling
    assert is_dangling or victim.read_text() == "kept"


def test_the_old_name_of_a_part_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / f".report.html.{os.getpid()}.part").symlink_to(victim)
    write_file(tmp_path / "report.html", "new")
    assert victim.read_text() == "kept"


def test_a_planted_file_is_not_written_to(tmp_path: Path, fixed_name: str) -> None:
    (tmp_path / fixed_name).write_bytes(b"")
    write_file(tmp_path / "report.html", "new")
    assert (tmp_path / fixed_name).read_bytes() == b""


def test_the_mode_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "report.html", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o640


def test_the_folder_is_synced_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[list[str]] = []
    monkeypatch.setattr(scratch, "sync_folder", lambda folder: synced.append(names(folder)))
    write_file(tmp_path / "report.html", "new")
    ((partial, file),) = synced
    assert file == "report.html" and partial.endswith(".partial")


@pytest.mark.parametrize("option", ["--output", "--page"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_killed_report_leaves_the_old_one_and_the_next_run_removes_its_part(
    tmp_path: Path, option: str, number: signal.Signals
) -> None:
    source, reports = drafter_folder(tmp_path), tmp_path / "reports"
    reports.mkdir()
    file = reports / "report.html"
    old = "<!doctype html> old" if option == "--page" else '{"schema": "eaglectl/validate/1"}'
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
