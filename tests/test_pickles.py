"""Weights kept as pickles: they convert to the same bytes, and nothing in them is ever run."""

import errno
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.opening import open_source
from tests.builders import (
    TARGETS,
    VOCAB,
    Stored,
    call,
    contents,
    drafter_folder,
    drafter_tensors,
    offsets,
    read_safetensors,
    refusal,
)
from tests.conftest import FIXTURES

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

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


def pickled_folder(parent: Path, value: Any, file: str = "pytorch_model.bin") -> Path:
    """The drafter's config beside `value`, saved by torch or, if it is bytes, as it is."""
    folder = drafter_folder(parent)
    (folder / "model.safetensors").unlink()
    if isinstance(value, bytes):
        (folder / file).write_bytes(value)
    else:
        torch.save(value, folder / file)
    return folder


def converted(source: Path, out: Path, layout: str = "vllm", *options: str) -> dict[str, Stored]:
    """The tensors that `convert` writes; the source stays as it was and nothing else is left beside OUT."""
    before, beside = contents(source), {path.name for path in out.parent.iterdir()}
    outcome = call("convert", source, "-o", out, "--for", layout, *options)
    assert outcome.code == 0, outcome.err
    assert contents(source) == before
    assert {path.name for path in out.parent.iterdir()} == beside | {out.name}
    return read_safetensors(out / "model.safetensors")


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


# pytorch_model.bin and its kind


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda tensors: tensors,
        lambda tensors: {"state_dict": tensors, "epoch": 3},
        lambda tensors: {"model": {"module": tensors}},
        lambda tensors: {f"module.{name}": tensor for name, tensor in tensors.items()},
        lambda tensors: {f"_orig_mod.{name}": tensor for name, tensor in tensors.items()},
        lambda tensors: {f"draft_model.{name}": tensor for name, tensor in tensors.items()},
        lambda tensors: {
            name: torch.nn.Parameter(tensor) if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        },
        lambda tensors: {
            name: tensor.t().contiguous().t() if tensor.ndim == 2 else tensor
            for name, tensor in tensors.items()
        },
    ],
    ids=[
        "plain",
        "state_dict",
        "model",
        "module",
        "compiled",
        "draft_model",
        "parameters",
        "transposed views",
    ],
)
def test_a_state_dict_converts_to_its_own_bytes(tmp_path: Path, wrapped: Callable[[Any], Any]) -> None:
    assert converted(pickled_folder(tmp_path, wrapped(state())), tmp_path / "out") == drafter_tensors()


@pytest.mark.parametrize(
    "stored",
    [
        "fc.weight",
        "module.fc.weight",
        "_fsdp_wrapped_module._orig_mod.module.fc.weight",
        "model_state.model.draft_model.fc.weight",
        "model_state.model._orig_mod.draft_model.fc.weight",
        "module.model_state.draft_model.fc.weight",
    ],
)
def test_the_table_has_names_without_what_trainers_wrap_around_them(stored: str, tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, {stored: torch.ones(2)})
    assert list(read_checkpoint(open_source(str(folder))).tensors) == ["fc.weight"]


def test_a_file_from_before_torch_1_6_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, {})
    torch.save(state(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert "open and save an older one with torch >= 1.6" in unreadable(folder)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "drafter.pt", "drafter.pth"])
def test_a_pickle_may_be_named_itself(tmp_path: Path, file: str) -> None:
    folder = pickled_folder(tmp_path, state(), file)
    outcome = call("convert", folder / file, "-o", tmp_path / "out")
    assert outcome.code == 0
    assert read_safetensors(tmp_path / "out/model.safetensors") == drafter_tensors()


def test_a_state_dict_in_two_files_converts(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, dict(list(state().items())[::2]), "pytorch_model-00001-of-00002.bin")
    torch.save(dict(list(state().items())[1::2]), folder / "pytorch_model-00002-of-00002.bin")
    assert converted(folder, tmp_path / "out") == drafter_tensors()


def test_a_tensor_in_two_pickles_is_named(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, state(), "a.bin")
    torch.save({"norm.weight": torch.zeros(16)}, folder / "b.bin")
    message = refusal(1, "convert", folder, "-o", tmp_path / "out")
    assert "norm.weight is in more than one of a.bin, b.bin" in message


def test_two_names_that_meet_without_their_prefixes_are_refused(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, state(**{"module.norm.weight": torch.zeros(16)}))
    assert "norm.weight" in refusal(1, "convert", folder, "-o", tmp_path / "out")


