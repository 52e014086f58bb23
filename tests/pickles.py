"""Pickled drafters: state dicts that torch saves, trainers' folders, and torch archives of any opcodes."""

import io
import os
import pickle
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.builders import contents, drafter_folder, drafter_tensors, refusal
from tests.conftest import FIXTURES

torch = pytest.importorskip("torch")

PRODUCERS = FIXTURES / "producers"
DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}


def state(**changes: Any) -> dict[str, Any]:
    """The small drafter as a state dict; a change of None takes a tensor away."""
    tensors = {
        name: torch.frombuffer(bytearray(data), dtype=DTYPES[dtype]).reshape(shape)
        for name, (dtype, shape, data) in drafter_tensors().items()
    }
    return {name: tensor for name, tensor in {**tensors, **changes}.items() if tensor is not None}


def save(value: Any, path: Path) -> None:
    """Save a value by torch or, if it is bytes, as it is."""
    if isinstance(value, bytes):
        path.write_bytes(value)
    else:
        torch.save(value, path)


def pickled_folder(parent: Path, value: Any, file: str = "pytorch_model.bin", **changes: Any) -> Path:
    """The drafter's config, with `changes`, beside `value` in place of its weights."""
    folder = drafter_folder(parent, **changes)
    (folder / "model.safetensors").unlink()
    save(value, folder / file)
    return folder


def listed_folder(parent: Path, value: Any, file: str = "eagle_meta.pt") -> Path:
    """The drafter without d2t, and a trainer's list of tokens beside it."""
    folder = drafter_folder(parent, tensors={"d2t": None})
    save(value, folder / file)
    return folder


def training_folder(parent: Path, table: Any = None, case: str = "dcp") -> Path:
    """TorchSpec's training folder, its .metadata replaced by `table`: bytes, or a value to pickle."""
    folder = parent / "iter_0000100"
    shutil.copytree(PRODUCERS / "torchspec" / case, folder)
    if table is not None:
        (folder / "model/.metadata").write_bytes(table if isinstance(table, bytes) else pickle.dumps(table))
    return folder


def metadata() -> Any:
    """The table of that folder, unpickled."""
    pytest.importorskip("torch.distributed.checkpoint")
    return pickle.loads((PRODUCERS / "torchspec/dcp/model/.metadata").read_bytes())


def unreadable(source: Path) -> str:
    """What convert, ending with 3, says of a source; nothing is written."""
    before = contents(source.parent)
    message = refusal(3, "convert", source, "-o", source.parent / "out")
    assert contents(source.parent) == before
    return message


class Trap:
    """An object whose unpickling makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.path),)


def archive(
    data: bytes, storages: Mapping[str, bytes] = {}, others: Mapping[str, bytes] = {}, *, twice: bool = False
) -> bytes:
    """A torch zip around a data.pkl; `twice`: its storages twice, under the same names."""
    raw = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(raw, "w") as whole:
        warnings.simplefilter("ignore")
        parts = [
            ("data.pkl", data),
            *[(f"data/{key}", content) for key, content in storages.items()] * (1 + twice),
        ]
        for name, content in (*parts, *others.items(), ("version", b"3\n")):
            whole.writestr(zipfile.ZipInfo(f"archive/{name}"), content)  # without the time
    return raw.getvalue()


def text(value: str) -> bytes:
    """The opcode that pushes a text."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def named(module: str, name: str) -> bytes:
    """The opcode that pushes module.name, as torch writes it."""
    return f"c{module}\n{name}\n".encode()


def tensor(
    shape: bytes = b"K\x04\x85", strides: bytes = b"K\x01\x85", offset: bytes = b"K\x00", **place: Any
) -> bytes:
    """The opcodes of a float32 tensor of four elements in storage 0, or as the arguments say."""
    kind, maker = place.get("kind", "FloatStorage"), place.get("maker", "_rebuild_tensor_v2")
    storage = named("torch", kind) + text(place.get("key", "0")) + text("cpu")
    count = b"\x8a\x08" + struct.pack("<q", place.get("count", 4))
    reference = b"(" + text(place.get("word", "storage")) + storage + count + b"tQ"
    hooks = b"\x89ccollections\nOrderedDict\n)R"
    return named("torch._utils", maker) + b"(" + reference + offset + shape + strides + hooks + b"tR"


def state_dict(*parts: bytes) -> bytes:
    """data.pkl of tensors named t0, t1 and so on."""
    items = (text(f"t{number}") + part for number, part in enumerate(parts))
    return b"\x80\x02}(" + b"".join(items) + b"u."
