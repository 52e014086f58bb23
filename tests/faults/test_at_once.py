"""The same command in several processes at once: what comes out is whole, the others say why."""

import json
from pathlib import Path

import pytest

from tests.builders import drafter_folder
from tests.faults.processes import COMMAND, automodel, is_checkpoint, is_statistics, names, publish_to, start
from tests.hub import LoopbackHub
from tests.tiny import PROMPTS, TARGET, TINY

RUN = ("--target", TARGET, "--device", "cpu", "--prompts", PROMPTS, "--sample", "8")


def at_once(count: int, *arguments: str | Path) -> list[int]:
    """The exit codes of so many processes; those that failed say so in words."""
    processes = [start(COMMAND, *arguments) for _ in range(count)]
    ends = [process.communicate(timeout=300) for process in processes]
    codes = [process.returncode for process in processes]
    for code, (out, error) in zip(codes, ends, strict=True):
        assert code in (0, 1, 2, 3), error
        last = (error or out).splitlines()[-1]
        assert code == 0 or last.startswith(("eaglectl: ", "fail: not ready: ", "could not look: ")), last
    return codes


@pytest.mark.slow
@pytest.mark.parametrize("force", [(), ("--force",)], ids=["new", "force"])
@pytest.mark.parametrize("command", ["convert", "calibrate"])
def test_the_same_output_in_processes_at_once(tmp_path: Path, command: str, force: tuple[str, ...]) -> None:
    more, check = (
        ((*RUN, "--answer-tokens", "4"), is_statistics) if command == "calibrate" else ((), is_checkpoint)
    )
    codes = at_once(4, command, TINY / "eagle3", *more, "-o", tmp_path / "out", *force)
    assert codes.count(0) >= 1 and (force or codes.count(0) == 1), codes
    assert names(tmp_path) == ["out"]
    check(tmp_path / "out")


@pytest.mark.slow
def test_ready_into_one_folder(tmp_path: Path) -> None:
    codes = at_once(3, "ready", automodel(tmp_path), *RUN, "--max-tokens", "16", "-o", tmp_path / "out")
    assert codes == [0, 0, 0]  # a call that finds its own conversion at OUT, or comes too late, takes it
    assert names(tmp_path) == ["automodel", "out"]
    is_checkpoint(tmp_path / "out")


@pytest.mark.slow
def test_uploads_of_two_drafters_to_one_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [
        drafter_folder(tmp_path, name, config={"max_position_embeddings": 1024 * number})
        for number, name in enumerate(("first", "second"), 1)
    ]
    with LoopbackHub() as hub:
        publish_to(hub, monkeypatch, tmp_path)
        said = ("org/drafter", "--license", "mit", "--base-model", "org/target")
        processes = [start(COMMAND, "upload", source, *said) for source in sources]
        errors = [process.communicate(timeout=300)[1] for process in processes]
        codes = [process.returncode for process in processes]
        assert 0 in codes and set(codes) <= {0, 1, 3}, errors
        files = hub.repos["org/drafter"].files()
    record = json.loads(files["eaglectl.json"].data)
    whole = {name: value["sha256"] for name, value in record["published"]["files"].items()}
    assert {name: files[name].sha256 for name in whole} == whole
