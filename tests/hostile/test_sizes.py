"""Input that is deep, long, sparse, or larger than memory allows: refused at once, with the number."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from eaglectl.api import validate as validating
from eaglectl.errors import UnreadableError
from eaglectl.files.files import read_small_file
from eaglectl.judge.rules.release import scan_text
from tests.builders import (
    STATED,
    call,
    drafter_config,
    drafter_folder,
    drafter_tensors,
    framed,
    refusal,
    safetensors_bytes,
)
from tests.conftest import FIXTURES
from tests.processor import within
from tests.tiny import TARGET, TINY

SPECULATORS = FIXTURES / "producers/speculators/plain"


def deep(folder: Path, text: str) -> Path:
    raw = json.dumps(drafter_config())[:-1] + f', "zz": {text}}}'
    (folder / "config.json").write_text(raw)
    return folder


DEEP = {"[" * 900 + "]" * 900: 901, '{"a":' * 900 + "1" + "}" * 900: 901, "[" * 64 + "]" * 64: 65}


@pytest.mark.parametrize("text", DEEP, ids=["list", "object", "one more than is read"])
@pytest.mark.parametrize("command", ["inspect", "validate", "diff", "upload", "convert"])
def test_a_value_nested_too_deep_is_refused_with_its_depth(tmp_path: Path, text: str, command: str) -> None:
    source = deep(drafter_folder(tmp_path), text)
    more = {"diff": [source], "upload": ["o/n", "--dry-run"], "convert": ["-o", tmp_path / "out"]}
    done = call(command, source, *more.get(command, []))
    assert done.code in (1, 3)
    words = f"are nested {DEEP[text]} levels deep; at most 64 are read"
    assert words in " ".join((done.out + done.err).split())


def test_a_value_nested_as_deep_as_is_read_is_carried(tmp_path: Path) -> None:
    source = deep(drafter_folder(tmp_path), "[" * 63 + "]" * 63)
    assert call("inspect", source).code == 0


@pytest.mark.fast(2)
@pytest.mark.parametrize("value", [5, [1], "x", True])
@pytest.mark.parametrize("command", ["inspect", "convert", "upload"])
def test_an_eagle_config_that_is_no_object_in_a_speculators_layer_is_refused(
    tmp_path: Path, value: object, command: str
) -> None:
    source = Path(shutil.copytree(SPECULATORS, tmp_path / "d"))
    config = json.loads((source / "config.json").read_text())
    config["transformer_layer_config"]["eagle_config"] = value
    (source / "config.json").write_text(json.dumps(config))
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


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    "command, count, words",
    [
        ("inspect", 5_000, "no drafter has more than 4096"),
        ("inspect", 60_000, "at most 40000 are read"),
        ("validate", 150_000, "at most 8388608 are searched"),
    ],
)
def test_a_header_of_many_empty_tensors_is_refused_at_once_by_their_number_or_its_length(
    tmp_path: Path, command: str, count: int, words: str
) -> None:
    source = drafter_folder(tmp_path)
    (source / "model.safetensors").write_bytes(many(count))
    with within(60):
        done = call(command, "-v", source)
    assert done.code in (1, 3) and words in " ".join((done.out + done.err).split())


@pytest.mark.fast(1)
@pytest.mark.parametrize("command", ["inspect", "validate", pytest.param("ready", marks=pytest.mark.slow)])
def test_many_long_names_are_judged_in_seconds_of_processor_time(tmp_path: Path, command: str) -> None:
    source = drafter_folder(tmp_path)
    (source / "model.safetensors").write_bytes(many(3_900, "y" * 1_500))
    with within(100):
        done = call(command, source)
    assert done.code in (0, 1, 2), done.err


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("name", ["config.json", "README.md", "train.log", "chat_template.jinja"])
@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_a_sparse_file_of_a_terabyte_is_not_read(tmp_path: Path, name: str, command: str) -> None:
    source = drafter_folder(tmp_path)
    sparse(source / name)
    with within(100):
        done = call(command, "-v", source)
    assert done.code != 70
    if command == "validate":
        assert "1099511627776 bytes; at most 67108864 are searched" in done.out


@pytest.mark.parametrize("name", ["README.md", "tokenizer.json", "extra.txt"])
def test_a_side_file_larger_than_any_is_not_copied(tmp_path: Path, name: str) -> None:
    source, out = drafter_folder(tmp_path), tmp_path / "out"
    sparse(source / name)
    with within(60):
        done = call("convert", source, "-o", out)
    assert done.code == 3 and f"{name} in {source} has 1099511627776 bytes" in done.err, done.err
    assert not out.exists()


@pytest.mark.parametrize("count", [257, 10_000, pytest.param(90_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_more_layers_than_any_drafter_takes_are_refused(tmp_path: Path, count: int, command: str) -> None:
    source = drafter_folder(tmp_path, config={"eagle_aux_hidden_state_layer_ids": list(range(count))})
    done = call(command, source)
    words = f"eagle_aux_hidden_state_layer_ids lists {count:,} layers; a drafter takes at most 256"
    assert done.code == 1 and words in " ".join((done.out + done.err).split())


# memory and descriptors

# in 200 MiB
CHILD = """
import resource, sys
from eaglectl.errors import EaglectlError
from eaglectl.run.prompts import choose_prompts
resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))
try:
    choice = choose_prompts(sys.argv[1], int(sys.argv[2]) or None, 5)
    print(choice.total, [prompt.place.rpartition(" ")[2] for prompt in choice.prompts])
