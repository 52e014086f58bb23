"""Weights kept as pickles: they convert to the same bytes, and nothing in them is ever run."""

import io
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from tests.builders import (
    TARGETS,
    VOCAB,
    Stored,
    call,
    contents,
    drafter_tensors,
    offsets,
    read_safetensors,
    refusal,
    write_safetensors,
)
from tests.conftest import FIXTURES
from tests.pickles import (
    DTYPES,
    PRODUCERS,
    Trap,
    listed_folder,
    metadata,
    named,
    pickled_folder,
    save,
    state,
    text,
    training_folder,
    unreadable,
)

torch = pytest.importorskip("torch")


def converted(source: Path, out: Path, layout: str = "vllm", *options: str) -> dict[str, Stored]:
    """The tensors that `convert` writes; the source stays as it was and nothing else is left beside OUT."""
    before, beside = contents(source), {path.name for path in out.parent.iterdir()}
    outcome = call("convert", source, "-o", out, "--for", layout, *options)
    assert outcome.code == 0, outcome.err
    assert contents(source) == before
    assert {path.name for path in out.parent.iterdir()} == beside | {out.name}
    return read_safetensors(out / "model.safetensors")


# pytorch_model.bin and its kind


def every(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda tensors: {name: change(tensor) for name, tensor in tensors.items()}


def prefixed(prefix: str) -> Callable[[Any], Any]:
    return lambda tensors: {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "plain": lambda tensors: tensors,
    "state_dict": lambda tensors: {"state_dict": tensors, "epoch": 3},
    "model": lambda tensors: {"model": {"module": tensors}},
    **{prefix: prefixed(prefix) for prefix in ("module", "_orig_mod", "draft_model")},
    "parameters": every(lambda tensor: torch.nn.Parameter(tensor, tensor.is_floating_point())),
    "in columns": every(lambda tensor: tensor.t().contiguous().t() if tensor.ndim == 2 else tensor),
}


@pytest.mark.fast(4)
@pytest.mark.parametrize("kind", WRAPPED)
def test_a_state_dict_converts_to_its_own_bytes(tmp_path: Path, kind: str) -> None:
    folder = pickled_folder(tmp_path, WRAPPED[kind](state()))
    assert converted(folder, tmp_path / "out") == drafter_tensors()


def test_a_file_from_before_torch_1_6_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, {})
    torch.save(state(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert "open and save an older one with torch >= 1.6" in unreadable(folder)


@pytest.mark.parametrize("file", ["drafter.pt", "drafter.pth"])
def test_a_pickle_may_be_named_itself(tmp_path: Path, file: str) -> None:
    assert converted(pickled_folder(tmp_path, state(), file) / file, tmp_path / "out") == drafter_tensors()


def test_a_state_dict_in_two_files_converts(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, dict(list(state().items())[::2]), "pytorch_model-00001-of-00002.bin")
    torch.save(dict(list(state().items())[1::2]), folder / "pytorch_model-00002-of-00002.bin")
    assert converted(folder, tmp_path / "out") == drafter_tensors()


def test_a_tensor_in_two_pickles_or_under_two_prefixes_is_named(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, state(), "a.bin")
    save({"norm.weight": torch.zeros(16)}, folder / "b.bin")
    message = refusal(1, "convert", folder, "-o", tmp_path / "out")
    assert "norm.weight is in more than one of a.bin, b.bin" in message
    folder = pickled_folder(tmp_path / "other", state(**{"module.norm.weight": torch.zeros(16)}))
    assert "norm.weight" in refusal(1, "convert", folder, "-o", tmp_path / "out")


def test_what_a_trainer_saves_beside_the_weights_is_not_opened(tmp_path: Path) -> None:
    folder = pickled_folder(tmp_path, state())
    for file in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / file).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    outcome = call("convert", folder, "-o", tmp_path / "out")
    assert "read from pickles (pytorch_model.bin) without running code" in outcome.err
    assert read_safetensors(tmp_path / "out/model.safetensors") == drafter_tensors()
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_malicious_pickle_is_not_run_and_what_it_asks_for_is_named(tmp_path: Path, is_zip: bool) -> None:
    value = {**state(), "norm.weight": Trap(tmp_path / "sprung")}
    folder = pickled_folder(tmp_path, value if is_zip else pickle.dumps(value["norm.weight"]))
    words = "holds more than tensors and was not loaded (it refers to posix.mkdir)"
    for message in (unreadable(folder), refusal(3, "inspect", folder)):
        assert f"pytorch_model.bin {words if is_zip else 'is not a torch file'}" in message
    assert not (tmp_path / "sprung").exists()


def saved() -> bytes:
    raw = io.BytesIO()
    torch.save(state(), raw)
    return raw.getvalue()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123456\n"
BAD: list[tuple[Any, str]] = [
    *((saved()[:cut], "pytorch_model.bin") for cut in (0, 1, 3000, -100, -10)),
    *(
        (value, "pytorch_model.bin holds no tensors")
        for value in (None, 3, "text", [], [1, 2], {}, {"lr": 0.1}, {"a": {"b": {}}})
    ),
    (POINTER, "pytorch_model.bin is a Git LFS pointer"),
]


@pytest.mark.parametrize(("value", "words"), BAD, ids=range(len(BAD)))
def test_a_pickle_that_is_cut_or_without_tensors_is_told(tmp_path: Path, value: Any, words: str) -> None:
    assert words in unreadable(pickled_folder(tmp_path, value))


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


def test_a_training_folder_converts_to_what_the_producer_exports(tmp_path: Path) -> None:
    exported = read_safetensors(PRODUCERS / "torchspec/llama/model.safetensors")
    assert converted(training_folder(tmp_path), tmp_path / "out", "torchspec") == exported


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, from its converter
def test_a_training_folder_of_two_ranks_converts_to_what_torch_reads(tmp_path: Path) -> None:
    expected = distributed("torchspec/dcp-2ranks", tmp_path / "whole.pt")
    assert len(expected) == 16
    assert converted(training_folder(tmp_path, case="dcp-2ranks"), tmp_path / "out", "torchspec") == expected


FILESYSTEM = "torch.distributed.checkpoint.filesystem"
METADATA = (PRODUCERS / "torchspec/dcp/model/.metadata").read_bytes()
# title: a table, with the path of a folder that it must not make
HOSTILE: dict[str, Callable[[str], bytes]] = {
    "posix.mkdir": lambda path: called(named("posix", "mkdir") + text(path) + b"\x85R"),
    "old opcode": lambda path: called(b"cos\nmkdir\n(V" + path.encode() + b"\ntR"),
    "import inside an allowed module": lambda path: called(
        named(FILESYSTEM, "os.mkdir") + text(path) + b"\x85R"
    ),
    "import inside an allowed package": lambda path: called(
        named("torch.distributed.tensor._api", "torch.os.mkdir") + text(path) + b"\x85R"
    ),
    "base of an allowed class": lambda path: called(
        named("builtins", "set.__class__") + b"0" + named("torch", "Size.__base__.__subclasses__") + b")R"
    ),
    "module that only begins alike": lambda path: called(named("torch.distributed.tensorevil", "x") + b")R"),
    "no pickle": lambda path: b"\xff" * 100,
    "None": lambda path: called(b"N"),
    "a dict": lambda path: pickle.dumps({}),
    **{f"cut to {size}": lambda path, size=size: METADATA[:size] for size in (0, 1, 100, 5000)},
}


def called(opcodes: bytes) -> bytes:
    return b"\x80\x04" + opcodes + b"."


@pytest.mark.parametrize("title", HOSTILE)
def test_a_hostile_or_broken_table_runs_nothing(tmp_path: Path, title: str) -> None:
    sprung = tmp_path / "sprung"
    assert ".metadata" in unreadable(training_folder(tmp_path, HOSTILE[title](str(sprung))))
    assert not sprung.exists()


def test_a_hostile_object_in_a_good_table_or_in_a_shard_runs_nothing(tmp_path: Path) -> None:
    table = metadata()
    table.planner_data = trap = Trap(tmp_path / "sprung")
    assert ".metadata refers to posix.mkdir" in unreadable(training_folder(tmp_path, table))
    folder = training_folder(tmp_path / "other")
    torch.save(trap, folder / "model/__0_0.distcp")
    unreadable(folder)
    assert not (tmp_path / "sprung").exists()


def first(table: Any) -> Any:
    return next(iter(table.state_dict_metadata.values()))


def first_place(table: Any) -> Any:
    return next(iter(table.storage_data.values()))


def itself(table: Any) -> Any:
    return table


def without_one_place(table: Any) -> dict[Any, Any]:
    name = next(iter(table.state_dict_metadata))
    return {index: place for index, place in table.storage_data.items() if index.fqn != name}


# the object of a good table, its attribute, and the new value
SPOILT: dict[str, tuple[Callable[[Any], Any], str, Any]] = {
    "no names": (itself, "state_dict_metadata", {}),
    "names None": (itself, "state_dict_metadata", None),
    "a name that is no text": (itself, "state_dict_metadata", lambda table: {1: first(table)}),
    "400 TB": (first, "size", torch.Size([10**14])),
    "negative size": (first, "size", torch.Size([-1])),
    "size of text": (first, "size", "x"),
    "dtype of text": (lambda table: first(table).properties, "dtype", "x"),
    "no properties": (first, "properties", None),
    "no chunks": (first, "chunks", []),
    "half the chunks": (lambda table: first(table).chunks[0], "sizes", lambda table: torch.Size([1, 2])),
    "places None": (itself, "storage_data", None),
    "no places": (itself, "storage_data", {}),
    "one place missing": (itself, "storage_data", without_one_place),
    "place is text": (itself, "storage_data", lambda table: dict.fromkeys(table.storage_data, "x")),
    "length past the end": (first_place, "length", 10**15),
    "negative offset": (first_place, "offset", -5),
    "an offset that is no number": (first_place, "offset", True),
    "unknown transform": (first_place, "transform_descriptors", ["zstd"]),
}


@pytest.mark.fast(9)
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


@pytest.mark.parametrize("size", [None, 0, 1000, 50_000])
def test_a_missing_or_truncated_shard_is_no_crash_and_no_output(tmp_path: Path, size: int | None) -> None:
    folder = training_folder(tmp_path, case="dcp-2ranks")
    for shard in sorted((folder / "model").glob("__*.distcp"))[::-1]:
        shard.rename(tmp_path / "whole")
        if size is not None:
            shard.write_bytes((tmp_path / "whole").read_bytes()[:size])
        unreadable(folder)
        (tmp_path / "whole").rename(shard)


# trainers' own files


def training_state(parent: Path, config: str) -> Path:
    """SpecForge's checkpoint of a training, whose config has this name."""
    source = parent / "training-state"
    shutil.copytree(PRODUCERS / "specforge/training-state", source)
    (source / "draft_config.json").rename(source / config)
    return source


def test_a_specforge_training_state_converts_to_what_it_exports_with_its_config(tmp_path: Path) -> None:
    exported = read_safetensors(PRODUCERS / "specforge/gqa/model.safetensors")
    del exported["embed_tokens.weight"]
    for config in ("config.json", "draft_config.json"):
        source = training_state(tmp_path / config, config)
        assert converted(source, source.parent / "out", "specforge") == exported
    message = refusal(3, "convert", training_state(tmp_path, "other.json"), "-o", tmp_path / "out")
    assert "training-state has no config.json" in message and "draft json" in message


def test_a_training_state_is_shown_as_what_it_is(tmp_path: Path) -> None:
    source = training_state(tmp_path, "draft_config.json")
    state = "training_state.pt is a trainer's state (step 12, epoch 0), read with draft_config.json"
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


def test_a_token_list_beside_the_weights_gives_the_producers_d2t(tmp_path: Path) -> None:
    file = "model-00001-of-00001.safetensors"
    stored = read_safetensors(PRODUCERS / "automodel/sidecar" / file)
    assert "d2t" not in stored
    # the run beside it saw the same text, so that it kept the same tokens, and wrote d2t itself
    d2t = read_safetensors(PRODUCERS / "automodel/gqa" / file)["d2t"]
    known = ("--aux-layers", "2,4,5", "--target", str(FIXTURES / "target"))
    found = converted(PRODUCERS / "automodel/sidecar", tmp_path / "out", "automodel", *known)
    assert found == {**stored, "d2t": d2t}


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


NO_LIST: dict[str, Any] = {
    "short": torch.tensor(TARGETS[:-1]),
    "long": torch.tensor((*TARGETS, 32)),
    "twice": torch.tensor((*TARGETS[:-1], TARGETS[0])),
    "past the vocabulary": torch.tensor((*TARGETS[:-1], VOCAB)),
    "negative": torch.tensor((*TARGETS[:-1], -1)),
    "halves": torch.tensor(TARGETS).float() + 0.5,
    "NaN": torch.full((24,), float("nan")),
    "1e30": torch.full((24,), 1e30),
    "scalar": torch.tensor(3),
    "no data": torch.zeros(24, device="meta"),
    "square": {"d2t": torch.zeros(3, 3)},
    "scalar d2t": {"d2t": torch.tensor(3)},
    "overflow": {"d2t": torch.full((24,), 2**63 - 1)},
    "number": 3,
    "empty": {},
}


@pytest.mark.parametrize("kind", NO_LIST)
def test_a_token_list_that_fits_no_head_is_no_crash_and_no_output(tmp_path: Path, kind: str) -> None:
    value = NO_LIST[kind]
    file = "vocab_mapping.pt" if isinstance(value, dict) else "speculative_token_map.pt"
    folder = listed_folder(tmp_path, value, file)
    outcome = call("convert", folder, "-o", tmp_path / "out")
    assert outcome.code in (1, 3), outcome.err
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_malicious_token_list_is_not_run_nor_opened_where_d2t_is_there(tmp_path: Path) -> None:
    folder = listed_folder(tmp_path, Trap(tmp_path / "sprung"))
    assert "eagle_meta.pt holds more than tensors and was not loaded" in unreadable(folder)
    write_safetensors(folder / "model.safetensors", drafter_tensors())
    assert converted(folder, tmp_path / "out") == drafter_tensors()
    assert not (tmp_path / "sprung").exists()


def test_a_training_folder_may_be_its_model_folder(tmp_path: Path) -> None:
    folder = training_folder(tmp_path)
    shutil.copy(folder / "config.json", folder / "model/config.json")
    exported = read_safetensors(PRODUCERS / "torchspec/llama/model.safetensors")
    assert converted(folder / "model", tmp_path / "out", "torchspec") == exported