def test_the_user_is_told_that_pickles_were_read(tmp_path: Path) -> None:
    outcome = call("convert", pickled_folder(tmp_path, state()), "-o", tmp_path / "out")
    assert "read from pickles (pytorch_model.bin) with code execution shut off" in outcome.err


def test_inspect_runs_nothing_in_a_pickle(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, Trap(tmp_path / "sprung"))
    message = refusal(3, "inspect", folder)
    assert "pytorch_model.bin holds more than tensors and was not loaded" in message
    assert not (tmp_path / "sprung").exists()


def test_what_a_trainer_saves_beside_the_weights_is_not_opened(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, state())
    for file in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / file).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    assert converted(folder, tmp_path / "out") == drafter_tensors()
    assert not (tmp_path / "sprung").exists()


def test_a_dry_run_of_a_pickle_leaves_nothing(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, state())
    before = contents(tmp_path)
    assert call("convert", folder, "-o", tmp_path / "out", "--dry-run").code == 0
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("is_zip", "words"),
    [(True, "holds more than tensors and was not loaded"), (False, "is not a torch file")],
)
def test_a_malicious_pickle_is_not_run(tmp_path: Path, is_zip: bool, words: str) -> None:
    value = {**state(), "norm.weight": Trap(tmp_path / "sprung")}
    folder = pickled_folder(tmp_path, value if is_zip else pickle.dumps(Trap(tmp_path / "sprung")))
    assert f"pytorch_model.bin {words}" in unreadable(folder)
    assert not (tmp_path / "sprung").exists()


def test_what_a_malicious_pickle_asks_for_is_named(tmp_path: Path) -> None:
    assert "mkdir" in unreadable(pickled_folder(tmp_path, Trap(tmp_path / "sprung")))


@pytest.mark.parametrize("cut", [0, 1, 100, 3000, 8000, -100, -10])
def test_a_truncated_pickle_is_named(tmp_path: Path, cut: int) -> None:
    folder = pickled_folder(tmp_path, state())
    raw = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(raw[:cut])
    assert "pytorch_model.bin" in unreadable(folder)


@pytest.mark.parametrize("value", [None, 3, "text", [], [1, 2], {}, {"lr": 0.1}, {"a": {"b": {}}}], ids=repr)
def test_a_pickle_without_tensors_is_told(tmp_path: Path, value: Any) -> None:
    assert "pytorch_model.bin holds no tensors" in unreadable(pickled_folder(tmp_path, value))


def test_a_pointer_for_a_pickle_is_told(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123456\n"
    assert "pytorch_model.bin is a Git LFS pointer" in unreadable(pickled_folder(tmp_path, pointer))


def test_a_link_to_a_pickle_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, state())
    (folder / "pytorch_model.bin").rename(tmp_path / "elsewhere.bin")
    (folder / "pytorch_model.bin").symlink_to(tmp_path / "elsewhere.bin")
    assert f"pytorch_model.bin is a symbolic link that leaves {folder}" in unreadable(folder)


