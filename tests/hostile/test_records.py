"""A record answers for the files that it states by digest, and for no others, in every command."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import eaglectl
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.source import FolderSource
from eaglectl.formats.format import Answers
from tests.builders import call, sharded_folder, write_record
from tests.cards import answers, release
from tests.conftest import FIXTURES

# ids [1, 3, 5] whose meaning the file leaves open
OPEN = FIXTURES / "producers/specforge/gqa-ids"
WEIGHTS = "model.safetensors"
FACTS = {
    "layout": "specforge",
    "eagle": "3",
    "boundaries": [2, 4, 6],
    "layers_from": "measured on the target",
    "tensors": [],
}
SCHEMA = json.loads((FIXTURES.parent / "schemas/provenance.schema.json").read_text())
NO_TENSORS = {"header": "00", "tensors": {}}
UPLOAD = ("--dry-run", "--engine", "sglang", "--license", "mit", "--base-model", "org/target")
Change = Callable[[Path], object]


def edit_record(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "eaglectl.json"
    record = json.loads(path.read_text())
    edit(record["output"]["files"])
    path.write_text(json.dumps(record))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def exchange_halves(folder: Path) -> None:
    """Exchange the halves of fc's rows, in place: as many bytes, and another network."""
    with (folder / WEIGHTS).open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        start, stop = json.loads(file.read(length))["fc.weight"]["data_offsets"]
    data, begin, half = bytearray((folder / WEIGHTS).read_bytes()), 8 + length + start, (stop - start) // 2
    data[begin : begin + 2 * half] = data[begin + half : begin + 2 * half] + data[begin : begin + half]
    (folder / WEIGHTS).write_bytes(data)


def flip_in(name: str) -> Change:
    """Change one bit of a tensor's last number but one, in place."""

    def change(folder: Path) -> None:
        with (folder / WEIGHTS).open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            stop = json.loads(file.read(length))[name]["data_offsets"][1]
        flip(folder / WEIGHTS, 8 + length + stop - 16)

    return change


LIES: dict[str, Change] = {
    "a digest that nobody computed": lambda folder: edit_record(
        folder, lambda files: files[WEIGHTS].update(sha256="00")
    ),
    "no digest": lambda folder: edit_record(folder, lambda files: files[WEIGHTS].update(sha256=None)),
    "the halves of fc are exchanged": exchange_halves,
    "one bit of d2t is another": flip_in("d2t"),
    "one bit of the head is another": flip_in("lm_head.weight"),
    "the config is another": lambda folder: (folder / "config.json").write_text(
        (folder / "config.json").read_text() + " "
    ),
    "the weights are not stated": lambda folder: edit_record(folder, lambda files: files.pop(WEIGHTS)),
    "tensors that nobody hashed": lambda folder: edit_record(
        folder, lambda files: files.update({WEIGHTS: {"size": files[WEIGHTS]["size"], **NO_TENSORS}})
    ),
    "files that eaglectl does not write": lambda folder: edit_record(
        folder, lambda files: files.update(x={})
    ),
}


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A drafter with an open question, and a record with right digests that answers it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "drafter"
    shutil.copytree(OPEN, folder)
    write_record(folder, **FACTS)
    return folder


def outcomes(folder: Path) -> dict[str, int]:
    """The exit code of each command that the open question stops."""
    lines: dict[str, tuple[str, ...]] = {
        "validate": (str(folder), "--engine", "sglang"),
        "convert": (str(folder), "--dry-run"),
        "upload": (str(folder), "org/drafter", *UPLOAD),
    }
    return {name: call(name, *arguments).code for name, arguments in lines.items()}


def test_a_record_of_these_bytes_answers(recorded: Path) -> None:
    codes = outcomes(recorded)
    assert (codes["validate"], codes["convert"], codes["upload"]) == (0, 0, 0), codes
    assert call("verify", recorded).code == 0


@pytest.mark.parametrize("lie", LIES)
def test_a_record_of_other_bytes_answers_nothing(recorded: Path, lie: str) -> None:
    LIES[lie](recorded)
    codes = outcomes(recorded)
    is_broken = "d2t" in lie  # which is an error of its own
    assert (codes["validate"], codes["convert"], codes["upload"]) == ((1, 2, 1) if is_broken else (3, 2, 3))
    assert call("verify", recorded).code != 0


@pytest.mark.parametrize("lie", ["no digest", "the halves of fc are exchanged"])
def test_diff_takes_no_answer_of_a_record_of_other_bytes(recorded: Path, tmp_path: Path, lie: str) -> None:
    other = tmp_path / "other"
    shutil.copytree(OPEN, other)
    write_record(other, **FACTS)
    LIES[lie](recorded)
    facts = call("diff", other, recorded, "--json").document["facts"]
    (layers,) = [fact for fact in facts if fact["name"] == "boundaries"]
    assert (layers["a"], layers["b"]) == ([2, 4, 6], "ids 1, 3, 5, of unknown meaning")


