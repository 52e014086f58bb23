"""The commands of docs/trainers.md that are eaglectl's or Python's, run in their order on the trained pair.

What a trainer would write is its start here; tests/trainers runs the trainers themselves.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.builders import call
from tests.conftest import FIXTURES
from tests.tiny import TARGET, TINY, cut_prompts

PAGE = FIXTURES.parent / "docs/trainers.md"
LAYERS = {"2,16,29": "2,4,5"}
# what a command is given here only to be short, or that the page leaves to what the reader has
SHORT = {
    "calibrate": ["--device", "cpu", "--answer-tokens", "8", "--force"],
    "convert": ["--device", "cpu", "--no-gate", "--force"],
    "plain convert": ["--force"],
    "smoke": ["--device", "cpu", "--run-in", "reference", "--max-tokens", "4"],
}


def blocks() -> Iterator[str]:
    """The shell commands of the page's indented blocks, whole: continued lines and here-documents joined."""
    for block in re.findall(r"(?:^    .*\n)+", PAGE.read_text(), re.MULTILINE):
        text = re.sub(r"^    ", "", block, flags=re.MULTILINE).replace("\\\n", " ")
        yield from re.findall(r"^python - (?s:.*?)^END$|^\S.*$", text, re.MULTILINE)


def eaglectl(words: list[str]) -> None:
    verb = words[0]
    short = SHORT["plain convert" if verb == "convert" and "--to" not in words else verb]
    done = call(*(LAYERS.get(word, word) for word in words), *short)
    assert done.code in ((0, 1, 3) if verb == "smoke" else (0,)), (words, done.err)


@pytest.mark.slow
def test_the_commands_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, source in (("DRAFTER", TINY / "eagle3"), ("T", TARGET)):
        Path(name).symlink_to(source)
    for name, source in (("FILE", "calibration"), ("HELD_OUT", "gate"), ("GENERAL", "prompts")):
        Path(name).write_text(cut_prompts(f"{source}.jsonl", 6))
    ran = []
    for line in blocks():
        program, *words = shlex.split(line.partition("<<")[0])
        if program == "eaglectl":
            eaglectl(words)
        elif program == "python":
            script = re.sub("^python", shlex.quote(sys.executable), line)
            subprocess.run(["bash", "-c", script], check=True, capture_output=True)
        else:  # a trainer's: its start stands in for what it writes
            shutil.copytree("START", {"speculators": "RUNS/0"}.get(program, "TRAINED"), dirs_exist_ok=True)
        ran.append(f"{program} {words[0]}")
    assert ran.count("eaglectl convert") == 4
    assert {"eaglectl calibrate", "eaglectl smoke", "speculators train", "specforge export"} <= set(ran)
    assert Path("vocab_mapping.pt").exists()
