"""What inspect, validate and convert print on fixtures is run as it is printed, and does what it says."""

import re
import shlex
from pathlib import Path

import pytest

from eaglectl.formats.commands import COMMAND
from tests.builders import Outcome, call, drafter_folder
from tests.cases import CASES, Case
from tests.conftest import FIXTURES, sampled
from tests.printed import commands_in, strings

ENGINES = {"vLLM": "vllm", "SGLang": "sglang", "llama.cpp": "llama.cpp"}
BY_PATH = {case.path: case for case in CASES}
# commands that are only parsed (tests/printed.py): why they are not run here
NOT_RUN = {
    "smoke": "the fixtures' target has no weights; tests/test_printed_commands.py has a pair that runs",
    "calibrate": "as smoke",
    "diagnose": "as smoke",
    "diff": "the other side is on the Hub; tests/test_upload.py has it on loopback",
}
# what a change says of engines: "vLLM and SGLang: `eaglectl ...`"
CHANGE = re.compile(rf"^ *(?!fixable)([\w. ]+): {COMMAND.pattern}(?! with)", re.MULTILINE)


def outcomes(case: Case, target: list[str]) -> dict[str, tuple[Outcome, Outcome]]:
    """What inspect and validate say of a case, as text and as JSON."""
    given = [*target, *case.options]
    engines = [word for engine in ENGINES.values() for word in ("--engine", engine)]
    calls = {
        "inspect": ["inspect", str(case.folder), *given],
        "validate": ["validate", str(case.folder), *engines, *given],
    }
    return {name: (call(*words), call(*words, "--json")) for name, words in calls.items()}


def served(folder: Path, target: list[str]) -> dict[str, str]:
    """The outcome of the newest release of each engine."""
    verdicts = call("inspect", folder, "--json", *target).document["engines"]
    return {verdict["engine"]: verdict["outcome"] for verdict in verdicts}  # the newest is the last


@pytest.mark.fast(4)
@pytest.mark.parametrize("has_target", [True, False])
@pytest.mark.parametrize("path", sampled(BY_PATH, 10))
def test_printed_commands_run(path: str, has_target: bool, tmp_path: Path) -> None:
    case = BY_PATH[path]
    target = ["--target", str(FIXTURES / "target")] if has_target else []
    said = outcomes(case, target)
    lines: set[str] = set()
    for name, (text, document) in said.items():
        shown = {line for line in commands_in(text.out) if name != "inspect" or " validate " not in line}
        assert shown <= set(commands_in(document.out)), name
        lines |= set(commands_in(text.out))
    results = {line: run(line, tmp_path / str(number)) for number, line in enumerate(sorted(lines))}
    failed = {line: done for line, (_, done) in results.items() if done and done.code not in ends(line)}
    known = [text for _, document in said.values() for text in strings(document.document)]
    unexplained = [line for line, done in failed.items() if not is_explained(done, known, target)]
    assert unexplained == [], failed
    if (line := said["inspect"][1].document["next"]) and line not in failed:
        # a doubt of the source stays in doubt
        assert served(results[line][0], target)["vllm"] in ("as trained", "unknown")
    changes = CHANGE.findall(said["validate"][0].out)
    for titles, line in changes:
        outcome = served(results[line][0], target)
        assert {outcome[ENGINES[title]] for title in titles.split(" and ")} == {"as trained"}, line


def ends(line: str) -> tuple[int, ...]:
    """The exit codes that the command does its work with."""
    return (0,) if line.startswith("eaglectl convert") else (0, 1, 3)


def run(line: str, out: Path) -> tuple[Path, Outcome | None]:
    """The folder for what a command writes, and what it said; None where it is not run here."""
    _, verb, *words = shlex.split(line)
    if verb in NOT_RUN:
        return out, None
    return out, call(verb, *words, *(["-o", str(out)] if verb == "convert" else []))


def is_explained(done: Outcome, known: list[str], target: list[str]) -> bool:
    """Whether what was not done is a question or an error that inspect and validate have too, or asks for
    the target that was not given.
    """
    is_known = any(len(text) > 40 and text in done.err for text in known)
    return is_known or (done.code == 2 and not target and "pass --target" in done.err)


def test_what_verify_prints_where_there_is_no_list_runs(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, "a drafter")
    (line,) = commands_in(call("verify", folder).err)
    assert call(*shlex.split(line)[1:]).code == 3


def test_what_upload_prints_of_a_drafter_that_fails_says_how_to_mend_it(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, "a drafter", config={"hidden_act": "gelu"})
    lines = commands_in(call("upload", folder, "org/drafter", "--dry-run", "--license", "mit").err)
    (line,) = [line for line in lines if line.startswith("eaglectl validate")]
    done = call(*shlex.split(line)[1:])
    assert done.code == 1 and "(EGL113)" in done.out
