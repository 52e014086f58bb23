"""What the pass over every number counts, wherever it lies; a sample is not called the whole."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import eaglectl
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.source import FolderSource
from eaglectl.judge import scanning
from eaglectl.judge.samples import _chosen_rows
from tests.builders import read_safetensors, write_safetensors
from tests.tiny import TINY

DRAFTER = TINY / "eagle3"


def with_zeros(folder: Path, name: str, rows: list[int], *, negative: bool = False) -> Path:
    """The tiny drafter with rows of zeros in a matrix."""
    tensors = read_safetensors(DRAFTER / "model.safetensors")
    dtype, shape, raw = tensors[name]
    width, data = len(raw) // shape[0], bytearray(raw)
    zero = (b"\0\x80" if negative else b"\0\0") * (width // 2)
    for row in rows:
        data[row * width : (row + 1) * width] = zero
    folder.mkdir()
    (folder / "config.json").write_bytes((DRAFTER / "config.json").read_bytes())
    write_safetensors(folder / "model.safetensors", {**tensors, name: (dtype, shape, bytes(data))})
    return folder


def unsampled(name: str) -> list[int]:
    """The rows of a matrix that no sample has."""
    count = read_safetensors(DRAFTER / "model.safetensors")[name][1][0]
    return sorted(set(range(count)) - set(_chosen_rows(name, count)))


def messages(folder: Path, **options: bool) -> list[str]:
    report = eaglectl.validate(folder, select=["EGL218"], **options)
    return [finding.match.message for finding in report.findings]


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("name", ["lm_head.weight", "fc.weight", "layers.0.mlp.down_proj.weight"])
def test_zeros_outside_of_the_sampled_rows_are_counted(name: str, negative: bool, tmp_path: Path) -> None:
    names = read_safetensors(DRAFTER / "model.safetensors")
    stored = next(other for other in names if other.endswith(name.removeprefix("layers.0.")))
    rows = unsampled(stored)
    (message,) = messages(with_zeros(tmp_path / "x", stored, rows, negative=negative))
    assert f"{len(rows)} of {names[stored][1][0]} rows are zeros" in message


def test_an_eighth_of_zeros_is_no_finding_and_one_row_more_is(tmp_path: Path) -> None:
    count = read_safetensors(DRAFTER / "model.safetensors")["lm_head.weight"][1][0]
    assert messages(with_zeros(tmp_path / "a", "lm_head.weight", list(range(count // 8)))) == []
    assert messages(with_zeros(tmp_path / "b", "lm_head.weight", list(range(count // 8 + 1)))) != []


@pytest.fixture(params=[1 << 20, 4096, 700, 8])
def block_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(scanning, "BLOCK_SIZE", request.param)
    monkeypatch.setattr(scanning, "PIECE_SIZE", max(request.param * 3, 1 << 12))
    yield request.param


def test_blocks_of_every_size_see_the_same(block_size: int, tmp_path: Path) -> None:
    folder = with_zeros(tmp_path / "x", "lm_head.weight", unsampled("lm_head.weight"))
    tensors = read_checkpoint(FolderSource(folder)).tensors
    summaries = scanning.scan(FolderSource(folder), tuple(tensors.values()), jobs=1)
    raw = {
        name: np.frombuffer(data, "<u2") & 0x7FFF
        for name, (_, _, data) in read_safetensors(folder / "model.safetensors").items()
    }
    for name, summary in summaries.items():
        if len(shape := tensors[name].shape) == 2 and tensors[name].row_bytes <= block_size:
            assert summary.zero_rows == int((~raw[name].reshape(shape).any(axis=1)).sum()), name


def test_a_number_without_a_shape_and_a_matrix_without_rows_have_none(tmp_path: Path) -> None:
    folder = with_zeros(tmp_path / "x", "lm_head.weight", [])
    tensors = read_safetensors(folder / "model.safetensors")
    more = {"scale": ("F32", (), b"\0\0\x80?"), "empty": ("F32", (0, 4), b""), "thin": ("F32", (4, 0), b"")}
    write_safetensors(folder / "model.safetensors", {**tensors, **more})
    assert messages(folder) == []
