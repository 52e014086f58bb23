"""Rules on files: every bad case is a good drafter, a patch, and exactly the findings it must give."""

import json
import shutil
from pathlib import Path

import pytest

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.files.source import FolderSource
from eaglectl.judge.rule import Policy
from tests.builders import (
    call,
    drafter_config,
    drafter_folder,
    drafter_tensors,
    framed,
    sharded_folder,
    write_safetensors,
)
from tests.cases import CASES, Case
from tests.conftest import FIXTURES
from tests.tiny import ids
from tests.validation.patches import Patch, check

INDEX = "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"


def index(**weight_map: str) -> bytes:
    return json.dumps({"weight_map": weight_map}).encode()


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def remove(name: str) -> object:
    return lambda folder: (folder / name).unlink()


def link_out(folder: Path) -> None:
    (folder.parent / "elsewhere.md").write_text("x")
    (folder / "README.md").symlink_to(folder.parent / "elsewhere.md")


def link_weights_out(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "moved.safetensors")
    (folder / "model.safetensors").symlink_to(folder.parent / "moved.safetensors")


def rename_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "draft.safetensors")
    write_safetensors(folder / "other.safetensors", drafter_tensors())


def pickle_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def distribute_weights(folder: Path) -> None:
    """Put a distributed checkpoint of a fixture, config and all, in the place of the folder's files."""
    shutil.rmtree(folder)
    shutil.copytree(FIXTURES / "producers/torchspec/dcp", folder)
    (folder / "meta.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config |= {"norm_before_residual": False, **ids(2, 4, 5)}
    (folder / "config.json").write_text(json.dumps(config))


TWICE = json.dumps(drafter_config())[:-1].encode() + b', "hidden_size": 32}'
ALL_IN_ONE = dict.fromkeys(drafter_tensors(), "model.safetensors")
BAD = (
    Patch("no weights", ("EGL001",), also=remove("model.safetensors"), says="no weights"),  # type: ignore[arg-type]
    Patch("two weight files", ("EGL001",), also=rename_weights, says="2 .safetensors files"),
    Patch(
        "a weight file beside the weights",
        ("EGL001",),
        also=lambda folder: write_safetensors(folder / "adapter_model.safetensors", {}),
        says="vLLM loads both",
    ),
    Patch(
        "no tensors",
        ("EGL001",),
        also=lambda folder: write_safetensors(folder / "model.safetensors", {}),
        says="no tensors",
    ),
    Patch(
        "an index of other files",
        ("EGL001",),
        files={INDEX: index(x="model-00001-of-00002.safetensors")},
        says="model-00001-of-00002",
    ),
    Patch(
        "a pickle beside the weights",
        ("EGL002",),
        files={"pytorch_model.bin": b"x"},
        says="pytorch_model.bin",
    ),
    Patch("pickled weights", ("EGL002",), also=pickle_weights, says="pytorch_model.bin"),
    Patch(
        "a distributed checkpoint",
        ("EGL002", "EGL002", "EGL009"),
        also=distribute_weights,
        says="no engine loads",
    ),
    Patch("an optimizer's state", ("EGL002",), files={"optimizer.pt": b"x"}, says="optimizer.pt"),
    Patch("code", ("EGL002",), files={"config.py": b"import os"}, says="is code"),
    Patch("a link that leaves", ("EGL002",), also=link_out, says="symbolic link"),
    Patch("weights behind a link that leaves", ("EGL002",), also=link_weights_out, says="symbolic link"),
    Patch("cut weights", ("EGL003",), also=cut, says="truncated"),
    Patch("no header", ("EGL003",), files={"model.safetensors": b"x"}, says="at least 8"),
    Patch(
        "a header of another kind",
        ("EGL003",),
        files={"model.safetensors": framed(b"[]")},
        says="not an object",
    ),
    Patch(
        "a header that is no JSON",
        ("EGL003",),
        files={"model.safetensors": framed(b"{")},
        says="not valid JSON",
    ),
    Patch("an index that is no JSON", ("EGL004",), files={INDEX: b"{"}, says=INDEX),
    Patch("an index without a table", ("EGL004",), files={INDEX: b"{}"}, says="weight_map"),
    Patch(
        "an index that misses a tensor",
        ("EGL004",),
        files={INDEX: index(**{**ALL_IN_ONE, "norm.bias": "model.safetensors"})},
        says="norm.bias",
    ),
    Patch("a strange file", ("EGL005",), files={"train.log": b"x"}, says="train.log"),
    Patch(
        "a strange file that the policy allows",
        (),
        files={"train.log": b"x"},
        given={"policy": Policy(allowed={"files": ("*.log",)})},
    ),
    Patch(
        "names that differ in case",
        ("EGL006",),
        files={"README.md": b"x", "readme.md": b"x"},
        given={"select": ["EGL006"]},
        says="one file",
    ),
    Patch(
        "a name of Windows", ("EGL006",), files={"aux.md": b"x"}, given={"select": ["EGL006"]}, says="aux.md"
    ),
    Patch("an accent", ("EGL006",), files={"LICENSE-é": b"x"}, says="everywhere"),
    Patch(
        "weights that are a pointer", ("EGL007",), files={"model.safetensors": POINTER}, says="git lfs pull"
    ),
    Patch("a config that is a pointer", ("EGL007",), files={"config.json": POINTER}, says="git lfs pull"),
    Patch(
        "a tokenizer that is a pointer", ("EGL007",), files={"tokenizer.json": POINTER}, says="tokenizer.json"
    ),
    Patch("an index that is a pointer", ("EGL007",), files={INDEX: POINTER}, says=INDEX),
    Patch("a config that is no JSON", ("EGL008",), files={"config.json": b"{"}, says="not valid JSON"),
    Patch("a config that is a list", ("EGL008",), files={"config.json": b"[]"}, says="not an object"),
    Patch(
        "a key that stands twice",
        ("EGL008",),
        files={"config.json": TWICE},
        says='key "hidden_size" appears twice',
    ),
    Patch("no config", ("EGL008",), also=remove("config.json"), says="no config.json"),  # type: ignore[arg-type]
    Patch("a record that is no JSON", ("EGL008",), files={"eaglectl.json": b"{"}, says="eaglectl.json"),
    Patch(
        "generation settings that are no JSON",
        ("EGL008",),
        files={"generation_config.json": b"{,}"},
        says="generation_config.json",
    ),
)


@pytest.mark.parametrize("patch", BAD, ids=lambda patch: patch.why)
def test_a_bad_file_gives_exactly_its_findings(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)


def test_what_is_damaged_fails_and_what_is_no_checkpoint_could_not_be_looked_at(tmp_path: Path) -> None:
    folder = Patch("cut", (), also=cut).build(tmp_path)
    assert eaglectl.validate(str(folder)).verdict == "fail"
    assert call("validate", folder).code == 1
    empty = tmp_path / "empty"
    empty.mkdir()
    assert eaglectl.validate(str(empty)).verdict == "could-not-look"
    assert call("validate", empty).code == 3
    assert call("validate", tmp_path / "absent").code == 3


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
NOWHERE = {"norm.weight": "model-00009-of-00002.safetensors"}
ELSEWHERE = dict.fromkeys(("d2t", "embed_tokens.weight", "fc.weight"), FIRST) | dict.fromkeys(
    ("norm.weight",), SECOND
)


@pytest.mark.parametrize(
    ("weight_map", "says"),
    [(NOWHERE, "No such file"), ({"norm.bias": FIRST}, "it is not there"), (ELSEWHERE, "and it is in")],
)
def test_an_index_that_is_wrong_is_one_finding(weight_map: dict[str, str], says: str, tmp_path: Path) -> None:
    report = eaglectl.validate(str(sharded_folder(tmp_path, weight_map=weight_map)))
    assert [one.rule.id for one in report.findings] == ["EGL004"]
    assert says in report.findings[0].match.message


@pytest.mark.parametrize(
    ("files", "fix"), [((), "put the weight files beside"), (("a", "b"), "keep the file, or the index")]
)
def test_what_repairs_the_weights_depends_on_how_many_there_are(
    files: tuple[str, ...], fix: str, tmp_path: Path
) -> None:
    weights = (FIXTURES / "producers/vllm/native/model.safetensors").read_bytes()
    (tmp_path / "config.json").write_bytes((FIXTURES / "producers/vllm/native/config.json").read_bytes())
    for name in files:
        (tmp_path / f"{name}.safetensors").write_bytes(weights)
    (finding,) = eaglectl.validate(str(tmp_path), eaglectl.ValidateOptions(select=("EGL001",))).findings
    assert finding.fix.startswith(fix)


def test_an_index_that_points_out_of_the_folder_is_unsafe(tmp_path: Path) -> None:
    report = eaglectl.validate(str(sharded_folder(tmp_path, weight_map={"norm.weight": "../x.safetensors"})))
    assert [one.rule.id for one in report.findings] == ["EGL002"]


def test_weights_that_no_index_names_are_strange(tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path)
    write_safetensors(folder / "extra.safetensors", drafter_tensors())
    assert [one.rule.id for one in eaglectl.validate(str(folder)).findings] == ["EGL005"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_producers_files_are_sound(case: Case) -> None:
    report = eaglectl.validate(
        str(case.folder), eaglectl.ValidateOptions(select=["EGL0"], answers=case.answered())
    )
    expected = {"EGL002"} if case.is_pickled else set()
    expected |= {"EGL009"} if any(case.folder.rglob("*.distcp")) else set()
    assert {one.rule.id for one in report.findings if one.severity == "error"} == expected


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
    report = eaglectl.validate(str(folder), eaglectl.ValidateOptions(select=["EGL0", "EGL9"]))
    assert {"EGL007", "EGL902"} <= {one.rule.id for one in report.unchecked}
    assert (report.verdict, report.findings) == ("pass", ())


def test_no_engine_serves_a_distributed_checkpoint_as_it_is() -> None:
    inspection = eaglectl.inspect(str(FIXTURES / "producers/torchspec/dcp-2ranks"))
    assert eaglectl.ServedAs.AS_TRAINED not in {verdict.outcome for verdict in inspection.verdicts}
    assert inspection.commands == {}
