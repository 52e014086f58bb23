"""Other processes at the same OUT: what they put there is never removed, and what comes out is whole."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import eaglectl
from eaglectl.errors import EaglectlError, UnreadableError, UsageError
from eaglectl.files import writer
from eaglectl.files.writer import Folder
from eaglectl.operations.converting import ConvertOptions
from tests.builders import contents, converted_folder, drafter_folder
from tests.faults.processes import names

WORK = "work of another process"


def foreign(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_text(WORK)


def empty(path: Path) -> None:
    path.mkdir()


def checkpoint(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text("{}")


def file(path: Path) -> None:
    path.write_text(WORK)


def link(path: Path) -> None:
    path.symlink_to("nowhere")


def lone(path: Path) -> tuple[str, ...]:
    return tuple(names(path)) if path.is_dir() else (str(path.readlink()) if path.is_symlink() else WORK,)


def appearing(monkeypatch: pytest.MonkeyPatch, function: str, act: Callable[[], object]) -> None:
    """`act` happens just before the writer calls `function` for the first time."""
    real, acts = getattr(writer, function), [act]

    def call(*arguments: object) -> object:
        if acts:
            acts.pop()()
        return real(*arguments)

    monkeypatch.setattr(writer, function, call)


def without_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system or a file system without renameat2's flags."""
    monkeypatch.setattr(writer, "_rename", lambda source, target: False)


@pytest.mark.parametrize("has_flags", [True, False])
@pytest.mark.parametrize("make", [foreign, empty, checkpoint, file, link])
def test_what_appears_at_the_last_moment_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], has_flags: bool
) -> None:
    source, out = drafter_folder(tmp_path), tmp_path / "out"
    if not has_flags:
        without_flags(monkeypatch)
    before: list[tuple[str, ...]] = []
    appearing(monkeypatch, "rename_new", lambda: (make(out), before.append(lone(out))))
    with pytest.raises((UsageError, UnreadableError)):
        eaglectl.convert(str(source), out)
    assert lone(out) == before[0]
    assert names(tmp_path) == ["drafter", "out"]


@pytest.mark.parametrize("has_flags", [True, False])
@pytest.mark.parametrize("make", [foreign, file, link])
def test_force_puts_back_what_is_no_checkpoint_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], has_flags: bool
) -> None:
    source, out = drafter_folder(tmp_path), converted_folder(tmp_path, "out")
    if not has_flags:
        without_flags(monkeypatch)

    def swap() -> None:
        out.rename(tmp_path / "aside")
        make(out)

    appearing(monkeypatch, "rename_new", swap)
    with pytest.raises(UsageError, match="became something else than what `convert` wrote"):
        eaglectl.convert(str(source), out, ConvertOptions(force=True))
    assert lone(out) in (("thesis.tex",), (WORK,), ("nowhere",))
    assert names(tmp_path) == ["aside", "drafter", "out"]


@pytest.mark.parametrize("has_flags", [True, False])
def test_a_file_that_comes_into_the_replaced_folder_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_flags: bool
) -> None:
    source, out = drafter_folder(tmp_path), converted_folder(tmp_path, "out")
    if not has_flags:
        without_flags(monkeypatch)
    real = Folder._settle

    def late(folder: Folder, path: Path) -> None:
        (path / ".old/thesis.tex").write_text(WORK)
        real(folder, path)

    monkeypatch.setattr(Folder, "_settle", late)
    with pytest.raises(UnreadableError, match="left at"):
        eaglectl.convert(str(source), out, ConvertOptions(force=True))
    (kept,) = tmp_path.rglob("thesis.tex")
    assert kept.read_text() == WORK
    assert (out / "eaglectl.json").is_file()


@pytest.mark.parametrize("has_flags", [True, False])
def test_an_interruption_between_the_renames_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_flags: bool
) -> None:
    source, out = drafter_folder(tmp_path), converted_folder(tmp_path, "out")
    if not has_flags:
        without_flags(monkeypatch)
    real, calls = Folder._check_replaced, []

    def interrupted(folder: Folder, path: Path) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(folder, path)

    monkeypatch.setattr(Folder, "_check_replaced", interrupted)
    old = contents(out)
    with pytest.raises(KeyboardInterrupt):
        eaglectl.convert(str(source), out, ConvertOptions(force=True))
    assert names(tmp_path) == ["drafter", "out"]
    assert contents(out) == old


def record(number: int) -> bytes:
    """eaglectl.json of a writer."""
    files = {"config.json": number}
    return json.dumps({"schema": "eaglectl/provenance/1", "output": {"files": files}}).encode()


@pytest.mark.parametrize("force", [False, True])
def test_of_many_at_once_each_is_whole_or_refused(tmp_path: Path, force: bool) -> None:
    out, threads = tmp_path / "out", 8
    for _ in range(20):
        barrier, results = threading.Barrier(threads), []

        def write(number: int, barrier: threading.Barrier = barrier, results: list[int] = results) -> None:
            try:
                with Folder(out, force=force) as folder:
                    folder.write("config.json", [b"%d" % number])
                    folder.write("eaglectl.json", [record(number)])
                    barrier.wait()
                    folder.publish()
                results.append(number)
            except EaglectlError:
                pass

        writers = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
        for thread in writers:
            thread.start()
        for thread in writers:
            thread.join()
        assert names(out) == ["config.json", "eaglectl.json"]
        assert record(int((out / "config.json").read_text())) == (out / "eaglectl.json").read_bytes()
        assert int((out / "config.json").read_text()) in results
        assert names(tmp_path) == ["out"]
        if not force:
            assert len(results) == 1
        for path in out.iterdir():
            path.unlink()
        out.rmdir()
