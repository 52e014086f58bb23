"""Opening a source: what is missing, disagrees, points elsewhere or is not what its name says is an error."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.files.checkpoint import open_source, read_checkpoint
from tests.builders import (
    ABSENT,
    call,
    contents,
    drafter_config,
    drafter_folder,
    drafter_tensors,
    floats,
    refusal,
    sharded_folder,
    write_safetensors,
)

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"


def unreadable(source: str | Path) -> str:
    """What inspect and convert, both ending with 3, say of a source; the source stays as it was."""
    path = Path(source)
    before = contents(path) if path.is_dir() else None
    message = refusal(3, "inspect", source)
    out = (path.parent if path.is_file() else path).parent / "never"
    assert refusal(3, "convert", source, "-o", out) == message
    assert not out.exists()
    assert before is None or contents(path) == before
    return message


def stored(source: str | Path) -> dict[str, Any]:
    """Every tensor as (dtype, shape, bytes), read through the source."""
    checkpoint = read_checkpoint(open_source(str(source)))
    return {name: (t.dtype, t.shape, checkpoint.read(name)) for name, t in checkpoint.tensors.items()}


# what is there


def move(folder: Path, name: str) -> Path:
    (folder / name).parent.mkdir(exist_ok=True)
    return (folder / WEIGHTS).rename(folder / name)


def inside(folder: Path) -> Path:
    """Shards in a folder inside."""
    weight_map = dict.fromkeys(
        drafter_tensors(), str(move(folder, "shards/all.safetensors").relative_to(folder))
    )
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


def beside(folder: Path) -> Path:
    """One of two files, which is named."""
    write_safetensors(folder / "other.safetensors", {"fc.weight": floats("other", 2, 2)})
    return folder / WEIGHTS


def linked(folder: Path) -> Path:
    """By a link from outside to the folder, in which there is another."""
    (folder / WEIGHTS).symlink_to(move(folder, "real.bytes").name)
    (folder.parent / "link").symlink_to(folder)
    return folder.parent / "link"


CONFIG, WEIGHTS = "config.json", "model.safetensors"


@pytest.mark.parametrize(
    "place",
    [
        *(inside, beside, linked),
        lambda folder: hub_cache(folder.parent),
        lambda folder: move(folder, "eagle3.safetensors").parent,
    ],
    ids=["in shards", "of two files", "through links", "in the cache", "of any name"],
)
def test_a_checkpoint_is_read_wherever_its_weights_are(tmp_path: Path, place: Callable[[Path], Path]) -> None:
    assert stored(place(drafter_folder(tmp_path))) == drafter_tensors()


# what is missing, damaged, or something else than its name says

Change = Callable[[Path], object]


def put(name: str, data: str | bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)


def put_tensors(name: str, tensors: dict[str, Any]) -> Change:
    return lambda folder: write_safetensors(folder / name, tensors)


def gone(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def to_folder(name: str) -> Change:
    return lambda folder: ((folder / name).unlink(), (folder / name).mkdir())


def to_link(name: str, target: str) -> Change:
    return lambda folder: ((folder / name).unlink(), (folder / name).symlink_to(target))


def moved_out(name: str) -> Change:
    """The file lies beside the folder, and a link in its place."""
    return lambda folder: (folder / name).symlink_to((folder / name).rename(folder.parent / name))


def twice(folder: Path) -> None:
    shutil.copy((folder / "model.safetensors").rename(folder / "a.safetensors"), folder / "b.safetensors")


def both_shards(folder: Path) -> None:
    for file in (FIRST, SECOND):
        write_safetensors(folder / file, drafter_tensors())


NO_OBJECT = ("[]", "null", "3", '"x"')
HUGE = json.dumps(drafter_config(rope_theta=7)).replace('"rope_theta": 7', '"rope_theta": 1e999')
# of the drafter in one file: the change, and words of what is said
BROKEN: dict[str, tuple[Change, str]] = {
    "a folder for a config": (to_folder(CONFIG), "has no config.json"),
    "a config alone": (gone(WEIGHTS), "drafter has no weights"),
    "a folder for weights": (to_folder(WEIGHTS), "drafter has no weights"),
    "two weight files": (twice, f"drafter has 2 .safetensors files and no {INDEX}; pass one of them"),
    "no tensors": (put_tensors(WEIGHTS, {}), "drafter: model.safetensors holds no tensors"),
    "a pointer": (put(WEIGHTS, POINTER), " lfs pull`"),
    **{
        f"weights cut to {size}": (lambda folder, size=size: os.truncate(folder / WEIGHTS, size), WEIGHTS)
        for size in (0, 8, 5000)
    },
    **{f"a config {text}": (put(CONFIG, text), "not an object") for text in NO_OBJECT},
    "an empty config": (put(CONFIG, ""), "config.json is not valid JSON"),
    "a cut config": (put(CONFIG, "{"), "config.json is not valid JSON"),
    "a config of Python": (put(CONFIG, "{'a': 1}"), "config.json is not valid JSON"),
    "a key twice": (put(CONFIG, '{"hidden_size": 16, "hidden_size": 32}'), 'key "hidden_size" appears twice'),
    "a key twice inside": (put(CONFIG, '{"eagle_config": {"a": 1, "a": 2}}'), 'key "a" appears twice'),
    **{
        f"half a character {text}": (put(CONFIG, f"{{{text}}}"), "surrogate")
        for text in ('"\\ud800": 1', '"x": "\\ud800"', '"x": ["\\udc00"]')
    },
    "a NaN": (put(CONFIG, '{"rope_theta": NaN}'), "config.json: NaN is not a JSON number"),
    "no UTF-8": (put(CONFIG, b'{"x": "\xff"}'), "config.json is not UTF-8 text"),
    "a deep config": (put(CONFIG, '{"x": ' + "[" * 10_000), "config.json is nested too deeply"),
    "a deep config of many entries": (
        put(CONFIG, '{"x": ' + "[" * 100_000),
        "have 100001 entries; at most 100000",
    ),
    "a pickle for a config": (put(CONFIG, b"\x80\x04\x95"), "config.json is not UTF-8 text"),
    "a pointer for a config": (put(CONFIG, POINTER), "config.json is a Git LFS pointer"),
    "a number beyond floats": (put(CONFIG, HUGE), "is not a JSON number"),
    "a sidecar": (put("hf_quant_config.json", "[]"), "hf_quant_config.json is a JSON list, not an object"),
    "a dangling link": (to_link(WEIGHTS, "gone"), "No such file"),
    "a config linked to itself": (to_link(CONFIG, CONFIG), CONFIG),
    "weights linked to themselves": (to_link(WEIGHTS, WEIGHTS), WEIGHTS),
    "a config outside": (moved_out(CONFIG), "config.json is a symbolic link that leaves"),
    "weights outside": (moved_out(WEIGHTS), "model.safetensors is a symbolic link that leaves"),
}
NO_MAP = ("[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}')
# of the drafter in two shards
BROKEN_SHARDS: dict[str, tuple[Change, str]] = {
    "a missing shard": (gone(SECOND), SECOND),
    "a tensor in both": (both_shards, f"is in both {FIRST} and {SECOND}; keep one"),
    "a pointer for a shard": (put(SECOND, POINTER), f"{SECOND} is a Git LFS pointer"),
    **{f"an index {text}": (put(INDEX, text), f'{INDEX} needs a "weight_map" object') for text in NO_MAP},
    "a cut index": (put(INDEX, "{"), f"{INDEX} is not valid JSON"),
    "a tensor twice": (put(INDEX, '{"weight_map": {"a": "x", "a": "y"}}'), 'key "a" appears twice'),
    "a pointer for an index": (put(INDEX, POINTER), f"{INDEX} is a Git LFS pointer"),
}


@pytest.mark.fast(24)
@pytest.mark.parametrize("case", {**BROKEN, **BROKEN_SHARDS})
def test_a_broken_folder_is_refused_with_the_file_and_the_fault(case: str, tmp_path: Path) -> None:
    change, words = {**BROKEN, **BROKEN_SHARDS}[case]
    folder = sharded_folder(tmp_path) if case in BROKEN_SHARDS else drafter_folder(tmp_path)
    change(folder)
    assert words in unreadable(folder)


def test_an_error_names_the_current_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(CONFIG, "[]")(drafter_folder(tmp_path))
    monkeypatch.chdir(tmp_path / "drafter")
    assert refusal(3, "inspect", ".").startswith(".: config.json is a JSON list")


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"extra.weight": FIRST}, f"{INDEX} places extra.weight in {FIRST}, and it is not there"),
        ({"norm.weight": ABSENT}, f"not in {INDEX}"),
        ({"d2t": SECOND}, f"{INDEX} places d2t in {SECOND}, and it is in {FIRST}"),
    ],
)
def test_an_index_that_the_shards_contradict_names_the_tensor(
    weight_map: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert words in unreadable(sharded_folder(tmp_path, weight_map=weight_map))


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    assert "nothing-here: no such file or folder" in unreadable(tmp_path / "nothing-here")
    assert "no such file or folder" in refusal(3, "inspect", "x" * 5000)
    (tmp_path / "empty").mkdir()
    assert "empty has no config.json" in unreadable(tmp_path / "empty")
    folder = drafter_folder(tmp_path)
    (folder / "config.json").unlink()
    assert "has no config.json" in unreadable(folder / "model.safetensors")


def test_shards_without_their_index_are_parts_and_none_is_to_be_removed(tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path)
    (folder / INDEX).unlink()
    (folder / "model-00002-of-00002.safetensors").rename(folder / "model-00003-of-00003.safetensors")
    (finding,) = eaglectl.validate(folder).findings
    assert "model-00002-of-00002.safetensors is not there" in finding.match.message
    assert "remove" not in finding.fix and "download or export them again" in finding.fix


@pytest.mark.parametrize("count", [2, 3])
def test_a_part_of_the_weights_that_is_not_there_is_named(tmp_path: Path, count: int) -> None:
    folder = sharded_folder(tmp_path)
    (folder / INDEX).unlink()
    first, second = FIRST.replace("of-00002", f"of-{count:05}"), SECOND.replace("of-00002", f"of-{count:05}")
    (folder / FIRST).rename(folder / first)
    (folder / SECOND).rename(folder / second)
    (folder / first).unlink()
    message = unreadable(folder)
    assert f"{first} is not there, though {second} is; download or copy it too" in message


def test_a_part_of_pickled_weights_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.pickles import pickled_folder, state

    folder = pickled_folder(tmp_path / "pickled", state())
    (folder / "pytorch_model.bin").rename(folder / "pytorch_model-00002-of-00002.bin")
    message = unreadable(folder)
    assert (
        "pytorch_model-00001-of-00002.bin is not there, though pytorch_model-00002-of-00002.bin is" in message
    )


def test_all_shards_without_an_index_are_read_as_engines_load_them(tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path)
    (folder / INDEX).unlink()
    whole = drafter_folder(tmp_path, "whole")
    assert eaglectl.validate(folder).findings == eaglectl.validate(whole).findings
    assert call("convert", folder, "-o", tmp_path / "out").code == 0
    assert call("diff", whole, tmp_path / "out").code == 0


def test_a_second_weight_file_that_is_left_out_is_told(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    shutil.copy2(folder / WEIGHTS, folder / "other.safetensors")
    done = call("convert", folder, "-o", tmp_path / "out")
    assert done.code == 0 and not (tmp_path / "out/other.safetensors").exists()
    assert "other.safetensors holds weights too: it is not read, and left out" in done.out


def test_a_file_that_holds_no_weights_and_a_gguf_file_are_refused_by_name(tmp_path: Path) -> None:
    place = tmp_path / "drafter-q8.gguf"
    place.write_bytes(b"GGUF")
    for command in (("inspect", place), ("convert", place), ("diff", place, place)):
        message = refusal(2, *command)
        assert f"{place} is a GGUF file from llama.cpp's converter; pass" in message
    assert "has no config.json; drafter-q8.gguf is a GGUF file" in refusal(3, "inspect", tmp_path)
    noted = tmp_path / "notes.txt"
    noted.touch()
    message = refusal(2, "inspect", noted)
    assert "notes.txt is not a weight file" in message


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("command", ["inspect", "validate", "diff", "convert"])
def test_a_config_and_an_index_stand_for_their_folder(command: str, name: str, tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    if not (folder / name).exists():
        names = json.dumps({"weight_map": dict.fromkeys(drafter_tensors(), "model.safetensors")})
        (folder / name).write_text(names)
    others = {"diff": [folder], "convert": ["--dry-run"]}.get(command, [])
    expected, done = call(command, folder, *others), call(command, folder / name, *others)
    assert done.code == expected.code == 0
    assert done.out.replace(f"{folder / name}", f"{folder}") == expected.out


EXPORTS = {
    "OpenVINO, of another name": (("drafter.xml", "drafter.bin"), "drafter.xml is an OpenVINO graph"),
    "ONNX": (("model.onnx", "model.onnx_data"), "model.onnx is an ONNX graph"),
    "TensorRT": (("rank0.engine",), "rank0.engine is a TensorRT engine"),
    "GGUF": (("drafter-q8.gguf",), "drafter-q8.gguf is a GGUF file"),
    "Rebellions": (("model.rbln",), "model.rbln is a model that Rebellions' compiler made"),
    "Neuron": (("model.neff",), "model.neff is a model that AWS's Neuron compiler made"),
    "Mobilint": (("eagle3.mxq",), "eagle3.mxq is a model that Mobilint's compiler made"),
    "ExecuTorch": (("model.pte",), "model.pte is a program that ExecuTorch exported"),
    "Flax": (("flax_model.msgpack",), "flax_model.msgpack is Flax's form of the weights"),
    "Core ML, a folder": (
        ("Eagle3.mlmodelc/weights/weight.bin",),
        "Eagle3.mlmodelc is a model that Apple's Core ML compiler made",
    ),
    "ONNX, in a folder": (("onnx/model.onnx",), "onnx/model.onnx is an ONNX graph"),
}


@pytest.mark.parametrize("case", EXPORTS)
def test_what_a_tool_made_of_a_checkpoint_is_refused_by_name(case: str, tmp_path: Path) -> None:
    names, words = EXPORTS[case]
    folder = drafter_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"\0" * 64)
    message = refusal(1, "inspect", folder)
    assert words in message and "pass the original folder" in message and "pickle" not in message
    done = call("validate", folder)
    assert done.code == 1 and words in " ".join(done.out.split()) and "pickle" not in done.out


def test_a_compiled_folder_that_is_passed_itself_is_named(tmp_path: Path) -> None:
    (tmp_path / "Eagle3.mlpackage/Data").mkdir(parents=True)
    (tmp_path / "Eagle3.mlpackage/Data/weight.bin").touch()
    assert "Eagle3.mlpackage is a Core ML package" in refusal(3, "inspect", tmp_path / "Eagle3.mlpackage")


def test_a_graph_beside_weights_changes_nothing_and_without_one_its_data_are_a_pickle(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (folder / name).write_bytes(b"\0" * 64)
    assert call("inspect", folder).code == 0
    (folder / "openvino_model.xml").unlink()
    assert "openvino_model.bin is a pickle" in call("validate", folder).out


# ways out of the folder


OUTSIDE = ("", ".", "..", "../outside.safetensors", "/outside.safetensors", "a/../../outside.safetensors")
# what a weight map says of every tensor, and what is said of that
FILES = {
    **{file: f'"{file}" points out of the checkpoint folder' for file in OUTSIDE},
    "config.json": "config.json",
    "inside": "inside",
    "sub/all.safetensors": "sub/all.safetensors is a symbolic link that leaves ",
    **dict.fromkeys(("a\0b", "x/a\0b.safetensors", "x/\ud800", "\ud800", "a\nb", "x" * 300), ""),
}


@pytest.mark.fast(8)
@pytest.mark.parametrize("file", FILES, ids=range(len(FILES)))
def test_a_weight_map_to_no_weights_inside_the_folder_is_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("outside.safetensors", "elsewhere/all.safetensors"):
        write_safetensors(tmp_path / name, drafter_tensors())
    folder = sharded_folder(tmp_path, weight_map=dict.fromkeys(drafter_tensors(), file))
    (folder / "inside").mkdir()
    (folder / "sub").symlink_to(tmp_path / "elsewhere")
    assert FILES[file] in unreadable(folder)


def test_a_link_out_of_the_folder_is_not_copied_along(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (tmp_path / "secret").write_text("secret")
    (folder / "README.md").symlink_to(tmp_path / "secret")
    assert f"README.md is a symbolic link that leaves {folder}" in refusal(
        3, "convert", folder, "-o", tmp_path / "out"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_without_permission_is_named(tmp_path: Path, name: str) -> None:
    folder = drafter_folder(tmp_path)
    (folder / name).chmod(0)
    message = refusal(3, "inspect", folder)
    assert name in message
    assert "Permission denied" in message


# the Hub client's cache


def hub_cache(tmp_path: Path) -> Path:
    """A drafter as the Hub client keeps it: snapshots/<commit>/<file> are links to ../../blobs/<SHA-256>."""
    repository = tmp_path / "models--org--drafter"
    snapshot = drafter_folder(repository / "snapshots", "0123456789abcdef0123456789abcdef01234567")
    (repository / "blobs").mkdir()
    for file in sorted(snapshot.iterdir()):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        file.rename(repository / "blobs" / digest)
        file.symlink_to(f"../../blobs/{digest}")
    return snapshot


@pytest.mark.parametrize("options", [(), ("--link",)])
def test_a_snapshot_of_the_hub_cache_is_converted_to_plain_files(tmp_path: Path, options: tuple[str]) -> None:
    snapshot = hub_cache(tmp_path)
    assert call("convert", snapshot, "-o", tmp_path / "out", *options).code == 0
    written = tmp_path / "out/model.safetensors"
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_symlink()] == []
    assert stored(tmp_path / "out") == drafter_tensors()
    assert written.samefile(snapshot / "model.safetensors") is bool(options)


@pytest.mark.parametrize(
    "target", ["../../../other--repository/blobs/x", "../../../secret", "../other/config.json"]
)
def test_a_snapshot_cannot_point_beyond_its_own_blobs(tmp_path: Path, target: str) -> None:
    snapshot = hub_cache(tmp_path)
    place = snapshot / target
    place.parent.mkdir(parents=True, exist_ok=True)
    (snapshot / "config.json").resolve().rename(place)
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(target)
    assert "config.json is a symbolic link that leaves" in unreadable(snapshot)


def test_a_folder_that_only_looks_like_the_hub_cache_gains_nothing(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path / "snapshots")
    (folder / "config.json").rename(tmp_path / "config.json")
    (folder / "config.json").symlink_to(tmp_path / "config.json")
    assert f"config.json is a symbolic link that leaves {folder}" in unreadable(folder)


# the target


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "no num_hidden_layers and no num_layers"),
        ("[]", "config.json"),
        ("{", "config.json"),
        ('{"num_hidden_layers": 8, "num_hidden_layers": 9}', "config.json"),
        (POINTER.decode(), "config.json"),
    ],
)
def test_a_target_config_that_cannot_be_read_is_told(tmp_path: Path, content: str, words: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(content)
    assert words in refusal(3, "inspect", drafter_folder(tmp_path), "--target", target)


def test_a_target_file_that_is_no_config_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"num_hidden_layers": 8}')
    message = refusal(2, "inspect", drafter_folder(tmp_path), "--target", tmp_path / "other.json")
    assert "pass the target's folder, or its config.json" in message
