"""A source that is rewritten while it is read: no output, and no record of what is nowhere."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

import eaglectl
from eaglectl.errors import EaglectlError, UnreadableError
from eaglectl.files import writer
from eaglectl.files.opening import open_folder
from eaglectl.files.source import PinnedSource
from eaglectl.operations.converting import ConvertOptions
from eaglectl.operations.copies import opened
from tests.builders import call, contents, drafter_folder, sharded_folder
from tests.faults.processes import names

WEIGHTS = "model.safetensors"


def replace_file(path: Path) -> None:
    """Another file of the same size takes its place."""
    other = path.with_name("other")
    other.write_bytes(bytes(path.stat().st_size))
    other.replace(path)


def rewrite(path: Path) -> None:
    """The last byte becomes another, in place."""
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")


def rewrite_and_hide(path: Path) -> None:
    """The same, and the file's own time is set back."""
    before = path.stat()
    rewrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def swap_and_back(path: Path) -> None:
    """Another file has the name for a moment."""
    aside = path.with_name("aside")
    path.rename(aside)
    path.write_bytes(b"")
    path.unlink()
    aside.rename(path)


CHANGES = (replace_file, rewrite, rewrite_and_hide, lengthen, Path.unlink, swap_and_back)


@pytest.mark.parametrize("file", [WEIGHTS, "config.json"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("options", [ConvertOptions(), ConvertOptions("torchspec")], ids=["same", "other"])
def test_a_file_that_changes_while_the_output_is_written(
    tmp_path: Path, options: ConvertOptions, change: Callable[[Path], None], file: str
) -> None:
    source, changes = drafter_folder(tmp_path), [change]

    def on_progress(_: object) -> None:
        if changes:
            changes.pop()(source / file)

    with pytest.raises(UnreadableError, match=f"{source / file} changed while it was read") as error:
        eaglectl.convert(str(source), tmp_path / "out", options, on_progress=on_progress)
    assert error.value.exit_code == 3
    assert "nothing was written" in str(error.value)
    assert names(tmp_path) == ["drafter"]


@pytest.mark.parametrize("change", CHANGES[:2] + CHANGES[3:5], ids=lambda change: change.__name__)
def test_a_file_that_changes_between_plan_and_writing(tmp_path: Path, change: Callable[[Path], None]) -> None:
    source = sharded_folder(tmp_path)
    file = next(source.glob("model-*.safetensors"))
    with pytest.raises(UnreadableError, match=f"{file} changed while it was read"):
        eaglectl.convert(str(source), tmp_path / "out", on_plan=lambda plan: change(file))
    assert names(tmp_path) == [source.name]


@pytest.mark.parametrize("change", [replace_file, rewrite, lengthen], ids=lambda change: change.__name__)
@pytest.mark.parametrize("is_before", [True, False])
def test_a_file_that_changes_around_its_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], is_before: bool
) -> None:
    source = drafter_folder(tmp_path)
    real = os.link

    def link(*arguments: Path, **named: bool) -> None:
        if is_before:
            change(source / WEIGHTS)
        real(*arguments, **named)
        if not is_before:
            change(source / WEIGHTS)

    monkeypatch.setattr(writer.os, "link", link)
    with pytest.raises(UnreadableError, match="changed while it was read"):
        eaglectl.convert(str(source), tmp_path / "out", ConvertOptions(link=True))
    assert names(tmp_path) == ["drafter"]


def test_what_was_there_for_a_moment_is_not_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = drafter_folder(tmp_path)
    weights, aside, real = source / WEIGHTS, source / "aside", os.link

    def link(*arguments: Path, **named: bool) -> None:
        weights.rename(aside)
        weights.write_bytes(b"another file")
        real(*arguments, **named)
        aside.replace(weights)

    monkeypatch.setattr(writer.os, "link", link)
    with pytest.raises(UnreadableError, match="changed while it was read"):
        eaglectl.convert(str(source), tmp_path / "out", ConvertOptions(link=True))
    assert names(tmp_path) == ["drafter"]


@pytest.mark.parametrize("is_linked", [True, False])
def test_hard_links_that_another_command_makes_meanwhile_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_linked: bool
) -> None:
    source, real = drafter_folder(tmp_path), PinnedSource.check_unchanged
    weights, other = source / WEIGHTS, tmp_path / "link"  # as smoke makes one in its temporary folder

    def check_unchanged(pinned: PinnedSource, **named: Any) -> None:
        before = 0 if named else weights.stat().st_ctime_ns  # of the look before publishing
        while weights.stat().st_ctime_ns == before:  # the clock of a file system is coarse
            other.unlink(missing_ok=True)
            os.link(weights, other)
        if is_linked:
            other.unlink(missing_ok=True)
        real(pinned, **named)

    monkeypatch.setattr(PinnedSource, "check_unchanged", check_unchanged)
    eaglectl.convert(str(source), tmp_path / "out", ConvertOptions(link=is_linked))
    assert (tmp_path / "out" / WEIGHTS).read_bytes() == weights.read_bytes()
    assert (tmp_path / "out" / WEIGHTS).samefile(weights) == is_linked


@pytest.mark.parametrize("is_linked", [True, False])
def test_a_source_at_rest_is_converted_again_and_again(tmp_path: Path, is_linked: bool) -> None:
    source = sharded_folder(tmp_path)
    before = contents(source)
    for name in ("first", "second"):
        eaglectl.convert(str(source), tmp_path / name, ConvertOptions(link=is_linked))
    assert contents(source) == before
    record = json.loads((tmp_path / "second/eaglectl.json").read_bytes())
    for name, file in record["source"]["files"].items():
        data = (source / name).read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        offsets = {
            key: value["data_offsets"] for key, value in json.loads(data[8:start]).items() if key[0] != "_"
        }
        parts = {key: data[start + first : start + stop] for key, (first, stop) in offsets.items()}
        tensors = {key: blake3(part).hexdigest() for key, part in parts.items()}
        stated = {"digest": "blake3", "header": blake3(data[:start]).hexdigest(), "tensors": tensors}
        assert file == {"size": len(data), **({"sha256": None} if is_linked else stated)}


def test_every_file_is_closed(tmp_path: Path) -> None:
    source = sharded_folder(tmp_path)
    eaglectl.convert(str(source), tmp_path / "first")
    before = len(list(Path("/proc/self/fd").iterdir()))
    eaglectl.convert(str(source), tmp_path / "second")
    with pytest.raises(EaglectlError):
        eaglectl.convert(str(source), tmp_path / "second")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("change", [replace_file, rewrite, lengthen], ids=lambda change: change.__name__)
def test_statistics_are_not_of_a_drafter_that_changed(tmp_path: Path, change: Callable[[Path], None]) -> None:
    source = drafter_folder(tmp_path)
    with opened(open_folder(str(source))) as files:  # as calibrate holds it while the target runs
        change(source / WEIGHTS)
        with pytest.raises(UnreadableError, match="changed while it was read"):
            files.original.check_unchanged(is_status_compared=False)


def test_a_pipe_that_takes_a_files_place_does_not_block(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)

    def pipe(_: object) -> None:
        (source / WEIGHTS).unlink()
        os.mkfifo(source / WEIGHTS)

    with pytest.raises(UnreadableError, match="changed while it was read"):
        eaglectl.convert(str(source), tmp_path / "out", on_plan=pipe)
    assert call("inspect", source).code == 3
