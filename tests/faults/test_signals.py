"""What a signal leaves: nothing for SIGTERM and SIGHUP; for SIGKILL what the next run removes."""

import itertools
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import eaglectl
from eaglectl.files import scratch
from eaglectl.files.scratch import (
    Terminated,
    run_removals,
    scratch_folder,
    stopped_by_signals,
    write_file,
)
from eaglectl.files.writer import Folder
from tests.builders import call, contents, converted_folder, drafter_folder
from tests.faults.processes import names, paused

WRITER = "eaglectl.files.writer"
STOPPING = (signal.SIGTERM, signal.SIGHUP)
TINY = Path(eaglectl.__file__).parent.parent / "fixtures/tiny"


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


def test_a_signal_after_the_old_folder_was_moved_aside_puts_it_back(tmp_path: Path) -> None:
    source, out = drafter_folder(tmp_path), converted_folder(tmp_path, "out")
    before = contents(tmp_path)
    with paused(f"{WRITER}.Folder._check_replaced", "convert", source, "-o", out, "--force") as process:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 143
    assert contents(tmp_path) == before


def test_a_run_under_nohup_goes_on(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    place = f"{WRITER}.sync_folder"
    with paused(place, "convert", source, "-o", tmp_path / "out", ignored=signal.SIGHUP) as process:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(TimeoutError):
            wait(process.pid)


def wait(pid: int) -> None:
    """Raise TimeoutError where the process still runs after a moment."""
    threading.Event().wait(0.5)
    if os.waitpid(pid, os.WNOHANG) == (0, 0):
        raise TimeoutError


def test_a_killed_run_is_swept_by_the_next(tmp_path: Path) -> None:
    source, out = drafter_folder(tmp_path), tmp_path / "out"
    with paused(f"{WRITER}.sync_folder", "convert", source, "-o", out) as process:
        process.kill()
        process.communicate()
    assert len(names(tmp_path)) == 2
    assert call("convert", source, "-o", out).code == 0
    assert names(tmp_path) == ["drafter", "out"]


def killed_with_the_old_folder_aside(tmp_path: Path) -> tuple[Path, Path, Path]:
    """SOURCE, OUT and the scratch folder of a run that was killed between its two renames."""
    source, out = drafter_folder(tmp_path), converted_folder(tmp_path, "out")
    with paused(f"{WRITER}.Folder._check_replaced", "convert", source, "-o", out, "--force") as process:
        process.kill()
        process.communicate()
    (partial,) = set(names(tmp_path)) - {"drafter"}
    return source, out, tmp_path / partial


def test_a_run_killed_after_both_renames_is_swept_by_the_next(tmp_path: Path) -> None:
    source, out, partial = killed_with_the_old_folder_aside(tmp_path)
    (partial / "out").rename(out)
    assert call("convert", source, "-o", out, "--force").code == 0
    assert names(tmp_path) == ["drafter", "out"]


def test_what_a_killed_run_had_moved_aside_comes_back(tmp_path: Path) -> None:
    source, out, partial = killed_with_the_old_folder_aside(tmp_path)
    before = contents(partial / ".old")
    assert call("convert", source, "-o", out).code == 2
    assert contents(out) == before
    assert names(tmp_path) == ["drafter", "out"]


def test_what_was_moved_aside_and_is_no_checkpoint_is_not_swept(tmp_path: Path) -> None:
    source, out, partial = killed_with_the_old_folder_aside(tmp_path)
    (partial / "out").rename(out)
    (partial / ".old/thesis.tex").write_text("years of work")
    assert call("convert", source, "-o", out, "--force").code == 0
    assert (partial / ".old/thesis.tex").read_text() == "years of work"
    assert (partial / ".old/config.json").is_file()


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
    plain = tmp_path / ".out.0123abcd.partial"
    plain.mkdir()
    (plain / "mine").write_text("kept")
    empty_lock = tmp_path / ".out.0123abce.partial"
    empty_lock.mkdir()
    (empty_lock / ".1-2.mark").touch()
    (empty_lock / "mine").write_text("kept")
    with Folder(out, force=False) as folder:
        folder.write("config.json", [b"{}"])
        copied = tmp_path / ".out.0123abcf.partial"  # a backup has another inode
        shutil.copytree(folder.work.parent, copied)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("kept")
    (tmp_path / ".out.0123abcd.partial.old").mkdir()
    (tmp_path / ".out.01230000.partial").symlink_to(elsewhere)
    linked = tmp_path / ".out.01230001.partial"
    linked.mkdir()
    (linked / "mine").write_text("kept")
    status = linked.stat()
    (linked / f".{status.st_dev}-{status.st_ino}.mark").symlink_to(elsewhere / "mine")
    before = {name: value for name, value in contents(tmp_path).items() if not name.endswith(".mark")}
    assert call("convert", source, "-o", out).code == 0
    after = contents(tmp_path)
    assert {name: after.get(name) for name in before} == before


def test_a_folder_of_a_run_that_was_killed_before_it_marked_it_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".eaglectl.0123abcd.partial").mkdir()
    with scratch_folder(tmp_path) as folder:
        assert names(tmp_path) == [folder.parent.name]


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