except EaglectlError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("sample", "words"),
    [("3", "6000 ['"), ("0", "more than 33,554,432 characters to run; select fewer with --sample")],
)
def test_a_large_file_of_prompts_takes_no_more_memory_than_what_is_run(
    sample: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text(("a prompt of " + "words " * 2_000 + "\n") * 6_000)
    done = subprocess.run([sys.executable, "-c", CHILD, path, sample], capture_output=True, text=True)
    assert words in done.stdout, done.stderr[-500:]


@pytest.mark.fast(1)
@pytest.mark.parametrize("most", [6, 7, 8])
def test_a_conversion_without_files_to_open_leaves_nothing(most: int, tmp_path: Path) -> None:
    """The numbers are those with which it has begun to write."""
    command = [sys.executable, "-m", "eaglectl", "convert", TINY / "eagle3", "-o", "out", "--target", TARGET]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)),
        cwd=tmp_path,
    )
    assert (done.returncode, list(tmp_path.iterdir())) == (3, []), done.stderr
    assert "Too many open files" in done.stderr


def test_memory_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(validating, "validate", exhausted)
    done = call("validate", TINY / "eagle3")
    assert done.code == 3 and "not enough memory for this input" in done.out
    assert "Traceback" not in done.err


def test_small_files_are_read_without_asking_for_the_most(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"1" * 700)
    tracemalloc.start()
    assert len(read_small_file(tmp_path / "small", 256 << 20)) == 700
    assert tracemalloc.get_traced_memory()[1] < 3 << 20
    tracemalloc.stop()


def test_a_config_of_many_keys_is_refused_at_once(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={f"key_{number}": number for number in range(10_000)})
    done = call("inspect", folder)
    assert done.code == 3 and re.search(r"config.json has 100\d\d keys; at most 10000 are read", done.err)


def test_no_report_is_written_into_a_model(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "below").mkdir()
    before = sorted(folder.rglob("*"))
    for file in (folder / "report.html", folder / "below/report.html"):
        for option in (("--page", file), ("--output", f"json={file}")):
            done = call("validate", folder, *option)
            assert done.code == 2 and "a model's folder, and reports are not written into it" in done.err
    assert sorted(folder.rglob("*")) == before


# what a budget cuts off is said, with the number


def changed_header(folder: Path, change: Callable[[str], str]) -> None:
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = change(raw[8 : 8 + length].decode())
    file.write_bytes(framed(header.encode(), raw[8 + length :]))


@pytest.mark.parametrize("entries", [[0] * 100_000, [[]] * 60_000, [{"a": 1}] * 60_000, ["[,{"] * 100_000])
def test_a_config_of_many_entries_is_refused_with_their_number(tmp_path: Path, entries: list[object]) -> None:
    folder = drafter_folder(tmp_path, config={"zz": entries})
    assert re.search(r"have 1\d{5} entries; at most 100000 are read", refusal(3, "inspect", folder))


