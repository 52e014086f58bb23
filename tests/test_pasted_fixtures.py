"""Every command that `inspect` and `validate` print for any fixture runs as it is pasted."""

import json
import shlex
from pathlib import Path

import pytest

from tests.builders import ABSENT, Outcome, call, changed, drafter_folder
from tests.conftest import FIXTURES
from tests.printed import commands_in

TARGET = FIXTURES / "target"
FOLDERS = sorted(path.parent for path in (FIXTURES / "producers").glob("*/*/config.json"))
CASES = [
    (folder, verb, target) for folder in FOLDERS for verb in ("inspect", "validate") for target in (0, 1)
]
FAILS_RIGHTLY = {"validate": (0, 1)}  # as `validate` ends on a drafter that it fails


def pasted(line: str) -> Outcome:
    return call(*shlex.split(line, comments=True)[1:])


@pytest.mark.fast(6)
@pytest.mark.parametrize(
    ("folder", "verb", "target"),
    CASES,
    ids=[f"{folder.parent.name}/{folder.name}-{verb}-{target}" for folder, verb, target in CASES],
)
def test_what_is_printed_runs(
    folder: Path, verb: str, target: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = call(verb, folder, *(["--target", TARGET] if target else []))
    for number, line in enumerate(dict.fromkeys(commands_in(shown.out) + commands_in(shown.err))):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        done = pasted(line)
        assert done.code in FAILS_RIGHTLY.get(line.split()[1], (0,)), (line, done.err)


def test_each_answer_says_what_the_release_does_if_it_is_true(tmp_path: Path) -> None:
    source = FIXTURES / "producers/specforge/gqa-ids"
    choices = call("inspect", source, "--engine", "vllm==0.22.1", "--json").document["choices"]
    assert [line.rpartition(" ")[2] for line in choices] == ["boundary", "output"]
    for line, gives in choices.items():
        given = shlex.split(line)[3:]
        document = call("inspect", source, *given, "--engine", "vllm==0.22.1", "--json").document
        (verdict,) = document["engines"]
        assert gives.startswith(f"vLLM 0.22.1: {verdict['outcome']}"), (line, gives)


def test_an_answer_that_only_the_user_has_is_asked_and_no_command_is_printed() -> None:
    shown = call("inspect", FIXTURES / "producers/speco/peagle")
    assert "--aux-layers with the boundaries" in " ".join(shown.out.split())
    assert commands_in(shown.out) == []


def test_inspect_prints_what_mends_positions_and_no_conversion(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps(changed(TARGET, max_position_embeddings=8192)))
    folder = drafter_folder(tmp_path, config={"vocab_size": 64, "max_position_embeddings": ABSENT})
    config = changed(target, hidden_size=16, vocab_size=64)
    (target / "config.json").write_text(json.dumps(config))
    shown = call("inspect", folder, "--target", target, "--engine", "vllm==0.26.0")
    assert "serve it with vllm>=0.27.0, or with --max-model-len" in " ".join(shown.out.split())
    assert "eaglectl convert" not in shown.out
