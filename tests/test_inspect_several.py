"""inspect of several sources: in their order, and a source that fails does not stop the others."""

import json
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import eaglectl
from tests.builders import ABSENT_FILE, SGLANG, VLLM, call, drafter_folder, refusal
from tests.conftest import FIXTURES

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((FIXTURES.parent / "schemas/inspect.schema.json").read_text())
)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return drafter_folder(tmp_path, "good")


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return drafter_folder(tmp_path, "broken", tensors={"fc.weight": None})


def test_each_is_what_it_is_alone(good: Path, tmp_path: Path) -> None:
    other = drafter_folder(tmp_path, "other", config={"rope_theta": 1.0})
    done = call("inspect", good, other, "--json")
    SCHEMA.validate(done.document)
    assert (done.code, done.err) == (0, "")
    for source, inspection in zip((good, other), done.document["inspections"], strict=True):
        alone = call("inspect", source, source, "--json").document  # the same source twice is one
        del alone["schema"], alone["version"]
        assert inspection == {"path": str(source), **alone}


def test_one_that_fails_stops_no_other(good: Path, broken: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    done = call("inspect", gone, broken, good, "--json")
    SCHEMA.validate(done.document)
    first, second, third = done.document["inspections"]
    assert done.code == 3  # the worst of 3, 1 and 0
    error = {"kind": "unreadable", "exit_code": 3, "message": f"{gone}: {ABSENT_FILE}"}
    assert first == {"path": str(gone), "error": error}
    assert (second["error"]["kind"], second["error"]["exit_code"]) == ("refused", 1)
    assert third["drafter"]["eagle"] == "3"


def test_the_screens_stand_under_their_names(good: Path, broken: Path) -> None:
    done = call("inspect", good, broken, "-v")
    lines = done.out.splitlines()
    assert lines[0] == f"pass: {good}" and lines[1].startswith(f"  vLLM {VLLM} and SGLang {SGLANG} run it")
    place = lines.index(f"could not look: {broken}")
    assert lines[place + 1].startswith("  fc.weight is missing")
    assert done.code == 1 and "lm_head.weight" in done.out and lines[-1] == "1 of 2 checkpoints inspected"


def test_what_is_wrong_with_the_call_is_said_once(good: Path, broken: Path, tmp_path: Path) -> None:
    assert "--engine bogus" in refusal(2, "inspect", good, broken, "--engine", "bogus")
    assert "gone" in refusal(3, "inspect", good, broken, "--target", tmp_path / "gone")
    assert "--aux-layers two" in refusal(2, "inspect", good, broken, "--aux-layers", "two")


def test_an_answer_that_fits_one_of_them_is_an_error_of_the_other(good: Path) -> None:
    other = FIXTURES / "producers/speculators/four-aux"
    done = call("inspect", good, other, "--aux-layers", "1,2,3", "--json")
    first, second = done.document["inspections"]
    assert done.code == 2 and first["drafter"]["aux"]["boundaries"] == [1, 2, 3]
    assert second["error"]["kind"] == "usage"


def test_a_crash_of_our_own_is_70_and_stops_no_other(
    good: Path, broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = eaglectl.inspect

    def crashing(source: str, **options: Any) -> Any:
        if source == str(broken):
            raise RuntimeError("out of cheese")
        return real(source, **options)

    monkeypatch.setattr("eaglectl.api.inspect.inspect", crashing)
    done = call("inspect", broken, good, "--json")
    SCHEMA.validate(done.document)
    assert done.code == 70 and "Traceback" in done.err and "out of cheese" in done.err
    assert done.document["inspections"][0]["error"]["kind"] == "fault"
    assert done.document["inspections"][1]["drafter"]["eagle"] == "3"


def test_several_are_inspected_at_the_same_time(
    good: Path, broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, real = threading.Barrier(2, timeout=10), eaglectl.inspect

    def meeting(source: str, **options: Any) -> Any:
        together.wait()  # breaks unless the other is under way
        return real(source, **options)

    monkeypatch.setattr("eaglectl.api.inspect.inspect", meeting)
    assert call("inspect", good, broken).code == 1
