"""What a signal leaves: nothing for SIGTERM and SIGHUP; for SIGKILL what the next run removes."""

import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import eaglectl
from eaglectl.files import scratch
from eaglectl.files.scratch import Terminated, run_removals, scratch_folder, stopped_by_signals, write_file
from eaglectl.files.writer import Folder
from tests.builders import call, contents, converted_folder, drafter_folder
from tests.faults.processes import names, paused
from tests.tiny import TARGET, TINY

WRITER = "eaglectl.files.writer"
STOPPING = (signal.SIGTERM, signal.SIGHUP)


@pytest.mark.fast(4)
@pytest.mark.parametrize("number", STOPPING, ids=lambda number: number.name)
@pytest.mark.parametrize("place", ["_copy", "sync_folder", "rename_new"])
def test_a_signal_while_writing_leaves_nothing(tmp_path: Path, number: signal.Signals, place: str) -> None:
    source = drafter_folder(tmp_path)
    before = contents(tmp_path)
    with paused(f"{WRITER}.{place}", "convert", source, "-o", tmp_path / "new/out") as process:
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert error == f"eaglectl: ended by {number.name}; nothing was left behind\n"
    assert contents(tmp_path) == before


def test_a_run_under_nohup_goes_on(tmp_path: Path) -> None:
    source, place = drafter_folder(tmp_path), f"{WRITER}.sync_folder"
    with paused(place, "convert", source, "-o", tmp_path / "out", ignored=signal.SIGHUP) as process:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)


def ended_with_the_old_folder_aside(tmp_path: Path, number: signal.Signals) -> tuple[Path, Path]:
    """SOURCE and OUT of a run that was ended between its two renames."""
    source, out = drafter_folder(tmp_path), converted_folder(tmp_path, "out")
    with paused(f"{WRITER}.Folder._check_replaced", "convert", source, "-o", out, "--force") as process:
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode in (128 + number, -number)
    return source, out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_what_was_moved_aside_comes_back(tmp_path: Path, number: signal.Signals) -> None:
    before = contents(converted_folder(tmp_path / "same", "out"))
    source, out = ended_with_the_old_folder_aside(tmp_path, number)
    if number == signal.SIGKILL:
        assert call("convert", source, "-o", out).code == 2
    assert contents(out) == before
    assert names(tmp_path) == ["drafter", "out", "same"]


@pytest.mark.parametrize("has_work", [False, True])
def test_a_run_killed_after_both_renames_is_swept_by_the_next_unless_it_moved_work_aside(
    tmp_path: Path, has_work: bool
) -> None:
    source, out = ended_with_the_old_folder_aside(tmp_path, signal.SIGKILL)
    (old,) = tmp_path.glob(".*/.old")
    (old.parent / "out").rename(out)
    if has_work:
        (old / "thesis.tex").write_text("years of work")
    assert call("convert", source, "-o", out, "--force").code == 0
    assert old.exists() is has_work
    assert not has_work or {"config.json", "thesis.tex"} <= set(names(old))
    assert has_work or names(tmp_path) == ["drafter", "out"]


def test_what_a_living_run_writes_is_not_swept(tmp_path: Path) -> None:
    source, out = drafter_folder(tmp_path), tmp_path / "out"
    with paused(f"{WRITER}.sync_folder", "convert", source, "-o", out) as process:
        before = set(names(tmp_path))
        assert call("convert", source, "-o", out).code == 0
        assert set(names(tmp_path)) == before | {"out"}
        process.terminate()
        process.communicate()
    assert names(tmp_path) == ["drafter", "out"]


def test_folders_that_eaglectl_did_not_write_are_not_swept(tmp_path: Path) -> None:
    source, out = drafter_folder(tmp_path), tmp_path / "out"
    plain, empty_lock, linked = (tmp_path / f".out.0123abc{end}.partial" for end in "def")
    elsewhere = tmp_path / "elsewhere"
    for folder in (plain / "out", empty_lock, linked, elsewhere):
        folder.mkdir(parents=True)
        (folder / "mine").write_text("kept")
    (empty_lock / ".1-2.mark").touch()
    with Folder(out, force=False) as written:
        written.write("config.json", [b"{}"])
        # a backup has another inode
        shutil.copytree(written.work.parent, tmp_path / ".out.01230002.partial")
    (tmp_path / ".out.0123abcd.partial.old").mkdir()
    (tmp_path / ".out.01230000.partial").symlink_to(elsewhere)
    status = linked.stat()
    (linked / f".{status.st_dev}-{status.st_ino}.mark").symlink_to(elsewhere / "mine")
    before = {name: value for name, value in contents(tmp_path).items() if not name.endswith(".mark")}
    assert call("convert", source, "-o", out).code == 0
    after = contents(tmp_path)
    assert {name: after.get(name) for name in before} == before


