"""Moved tensors lie as far into a page as they did: the system copies whole pages, or shares blocks."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglectl.conversion import writing
from eaglectl.conversion.writing import PAGE
from eaglectl.files.writer import Copy
from eaglectl.progress import ByteCounter
from tests.builders import HIDDEN, call, drafter_folder, floats, framed, read_safetensors
from tests.disks import mounted, run_or_skip

WEIGHTS = "model.safetensors"


def least_begin(header: dict[str, Any]) -> int:
    """Where tensors begin behind a header without spaces but those up to a multiple of 8."""
    length = 8 + len(json.dumps(header, separators=(",", ":"), ensure_ascii=False))
    return length + -length % 8


def table(path: Path) -> tuple[int, dict[str, Any]]:
    """Where the tensors of a file begin, and its header."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return 8 + length, json.loads(raw[8 : 8 + length])


def place(path: Path, name: str) -> int:
    begin, header = table(path)
    start: int = begin + header[name]["data_offsets"][0]
    return start


def large_drafter(parent: Path, rows: int = 4096, spaces: int = 0) -> Path:
    """A drafter with an embedding of 32 bytes a row; `spaces` follow its header of a multiple of 8."""
    embedding = floats("embedding", rows, HIDDEN)
    folder = drafter_folder(parent, config={"vocab_size": rows}, tensors={"embed_tokens.weight": embedding})
    raw = (folder / WEIGHTS).read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = raw[8:end] + b" " * (-end % 8 + spaces)
    (folder / WEIGHTS).write_bytes(framed(header, raw[end:]))
    return folder


@pytest.mark.parametrize("spaces", [0, 8, 1000, 4088, 4096, 8200])
@pytest.mark.parametrize("layout", ["vllm", "torchspec", "specforge"])
def test_the_largest_moved_tensor_keeps_its_place_in_a_page(tmp_path: Path, layout: str, spaces: int) -> None:
    source = large_drafter(tmp_path, spaces=spaces)
    assert call("convert", source, "-o", tmp_path / "out", "--for", layout).code == 0
    written = tmp_path / "out" / WEIGHTS
    begin, header = table(written)
    name = next(name for name in header if name.endswith("embed_tokens.weight"))
    assert (place(written, name) - place(source / WEIGHTS, "embed_tokens.weight")) % PAGE == 0
    assert begin % 8 == 0
    if layout != "vllm":  # in vLLM's layout the source's file is copied whole, with its header
        assert begin < least_begin(header) + PAGE
    before, after = read_safetensors(source / WEIGHTS), read_safetensors(written)
    assert after[name] == before["embed_tokens.weight"]
    assert len(after) >= len(before)


def test_back_and_forth_gives_the_first_header_again(tmp_path: Path) -> None:
    large_drafter(tmp_path)
    for source, out, layout in (
        ("drafter", "first", "specforge"),
        ("first", "there", "vllm"),
        ("there", "back", "specforge"),
    ):
        assert call("convert", tmp_path / source, "-o", tmp_path / out, "--for", layout).code == 0
    first, back = ((tmp_path / name / WEIGHTS).read_bytes() for name in ("first", "back"))
    assert first == back


def test_offsets_that_are_no_multiple_of_eight_are_not_kept(tmp_path: Path) -> None:
    """Readers map tensors in place, which needs elements at multiples of their width."""
    source = large_drafter(tmp_path, spaces=3)
    assert call("convert", source, "-o", tmp_path / "out", "--for", "specforge").code == 0
    begin, header = table(tmp_path / "out" / WEIGHTS)
    assert begin == least_begin(header)


def test_small_tensors_get_no_spaces(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    assert call("convert", source, "-o", tmp_path / "out", "--for", "specforge").code == 0
    begin, header = table(tmp_path / "out" / WEIGHTS)
    assert begin == least_begin(header)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 300))
def test_pieces_end_with_blocks_of_the_source(start: int, size: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "REPORTED_BLOCK", block)
        counter = ByteCounter(None, "writing", size)
        pieces = list(writing._counted([Copy(Path("source"), start, start + size)], counter))
    stops = [piece.stop for piece in pieces if isinstance(piece, Copy)]
    assert all(stop % block == 0 for stop in stops[:-1])
    assert [piece.start for piece in pieces if isinstance(piece, Copy)] == [start, *stops[:-1]][: len(pieces)]
    assert stops[-1:] == ([start + size] if size else [])


@pytest.fixture(params=["xfs", "btrfs"])
def sharing_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system whose files can share blocks, in a file; root alone may mount it."""
    if not shutil.which(f"mkfs.{request.param}"):
        pytest.skip(f"mkfs.{request.param} is not installed")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(400 << 20)
    run_or_skip([f"mkfs.{request.param}", "-q", str(image)])
    with mounted(tmp_path / "mounted", "-o", "loop", image) as place:
        yield place


def used(disk: Path) -> int:
    """Bytes that the files of a file system take."""
    os.sync()
    state = os.statvfs(disk)
    return (state.f_blocks - state.f_bfree) * state.f_frsize


def test_the_output_shares_the_blocks_of_the_source(
    sharing_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = large_drafter(sharing_disk, rows=1 << 19)  # 16 MiB
    monkeypatch.setattr(writing, "REPORTED_BLOCK", 1 << 20)
    before = used(sharing_disk)
    assert call("convert", source, "-o", sharing_disk / "out", "--for", "specforge").code == 0
    assert used(sharing_disk) - before < 4 << 20
    after, stored = read_safetensors(sharing_disk / "out" / WEIGHTS), read_safetensors(source / WEIGHTS)
    assert after["embed_tokens.weight"] == stored["embed_tokens.weight"]
