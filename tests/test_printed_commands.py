"""Every command that calibrate, convert and smoke print is run, as it is printed."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.builders import Outcome, Stored, call
from tests.tiny import TARGET, TINY, Fault, cut_prompts, not_a_number

EAGLE3 = TINY / "eagle3"
PRINTED = re.compile(r"`(eaglectl [^`]+)`|^next: (eaglectl .+)$", re.MULTILINE)
# what a printed command is given here only to be short; none changes what it does
SHORT = {
    "convert": ("--device", "cpu", "--prompts", "other.jsonl", "--tolerance", "0.01", "-o", "out"),
    "smoke": ("--device", "cpu", "--prompts", "few.jsonl", "--max-tokens", "4", "--run-in", "reference"),
    "validate": ("--headers-only",),
}


def printed_commands(outcome: Outcome) -> list[list[str]]:
    """The words of every command in what a call printed."""
    return [shlex.split(quoted or after) for quoted, after in PRINTED.findall(outcome.out + outcome.err)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with four short prompts, and a target whose path has to be quoted."""
    for name, source in (("few.jsonl", "calibration.jsonl"), ("other.jsonl", "gate.jsonl")):
        (tmp_path / name).write_text(cut_prompts(source, 4))
    (tmp_path / "a target").symlink_to(TARGET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def calibrated(folder: Path, *more: str | Path) -> Outcome:
    options = ("--prompts", "few.jsonl", "--answer-tokens", "8", "--device", "cpu", "-o", "some stats")
    return call("calibrate", more[0], "--target", "a target", *options, *more[1:])


def with_convention(folder: Path) -> Outcome:
    more = ("--aux-layers", "1,3,4", "--aux-convention", "output", "--ignore-eos")
    return calibrated(folder, EAGLE3, *more)


def with_semantics(folder: Path) -> Outcome:
    drafter = shutil.copytree(EAGLE3, folder / "a drafter")
    config = json.loads((EAGLE3 / "config.json").read_text()) | {"norm_output": True}
    (drafter / "config.json").write_text(json.dumps(config))
    return calibrated(folder, drafter, "--source-semantics", "specforge=pre-879")


def broken(folder: Path, name: str, change: Callable[[Stored], Stored]) -> Path:
    """The drafter in vLLM's layout, with this tensor changed."""
    assert call("convert", EAGLE3, "--target", TARGET, "-o", folder / "good").code == 0
    return Fault("", "", tensors={name: change}).apply(folder / "good", folder / "broken")


def on_nan(folder: Path) -> Outcome:
    return calibrated(folder, broken(folder, "fc.weight", not_a_number))


def on_a_dead_drafter(folder: Path) -> Outcome:
    dead = broken(folder, "lm_head.weight", lambda stored: (*stored[:2], bytes(len(stored[2]))))
    options = ("--to", "3.1", "--fc-norm", "off", "--prompts", "many.jsonl", "--device", "cpu")
    (folder / "many.jsonl").write_text(cut_prompts("gate.jsonl", 7))
    return call("convert", dead, "--target", "a target", *options)


CASES: dict[str, tuple[Callable[[Path], Outcome], str, tuple[int, ...]]] = {
    "calibrate with a convention": (with_convention, "convert", (0,)),
    "calibrate with semantics": (with_semantics, "convert", (0,)),
    "calibrate on NaN": (on_nan, "validate", (0, 1, 3)),
    "convert of a dead drafter": (on_a_dead_drafter, "validate", (0, 1, 3)),
}


@pytest.mark.fast(2)
@pytest.mark.parametrize("name", CASES)
def test_a_printed_command_does_what_it_is_printed_for(name: str, folder: Path) -> None:
    run, verb, codes = CASES[name]
    outcome = run(folder)
    commands = printed_commands(outcome)
    assert [words[:2] for words in commands] == [["eaglectl", verb]], outcome
    done = call(*commands[0][1:], *SHORT[verb])
    assert done.code in codes, (commands[0], done.err)
    assert "--target" not in commands[0] or "a target" in commands[0]