# tensors that safetensors cannot hold, or that are more than their file
UNFIT: dict[str, Callable[[], Any]] = {
    "sparse": lambda: torch.zeros(16).to_sparse(),
    "on the meta device": lambda: torch.zeros(16, device="meta"),
    "expanded to 400 TB": lambda: torch.zeros(1).expand(10**14),
    "complex128": lambda: torch.zeros(16, dtype=torch.complex128),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_tensor_that_cannot_be_stored_is_named(tmp_path: Path, kind: str) -> None:
    folder = pickled_folder(tmp_path, state(**{"norm.weight": UNFIT[kind]()}))
    outcome = call("convert", folder, "-o", tmp_path / "out")
    assert outcome.code in (1, 3), outcome.err
    assert "norm.weight" in outcome.err
    assert not (tmp_path / "out").exists()


PICKLES: dict[str, bytes] = {
    "unknown memo": b"\x80\x02h\x05.",
    "empty stack": b"\x80\x02s.",
    "no class": b"\x80\x02cnope\nnope\n.",
    "call of a number": b"\x80\x02K\x01)R.",
    "persistent id": b"\x80\x02NQ.",
    "unknown opcode": b"\x80\x02\xff.",
    "unknown protocol": b"\x80\x09.",
    "no stop": b"\x80\x02N",
    "huge text": b"\x80\x02X\xff\xff\xff\x7f",
    "item of a number": b"\x80\x02K\x01K\x02K\x03s.",
    "half a character": b"\x80\x02}X\x03\x00\x00\x00\xed\xa0\x80K\x01s.",
}


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("kind", PICKLES)
def test_a_broken_pickle_is_no_crash(tmp_path: Path, kind: str, is_zip: bool) -> None:
    folder = pickled_folder(tmp_path, PICKLES[kind])
    if is_zip:
        with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
            archive.writestr("archive/data.pkl", PICKLES[kind])
            archive.writestr("archive/version", "3\n")
    unreadable(folder)


def test_a_place_where_nothing_can_be_written_is_named_for_pickles_too(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = pickled_folder(tmp_path, state())
    message = refusal(3, "convert", folder, "-o", tmp_path / "file/out")
    assert str(tmp_path / "file") in message


def test_a_parent_that_takes_no_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, real = pickled_folder(tmp_path, state()), os.mkdir

    def closed(path: str | Path, *arguments: Any, **named: Any) -> None:
        if Path(path).parent == tmp_path / "closed":
            raise PermissionError(errno.EACCES, "Permission denied")
        real(path, *arguments, **named)

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "mkdir", closed)
    message = refusal(3, "convert", folder, "-o", tmp_path / "closed/out")
    assert "Permission denied" in message


# torch distributed checkpoints (TorchSpec's training folders)


def distributed(case: str, scratch: Path) -> dict[str, Stored]:
    """The tensors of a trusted training folder, read by torch's own converter."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(PRODUCERS / case / "model", scratch)
    names = {dtype: name for name, dtype in DTYPES.items()}

    def walk(value: Any) -> Iterator[tuple[str, Any]]:
        for name, item in value.items():
            if isinstance(item, dict):
                yield from walk(item)
            else:
                yield name.removeprefix("model_state.model.draft_model.").removeprefix("draft_model."), item

    return {
        name: (names[t.dtype], tuple(t.shape), t.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        for name, t in walk(torch.load(scratch, weights_only=True))
    }


def training_folder(parent: Path, table: Any = None, case: str = "dcp") -> Path:
    """A copy of a training folder, its .metadata replaced by `table` (bytes, or a value to pickle)."""
    folder = parent / "iter_0000100"
    shutil.copytree(PRODUCERS / "torchspec" / case, folder)
    if table is not None:
        (folder / "model/.metadata").write_bytes(table if isinstance(table, bytes) else pickle.dumps(table))
    return folder


def metadata(case: str = "dcp") -> Any:
    return pickle.loads((PRODUCERS / "torchspec" / case / "model/.metadata").read_bytes())


def test_a_training_folder_converts_to_what_the_producer_exports(tmp_path: Path) -> None:
    exported = read_safetensors(PRODUCERS / "torchspec/llama/model.safetensors")
    assert converted(training_folder(tmp_path), tmp_path / "out", "torchspec") == exported


@pytest.mark.filterwarnings("ignore")  # torch's own, from its converter
def test_a_training_folder_of_two_ranks_converts_to_what_torch_reads(tmp_path: Path) -> None:
    expected = distributed("torchspec/dcp-2ranks", tmp_path / "whole.pt")
    assert len(expected) == 16
    assert converted(training_folder(tmp_path, case="dcp-2ranks"), tmp_path / "out", "torchspec") == expected


def test_a_training_folder_may_be_its_model_folder(tmp_path: Path) -> None:
    folder = training_folder(tmp_path)
    shutil.copy(folder / "config.json", folder / "model/config.json")
    exported = read_safetensors(PRODUCERS / "torchspec/llama/model.safetensors")
    assert converted(folder / "model", tmp_path / "out", "torchspec") == exported


def test_inspect_refuses_a_training_folder_whose_table_is_broken(tmp_path: Path) -> None:
    assert "model/.metadata" in refusal(3, "inspect", training_folder(tmp_path, b"not a pickle"))


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value.encode())]) + value.encode()


def named(module: str, name: str) -> bytes:
    """The opcodes that push module.name."""
    return text(module) + text(name) + b"\x93"


FILESYSTEM = "torch.distributed.checkpoint.filesystem"
# title: what is called, with the path of a folder it must not make or a file it must not remove
ATTACKS: dict[str, Callable[[str], bytes]] = {
    "os.mkdir": lambda path: named("os", "mkdir") + text(path) + b"\x85R",
    "posix.mkdir": lambda path: named("posix", "mkdir") + text(path) + b"\x85R",
    "old opcode": lambda path: b"cos\nmkdir\n(V" + path.encode() + b"\ntR",
    "eval": lambda path: named("builtins", "eval") + text(f"__import__('os').mkdir({path!r})") + b"\x85R",
    "getattr": lambda path: (
        named("builtins", "getattr") + named("collections", "OrderedDict") + text("fromkeys") + b"\x86R"
    ),
    "import inside an allowed module": lambda path: named(FILESYSTEM, "os.mkdir") + text(path) + b"\x85R",
    "import inside a file of that module": lambda path: (
        named("torch.distributed.checkpoint.metadata", "os.mkdir") + text(path) + b"\x85R"
    ),
    "import inside an allowed package": lambda path: (
        named("torch.distributed.tensor._api", "torch.os.mkdir") + text(path) + b"\x85R"
    ),
    "method of an allowed class": lambda path: (
        named(FILESYSTEM, "FileSystem.mkdir")
        + named(FILESYSTEM, "FileSystem")
        + b")R"
        + named("pathlib", "PosixPath")
        + text(path)
        + b"\x85R\x86R"
    ),
    "base of an allowed class": lambda path: (
        named("builtins", "set.__class__") + b"0" + named("torch", "Size.__base__.__subclasses__") + b")R"
    ),
    "module that only begins alike": lambda path: named("torch.distributed.tensorevil", "x") + b")R",
    "torch.load": lambda path: named("torch", "load") + text(path) + b"\x85R",
    "extension": lambda path: b"\x82\x01",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_table_runs_nothing(tmp_path: Path, attack: str) -> None:
    sprung = tmp_path / "sprung"
    folder = training_folder(tmp_path, b"\x80\x04" + ATTACKS[attack](str(sprung)) + b".")
    message = unreadable(folder)
    assert ".metadata" in message
    assert not sprung.exists()


def test_what_a_hostile_table_asks_for_is_named(tmp_path: Path) -> None:
    folder = training_folder(tmp_path, b"\x80\x04" + ATTACKS["posix.mkdir"](str(tmp_path / "sprung")) + b".")
    assert ".metadata asks for posix.mkdir" in unreadable(folder)


def test_a_hostile_object_inside_a_good_table_runs_nothing(tmp_path: Path) -> None:
    table = metadata()
    table.planner_data = Trap(tmp_path / "sprung")
    assert ".metadata asks for posix.mkdir" in unreadable(training_folder(tmp_path, table))
    assert not (tmp_path / "sprung").exists()


def test_a_hostile_shard_runs_nothing(tmp_path: Path) -> None:
    folder = training_folder(tmp_path)
    torch.save(Trap(tmp_path / "sprung"), folder / "model/__0_0.distcp")
    unreadable(folder)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "table",
    [b"", b"\xff" * 100, b"\x80\x04N.", pickle.dumps({}), pickle.dumps(3), *PICKLES.values()],
    ids=["empty", "garbage", "None", "dict", "number", *PICKLES],
)
def test_a_broken_table_is_no_crash(tmp_path: Path, table: bytes) -> None:
    assert ".metadata" in unreadable(training_folder(tmp_path, table))


@pytest.mark.parametrize("size", [1, 100, 5000])
def test_a_truncated_table_is_no_crash(tmp_path: Path, size: int) -> None:
    folder = training_folder(tmp_path)
    os.truncate(folder / "model/.metadata", size)
    assert ".metadata" in unreadable(folder)


def first(table: Any) -> Any:
    return next(iter(table.state_dict_metadata.values()))


def first_name(table: Any) -> str:
    return next(iter(table.state_dict_metadata))


def first_place(table: Any) -> Any:
    return next(iter(table.storage_data.values()))


def without_one_place(table: Any) -> dict[Any, Any]:
    name = first_name(table)
    return {index: place for index, place in table.storage_data.items() if index.fqn != name}


# the object of a good table, its attribute, and the new value
SPOILT: dict[str, tuple[Callable[[Any], Any], str, Any]] = {
    "no names": (lambda table: table, "state_dict_metadata", {}),
    "names None": (lambda table: table, "state_dict_metadata", None),
    "a name that is no text": (lambda table: table, "state_dict_metadata", lambda table: {1: first(table)}),
    "400 TB": (first, "size", torch.Size([10**14])),
    "negative size": (first, "size", torch.Size([-1])),
    "size of text": (first, "size", "x"),
    "dtype of text": (lambda table: first(table).properties, "dtype", "x"),
    "no properties": (first, "properties", None),
    "no chunks": (first, "chunks", []),
    "half the chunks": (
        lambda table: first(table).chunks[0],
        "sizes",
        lambda table: torch.Size([1, *first(table).size[1:]]),
    ),
    "places None": (lambda table: table, "storage_data", None),
    "no places": (lambda table: table, "storage_data", {}),
    "one place missing": (lambda table: table, "storage_data", without_one_place),
    "place is text": (
        lambda table: table,
        "storage_data",
        lambda table: dict.fromkeys(table.storage_data, "x"),
    ),
    "storage is text": (lambda table: table, "storage_meta", "x"),
    "length past the end": (first_place, "length", 10**15),
    "negative offset": (first_place, "offset", -5),
    "unknown transform": (first_place, "transform_descriptors", ["zstd"]),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_table_that_does_not_fit_its_shards_is_no_crash_and_no_output(tmp_path: Path, what: str) -> None:
    table = metadata()
    find, attribute, value = SPOILT[what]
    setattr(find(table), attribute, value(table) if callable(value) else value)
    unreadable(training_folder(tmp_path, table))


@pytest.mark.parametrize("file", ["../../outside.distcp", "../outside.distcp", "{tmp}/outside.distcp"])
def test_a_table_cannot_point_out_of_the_folder(tmp_path: Path, file: str) -> None:
    table = metadata()
    for info in table.storage_data.values():
        info.relative_path = file.format(tmp=tmp_path)
    folder = training_folder(tmp_path, table)
    for place in (tmp_path, folder):
        shutil.copy(folder / "model/__0_0.distcp", place / "outside.distcp")
    assert "outside.distcp" in unreadable(folder)


def test_a_shard_that_is_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = training_folder(tmp_path)
    (folder / "model/__0_0.distcp").rename(tmp_path / "outside.distcp")
    (folder / "model/__0_0.distcp").symlink_to(tmp_path / "outside.distcp")
    assert "model/__0_0.distcp is a symbolic link that leaves" in unreadable(folder)


@pytest.mark.parametrize("size", [0, 1000, 50_000])
def test_a_truncated_shard_is_no_crash_and_no_output(tmp_path: Path, size: int) -> None:
    folder = training_folder(tmp_path)
    os.truncate(folder / "model/__0_0.distcp", size)
    unreadable(folder)


@pytest.mark.parametrize("file", ["__0_0.distcp", "__1_0.distcp"])
def test_a_missing_rank_is_no_crash_and_no_output(tmp_path: Path, file: str) -> None:
    folder = training_folder(tmp_path, case="dcp-2ranks")
    (folder / "model" / file).unlink()
    unreadable(folder)


# trainers' own files


def training_state(parent: Path, config: str) -> Path:
    """SpecForge's checkpoint of a training, whose config has this name."""
    source = parent / "training-state"
    shutil.copytree(PRODUCERS / "specforge/training-state", source)
    (source / "draft_config.json").rename(source / config)
    return source


@pytest.mark.parametrize("config", ["config.json", "draft_config.json"])
def test_a_specforge_training_state_converts_to_what_it_exports(config: str, tmp_path: Path) -> None:
    source = training_state(tmp_path, config)
    exported = read_safetensors(PRODUCERS / "specforge/gqa/model.safetensors")
    del exported["embed_tokens.weight"]
    assert converted(source, tmp_path / "out", "specforge") == exported


def test_a_training_state_without_its_config_says_what_to_copy(tmp_path: Path) -> None:
    message = refusal(3, "convert", training_state(tmp_path, "other.json"), "-o", tmp_path / "out")
    assert "training-state has no config.json" in message
    assert "draft json" in message


def test_a_training_state_is_shown_as_what_it_is(tmp_path: Path) -> None:
    source = training_state(tmp_path, "draft_config.json")
    state = "training_state.pt is a trainer's state, read with draft_config.json"
    inspection = eaglectl.inspect(source)
    assert [note.text.partition(";")[0] for note in inspection.drafter.notes if note.about == "files"] == [
        state
    ]
    assert inspection.commands == {}
    assert {each.outcome for each in inspection.verdicts if each.engine in ("vllm", "sglang")} == {"fails"}
    assert call("validate", source).code == 1
    # a config of its own is the drafter's, whatever lies beside it
    shutil.copy(PRODUCERS / "specforge/gqa/config.json", source)
    assert not [note for note in eaglectl.inspect(source).drafter.notes if note.about == "files"]


def test_the_json_of_a_trainer_alone_is_no_config(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "config.json").rename(folder / "draft_config.json")
    assert "has no config.json" in refusal(3, "inspect", folder)


def test_a_token_list_beside_the_weights_gives_the_producers_d2t(tmp_path: Path) -> None:
    file = "model-00001-of-00001.safetensors"
    stored = read_safetensors(PRODUCERS / "automodel/sidecar" / file)
    assert "d2t" not in stored
    # the run beside it saw the same text, so that it kept the same tokens, and wrote d2t itself
    d2t = read_safetensors(PRODUCERS / "automodel/gqa" / file)["d2t"]
    known = ("--aux-layers", "2,4,5", "--target", str(FIXTURES / "target"))
    found = converted(PRODUCERS / "automodel/sidecar", tmp_path / "out", "automodel", *known)
    assert found == {**stored, "d2t": d2t}


def listed_folder(parent: Path, value: Any, file: str = "speculative_token_map.pt") -> Path:
    """The drafter without d2t, and a trainer's list of tokens beside it."""
    folder = drafter_folder(parent, tensors={"d2t": None})
    if isinstance(value, bytes):
        (folder / file).write_bytes(value)
    else:
        torch.save(value, folder / file)
    return folder


SHUFFLED = (*TARGETS[10:], *TARGETS[:10])


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("speculative_token_map.pt", torch.tensor(SHUFFLED)),
        ("speculative_token_map.pt", torch.tensor(SHUFFLED, dtype=torch.int32)),
        ("eagle_meta.pt", {"selected_token_ids": torch.tensor(SHUFFLED)}),
        ("eagle_meta.pt", {"selected_token_ids": list(SHUFFLED)}),
        (
            "vocab_mapping.pt",
            {"d2t": torch.tensor(SHUFFLED) - torch.arange(len(SHUFFLED)), "t2d": torch.ones(VOCAB).bool()},
        ),
    ],
)
def test_a_token_list_keeps_the_trainers_order(tmp_path: Path, file: str, value: Any) -> None:
    assert converted(listed_folder(tmp_path, value, file), tmp_path / "out")["d2t"] == offsets(SHUFFLED)


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(TARGETS[:-1]),
        torch.tensor((*TARGETS, 32)),
        torch.tensor((*TARGETS[:-1], TARGETS[0])),
        torch.tensor((*TARGETS[:-1], VOCAB)),
        torch.tensor((*TARGETS[:-1], -1)),
        torch.tensor(TARGETS).float() + 0.5,
        torch.full((24,), float("nan")),
        torch.full((24,), 1e30),
        torch.tensor(3),
        torch.zeros(24, device="meta"),
        {"d2t": torch.zeros(3, 3)},
        {"d2t": torch.tensor(3)},
        {"d2t": torch.full((24,), 2**63 - 1)},
        3,
        {},
    ],
    ids=[
        "short",
        "long",
        "twice",
        "past the vocabulary",
        "negative",
        "halves",
        "NaN",
        "1e30",
        "scalar",
        "no data",
        "square",
        "scalar d2t",
        "overflow",
        "number",
        "empty",
    ],
)
def test_a_token_list_that_fits_no_head_is_no_crash_and_no_output(tmp_path: Path, value: Any) -> None:
    folder = listed_folder(
        tmp_path, value, "vocab_mapping.pt" if isinstance(value, dict) else "speculative_token_map.pt"
    )
    outcome = call("convert", folder, "-o", tmp_path / "out")
    assert outcome.code in (1, 3), outcome.err
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", ["speculative_token_map.pt", "eagle_meta.pt", "vocab_mapping.pt"])
def test_a_malicious_token_list_is_not_run(tmp_path: Path, file: str) -> None:
    folder = listed_folder(tmp_path, Trap(tmp_path / "sprung"), file)
    assert f"{file} holds more than tensors and was not loaded" in unreadable(folder)
    assert not (tmp_path / "sprung").exists()


def test_a_token_list_is_not_opened_where_d2t_is_there(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    torch.save(Trap(tmp_path / "sprung"), folder / "eagle_meta.pt")
    assert converted(folder, tmp_path / "out") == drafter_tensors()
    assert not (tmp_path / "sprung").exists()
