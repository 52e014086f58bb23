"""Files in the user's cache that are not what was kept there: a run is made again, and nothing hangs."""

import gzip
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from eaglectl.commands.ready.run import KeptRuns, cache_folder
from eaglectl.errors import UnreadableError
from eaglectl.run import prompts
from eaglectl.run.prompts import choose_prompts, lines_of
from tests.builders import drafter_folder

Change = Callable[[Path], object]


def exchange(path: Path) -> None:
    """Another run's file takes the name."""
    other = next(other for other in path.parent.iterdir() if other != path)
    path.write_bytes(other.read_bytes())


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def deep(path: Path) -> None:
    """A list in a list, 100,000 deep, under a right first line."""
    data = b"[" * 100_000
    path.write_bytes(hashlib.sha256(path.name.encode() + data).hexdigest().encode() + b"\n" + data)


CHANGES: tuple[Change, ...] = (
    exchange,
    pipe,
    folder,
    deep,
    lambda path: os.truncate(path, 68),
    lambda path: os.truncate(path, 1 << 40),
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(path.read_bytes().replace(b"2", b"3")),
    lambda path: path.write_bytes(path.read_bytes().split(b"\n", 1)[1]),
)
NAMES = ("exchanged", "pipe", "folder", "deep", "truncated", "1 TB", "empty", "changed", "no first line")


@pytest.mark.parametrize("change", CHANGES, ids=NAMES)
def test_a_run_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    drafter, made = drafter_folder(tmp_path), []

    def run(name: str) -> list[int]:
        def make() -> list[int]:
            made.append(name)
            return [len(name), 2]

        return KeptRuns(drafter).get(name, drafter, name, make, list[int])

    assert [run(name) for name in ("one", "seven", "one")] == [[3, 2], [5, 2], [3, 2]]
    assert made == ["one", "seven"]
    (kept,) = [path for path in cache_folder().iterdir() if b"[3," in path.read_bytes()]
    change(kept)
    assert run("one") == [3, 2] and made == ["one", "seven", "one"]


@pytest.mark.parametrize("change", [pipe, folder, *CHANGES[4:7]], ids=NAMES[1:3] + NAMES[4:7])
def test_a_cached_set_of_prompts_is_the_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    monkeypatch.setattr(prompts, "find_spec", lambda name: None)
    monkeypatch.setattr(prompts, "is_offline", lambda: True)
    chosen = prompts.prompt_sets().sets["mt-bench"]
    file = tmp_path / "set"
    monkeypatch.setattr(type(chosen), "cached", property(lambda _: file))
    file.write_bytes(gzip.compress(b"{}" * 100))
    change(file)
    with pytest.raises(UnreadableError, match="this call is offline"):
        lines_of("mt-bench")


@pytest.mark.parametrize("name", ["x" * 5000, "a/" * 2500, "a\0b"])
def test_a_name_that_no_file_can_have_is_no_file_of_prompts(name: str) -> None:
    with pytest.raises(UnreadableError, match="--prompts"):
        choose_prompts(name)
