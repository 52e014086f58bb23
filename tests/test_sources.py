"""Opening a source: what is missing, disagrees, points elsewhere or is not what its name says is an error."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.opening import open_source
from eaglectl.files.source import FolderSource
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


def unreadable_index(tmp_path: Path, content: str | bytes) -> str:
    folder = sharded_folder(tmp_path)
    (folder / INDEX).write_bytes(content.encode() if isinstance(content, str) else content)
    return unreadable(folder)


def unreadable_config(tmp_path: Path, content: str | bytes) -> str:
    folder = drafter_folder(tmp_path)
    (folder / "config.json").write_bytes(content.encode() if isinstance(content, str) else content)
    return unreadable(folder)


def stored(source: str | Path) -> dict[str, Any]:
    """Every tensor as (dtype, shape, bytes), read through the source."""
    checkpoint = read_checkpoint(open_source(str(source)))
    return {name: (t.dtype, t.shape, checkpoint.read(name)) for name, t in checkpoint.tensors.items()}


# what is there


def test_a_folder_gives_its_tensors_bytes(tmp_path: Path) -> None:
    assert stored(drafter_folder(tmp_path)) == drafter_tensors()


def test_shards_with_an_index_give_the_same_tensors(tmp_path: Path) -> None:
    assert stored(sharded_folder(tmp_path)) == drafter_tensors()


def test_a_weight_file_is_read_beside_its_config(tmp_path: Path) -> None:
    assert stored(drafter_folder(tmp_path) / "model.safetensors") == drafter_tensors()


def test_a_named_weight_file_is_the_only_one_read(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    write_safetensors(folder / "other.safetensors", {"fc.weight": floats("other", 2, 2)})
    assert stored(folder / "other.safetensors") == {"fc.weight": floats("other", 2, 2)}


def test_one_weight_file_of_any_name_is_found(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "eagle3.safetensors")
    assert stored(folder) == drafter_tensors()


def test_shards_may_lie_in_a_folder_inside(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "shards").mkdir()
    (folder / "model.safetensors").rename(folder / "shards/all.safetensors")
    weight_map = dict.fromkeys(drafter_tensors(), "shards/all.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert stored(folder) == drafter_tensors()


def test_a_range_of_a_tensor_is_read_alone(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(open_source(str(drafter_folder(tmp_path))))
    assert checkpoint.read("norm.weight", 4, 10) == drafter_tensors()["norm.weight"][2][4:10]


def test_the_bytes_of_all_tensors_are_counted(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(open_source(str(sharded_folder(tmp_path))))
    assert checkpoint.nbytes == sum(len(data) for _, _, data in drafter_tensors().values())


def test_reading_past_the_end_is_told_and_not_shortened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    with pytest.raises(
        UnreadableError, match=r"file in .* ended at byte 5; 9 were expected: the file is truncated"
    ):
        FolderSource(tmp_path).read("file", 2, 9)


def test_a_label_is_a_name_and_no_path(tmp_path: Path) -> None:
    assert open_source(f"{drafter_folder(tmp_path)}/.").label == "drafter"


# what is missing


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert "nothing-here: no such file or folder" in unreadable(tmp_path / "nothing-here")


@pytest.mark.parametrize("text", ["org/name", "hf://org/name", "hf://org/name@main"])
def test_offline_a_hub_repository_comes_with_the_command_that_brings_it(text: str) -> None:
    message = refusal(3, "--offline", "inspect", text)
    assert text in message
    assert "hf download org/name --revision main" in message


def test_an_empty_folder_lacks_a_config(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty has no config.json" in unreadable(tmp_path / "empty")


def test_a_weight_file_alone_lacks_a_config(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "config.json").unlink()
    assert "has no config.json" in unreadable(folder / "model.safetensors")


def test_a_folder_for_a_config_is_no_config(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert "has no config.json" in unreadable(folder)


def test_a_config_alone_lacks_weights(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    assert "drafter has no weights" in unreadable(folder)


def test_a_folder_for_weights_is_no_weights(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    assert "drafter has no weights" in unreadable(folder)


def test_a_file_that_holds_no_weights_is_a_usage_error(tmp_path: Path) -> None:
    message = refusal(2, "inspect", drafter_folder(tmp_path) / "config.json")
    assert "config.json is not a weight file" in message


@pytest.mark.parametrize("command", ["inspect", "convert", "diff"])
def test_a_gguf_file_is_refused_by_name(tmp_path: Path, command: str) -> None:
    place = tmp_path / "drafter.gguf"
    place.write_bytes(b"GGUF")
    message = refusal(2, command, *[place] * (2 if command == "diff" else 1))
    assert f"{place} is a GGUF file, which llama.cpp's converter makes of a checkpoint; give the" in message
    assert "config.json and safetensors" in message


def test_a_folder_of_gguf_files_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "drafter-q8.gguf").write_bytes(b"GGUF")
    message = refusal(3, "inspect", tmp_path)
    assert "has no config.json; drafter-q8.gguf is a GGUF file, which llama.cpp's converter" in message


EXPORTS = {
    "OpenVINO, of another name": (("drafter.xml", "drafter.bin"), "drafter.xml is OpenVINO's"),
    "ONNX": (("model.onnx", "model.onnx_data"), "model.onnx is an ONNX graph"),
    "TensorRT": (("rank0.engine",), "rank0.engine is an engine of TensorRT"),
    "GGUF": (("drafter-q8.gguf",), "drafter-q8.gguf is a GGUF file"),
}


@pytest.mark.parametrize("case", EXPORTS)
def test_what_a_tool_made_of_a_checkpoint_is_refused_by_name(case: str, tmp_path: Path) -> None:
    names, words = EXPORTS[case]
    folder = drafter_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    for name in names:
        (folder / name).write_bytes(b"\0" * 64)
    message = refusal(1, "inspect", folder)
    assert words in message and "that it is made of" in message and "pickle" not in message
    done = call("validate", folder)
    assert done.code == 1 and words in " ".join(done.out.split()) and "pickle" not in done.out


def test_a_graph_beside_weights_changes_nothing(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (folder / name).write_bytes(b"\0" * 64)
    assert call("inspect", folder).code == 0


def test_a_bin_file_without_a_graph_is_a_pickle(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "openvino_model.bin").write_bytes(b"\0" * 64)
    assert "openvino_model.bin is a pickle" in call("validate", folder).out


def test_two_weight_files_without_an_index_are_not_chosen_between(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")
    assert f"drafter has 2 .safetensors files and no {INDEX}; name the one to read" in unreadable(folder)


def test_a_file_without_tensors_is_told(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    write_safetensors(folder / "model.safetensors", {})
    assert "drafter: model.safetensors holds no tensors" in unreadable(folder)


@pytest.mark.parametrize("size", [0, 7, 8, 100, 5000])
def test_a_truncated_weight_file_is_named(tmp_path: Path, size: int) -> None:
    folder = drafter_folder(tmp_path)
    os.truncate(folder / "model.safetensors", size)
    assert "model.safetensors" in unreadable(folder)


def test_a_name_too_long_for_a_file_is_no_crash() -> None:
    assert "no such file or folder" in refusal(3, "inspect", "x" * 5000)


# config.json


@pytest.mark.parametrize("content", ["[]", "null", "3", '"x"', "true", "[{}]"])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    assert "not an object" in unreadable_config(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "config.json is not valid JSON"),
        ("{", "config.json is not valid JSON"),
        ("{'a': 1}", "config.json is not valid JSON"),
        ('{"hidden_size": 16, "hidden_size": 32}', 'config.json: key "hidden_size" appears twice'),
        ('{"eagle_config": {"a": 1, "a": 2}}', 'config.json: key "a" appears twice'),
        ('{"rope_theta": NaN}', "config.json: NaN is not a JSON number"),
        (b'{"x": "\xff"}', "config.json is not UTF-8 text"),
        ('{"x": ' + "[" * 100_000, "config.json is nested too deeply"),
        (b"\x80\x04\x95", "config.json is not UTF-8 text"),
        (POINTER, "config.json is a Git LFS pointer"),
    ],
)
def test_a_config_that_is_no_json_is_refused(tmp_path: Path, content: str | bytes, words: str) -> None:
    assert words in unreadable_config(tmp_path, content)


def test_a_number_beyond_floats_is_refused_and_not_written_as_infinity(tmp_path: Path) -> None:
    config = json.dumps(drafter_config(rope_theta=7)).replace('"rope_theta": 7', '"rope_theta": 1e999')
    assert "config.json" in unreadable_config(tmp_path, config)


@pytest.mark.parametrize("text", ['"\\ud800": 1', '"x": "\\ud800"', '"x": ["\\udc00"]'])
def test_half_a_character_in_a_config_is_refused(tmp_path: Path, text: str) -> None:
    config = json.dumps(drafter_config()).removesuffix("}") + f", {text}}}"
    assert "config.json" in unreadable_config(tmp_path, config)


def test_a_sidecar_that_is_no_object_is_named(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "hf_quant_config.json").write_text("[]")
    assert "hf_quant_config.json is a JSON list, not an object" in unreadable(folder)


# the index and the shards


def test_an_index_entry_that_no_shard_holds_is_named(tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path, weight_map={"extra.weight": FIRST})
    assert f"{INDEX} says extra.weight is in {FIRST}, and it is not there" in unreadable(folder)


def test_a_tensor_that_the_index_does_not_list_is_named(tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path, weight_map={"norm.weight": ABSENT})
    message = unreadable(folder)
    assert "norm.weight is in model-0000" in message
    assert f"not in {INDEX}" in message


def test_a_tensor_in_another_shard_than_the_index_says_is_named(tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path, weight_map={"d2t": SECOND})
    assert f"{INDEX} says d2t is in {SECOND}, and it is in {FIRST}" in unreadable(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path)
    (folder / SECOND).unlink()
    message = unreadable(folder)
    assert SECOND in message
    assert "No such file" in message


def test_a_tensor_in_two_shards_is_named_with_both(tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path)
    for file in (FIRST, SECOND):
        write_safetensors(folder / file, drafter_tensors())
    assert f"is in both {FIRST} and {SECOND}; keep one" in unreadable(folder)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {}}',
        '{"weight_map": null}',
        '{"weight_map": {"a": 1}}',
    ],
)
def test_an_index_without_a_map_is_refused(tmp_path: Path, content: str) -> None:
    assert f'{INDEX} needs a "weight_map" object' in unreadable_index(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", f"{INDEX} is not valid JSON"),
        ('{"weight_map": {"a": "x", "a": "y"}}', 'key "a" appears twice'),
        (POINTER, f"{INDEX} is a Git LFS pointer"),
    ],
)
def test_an_index_that_is_no_json_is_refused(tmp_path: Path, content: str | bytes, words: str) -> None:
    assert words in unreadable_index(tmp_path, content)


# ways out of the folder


@pytest.mark.parametrize(
    "file", ["", ".", "..", "../outside.safetensors", "/outside.safetensors", "a/../../outside.safetensors"]
)
def test_a_weight_map_cannot_point_out_of_the_folder(tmp_path: Path, file: str) -> None:
    write_safetensors(tmp_path / "outside.safetensors", drafter_tensors())
    folder = sharded_folder(tmp_path, weight_map=dict.fromkeys(drafter_tensors(), file))
    assert f'"{file}" points out of the checkpoint folder' in unreadable(folder)


def test_an_absolute_path_to_a_real_file_is_refused(tmp_path: Path) -> None:
    file = str(write_safetensors(tmp_path / "outside.safetensors", drafter_tensors()))
    folder = sharded_folder(tmp_path, weight_map=dict.fromkeys(drafter_tensors(), file))
    assert "points out of the checkpoint folder" in unreadable(folder)


@pytest.mark.parametrize("file", ["config.json", "inside"])
def test_a_weight_map_to_something_that_holds_no_weights_names_it(tmp_path: Path, file: str) -> None:
    folder = sharded_folder(tmp_path, weight_map=dict.fromkeys(drafter_tensors(), file))
    (folder / "inside").mkdir()
    assert file in unreadable(folder)


@pytest.mark.parametrize("file", ["a\0b", "\ud800", "a\nb", "x" * 300])
def test_a_weight_map_to_no_possible_name_is_refused(tmp_path: Path, file: str) -> None:
    folder = sharded_folder(tmp_path, weight_map={"norm.weight": file})
    unreadable(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = drafter_folder(tmp_path)
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    assert f"{name} is a symbolic link that leaves {folder}" in unreadable(folder)


def test_a_link_out_of_the_folder_is_not_copied_along(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (tmp_path / "secret").write_text("secret")
    (folder / "README.md").symlink_to(tmp_path / "secret")
    assert f"README.md is a symbolic link that leaves {folder}" in refusal(
        3, "convert", folder, "-o", tmp_path / "out"
    )
    assert not (tmp_path / "out").exists()


def test_a_shard_folder_that_is_a_link_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    write_safetensors(tmp_path / "elsewhere/all.safetensors", drafter_tensors())
    folder = sharded_folder(tmp_path, weight_map=dict.fromkeys(drafter_tensors(), "sub/all.safetensors"))
    (folder / "sub").symlink_to(tmp_path / "elsewhere")
    assert f"sub/all.safetensors is a symbolic link that leaves {folder}" in unreadable(folder)


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "real.bytes")
    (folder / "model.safetensors").symlink_to("real.bytes")
    assert stored(folder) == drafter_tensors()


def test_a_link_to_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(drafter_folder(tmp_path))
    assert stored(tmp_path / "link") == drafter_tensors()


def test_a_dangling_link_is_named(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("gone")
    message = unreadable(folder)
    assert "model.safetensors" in message
    assert "No such file" in message


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_link_to_itself_is_named(tmp_path: Path, name: str) -> None:
    folder = drafter_folder(tmp_path)
    (folder / name).unlink()
    (folder / name).symlink_to(name)
    assert name in unreadable(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = drafter_folder(tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    code = "import sys; from eaglectl.cli import run; sys.exit(run(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", str(folder)], timeout=10, capture_output=True, text=True
    )
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1


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


def test_a_snapshot_of_the_hub_cache_is_read_through_its_links(tmp_path: Path) -> None:
    assert stored(hub_cache(tmp_path)) == drafter_tensors()


def test_a_weight_file_of_the_hub_cache_is_read_through_its_link(tmp_path: Path) -> None:
    assert stored(hub_cache(tmp_path) / "model.safetensors") == drafter_tensors()


def test_a_snapshot_of_the_hub_cache_is_converted_to_plain_files(tmp_path: Path) -> None:
    assert call("convert", hub_cache(tmp_path), "-o", tmp_path / "out").code == 0
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_symlink()] == []
    assert stored(tmp_path / "out") == drafter_tensors()


def test_a_snapshot_linked_from_the_hub_cache_shares_the_blob_and_not_the_link(tmp_path: Path) -> None:
    snapshot = hub_cache(tmp_path)
    assert call("convert", snapshot, "-o", tmp_path / "out", "--link").code == 0
    written = tmp_path / "out/model.safetensors"
    assert not written.is_symlink()
    assert written.samefile(snapshot / "model.safetensors")


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


# Git LFS pointers


def test_a_pointer_for_the_weights_is_told_apart_from_damage(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "model.safetensors").write_bytes(POINTER)
    message = unreadable(folder)
    assert "model.safetensors is a Git LFS pointer" in message
    assert " lfs pull`" in message


def test_a_pointer_for_a_shard_is_named(tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path)
    (folder / SECOND).write_bytes(POINTER)
    assert f"{SECOND} is a Git LFS pointer" in unreadable(folder)


# the target


def test_a_missing_target_is_named(tmp_path: Path) -> None:
    message = refusal(3, "inspect", drafter_folder(tmp_path), "--target", tmp_path / "gone")
    assert "gone: no such file or folder" in message


def test_a_target_without_depth_is_named(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text("{}")
    message = refusal(3, "inspect", drafter_folder(tmp_path), "--target", target)
    assert "--target" in message
    assert "no num_hidden_layers" in message


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"num_hidden_layers": 8, "num_hidden_layers": 9}', POINTER.decode()]
)
def test_a_target_config_that_cannot_be_read_is_told(tmp_path: Path, content: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(content)
    assert "config.json" in refusal(3, "inspect", drafter_folder(tmp_path), "--target", target)


def test_a_target_file_that_is_no_config_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"num_hidden_layers": 8}')
    message = refusal(2, "inspect", drafter_folder(tmp_path), "--target", tmp_path / "other.json")
    assert "give the target's folder, or its config.json" in message
