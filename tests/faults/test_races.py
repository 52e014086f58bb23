"""Other processes at the same OUT: what they put there is never removed, and what comes out is whole."""

import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import eaglectl
from eaglectl.errors import EaglectlError, UnreadableError, UsageError
from eaglectl.files import writer
from eaglectl.files.writer import Folder
from tests.builders import contents, converted_folder, drafter_folder
from tests.faults.processes import names

WORK = "work of another process"


def foreign(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_text(WORK)


def file(path: Path) -> None:
    path.write_text(WORK)


def link(path: Path) -> None:
    path.symlink_to("nowhere")


def without_scratch(found: dict[str, str]) -> dict[str, str]:
    return {path: value for path, value in found.items() if not path.startswith(".")}


def appearing(monkeypatch: pytest.MonkeyPatch, function: str, act: Callable[[], object]) -> None:
    """`act` happens just before the writer calls `function` for the first time."""
    real, acts = getattr(writer, function), [act]

    def call(*arguments: object) -> object:
        if acts:
            acts.pop()()
        return real(*arguments)

    monkeypatch.setattr(writer, function, call)


@pytest.mark.fast(3)
@pytest.mark.parametrize("make", [foreign, Path.mkdir, file, link])
def test_what_appears_at_the_last_moment_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    source, out = drafter_folder(tmp_path), tmp_path / "out"
    there: list[dict[str, str]] = []
    appearing(monkeypatch, "rename_new", lambda: (make(out), there.append(contents(tmp_path))))
    with pytest.raises((UsageError, UnreadableError)):
        eaglectl.convert(source, out)
    assert contents(tmp_path) == without_scratch(there[0])


@pytest.mark.parametrize("make", [foreign, file, link])
def test_force_puts_back_what_is_no_checkpoint_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    source, out = drafter_folder(tmp_path), converted_folder(tmp_path, "out")

    there: list[dict[str, str]] = []
    swap = (
        lambda: out.rename(tmp_path / "aside"),
        lambda: make(out),
        lambda: there.append(contents(tmp_path)),
    )
    appearing(monkeypatch, "rename_new", lambda: [step() for step in swap])
    with pytest.raises(UsageError, match="is no longer an output of `convert`"):
        eaglectl.convert(source, out, force=True)
    assert contents(tmp_path) == without_scratch(there[0])


def test_a_file_that_comes_into_the_replaced_folder_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = drafter_folder(tmp_path), converted_folder(tmp_path, "out")
    real = Folder._settle

    def late(folder: Folder, path: Path) -> None:
        (path / ".old/thesis.tex").write_text(WORK)
        real(folder, path)

    monkeypatch.setattr(Folder, "_settle", late)
    with pytest.raises(UnreadableError, match="other files are at"):
        eaglectl.convert(source, out, force=True)
    (kept,) = tmp_path.rglob("thesis.tex")
    assert kept.read_text() == WORK
    assert (out / "eaglectl.json").is_file()


def record(number: int) -> bytes:
    """eaglectl.json of a writer."""
    files = {"config.json": number}
    return json.dumps({"schema": "eaglectl/provenance/1", "output": {"files": files}}).encode()


@pytest.mark.parametrize("force", [False, True])
def test_of_many_at_once_each_is_whole_or_refused(tmp_path: Path, force: bool) -> None:
    out, threads = tmp_path / "out", 8
    for _ in range(20):
        barrier = threading.Barrier(threads, timeout=60)  # one that fails before it leaves the others waiting

        def write(number: int, barrier: threading.Barrier = barrier) -> int | None:
            try:
                with Folder(out, force=force) as folder:
                    folder.write("config.json", [b"%d" % number])
                    folder.write("eaglectl.json", [record(number)])
                    barrier.wait()
                    folder.publish()
            except EaglectlError:
                return None
            return number

        with ThreadPoolExecutor(threads) as pool:
            results = [number for number in pool.map(write, range(threads)) if number is not None]
        assert names(out) == ["config.json", "eaglectl.json"]
        number = int((out / "config.json").read_text())
        assert number in results and record(number) == (out / "eaglectl.json").read_bytes()
        assert names(tmp_path) == ["out"] and (force or len(results) == 1)
        shutil.rmtree(out)
