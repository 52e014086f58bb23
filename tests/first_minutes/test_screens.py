"""What `ready`, `smoke` and `diagnose` show at 80 columns: the answer first, and no more than a screen."""

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file

import eaglectl
from eaglectl import terminal
from tests.builders import Outcome, call
from tests.tiny import PROMPTS, TARGET, TINY

FEW = ("--prompts", PROMPTS, "--sample", "8", "--max-tokens", "16", "--device", "cpu")
MANY = ("--prompts", PROMPTS, "--max-tokens", "24", "--device", "cpu")
RUN = {"ready": (), "smoke": ("--run-in", "reference"), "diagnose": ()}
# lines that each command may have: its answer is seen without scrolling
MOST = {"ready": 16, "smoke": 14, "diagnose": 20}


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny drafter: as it is, in a layout whose ids vLLM 0.22.1 reads otherwise, and with d2t as ids."""
    folder = tmp_path_factory.mktemp("drafters")
    places = {name: folder / name for name in ("healthy", "layers", "dead")}
    for name in ("healthy", "dead"):
        shutil.copytree(TINY / "eagle3", places[name])
    eaglectl.convert(str(TINY / "eagle3"), places["layers"], target=str(TARGET), layout="torchspec")
    stored = load_file(places["dead"] / "model.safetensors")
    ids = stored["t2d"].nonzero()[:, 0]
    save_file(stored | {"d2t": ids}, places["dead"] / "model.safetensors", {"format": "pt"})
    return places


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user's folder, on a screen of 80 columns."""
    monkeypatch.setattr(terminal, "FIXED_WIDTH", 80)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-target").symlink_to(TARGET)
    return tmp_path


def lines_of(done: Outcome) -> list[str]:
    """The lines of a screen of 80 columns: one that a terminal has to break counts as several."""
    return [
        line[start : start + 80] for line in done.out.splitlines() for start in range(0, len(line) or 1, 80)
    ]


LENGTH = r"\d\.\d\d"
OTHER_LAYERS = (*MANY, "--aux-layers", "1,3,4")
MISREAD = (*MANY, "--engine", "vllm==0.22.1")
ANSWERS = [
    ("ready", "healthy", FEW, rf"ready  as stored {LENGTH} tokens per target step \(8 prompts, k=3\)"),
    ("ready", "dead", FEW, rf"ready  converted {LENGTH} tokens per target step \(8 prompts, k=3\)"),
    ("smoke", "healthy", FEW, rf"pass  acceptance length {LENGTH} \[.*\] at k=3 \(8 prompts\)"),
    ("smoke", "healthy", (*FEW[:3], "2"), rf"could-not-look  acceptance length {LENGTH}"),
    ("diagnose", "dead", FEW, "cause in the file  a file that contradicts itself or misses tensors"),
]
SLOW = [
    ("ready", "layers", MISREAD, rf"ready  as stored {LENGTH}, converted {LENGTH} tokens per target step"),
    ("smoke", "layers", (*OTHER_LAYERS, "--probe", "sensitivity"), rf"fail  acceptance length {LENGTH}"),
    ("diagnose", "healthy", MANY, rf"healthy  nothing found \(acceptance length {LENGTH} at k=3\)"),
    ("diagnose", "layers", OTHER_LAYERS, rf"cause in the file  .*: {LENGTH}, and {LENGTH} read so"),
]


@pytest.mark.parametrize(
    ("command", "name", "given", "answer"),
    [*ANSWERS, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_the_first_line_is_the_answer_and_all_is_seen_at_once(
    command: str, name: str, given: tuple[str, ...], answer: str, drafters: dict[str, Path], folder: Path
) -> None:
    (folder / "my-drafter").symlink_to(drafters[name])
    done = call(command, "my-drafter", "--target", "my-target", *RUN[command], *given)
    lines = lines_of(done)
    assert re.match(answer, " ".join(lines[:2])), done.out
    assert len(lines) <= MOST[command], done.out
    assert lines[-1].startswith("more with -v: ") or lines[-2].startswith("more with -v: "), done.out


def test_with_v_all_is_printed(drafters: dict[str, Path]) -> None:
    call_of = ("diagnose", drafters["dead"], "--target", "my-target")
    brief, whole = call(*call_of).out, call("-v", *call_of).out
    assert "  causes  1 ruled out, 20 not looked at\nmore with -v: Ruled out, Not looked at\n" in brief
    assert whole.startswith(brief.partition("more with -v")[0])
    assert "\nRuled out\n  a target of other shapes" in whole and "more with" not in whole


def test_without_a_target_the_answer_says_what_is_missing(drafters: dict[str, Path]) -> None:
    lines = lines_of(call("ready", drafters["healthy"]))
    assert lines[0] == "ready  as stored, acceptance not measured" and len(lines) <= MOST["ready"]
    assert "  not measured: the target's weights are not here" in lines
