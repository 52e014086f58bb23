"""A source that is rewritten while it is read: no output, and no record of what is nowhere."""

import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

import eaglectl
from eaglectl.api.sources import opened
from eaglectl.errors import EaglectlError, UnreadableError
from eaglectl.files import writer
from eaglectl.files.checkpoint import open_folder
from eaglectl.progress import Progress
from tests.builders import contents, drafter_folder, sharded_folder
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
    os.truncate(path, path.stat().st_size + 1)


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def pipe(path: Path) -> None:
    """One that blocks who opens it takes the file's place."""
    path.unlink()
    os.mkfifo(path)


def away(path: Path) -> None:
    """Another file has the name, until it is called again."""
    aside = path.with_name("aside")
    if aside.exists():
        aside.replace(path)
    else:
        path.rename(aside)
        path.write_bytes(b"another file")


def away_and_back(path: Path) -> None:
    away(path)
    away(path)


CHANGES = (replace_file, rewrite, lengthen, shorten, Path.unlink, pipe)


@pytest.mark.fast(16)
@pytest.mark.parametrize("file", [WEIGHTS, "config.json"])
@pytest.mark.parametrize("layout", [None, "torchspec"])
@pytest.mark.parametrize(
    ("moment", "change"),
    [*product(("on_plan", "on_progress"), CHANGES)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_file_that_changes_before_or_while_the_output_is_written(
    tmp_path: Path, moment: str, layout: str | None, change: Callable[[Path], None], file: str
) -> None:
    source, changes = drafter_folder(tmp_path), [change]

    def act(_: object) -> None:
        if changes:
            changes.pop()(source / file)

    words = f"{source / file} (changed|became shorter) while it was read.*nothing was written"
    hook: dict[str, Any] = {moment: act}
    with pytest.raises(UnreadableError, match=words):
        eaglectl.convert(source, tmp_path / "out", layout=layout, **hook)
    assert names(tmp_path) == ["drafter"]


@pytest.mark.parametrize(
    ("when", "change"),
    [*product(("before", "after"), (replace_file, rewrite, lengthen)), ("before after", away)],
)
def test_a_file_that_changes_around_its_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], when: str
) -> None:
    source, real = drafter_folder(tmp_path), os.link

    def link(*arguments: Path, **named: bool) -> None:
        if "before" in when:
            change(source / WEIGHTS)
        real(*arguments, **named)
        if "after" in when:
            change(source / WEIGHTS)

    monkeypatch.setattr(writer.os, "link", link)
    with pytest.raises(UnreadableError, match="changed while it was read"):
        eaglectl.convert(source, tmp_path / "out", link=True)
    assert names(tmp_path) == ["drafter"]


@pytest.mark.parametrize("file", [WEIGHTS, "config.json"])
@pytest.mark.parametrize("layout", [None, "torchspec"])
def test_a_file_that_is_rewritten_after_it_was_copied_and_has_its_time_set_back(
    tmp_path: Path, layout: str | None, file: str
) -> None:
    source = drafter_folder(tmp_path)

    def act(progress: Progress) -> None:
        if progress.done == progress.total:
            rewrite_and_hide(source / file)

    with pytest.raises(UnreadableError, match=f"{source / file} changed while it was read"):
        eaglectl.convert(source, tmp_path / "out", layout=layout, on_progress=act)
    assert names(tmp_path) == ["drafter"]


def link_and_unlink(path: Path) -> None:
    """As smoke does in its temporary folder, until the time of the status is another."""
    before, other = path.stat().st_ctime_ns, path.with_name("link")
    while path.stat().st_ctime_ns == before:  # the clock of a file system is coarse
        os.link(path, other)
        other.unlink()


@pytest.mark.parametrize("change", [link_and_unlink, away_and_back])
@pytest.mark.parametrize("file", [WEIGHTS, "config.json"])
@pytest.mark.parametrize(
    "options", [{}, {"link": True}, {"layout": "torchspec"}, {"layout": "torchspec", "link": True}], ids=str
)
@pytest.mark.parametrize("moment", ["on_plan", "on_progress"])
def test_a_change_of_the_status_alone_changes_nothing(
    tmp_path: Path, moment: str, options: dict[str, Any], file: str, change: Callable[[Path], None]
) -> None:
    source, changes = drafter_folder(tmp_path), [change]
    eaglectl.convert(source, tmp_path / "undisturbed", **options)

    def act(_: object) -> None:
        if changes:
            changes.pop()(source / file)

    hook: dict[str, Any] = {moment: act}
    eaglectl.convert(source, tmp_path / "out", **options, **hook)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize("is_linked", [True, False])
def test_a_source_at_rest_is_converted_again_and_again(tmp_path: Path, is_linked: bool) -> None:
    source = sharded_folder(tmp_path)
    before = contents(source)
    for name in ("first", "second"):
        eaglectl.convert(source, tmp_path / name, link=is_linked)
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
            files.original.check_unchanged()
