"""What is shown at 80 columns: the answer first, no more than a screen, and what to type next.

Four people's first minutes are scripts; a step is what they type, or what the last answer said to type next.
"""

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file

import eaglectl
from eaglectl import terminal
from tests.builders import VLLM, Outcome, call
from tests.tiny import PROMPTS, TARGET, TINY

FEW = "--prompts texts.jsonl --sample 8 --max-tokens 16 --device cpu"
MANY = "--prompts texts.jsonl --max-tokens 24 --device cpu"
RUN = {"ready": "", "smoke": "--run-in reference ", "diagnose": ""}
# lines that each command may have: its answer is seen without scrolling
MOST = {"ready": 16, "smoke": 14, "diagnose": 20}


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny drafter as `healthy`; `dead`: d2t as ids; `torchspec`: a layout whose ids vLLM 0.22.1 reads
    otherwise; `runs`: two steps of a training.
    """
    folder = tmp_path_factory.mktemp("drafters")
    for name in ("healthy", "dead", "runs/step-10", "runs/step-20"):
        shutil.copytree(TINY / "eagle3", folder / name)
    eaglectl.convert(str(TINY / "eagle3"), folder / "torchspec", target=str(TARGET), layout="torchspec")
    stored = load_file(folder / "dead/model.safetensors")
    ids = stored["t2d"].nonzero()[:, 0]
    save_file(stored | {"d2t": ids}, folder / "dead/model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(autouse=True)
def folder(drafters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with the drafters and their target, on a screen of 80 columns."""
    monkeypatch.setattr(terminal, "FIXED_WIDTH", 80)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-target").symlink_to(TARGET)
    (tmp_path / "texts.jsonl").symlink_to(PROMPTS)
    for place in drafters.iterdir():
        shutil.copytree(place, tmp_path / place.name)
    return tmp_path


def lines_of(done: Outcome) -> list[str]:
    """The lines of a screen of 80 columns: one that a terminal has to break counts as several."""
    return [
        line[start : start + 80] for line in done.out.splitlines() for start in range(0, len(line) or 1, 80)
    ]


LENGTH = r"\d\.\d\d"
OTHER_LAYERS = f"{MANY} --aux-layers 1,3,4"
MISREAD = f"{MANY} --engine vllm==0.22.1"
ANSWERS = [
    ("ready", "dead", FEW, rf"pass: ready: converted {LENGTH} tokens per target step \(8 prompts, k=3\)"),
    ("smoke", "healthy", FEW, rf"pass: acceptance length {LENGTH} \[.*\] at k=3 \(8 prompts\)"),
    ("smoke", "healthy", "--prompts texts.jsonl --sample 2", rf"could not look: acceptance length {LENGTH}"),
    ("diagnose", "dead", FEW, "fail: cause in the file: a file that contradicts itself or misses tensors"),
]
SLOW = [
    ("ready", "healthy", FEW, rf"pass: ready: as stored {LENGTH} tokens per target step \(8 prompts, k=3\)"),
    (
        "ready",
        "torchspec",
        MISREAD,
        rf"pass: ready: as stored {LENGTH}, converted {LENGTH} tokens per",
    ),
    ("smoke", "torchspec", f"{OTHER_LAYERS} --probe sensitivity", rf"fail: acceptance length {LENGTH}"),
    ("diagnose", "healthy", MANY, rf"pass: healthy: nothing found \(acceptance length {LENGTH} at k=3\)"),
    (
        "diagnose",
        "torchspec",
        OTHER_LAYERS,
        rf"fail: cause in the file: .*: {LENGTH} as stated, {LENGTH} read so",
    ),
]


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("command", "name", "given", "answer"),
    [*ANSWERS, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_the_first_line_is_the_answer_and_all_is_seen_at_once(
    command: str, name: str, given: str, answer: str
) -> None:
    done = call(*shlex.split(f"{command} {name} --target my-target {RUN[command]}{given}"))
    lines = lines_of(done)
    assert re.match(answer, " ".join(lines[:2])), done.out
    assert len(lines) <= MOST[command], done.out
    has_more = any(line.startswith("more with -v: ") for line in lines[-2:])
    assert has_more or command == "ready", done.out


def test_with_v_all_is_printed() -> None:
    call_of = ("diagnose", "dead", "--target", "my-target")
    brief, whole = call(*call_of).out, call("-v", *call_of).out
    assert "  causes  1 ruled out, 22 not looked at\nmore with -v: Ruled out, Not looked at\n" in brief
    assert whole.startswith(brief.partition("more with -v")[0])
    assert "\nRuled out\n  a target of other shapes" in whole and "more with" not in whole


def test_without_a_target_the_answer_says_what_is_missing() -> None:
    lines = lines_of(call("ready", "healthy"))
    assert lines[0] == "pass: ready: as stored, acceptance not measured" and len(lines) <= MOST["ready"]
    assert "  not measured: the target's weights are not here" in lines


NEXT = re.compile(r"^next:  eaglectl ((?:.*\\\n *)*.*)$", re.MULTILINE)


class Step(NamedTuple):
    """A command, or None for the one that was printed; its exit code; the answer, and its line at most."""

    command: str | None
    ending: int
    answer: str
    line: int = 1


WALKS: dict[str, Sequence[Step]] = {
    "a trainer: vLLM accepts nothing": (
        Step("diagnose dead --target my-target", 1, r"d2t holds token ids \(0 to 511\)", 2),
        Step(None, 0, r"wrote dead-eagle3", 1),
        Step("validate dead-eagle3 --target my-target --engine vllm", 0, r"no errors", 1),
        Step(
            f"smoke dead-eagle3 --target my-target --run-in reference {FEW}",
            0,
            r"acceptance length 2\.\d\d",
        ),
    ),
    "a trainer: is last night's run any good": (
        Step("inspect runs", 3, r"step-20.*\n.*step-10"),
        Step(f"ready runs/step-20 --target my-target {FEW}", 0, r"2\.\d\d tokens per target step"),
    ),
    "a release pipeline: does it run as trained in our release": (
        Step("validate torchspec --target my-target --engine vllm==0.22.1", 1, r"1 error"),
        Step(None, 0, r"wrote \S+", 1),
        Step("validate torchspec-eagle3 --target my-target --engine vllm==0.22.1", 0, r"no errors"),
        Step("validate gone --engine vllm==0.22.1", 3, r"gone: no such file or folder", 2),
        Step("validate torchspec --engine vlm", 2, r"vllm"),
    ),
    "a trainer's maintainer: what do engines make of our files": (
        Step(
            "inspect torchspec --target my-target --engine vllm==0.22.1",
            0,
            r"reads target layers 1, 3, 4; trained on 2, 4, 5",
        ),
        Step(None, 0, r"wrote \S+"),
        Step("rules EGL1036", 0, r"vllm-aux-layers"),
        Step("engines vllm", 0, re.escape(VLLM), 14),
    ),
}


@pytest.mark.parametrize(
    "walk",
    [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("a trainer:")) for name in WALKS],
)
def test_each_step_has_its_answer_in_its_first_lines(walk: str) -> None:
    said = ""
    for step in WALKS[walk]:
        command = step.command or NEXT.findall(said)[0].replace("\\\n", " ")
        done = call(*shlex.split(command))
        said = done.out or done.err
        assert done.code == step.ending, (command, done.out, done.err)
        before = re.split(step.answer, said, maxsplit=1)[0]
        assert before != said and before.count("\n") < step.line, (command, said)
