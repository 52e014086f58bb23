"""Moved tensors lie as far into a page as they did: the system copies whole pages, or shares blocks."""

import json
from pathlib import Path
from typing import Any

import pytest

from eaglectl.conversion.writing import PAGE
from tests.builders import HIDDEN, call, drafter_folder, floats, framed, read_safetensors

WEIGHTS, ROWS = "model.safetensors", 4096


def least_begin(header: dict[str, Any]) -> int:
    """Where tensors begin behind a header without spaces but those up to a multiple of 8."""
    length = 8 + len(json.dumps(header, separators=(",", ":"), ensure_ascii=False))
    return length + -length % 8


def table(path: Path) -> tuple[int, dict[str, Any]]:
    """Where the tensors of a file begin, and its header."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return 8 + length, json.loads(raw[8 : 8 + length])


def large_drafter(parent: Path, spaces: int) -> Path:
    """A drafter with an embedding of 128 KB; `spaces` follow its header of a multiple of 8."""
    embedding = floats("embedding", ROWS, HIDDEN)
    folder = drafter_folder(parent, config={"vocab_size": ROWS}, tensors={"embed_tokens.weight": embedding})
    raw = (folder / WEIGHTS).read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = raw[8:end] + b" " * (-end % 8 + spaces)
    (folder / WEIGHTS).write_bytes(framed(header, raw[end:]))
    return folder


@pytest.mark.fast(6)
@pytest.mark.parametrize("spaces", [0, 8, 1000, 4088, 4096, 8200])
@pytest.mark.parametrize("layout", ["vllm", "torchspec", "specforge"])
def test_the_largest_moved_tensor_keeps_its_place_in_a_page(tmp_path: Path, layout: str, spaces: int) -> None:
    source = large_drafter(tmp_path, spaces)
    assert call("convert", source, "-o", tmp_path / "out", "--for", layout).code == 0
    (begin, header), (former, old) = table(tmp_path / "out" / WEIGHTS), table(source / WEIGHTS)
    name = next(name for name in header if name.endswith("embed_tokens.weight"))
    moved = begin + header[name]["data_offsets"][0]
    assert (moved - former - old["embed_tokens.weight"]["data_offsets"][0]) % PAGE == 0
    assert begin % 8 == 0
    if layout != "vllm":  # in vLLM's layout the source's file is copied whole, with its header
        assert begin < least_begin(header) + PAGE
    before, after = read_safetensors(source / WEIGHTS), read_safetensors(tmp_path / "out" / WEIGHTS)
    assert after[name] == before["embed_tokens.weight"]
    assert len(after) >= len(before)


def test_offsets_that_are_no_multiple_of_eight_are_not_kept(tmp_path: Path) -> None:
    """Readers map tensors in place, which needs elements at multiples of their width."""
    source = large_drafter(tmp_path, 3)
    assert call("convert", source, "-o", tmp_path / "out", "--for", "specforge").code == 0
    begin, header = table(tmp_path / "out" / WEIGHTS)
    assert begin == least_begin(header)
