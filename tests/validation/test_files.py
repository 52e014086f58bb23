"""Rules on files: every bad case is a good drafter, a patch, and exactly the findings it must give."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.files.source import FolderSource
from eaglectl.judge.rule import AllowTable, Policy
from tests.builders import (
    HIDDEN,
    call,
    drafter_config,
    drafter_folder,
    drafter_tensors,
    floats,
    framed,
    safetensors_bytes,
    sharded_folder,
    write_safetensors,
)
from tests.conftest import FIXTURES
from tests.tiny import ids
from tests.validation.patches import Patch, add, exact, only

INDEX = "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"


def index(**weight_map: str) -> bytes:
    return json.dumps({"weight_map": weight_map}).encode()


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def link_out(folder: Path) -> None:
    (folder.parent / "elsewhere.md").write_text("x")
    (folder / "README.md").symlink_to(folder.parent / "elsewhere.md")


def link_weights_out(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "moved.safetensors")
    (folder / "model.safetensors").symlink_to(folder.parent / "moved.safetensors")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def rename_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "draft.safetensors")
    write_safetensors(folder / "other.safetensors", drafter_tensors())


def distribute_weights(folder: Path) -> None:
    """Put a distributed checkpoint of a fixture, config and all, in the place of the folder's files."""
    shutil.rmtree(folder)
    shutil.copytree(FIXTURES / "producers/torchspec/dcp", folder)
    (folder / "meta.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config |= {"norm_before_residual": False, **ids(2, 4, 5)}
    (folder / "config.json").write_text(json.dumps(config))


TWICE = json.dumps(drafter_config())[:-1].encode() + b', "hidden_size": 32}'
MORE = dict.fromkeys((*drafter_tensors(), "norm.bias"), "model.safetensors")
EMPTY = safetensors_bytes({})
PEFT = b'{"peft_type": "LORA", "r": 4}'


def adapter(*modules: tuple[str, int]) -> dict[str, bytes]:
    """A LoRA adapter beside the drafter: the first factor of each module, by the width of its input."""
    names = {f"base_model.model.{name}.lora_A.weight": floats(name, 4, width) for name, width in modules}
    return {"adapter_config.json": PEFT, "adapter_model.safetensors": safetensors_bytes(names)}


DEEP, OF_DRAFTER = ("model.layers.35.self_attn.q_proj", HIDDEN), ("layers.0.self_attn.q_proj", 2 * HIDDEN)
# of the drafter's layer by its name, and of the target's by its width
SHALLOW = ("model.layers.0.self_attn.q_proj", HIDDEN)
LOGS = Policy(allow=AllowTable(files=("*.log",)))
BAD = (
    Patch("no weights", "EGL001", also=remove("model.safetensors"), says="no weights"),
    Patch("two weight files", "EGL001", also=rename_weights, says="2 .safetensors files"),
    add("a weight file beside another", "EGL001", {"adapter_model.safetensors": EMPTY}, "vLLM loads both"),
    add("the target's adapter", "EGL001 EGL010", adapter(SHALLOW, DEEP), "is merged into"),
    add("an adapter of the target's first layer", "EGL001 EGL010", adapter(SHALLOW), "is merged into"),
    add("an adapter without weights here", "EGL010", {"adapter_config.json": PEFT}, "shows whether it is"),
    add(
        "an adapter that is pickled",
        "EGL002 EGL010",
        {"adapter_config.json": PEFT, "adapter_model.bin": b""},
        "shows whether it is",
    ),
    add("the drafter's adapter", "EGL001 EGL010", adapter(OF_DRAFTER), "merge it into the drafter"),
    add("an unfinished save", "EGL005 EGL011", {"metadata.json": b'{"complete": false}'}, "verl-SpeCo"),
    add("a finished save", "EGL005", {"metadata.json": b'{"complete": true}'}, "metadata.json"),
    add("another tool's metadata", "EGL005", {"metadata.json": b"[0]"}, "metadata.json"),
    add("no tensors", "EGL001", {"model.safetensors": EMPTY}, "no tensors"),
    add("index of other files", "EGL001", {INDEX: index(x="model-00001-of-00002.safetensors")}, "00001-of"),
    add("a pickle beside the weights", "EGL002", {"pytorch_model.bin": b"x"}, "pytorch_model.bin"),
    Patch(
        "pickled weights",
        "EGL002",
        also=pickled,
        says="pytorch_model.bin",
    ),
    Patch("distributed checkpoint", "EGL002 EGL002 EGL009", also=distribute_weights, says="no engine loads"),
    add("an optimizer's state", "EGL002", {"optimizer.pt": b"x"}, "optimizer.pt"),
    add("code", "EGL002", {"config.py": b"import os"}, "is code"),
    Patch("a link that leaves", "EGL002", also=link_out, says="symbolic link"),
    Patch("weights behind a link that leaves", "EGL002", also=link_weights_out, says="symbolic link"),
    Patch("cut weights", "EGL003", also=cut, says="truncated"),
    add("no header", "EGL003", {"model.safetensors": b"x"}, "at least 8"),
    add("a header of another kind", "EGL003", {"model.safetensors": framed(b"[]")}, "not an object"),
    add("a header that is no JSON", "EGL003", {"model.safetensors": framed(b"{")}, "not valid JSON"),
    add("an index that is no JSON", "EGL004", {INDEX: b"{"}, INDEX),
    add("an index without a table", "EGL004", {INDEX: b"{}"}, "weight_map"),
    add("an index that misses a tensor", "EGL004", {INDEX: index(**MORE)}, "norm.bias"),
    add("a strange file", "EGL005", {"train.log": b"x"}, "train.log"),
    add("an allowed file", "", {"train.log": b"x"}, given={"policy": LOGS}),
    add("two cases", "EGL006", {"README.md": b"x", "readme.md": b"x"}, "one file", given=only("EGL006")),
    add("a name of Windows", "EGL006", {"aux.md": b"x"}, "aux.md", given=only("EGL006")),
    add("an accent", "EGL006", {"LICENSE-é": b"x"}, "on every system"),
    add("weights that are a pointer", "EGL007", {"model.safetensors": POINTER}, "git lfs pull"),
    add("a config that is a pointer", "EGL007", {"config.json": POINTER}, "git lfs pull"),
    add("a tokenizer that is a pointer", "EGL007", {"tokenizer.json": POINTER}, "tokenizer.json"),
    add("an index that is a pointer", "EGL007", {INDEX: POINTER}, INDEX),
    add("a config that is no JSON", "EGL008", {"config.json": b"{"}, "not valid JSON"),
    add("a config that is a list", "EGL008", {"config.json": b"[]"}, "not an object"),
    add("a key that stands twice", "EGL008", {"config.json": TWICE}, '"hidden_size" appears twice'),
    Patch("no config", "EGL008", also=remove("config.json"), says="no config.json"),
    add("a record that is no JSON", "EGL008", {"eaglectl.json": b"{"}, "eaglectl.json"),
    add("no JSON for generation", "EGL008", {"generation_config.json": b"{,}"}, "generation_config.json"),
)

test_a_bad_file_gives_exactly_its_findings = exact(BAD)


def test_what_is_damaged_fails_and_what_is_no_checkpoint_could_not_be_looked_at(tmp_path: Path) -> None:
    assert Patch("cut", "", also=cut).report(tmp_path).verdict == "fail"
    (tmp_path / "empty").mkdir()
    assert eaglectl.validate(str(tmp_path / "empty")).verdict == "could-not-look"


def test_the_fix_for_an_adapter_of_the_drafter_is_no_conversion(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    for name, content in adapter(OF_DRAFTER).items():
        (folder / name).write_bytes(content)
    outcome = call("validate", folder, "--select", "EGL010")
    assert "merge it into the drafter first (EGL010)" in outcome.out and "next:" not in outcome.out


def test_an_adapter_of_the_target_stays_an_open_question_until_it_is_answered(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    for name, data in adapter(DEEP).items():
        (folder / name).write_bytes(data)
    with pytest.raises(eaglectl.UsageError, match="adapter=merged"):
        eaglectl.convert(folder, tmp_path / "out")
    eaglectl.convert(folder, tmp_path / "out", semantics=["adapter=merged"])
    assert not list((tmp_path / "out").glob("adapter*"))
    (finding,) = (f for f in eaglectl.validate(folder).findings if f.rule.id == "EGL001")
    assert "remove" not in finding.fix and "keep the adapter" in finding.fix


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
ELSEWHERE = {**dict.fromkeys(("d2t", "embed_tokens.weight", "fc.weight"), FIRST), "norm.weight": SECOND}
INDEXES: tuple[tuple[dict[str, str], str, str], ...] = (
    ({"norm.weight": "model-00009-of-00002.safetensors"}, "EGL004", "No such file"),
    ({"norm.bias": FIRST}, "EGL004", "it is not there"),
    (ELSEWHERE, "EGL004", "and it is in"),
    ({"norm.weight": "../x.safetensors"}, "EGL002", ""),
    ({}, "EGL005", "extra.safetensors"),
)


@pytest.mark.parametrize(("weight_map", "rule", "says"), INDEXES)
def test_an_index_that_is_wrong_is_one_finding(
    weight_map: dict[str, str], rule: str, says: str, tmp_path: Path
) -> None:
    folder = sharded_folder(tmp_path, weight_map=weight_map)
    if not weight_map:
        write_safetensors(folder / "extra.safetensors", drafter_tensors())
    (finding,) = eaglectl.validate(str(folder)).findings
    assert finding.rule.id == rule and says in finding.match.message


@pytest.mark.parametrize(
    ("files", "fix"), [((), "put the weight files beside"), (("a", "b"), "keep the file, or the index")]
)
def test_what_repairs_the_weights_depends_on_how_many_there_are(
    files: tuple[str, ...], fix: str, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    for name in files:
        (folder / f"{name}.safetensors").write_bytes(weights)
    (finding,) = eaglectl.validate(folder, select=("EGL001",)).findings
    assert finding.fix.startswith(fix)


def test_a_file_that_cannot_be_read_blinds_its_rules_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "README.md").write_text("vllm serve")
    real = FolderSource.read

    def read(self: FolderSource, name: str, start: int = 0, stop: int | None = None) -> bytes:
        if name == "README.md":
            raise UnreadableError("README.md in drafter: Permission denied")
        return real(self, name, start, stop)

    monkeypatch.setattr(FolderSource, "read", read)
    report = eaglectl.validate(folder, select=["EGL0", "EGL9"])
    assert {"EGL007", "EGL902"} <= {one.rule.id for one in report.unchecked}
    assert (report.verdict, report.findings) == ("pass", ())


def test_no_engine_serves_a_distributed_checkpoint_as_it_is() -> None:
    inspection = eaglectl.inspect(str(FIXTURES / "producers/torchspec/dcp-2ranks"))
    assert eaglectl.ServedAs.AS_TRAINED not in {verdict.outcome for verdict in inspection.verdicts}
    assert inspection.commands == {}


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (OF_DRAFTER, "merge the adapter into the drafter"),
        (("layers.0.mlp.up_proj", HIDDEN), "merge the adapter into the drafter"),
        (DEEP, "keep the adapter for its model, and convert the drafter"),
    ],
)
def test_the_next_step_beside_an_adapter_is_one_that_can_be_done(
    module: tuple[str, int], words: str, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path)
    for name, content in adapter(module).items():
        (folder / name).write_bytes(content)
    (finding,) = [found for found in eaglectl.validate(str(folder)).findings if found.rule.id == "EGL001"]
    assert finding.fix.startswith(words)
