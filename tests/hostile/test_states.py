"""Hostile files of hidden states: nothing is unpickled, and a file that is not read is refused by name."""

import ast
import gzip
import io
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import UnreadableError
from tests.builders import call, contents, floats, safetensors_bytes
from tests.hostile.test_pickles import AS_KEY, REFUSED, archive
from tests.tiny import TARGET, TINY

torch = pytest.importorskip("torch")
from eaglectl.reference import states as loading  # noqa: E402

TOKENS = torch.arange(8)
UNPICKLERS = {"load", "loads", "Unpickler"}


def saved(**tensors: Any) -> bytes:
    raw = io.BytesIO()
    torch.save({"input_ids": TOKENS, "aux_hidden_state": torch.ones(1, 8, 6), **tensors}, raw)
    return raw.getvalue()


def cut(raw: bytes, count: int) -> bytes:
    return raw[: len(raw) - count]


# file name: its bytes, and what the refusal says
FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "nested.ckpt": (lambda: archive(AS_KEY["nested"]), "inside each other"),
    "old.ckpt": (lambda: AS_KEY["repeated"], "not a torch file"),
    "sparse.ckpt": (lambda: saved(loss_mask=torch.ones(2, 2).to_sparse()), "loss_mask is sparse"),
    "complex.pt": (lambda: saved(loss_mask=torch.ones(2, dtype=torch.complex64)), "of dtype complex64"),
    "expanded.pt": (lambda: saved(loss_mask=torch.ones(1).expand(1 << 20)), "expanded to 4194304 bytes"),
    "meta.pt": (lambda: saved(loss_mask=torch.ones(2, device="meta")), "on the meta device"),
    "numbers.pt": (lambda: saved(**{"": TOKENS, "a\nb": TOKENS}), "no tensor's name"),
    "class.ckpt": (lambda: archive(b"cbuiltins\neval\n."), "it asks for builtins.eval"),
    "text.ckpt": (lambda: b"input_ids: 1\n" * 40, "not a torch file"),
    "empty.ckpt": (lambda: b"", "not a torch file"),
    "short.ckpt": (lambda: cut(saved(), 200), "truncated"),
    "bomb.ckpt.gz": (lambda: gzip.compress(bytes(64 << 20)), "unpacks to more than"),
    "short.ckpt.gz": (lambda: cut(gzip.compress(saved()), 40), "it is truncated"),
    "text.ckpt.gz": (lambda: b"no gzip", "Not a gzipped file"),
    "broken.ckpt.gz": (lambda: b"\x1f\x8b\x08\x00" + bytes(6) + b"\xff" * 40, "invalid block type"),
    "empty.ckpt.gz": (lambda: b"", "not a torch file"),
    "nested.ckpt.gz": (lambda: gzip.compress(archive(AS_KEY["nested"])), "inside each other"),
    "short.safetensors": (lambda: cut(safetensors_bytes({"a": floats("a", 4, 4)}), 3), "truncated"),
    "length.safetensors": (lambda: struct.pack("<Q", 1 << 62), "header too large"),
    "empty.safetensors": (lambda: b"", "truncated"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused_by_its_name_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    build, words = FILES[name]
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    path = tmp_path / name
    path.write_bytes(build())
    with pytest.raises(UnreadableError) as refusal:
        loading.load_tensors(path)
    assert str(path) in str(refusal.value) and words in str(refusal.value)
    assert contents(tmp_path / "scratch") == {}


@pytest.mark.parametrize("title", REFUSED)
def test_states_are_read_by_the_reader_of_opcodes(tmp_path: Path, title: str) -> None:
    path = tmp_path / "data_0.ckpt"
    path.write_bytes(archive(REFUSED[title][0]()))
    with pytest.raises(UnreadableError, match=r"data_0\.ckpt cannot be read"):
        loading.load_tensors(path)


def test_a_gzipped_file_needs_no_memory_for_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "data_0.ckpt.gz"
    path.write_bytes(gzip.compress(saved(hidden_state=torch.rand(1 << 20))))
    tracemalloc.start()
    read = loading.load_tensors(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read["input_ids"].tolist() == TOKENS.tolist() and peak < 20 << 20


def test_the_command_ends_in_words_where_unpickling_killed_it(tmp_path: Path) -> None:
    (tmp_path / "states").mkdir()
    (tmp_path / "states/data_0.ckpt").write_bytes(archive(AS_KEY["nested"]))
    arguments = ("--states", tmp_path / "states", "--states-layers", "2,4,5", "-o", tmp_path / "out")
    done = call("calibrate", TINY / "eagle3", "--target", TARGET, "--device", "cpu", *arguments)
    assert done.code == 3 and "data_0.ckpt" in done.err and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_gzipped_file_is_read_in_one_gigabyte_of_address_space_beyond_what_torch_has(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data_0.ckpt.gz"
    path.write_bytes(gzip.compress(saved()))
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom eaglectl.reference import states as loading\n"
        "pages = int(Path('/proc/self/statm').read_text().split()[0])\n"
        "limit = pages * resource.getpagesize() + (1 << 30)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "print(sorted(loading.load_tensors(Path(sys.argv[1]))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "['aux_hidden_state', 'input_ids']\n", done.stderr


def test_no_module_of_eaglectl_unpickles() -> None:
    found = [
        f"{path.name}:{node.lineno}"
        for path in Path(eaglectl.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in UNPICKLERS
        and isinstance(node.value, ast.Name)
        and node.value.id in ("torch", "pickle", "numpy", "np", "joblib")
    ]
    assert found == []
