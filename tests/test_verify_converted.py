"""`verify` on what `convert` wrote: every file and every tensor has a digest, made while it was written."""

import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.files.digests import Digests
from eaglectl.operations.converting import ConvertOptions
from tests.builders import call, drafter_folder, read_safetensors, sharded_folder, write_safetensors
from tests.conftest import FIXTURES
from tests.test_verify import RECORD, SCHEMA

WEIGHTS = "model.safetensors"


@pytest.fixture(params=[None, 1 << 30], ids=["copied as a whole", "written by tensors"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A converted drafter."""
    options = ConvertOptions(max_shard_size=request.param)
    eaglectl.convert(str(drafter_folder(tmp_path)), tmp_path / "out", options)
    return tmp_path / "out"


def test_what_convert_wrote_is_equal(out: Path) -> None:
    done = call("verify", out, "--json")
    assert done.code == 0
    SCHEMA.validate(done.document)
    assert {file["name"]: file["by"] for file in done.document["files"]} == {
        "README.md": ["sha256"],
        "config.json": ["sha256"],
        WEIGHTS: ["tensors"],
    }
    record = json.loads((out / "eaglectl.json").read_text())
    RECORD.validate(record)
    stated = record["output"]["files"][WEIGHTS]["tensors"]
    tensors = read_safetensors(out / WEIGHTS)
    assert stated == {name: blake3(data).hexdigest() for name, (_, _, data) in tensors.items()}
    count = len(tensors)
    text = call("verify", out).out
    assert f"by the digests of the header and of each tensor ({count} tensors): {WEIGHTS}" in text
    assert "by SHA-256: README.md, config.json" in text


def test_shards_and_their_index_are_covered(tmp_path: Path) -> None:
    eaglectl.convert(
        str(FIXTURES / "producers/vllm/native"), tmp_path / "out", ConvertOptions(max_shard_size=20_000)
    )
    done = call("verify", tmp_path / "out", "--json")
    assert done.code == 0
    by = {file["name"]: file["by"] for file in done.document["files"]}
    assert by["model.safetensors.index.json"] == ["sha256"]
    assert sum(digests == ["tensors"] for digests in by.values()) > 1


def flip(path: Path, position: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["fc.weight", "d2t", "norm.weight"])
def test_the_tensor_that_differs_is_named(out: Path, name: str) -> None:
    data = (out / WEIGHTS).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    flip(out / WEIGHTS, start + json.loads(data[8:start])[name]["data_offsets"][1] - 1)
    done = call("verify", out, "--json")
    assert done.code == 1
    SCHEMA.validate(done.document)
    (wrong,) = [file for file in done.document["files"] if file["judgement"] != "same"]
    assert (wrong["name"], wrong["judgement"], wrong["tensors"]) == (WEIGHTS, "differs", [name])
    assert f"{WEIGHTS} has other bytes than eaglectl.json says in {name}" in call("verify", out).out


def change_dtype(out: Path) -> None:
    """The same bytes as numbers of another dtype."""
    data = (out / WEIGHTS).read_bytes()
    changed = data.replace(b'"BF16"', b' "F16"', 1)
    assert len(changed) == len(data) and changed != data
    (out / WEIGHTS).write_bytes(changed)


def swap_names(out: Path) -> None:
    """Two norms under each other's names: the same bytes at the same places."""
    data = (out / WEIGHTS).read_bytes()
    a, b, free = (b'"layers.0.hidden_norm.weight"', b'"layers.0.input_layernorm.weight"', b'"~"')
    swapped = data.replace(a, free, 1).replace(b, a, 1).replace(free, b, 1)
    assert len(swapped) == len(data) and swapped != data
    (out / WEIGHTS).write_bytes(swapped)


def spoil_header(out: Path) -> None:
    flip(out / WEIGHTS, 8)


def remove_config(out: Path) -> None:
    (out / "config.json").unlink()


def lengthen(out: Path) -> None:
    with (out / WEIGHTS).open("ab") as file:
        file.write(b"\0")


def add_code(out: Path) -> None:
    (out / "modeling.py").write_text("")


@pytest.mark.parametrize(
    ("change", "name", "judgement", "says"),
    [
        (change_dtype, WEIGHTS, "differs", "another header"),
        (swap_names, WEIGHTS, "differs", "hidden_norm"),
        (spoil_header, WEIGHTS, "differs", "no header that can be read"),
        (lengthen, WEIGHTS, "differs", "bytes"),
        (lambda out: flip(out / "config.json", 5), "config.json", "differs", "SHA-256"),
        (lambda out: flip(out / "README.md", 0), "README.md", "differs", "SHA-256"),
        (remove_config, "config.json", "missing", "not there"),
        (add_code, "modeling.py", "unlisted", "not in eaglectl.json"),
    ],
)
def test_each_change_is_named(
    out: Path, change: Callable[[Path], None], name: str, judgement: str, says: str
) -> None:
    change(out)
    done = call("verify", out, "--json")
    assert done.code == 1
    wrong = [file for file in done.document["files"] if file["judgement"] != "same"]
    assert [(file["name"], file["judgement"]) for file in wrong] == [(name, judgement)]
    assert says in wrong[0]["how"]


def test_a_linked_file_has_no_digest_and_is_no_pass(out: Path, tmp_path: Path) -> None:
    eaglectl.convert(str(out), tmp_path / "linked", ConvertOptions(link=True))
    assert (tmp_path / "linked" / WEIGHTS).samefile(out / WEIGHTS)
    done = call("verify", tmp_path / "linked", "--json")
    assert (done.code, done.document["verdict"]) == (3, "could-not-look")
    SCHEMA.validate(done.document)
    judged = {file["name"]: file["judgement"] for file in done.document["files"]}
    assert judged == {"README.md": "same", "config.json": "same", WEIGHTS: "not-looked"}
    assert "linked by `convert --link`, which reads no data" in call("verify", tmp_path / "linked").out
    flip(tmp_path / "linked/config.json", 5)
    assert call("verify", tmp_path / "linked").code == 1


def test_the_source_is_known_by_its_tensors_whatever_became_of_them(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    eaglectl.convert(str(source), tmp_path / "out", ConvertOptions(dtype="F32"))
    record = json.loads((tmp_path / "out/eaglectl.json").read_text())
    stated = record["source"]["files"][WEIGHTS]["tensors"]
    tensors = read_safetensors(source / WEIGHTS)
    assert stated == {name: blake3(data).hexdigest() for name, (_, _, data) in tensors.items()}
    assert call("verify", tmp_path / "out").code == 0


def test_a_drafter_that_was_trained_on_after_the_conversion_differs(out: Path) -> None:
    tensors = read_safetensors(out / WEIGHTS)
    dtype, shape, data = tensors["fc.weight"]
    write_safetensors(out / WEIGHTS, {**tensors, "fc.weight": (dtype, shape, bytes(len(data)))})
    assert call("verify", out).code == 1


def test_an_empty_tensor_has_the_digest_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with Digests() as digests, path.open("rb") as file:
        ranges = {"none": (3, 3), "all": (0, 3)}
        made = [
            digests.of_ranges("file", file.fileno(), ranges, name).result() for name in ("sha256", "blake3")
        ]
    assert made == [
        {"none": kind().hexdigest(), "all": kind(b"abc").hexdigest()} for kind in (hashlib.sha256, blake3)
    ]


def test_a_record_from_before_blake3_is_verified_by_its_sha256(out: Path) -> None:
    record = json.loads((out / "eaglectl.json").read_text())
    file, data = record["output"]["files"][WEIGHTS], (out / WEIGHTS).read_bytes()
    del file["digest"]
    file["header"] = hashlib.sha256(data[: 8 + int.from_bytes(data[:8], "little")]).hexdigest()
    tensors = read_safetensors(out / WEIGHTS)
    file["tensors"] = {name: hashlib.sha256(data).hexdigest() for name, (_, _, data) in tensors.items()}
    RECORD.validate(record)
    (out / "eaglectl.json").write_text(json.dumps(record))
    assert call("verify", out).code == 0
    flip(out / WEIGHTS, -1)
    assert call("verify", out).code == 1


def test_a_record_of_digests_that_nobody_knows_is_none(out: Path) -> None:
    record = json.loads((out / "eaglectl.json").read_text())
    record["output"]["files"][WEIGHTS]["digest"] = "md5"
    (out / "eaglectl.json").write_text(json.dumps(record))
    done = call("verify", out)
    assert done.code == 3 and "eaglectl.json cannot be used" in done.err


def test_a_file_that_becomes_shorter_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with Digests() as digests, path.open("rb") as file:
        made = digests.of_ranges("file", file.fileno(), {"all": (0, 9)}, "blake3")
        with pytest.raises(UnreadableError, match="became shorter"):
            made.result()


def test_threads_end_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for bytes give up: the error is told at once, and no descriptor stays open."""
    source, real = drafter_folder(tmp_path), os.write
    before, running = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    def write(descriptor: int, data: bytes) -> int:
        if len(data) < 1000:
            return real(descriptor, data)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(UnreadableError, match="no space left"):
        eaglectl.convert(str(source), tmp_path / "out")
    monkeypatch.undo()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert threading.active_count() == running
    assert not (tmp_path / "out").exists()


def test_shards_of_a_sharded_source_keep_their_digests(tmp_path: Path) -> None:
    eaglectl.convert(str(sharded_folder(tmp_path)), tmp_path / "one")
    eaglectl.convert(str(tmp_path / "one"), tmp_path / "two")
    one, two = (json.loads((tmp_path / name / "eaglectl.json").read_text()) for name in ("one", "two"))
    weights = {name: file for name, file in one["output"]["files"].items() if "tensors" in file}
    assert weights and two["source"]["files"] == weights
    assert {name: two["output"]["files"][name] for name in weights} == weights