def test_headers_alone_are_compared_where_only_they_are_read(recorded: Path) -> None:
    note = "of the weights only headers were compared with eaglectl.json"
    write_record(recorded, **FACTS)
    edit_record(recorded, lambda files: files[WEIGHTS].update(header=header_digest(recorded / WEIGHTS)))
    for arguments in (("inspect",), ("validate", "--headers-only")):
        done = call(*arguments, recorded, "--json")
        assert note in done.out, arguments
    exchange_halves(recorded)  # of the same header
    assert note in call("inspect", recorded, "--json").out
    edit_record(recorded, lambda files: files[WEIGHTS].update(header="0" * 64))
    assert "is of another model.safetensors" in call("inspect", recorded, "--json").out


def test_a_record_without_the_header_says_that_only_sizes_were_compared(recorded: Path) -> None:
    assert "only sizes were compared with eaglectl.json" in call("inspect", recorded, "--json").out
    with (recorded / WEIGHTS).open("ab") as file:
        file.write(b"x")
    assert call("inspect", recorded).code != 0


def header_digest(path: Path) -> str:
    raw = path.read_bytes()
    return hashlib.sha256(raw[: 8 + int.from_bytes(raw[:8], "little")]).hexdigest()


@pytest.mark.parametrize("out", ["converted", "linked", "uploaded"])
def test_what_eaglectl_writes_has_the_digest_of_each_header(recorded: Path, tmp_path: Path, out: str) -> None:
    folder = tmp_path / out
    if out == "uploaded":
        release(recorded, folder, card=answers(recorded), engines=("sglang",))
    else:
        eaglectl.convert(recorded, folder, link=out == "linked", layout="specforge")
    assert "only headers were compared with eaglectl.json" in call("inspect", folder, "--json").out
    for part, stated in json.loads((folder / "eaglectl.json").read_text()).items():
        if part in ("output", "published"):
            jsonschema.validate(stated, {**SCHEMA["properties"][part], "$defs": SCHEMA["$defs"]})


def test_shards_are_compared_each(tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path)
    write_record(folder, **FACTS)
    assert not read_checkpoint(FolderSource(folder)).distrust
    flip(folder / "model-00002-of-00002.safetensors", -1)
    assert "of another model-00002-of-00002" in read_checkpoint(FolderSource(folder)).distrust


# what a drafter is read from, beside its config and weights
BESIDE = {
    "eagle_meta.pt": "automodel/sidecar",
    "speculative_token_map.pt": "automodel/sidecar",
    "model.safetensors.index.json": "automodel/sidecar",
    "hf_quant_config.json": "modelopt/hf-fp8",
}


@pytest.mark.parametrize("name", BESIDE)
def test_every_file_that_is_read_is_compared(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "drafter"
    shutil.copytree(FIXTURES / "producers" / BESIDE[name], folder)
    write_record(folder, **FACTS)
    assert not read_checkpoint(FolderSource(folder)).distrust
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    assert read_checkpoint(FolderSource(folder)).distrust == f"is of another {name}"
    edit_record(folder, lambda files: files.pop(name))
    assert read_checkpoint(FolderSource(folder)).distrust == f"has no digest of {name}"


def test_a_claim_answers_nothing_in_the_record_of_what_is_made_of_it(recorded: Path, tmp_path: Path) -> None:
    write_record(recorded, **FACTS, target_rotation={"by": "QuaRot"}, gate={"rows": []})
    exchange_halves(recorded)
    eaglectl.convert(recorded, tmp_path / "out", answers=Answers(aux_convention="output"))
    record = json.loads((tmp_path / "out/eaglectl.json").read_text())
    assert record["previous"] is None and record["boundaries"] == [2, 4, 6]
    assert "measured" not in record["layers_from"]


def test_an_assumption_of_a_record_of_other_bytes_stays_a_doubt(tmp_path: Path) -> None:
    out = tmp_path / "out"
    eaglectl.convert(OPEN, out, answers=Answers(assume=True))
    assert call("validate", out, "--engine", "vllm").code == 3
    exchange_halves(out)
    assert call("validate", out, "--engine", "vllm").code == 3


# values that no part of a record has
ODD = (
    5,
    True,
    None,
    "x",
    [5],
    ["x"],
    [{}],
    [{"name": [{}]}],
    {"a": {"b": 1}},
    [{"engine": 1, "reasons": [5]}],
)
PARTS = ("unserved", "tensors", "gate", "upgrade", "previous", "doubts", "settled", "boundaries", "target")
PARTS += ("source", "pruning", "d2t", "rope", "eagle", "layout", "norms_joined", "schema", "published")


@pytest.mark.fast(1)
@pytest.mark.parametrize("part", PARTS)
def test_a_record_with_an_odd_part_is_answered_or_refused_by_every_command(recorded: Path, part: str) -> None:
    for value in ODD:
        write_record(recorded, **{**FACTS, "eagle": "3", part: value})
        codes = outcomes(recorded)
        codes |= {name: call(name, recorded).code for name in ("inspect", "verify")}
        assert {*codes.values()} <= {0, 1, 2, 3}, (value, codes)


def test_the_engines_of_a_record_are_text_on_the_card(recorded: Path, tmp_path: Path) -> None:
    unserved = [{"engine": "vllm\n# <b>x</b>", "releases": [], "reasons": ["`rm`"]}]
    write_record(recorded, **FACTS, unserved=unserved)
    release(recorded, tmp_path / "out", card=answers(recorded), engines=("sglang",))
    (line,) = re.findall("> \\*\\*Not served.*", (tmp_path / "out/README.md").read_text())
    assert "<b>" not in line and r"\`rm\`" in line