def test_a_new_folder_that_another_run_sweeps_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, swept = scratch._lock, []

    def lock(folder: Path, *arguments: Any) -> None:
        if not swept:
            swept.append(folder)
            scratch.sweep(tmp_path, "eaglectl")
        real(folder, *arguments)

    monkeypatch.setattr(scratch, "_lock", lock)
    with scratch_folder(tmp_path) as folder:
        assert folder.is_dir() and names(tmp_path) == [swept[0].name]


def test_a_folder_that_is_made_again_while_another_run_locks_the_one_before_is_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, folder = fcntl.flock, tmp_path / ".eaglectl.0123abcd.partial"
    made: list[ExitStack] = []

    def lock(descriptor: int, flags: int) -> None:
        if not made:  # opened by this run, removed by another, and made again by its owner
            made.append(ExitStack())
            folder.rmdir()
            scratch._make(folder, made[0])
            (folder / "files").mkdir()
        real(descriptor, flags)

    folder.mkdir()
    monkeypatch.setattr(fcntl, "flock", lock)
    scratch.sweep(tmp_path, "eaglectl")
    assert "files" in names(folder)
    made[0].close()
    scratch.sweep(tmp_path, "eaglectl")
    assert names(tmp_path) == []


def test_scratch_folders_of_dead_processes_are_swept_written_or_not(tmp_path: Path) -> None:
    (tmp_path / ".eaglectl.0123abcd.partial").mkdir()
    pid = os.fork()
    if pid == 0:
        with scratch_folder(tmp_path) as folder:
            (folder / "large").touch()
            os._exit(0)
    os.waitpid(pid, 0)
    assert names(tmp_path)
    with scratch_folder(tmp_path) as folder:
        assert names(tmp_path) == [folder.parent.name]
    assert names(tmp_path) == []


@pytest.mark.slow
def test_calibrate_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    command = ("calibrate", TINY / "eagle3", "--target", TARGET, "-o", tmp_path / "out")
    with paused("eaglectl.run.job.tokenise", *command) as process:
        assert list(temporary.glob("*eaglectl*"))
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 143
    assert names(tmp_path) == ["tmp"] and not list(temporary.glob("*eaglectl*"))


def test_signals_are_left_alone_where_the_caller_handles_them() -> None:
    def mine(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with stopped_by_signals():
            assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_signal_does_not_end_the_removal() -> None:
    seen = []
    with pytest.raises(Terminated) as end, stopped_by_signals(), stopped_by_signals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            seen.append("removed")
    assert end.value.code == 143
    assert seen == ["removed"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_thread_writes_without_handling_signals(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(eaglectl.convert, drafter_folder(tmp_path), tmp_path / "out").result()


class Stepper:
    """Raises a signal before the nth line that some files run while it is handled; counts those lines."""

    def __init__(self, number: signal.Signals, nth: int) -> None:
        self.number, self.nth, self.lines = number, nth, 0

    def __call__(self, frame: FrameType, event: str, _: object) -> "Stepper | None":
        if not frame.f_code.co_filename.endswith(("writer.py", "scratch.py")):
            return None
        if event in ("line", "return") and callable(signal.getsignal(self.number)):
            self.lines += 1
            if self.lines == self.nth:
                signal.raise_signal(self.number)
        return self


def write_a_folder(out: Path) -> None:
    with Folder(out, force=True) as folder:
        folder.write("eaglectl.json", [b'{"schema": "eaglectl/provenance/1"}'])
        folder.publish()


def write_a_scratch_file(out: Path) -> None:
    with scratch_folder(out.parent) as folder:
        (folder / "file").write_bytes(b"{}")


def write_a_report(out: Path) -> None:
    write_file(out, "{}")


# in a process of its own: an exception of a trace function may stay the one that is being handled, and an
# interrupted os.open loses its descriptor
@pytest.mark.fast(1)
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    ("write", "has_old"),
    [
        (write_a_folder, False),
        (write_a_folder, True),
        (write_a_scratch_file, False),
        (write_a_report, True),
        (write_a_report, False),
        (write_a_scratch_file, True),
    ],
)
def test_a_signal_between_any_two_lines_leaves_nothing(
    tmp_path: Path, write: Callable[[Path], None], has_old: bool
) -> None:
    child = os.fork()
    if child == 0:
        try:
            interrupt_each_line(tmp_path, write, has_old=has_old)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def interrupt_each_line(tmp_path: Path, write: Callable[[Path], None], *, has_old: bool) -> None:
    (tmp_path / "whole").mkdir()
    write(tmp_path / "whole/out")
    whole = contents(tmp_path / "whole")
    for nth in itertools.count(1):
        out = tmp_path / str(nth) / "new" / "out"
        out.parent.mkdir(parents=True)
        if has_old:
            write(out)
        before = contents(out.parent)
        stepper = Stepper(signal.SIGTERM, nth)
        traced = sys.gettrace()
        sys.settrace(stepper)
        try:
            with suppress(Terminated):
                write(out)
        finally:
            sys.settrace(traced)
            for number in STOPPING:
                signal.signal(number, signal.SIG_DFL)
        assert run_removals()
        assert contents(out.parent) in (before, whole), nth
        if stepper.lines < nth:
            break
    assert nth > 20
