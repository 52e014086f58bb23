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
from tests.tiny import TARGET, TINY

PAGE = FIXTURES.parent / "docs/trainers.md"


def blocks() -> Iterator[str]:
    """The shell commands of the page's indented blocks, whole: continued lines and here-documents joined."""
    for block in re.findall(r"(?:^    .*\n)+", PAGE.read_text(), re.MULTILINE):
        text = re.sub(r"^    ", "", block, flags=re.MULTILINE).replace("\\\n", " ")
        yield from re.findall(r"^python - (?s:.*?)^END$|^\S.*$", text, re.MULTILINE)


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh folder with what the page names: a drafter, its target, and a hundred prompts of each kind."""
    monkeypatch.chdir(tmp_path)
    for name, source in (("DRAFTER", TINY / "eagle3"), ("T", TARGET)):
        Path(name).symlink_to(source)
    for name, source in (("FILE", "calibration"), ("HELD_OUT", "gate"), ("GENERAL", "calibration")):
        shutil.copy(TINY / f"{source}.jsonl", name)
    return tmp_path


def outputs_of(line: str) -> list[str]:
    words = shlex.split(line.partition("<<")[0])
    return [words[words.index("-o") + 1]] if words[0] == "eaglectl" and "-o" in words else []


def test_no_command_of_the_page_writes_what_an_earlier_one_wrote() -> None:
    written = [name for line in blocks() for name in outputs_of(line)]
    assert len(written) == len(set(written)) > 4 and not any("--force" in line for line in blocks())


@pytest.mark.minutes
@pytest.mark.slow  # fast: the one above, and tests/test_readme.py, which parses the page's commands
def test_the_commands_of_the_page_end_as_it_says_in_their_order(page_folder: Path) -> None:
    """As they stand, with no option more; of a trainer's, its start stands in for what it writes."""
    ran, start = [], ""
    for line in blocks():
        program, *words = shlex.split(line.partition("<<")[0])
        if program == "eaglectl":
            done = call(*words)
            assert done.code == 0, (line, done.out[:300], done.err)
            start = next((name for name in outputs_of(line) if name.startswith("START")), start)
        elif program == "python":
            script = re.sub("^python", shlex.quote(sys.executable), line)
            subprocess.run(["bash", "-c", script], check=True, capture_output=True)
        else:
            shutil.copytree(start, {"speculators": "RUNS/0"}.get(program, "TRAINED"), dirs_exist_ok=True)
        ran.append(f"{program} {words[0]}")
    assert ran.count("eaglectl convert") == 4
    assert {"eaglectl calibrate", "eaglectl smoke", "speculators train", "specforge export"} <= set(ran)
    assert Path("vocab_mapping.pt").exists()