def test_a_scratch_folder_of_a_dead_process_is_swept(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        with scratch_folder(tmp_path) as folder:
            (folder / "large").touch()
            os._exit(0)
    os.waitpid(pid, 0)
    assert len(names(tmp_path)) == 1
    with scratch_folder(tmp_path) as folder:
        assert names(tmp_path) == [folder.parent.name]
    assert names(tmp_path) == []


def test_an_interrupted_removal_can_be_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), scratch_folder(tmp_path) as folder:
        (folder / "large").touch()
        patch.setattr(scratch.shutil, "rmtree", interrupted)
    assert len(names(tmp_path)) == 1
    with scratch_folder(tmp_path) as folder:
        assert names(tmp_path) == [folder.parent.name]
    assert names(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", STOPPING, ids=lambda number: number.name)
def test_calibrate_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    command = ("calibrate", TINY / "eagle3", "--target", TINY / "target", "-o", tmp_path / "out")
    with paused("eaglectl.run.tokens.tokenise", *command) as process:
        assert [name for name in names(tmp_path / "tmp") if "eaglectl" in name]
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert not [name for name in names(tmp_path / "tmp") if "eaglectl" in name]
    assert names(tmp_path) == ["tmp"]


def test_signals_are_left_alone_where_the_caller_handles_them() -> None:
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        mine = signal.getsignal(signal.SIGTERM)
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
    source, problems = drafter_folder(tmp_path), []

    def run() -> None:
        try:
            eaglectl.convert(str(source), tmp_path / "out")
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert problems == []


class Stepper:
    """Raises a signal before the nth line that some files run while it is handled; counts those lines."""

    FILES = ("writer.py", "scratch.py")

    def __init__(self, number: signal.Signals, nth: int) -> None:
        self.number, self.nth, self.lines = number, nth, 0

    def __call__(self, frame: FrameType, event: str, _: object) -> "Stepper | None":
        if not frame.f_code.co_filename.endswith(self.FILES):
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
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("has_old", [False, True])
@pytest.mark.parametrize("write", [write_a_folder, write_a_scratch_file, write_a_report])
def test_a_signal_between_any_two_lines_leaves_nothing(
    tmp_path: Path, write: Callable[[Path], None], has_old: bool
) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            interrupt_each_line(tmp_path, write, has_old=has_old)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def interrupt_each_line(tmp_path: Path, write: Callable[[Path], None], *, has_old: bool) -> None:
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
            write(out)
        except Terminated:
            pass
        finally:
            sys.settrace(traced)
            for number in STOPPING:
                signal.signal(number, signal.SIG_DFL)
        assert run_removals()
        write_again = tmp_path / "whole" / "out"
        write_again.parent.mkdir(exist_ok=True)
        write(write_again)
        assert contents(out.parent) in (before, contents(write_again.parent)), nth
        if stepper.lines < nth:
            break
    assert nth > 20