@pytest.mark.parametrize("value", ["[,{" * 100_000, [0] * 90_000, '\\"[' * 100_000])
def test_marks_in_texts_are_no_entries_and_fewer_are_read(tmp_path: Path, value: object) -> None:
    assert call("inspect", drafter_folder(tmp_path, config={"zz": value})).code == 0


def test_keys_of_a_config_count_at_any_depth(tmp_path: Path) -> None:
    inner = [{"a": {f"k{number}": number for number in range(5_000)}}] * 2
    folder = drafter_folder(tmp_path, config={"zz": inner})
    assert re.search(r"config.json has 100\d\d keys; at most 10000 are read", refusal(3, "inspect", folder))


def test_a_config_of_many_bytes_is_refused(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"zz": "x" * (4 << 20)})
    assert "bytes; the limit for a drafter is 4194304" in refusal(3, "inspect", folder)


@pytest.mark.parametrize("command", ["inspect", "convert", "verify"])
def test_a_long_key_is_refused_in_a_config_and_in_a_header(tmp_path: Path, command: str) -> None:
    more = ("-o", tmp_path / "out") if command == "convert" else ()
    folder = drafter_folder(tmp_path, config={"k" * 2_049: 1})
    if command != "verify":
        assert "a key has 2049 characters; at most 2048 are read" in refusal(3, command, folder, *more)
    other = drafter_folder(tmp_path, "other")
    changed_header(other, lambda text: text.replace("norm.weight", "module." * 300 + "norm.weight", 1))
    if command != "verify":
        assert "characters; at most 2048 are read" in refusal(3, command, other, *more)


@pytest.mark.slow  # tests/hostile/test_doubling.py has the fast one
def test_tensors_whose_keys_are_escaped_count_as_all(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    entry = '{"dtype":"F32","shape":[0],"data\\u005foffsets":[0,0]}'
    many_entries = "".join(f',"z{number}":{entry}' for number in range(40_001))
    changed_header(folder, lambda text: f"{text[:-1]}{many_entries}}}")
    assert "tensors; at most 40000 are read" in call("inspect", folder).err


def test_a_card_of_many_commands_says_how_many_were_looked_at(tmp_path: Path) -> None:
    bad = 'vllm serve a --speculative-config \'{"method": "eagle"}\'\n\n'
    done = call("validate", drafter_folder(tmp_path, card=STATED + bad * 101), "--json").document
    reasons = {each["rule"]: each["reason"] for each in done["could_not_look"]}
    assert reasons["EGL909"] == "README.md has more than 100 commands; the others were not checked"
    assert len([finding for finding in done["findings"] if finding["rule"] == "EGL909"]) == 100


@pytest.mark.parametrize("value", ["[" * 8_000, "9" * 5_000, '{"a":' * 1_500])
def test_a_command_of_a_card_with_a_value_that_cannot_be_read_is_no_fault(tmp_path: Path, value: str) -> None:
    for option in ("--speculative-config", "--spec-tokens"):
        card = f"{STATED}\nvllm serve a --speculative-config.x 1 {option} '{value}'\n"
        done = call("validate", drafter_folder(tmp_path, option, card=card))
        assert done.code in (0, 1), done.err[-500:]


def test_more_findings_of_a_rule_than_are_read_are_said(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"zz": [f"/home/someone/{number}" for number in range(257)]})
    done = call("validate", folder, "--json").document
    assert len([finding for finding in done["findings"] if finding["rule"] == "EGL109"]) == 256
    reasons = {each["rule"]: each["reason"] for each in done["could_not_look"]}
    assert reasons["EGL109"] == "it stopped at 256 findings; there are more"


def test_more_places_of_secrets_than_are_searched_are_could_not_look(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "notes.txt").write_text("npm_ " * 100_001)
    done = call("validate", folder, "--json").document
    reason = next(each["reason"] for each in done["could_not_look"] if each["rule"] == "EGL115")
    assert reason.startswith("it has more than 100000 possible places of one kind of secret")
    with pytest.raises(UnreadableError):
        list(scan_text("npm_ " * 100_001))
