"""Configs and headers that are deep, long or sparse: refused at once, with the number."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.builders import call, drafter_config, drafter_folder, drafter_tensors, framed, safetensors_bytes
from tests.conftest import FIXTURES

SPECULATORS = FIXTURES / "producers/speculators/plain"


def deep(folder: Path, text: str) -> Path:
    raw = json.dumps(drafter_config())[:-1] + f', "zz": {text}}}'
    (folder / "config.json").write_text(raw)
    return folder


@pytest.mark.parametrize(
    "text", ["[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900], ids=["list", "object"]
)
@pytest.mark.parametrize("command", ["inspect", "validate", "diff", "upload", "convert"])
def test_a_value_nested_900_deep_is_refused_with_its_depth(tmp_path: Path, text: str, command: str) -> None:
    source, other = deep(drafter_folder(tmp_path), text), drafter_folder(tmp_path / "other")
    more = {"diff": [other], "upload": ["o/n", "--dry-run"], "convert": ["-o", tmp_path / "out"]}
    done = call(command, source, *more.get(command, []))
    assert done.code in (1, 3)
    assert "are 901 deep in each other; at most 64 are read" in " ".join((done.out + done.err).split())


def test_a_value_nested_as_deep_as_is_read_is_carried(tmp_path: Path) -> None:
    source = deep(drafter_folder(tmp_path), "[" * 63 + "]" * 63)
    assert call("inspect", source).code == 0


@pytest.mark.parametrize("value", [5, [1], "x", True])
@pytest.mark.parametrize("command", ["inspect", "convert", "upload"])
def test_an_eagle_config_that_is_no_object_in_a_speculators_layer_is_refused(
    tmp_path: Path, value: object, command: str
) -> None:
    config = json.loads((SPECULATORS / "config.json").read_text())
    config["transformer_layer_config"]["eagle_config"] = value
    source = tmp_path / "d"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    (source / "model.safetensors").write_bytes((SPECULATORS / "model.safetensors").read_bytes())
    more = {"upload": ["o/n", "--dry-run"], "convert": ["-o", tmp_path / "out"]}
    done = call(command, source, *more.get(command, []))
    assert done.code == 1 and f"eagle_config is {value!r}; an object was expected" in done.out + done.err
    assert "EGL112" in call("validate", source).out


def many(count: int, end: str = "") -> bytes:
    raw = safetensors_bytes(drafter_tensors())
    length = int.from_bytes(raw[:8], "little")
    table = json.loads(raw[8 : 8 + length])
    stop = len(raw) - 8 - length
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [stop, stop]}
    header = json.dumps(table | {f"zz.{number}{end}": entry for number in range(count)}).encode()
    return framed(header, raw[8 + length :])


@pytest.mark.parametrize(
    "count, words", [(5_000, "no drafter has more than 4096"), (60_000, "at most 40000 are read")]
)
def test_a_header_of_many_empty_tensors_is_refused_by_their_number(
    tmp_path: Path, count: int, words: str
) -> None:
    source = drafter_folder(tmp_path)
    (source / "model.safetensors").write_bytes(many(count))
    start = time.monotonic()
    done = call("inspect", source)
    assert done.code in (1, 3) and words in done.err
    assert time.monotonic() - start < 3


@pytest.mark.parametrize("command", ["inspect", "validate", "ready"])
def test_many_long_names_are_judged_in_seconds_of_processor_time(tmp_path: Path, command: str) -> None:
    source = drafter_folder(tmp_path)
    (source / "model.safetensors").write_bytes(many(3_900, "y" * 1_500))
    start = time.process_time()
    done = call(command, source)
    assert done.code in (0, 1, 2) and time.process_time() - start < 3, done.err


def sparse(path: Path) -> None:
    with path.open("ab") as file:
        os.truncate(file.fileno(), 1 << 40)


@pytest.mark.parametrize("name", ["config.json", "README.md", "train.log", "chat_template.jinja"])
@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_a_sparse_file_of_a_terabyte_is_not_read(tmp_path: Path, name: str, command: str) -> None:
    source = drafter_folder(tmp_path)
    sparse(source / name)
    start = time.monotonic()
    done = call(command, "-v", source)
    assert done.code != 70 and time.monotonic() - start < 5
    if command == "validate":
        assert "1099511627776 bytes; at most 67108864 are searched" in done.out


def test_a_header_that_is_too_long_to_be_searched_is_named_at_once(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    (source / "model.safetensors").write_bytes(many(150_000))
    start = time.monotonic()
    done = call("validate", "-v", source)
    assert done.code == 1 and "the header of model.safetensors has" in done.out
    assert "at most 8388608 are searched" in " ".join(done.out.split())
    assert time.monotonic() - start < 3


@pytest.mark.parametrize("name", ["README.md", "tokenizer.json", "extra.txt"])
def test_a_side_file_larger_than_any_is_not_copied(tmp_path: Path, name: str) -> None:
    source, out = drafter_folder(tmp_path), tmp_path / "out"
    sparse(source / name)
    start = time.monotonic()
    done = call("convert", source, "-o", out)
    assert done.code == 3 and f"{name} in {source} has 1099511627776 bytes" in done.err, done.err
    assert not out.exists() and time.monotonic() - start < 3


@pytest.mark.parametrize("count", [257, 10_000, 1_000_000])
@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_more_layers_than_any_drafter_takes_are_refused(tmp_path: Path, count: int, command: str) -> None:
    source = drafter_folder(tmp_path, config={"eagle_aux_hidden_state_layer_ids": list(range(count))})
    done = call(command, source)
    words = f"eagle_aux_hidden_state_layer_ids lists {count:,} layers; a drafter takes 256 at most"
    assert done.code == 1 and words in " ".join((done.out + done.err).split())
