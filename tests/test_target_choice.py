"""The target is one value from the command line on: its config is opened once, whatever is done with it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.target.choice import TargetChoice, as_target
from tests.builders import call, drafter_folder, target_of
from tests.conftest import FIXTURES
from tests.hub import publishing_hub

CONFIG = FIXTURES / "target/config.json"
TARGET, WHOLE = CONFIG.parent, FIXTURES / "tiny/target"
STATED = FIXTURES / "producers/specforge/gqa-ids"
OPEN = FIXTURES / "producers/lightseekorg/mla"
WATCHED: dict[str, int] = {}


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if WATCHED and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if path in WATCHED:
            WATCHED[path] += 1


sys.addaudithook(watch)


@contextmanager
def opened(target: Path) -> Iterator[dict[str, int]]:
    """How often the config of a target is opened, from 1 on while nothing is."""
    WATCHED[str(target / "config.json")] = 0
    try:
        yield (count := dict(WATCHED))
    finally:
        count.update(WATCHED)
        WATCHED.clear()


COMMANDS = {
    "convert to 3.1": ("convert", STATED, "--to", "3.1", "--init-only", "-o", "out"),
    "convert": ("convert", STATED, "-o", "out"),
    "plan": ("convert", STATED, "--dry-run", "--engine", "vllm", "--engine", "sglang"),
    "validate": ("validate", STATED),
    "validate several": ("validate", STATED, OPEN, "--engine", "vllm"),
    "ready": ("ready", STATED),
    "ready and written": ("ready", STATED, "-o", "out"),
    "ready, open": ("ready", OPEN, "--source-semantics", "rope=stored"),
    "inspect": ("inspect", STATED),
    "inspect, open": ("inspect", OPEN),
    "diff": ("diff", STATED, OPEN),
    "upload": ("upload", STATED, "org/drafter", "--dry-run"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_opens_the_config_of_its_target_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with publishing_hub(monkeypatch, tmp_path), opened(TARGET) as count:
        done = call(*COMMANDS[name], "--target", TARGET)
    assert done.code in (0, 1, 3), done.err
    assert list(count.values()) == [1]


def test_the_rows_of_a_target_are_compared_without_a_second_look_at_its_config() -> None:
    with opened(WHOLE) as count:
        assert call("validate", FIXTURES / "tiny/eagle3", "--target", WHOLE).code == 0
    assert list(count.values()) == [1]


def test_the_target_of_eaglectl_toml_is_the_same_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "eaglectl.toml").write_text(f'[defaults]\ntarget = "{TARGET}"\n')
    monkeypatch.chdir(tmp_path)
    with opened(TARGET) as count:
        assert call("validate", STATED).code in (0, 1)
    assert list(count.values()) == [1]


def test_python_takes_a_text_a_path_or_the_value() -> None:
    value = as_target(TARGET)
    for given in (str(TARGET), TARGET, value):
        assert eaglectl.ValidateOptions(target=given).target == TargetChoice(str(TARGET), str(TARGET))
    with opened(TARGET) as count:
        eaglectl.inspect(STATED, target=value)
        eaglectl.validate([STATED, OPEN], target=value)
    assert list(count.values()) == [1]


def test_no_target_is_a_value_without_a_place() -> None:
    for options in (eaglectl.InspectOptions(), eaglectl.InspectOptions(target=None)):
        assert options.target == TargetChoice() and options.target.place is None


@pytest.mark.parametrize("given", [5, True, ["a"], {"text": 5}], ids=str)
def test_another_kind_of_target_is_refused(given: Any) -> None:
    with pytest.raises(eaglectl.UsageError, match=r"target=.*: a text was expected"):
        eaglectl.InspectOptions(target=given)


@pytest.mark.parametrize("command", ["inspect", "validate", "convert", "ready", "diff"])
def test_a_target_that_is_not_there_is_named_as_it_was_given(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sources = [STATED, STATED] if command == "diff" else [STATED]
    done = call(command, *sources, "--target", "missing")
    assert done.code == 3 and "missing: no such file or folder" in done.err


def test_a_file_beside_the_config_is_no_target(tmp_path: Path) -> None:
    other = target_of(tmp_path / "target") / "tokenizer.json"
    other.write_text("{}")
    done = call("inspect", drafter_folder(tmp_path), "--target", other)
    assert done.code == 2 and f"{other}: pass the target's folder, or its config.json" in done.err
