"""The same command in several processes at once: what comes out is whole, the others say why."""

import json
from pathlib import Path

import pytest

from tests.builders import call, drafter_folder
from tests.faults.processes import COMMAND, is_checkpoint, is_statistics, names, start
from tests.hub import TOKEN, LoopbackHub, User
from tests.tiny import PROMPTS, TARGET, TINY

RUN = ("--target", TARGET, "--device", "cpu", "--prompts", PROMPTS, "--sample", "8")
STATES = ("--target", TARGET, "--device", "cpu", "--states", TINY / "states", "--states-layers", "2,4,5")


def at_once(count: int, *arguments: str | Path) -> list[int]:
    """The exit codes of so many processes; those that failed say so in words."""
    processes = [start(COMMAND, *arguments) for _ in range(count)]
    ends = [process.communicate(timeout=300) for process in processes]
    codes = [process.returncode for process in processes]
    for code, (out, error) in zip(codes, ends, strict=True):
        assert code in (0, 1, 2, 3), error
        last = (error or out).splitlines()[-1]
        assert code == 0 or last.startswith(("eaglectl: ", "not ready  ", "could not look  ")), last
    return codes


@pytest.mark.slow
@pytest.mark.parametrize("force", [(), ("--force",)], ids=["new", "force"])
def test_conversions_into_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    codes = at_once(4, "convert", TINY / "eagle3", "-o", "out", *force)
    assert codes.count(0) >= 1 and (force or codes.count(0) == 1), codes
    assert names(tmp_path) == ["out"]
    is_checkpoint(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("force", [(), ("--force",)], ids=["new", "force"])
def test_calibrations_into_one_folder(tmp_path: Path, force: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    codes = at_once(3, "calibrate", TINY / "eagle3", *STATES, "-o", out, *force)
    assert codes.count(0) >= 1 and (force or codes.count(0) == 1), codes
    assert names(tmp_path) == ["out"]
    is_statistics(out)


@pytest.mark.slow
def test_ready_into_one_folder(tmp_path: Path) -> None:
    source, out = tmp_path / "automodel", tmp_path / "out"
    made = call("convert", TINY / "eagle3", "--for", "automodel", "--target", TARGET, "-o", source)
    assert made.code == 0, made.err
    codes = at_once(3, "ready", source, *RUN, "--max-tokens", "16", "-o", out)
    assert codes == [0, 0, 0]  # a call that finds its own conversion at OUT, or comes too late, takes it
    assert names(tmp_path) == ["automodel", "out"]
    is_checkpoint(out)


@pytest.mark.slow
def test_uploads_of_two_drafters_to_one_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [
        drafter_folder(tmp_path, name, config={"max_position_embeddings": 1024 * number})
        for number, name in enumerate(("first", "second"), 1)
    ]
    with LoopbackHub() as hub:
        hub.users[TOKEN] = User("user", ("org",))
        for key, value in {
            "HF_ENDPOINT": hub.endpoint,
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(tmp_path / "hf"),
        }.items():
            monkeypatch.setenv(key, value)
        said = ("org/drafter", "--license", "mit", "--base-model", "org/target")
        processes = [start(COMMAND, "upload", source, *said) for source in sources]
        errors = [process.communicate(timeout=300)[1] for process in processes]
        codes = [process.returncode for process in processes]
        assert 0 in codes and set(codes) <= {0, 1, 3}, errors
        files = hub.repos["org/drafter"].files()
    record = json.loads(files["eaglectl.json"].data)
    whole = {name: value["sha256"] for name, value in record["published"]["files"].items()}
    assert {name: files[name].sha256 for name in whole} == whole
