"""Code blocks of README.md and of the pages of docs/: commands with their output, and commands alone."""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from eaglectl import terminal
from eaglectl.cli import run

DOCS = Path(__file__).parent
ROOT = DOCS.parent
# a command of eaglectl and what it prints
OUTPUT = re.compile(r"```\n\$ eaglectl (.*?)\n(.*?)```", re.DOTALL)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
# their figures differ in the last digits from machine to machine
RUNS_MODELS = frozenset({"smoke", "calibrate", "--to"})
# what a command prints beside its result: its steps, the time left, and how many prompts would tell
PROGRESS = re.compile(r"(?m)^(eaglectl: 1 .*|\w+ takes about .* more)\n")
# columns of the terminal whose output is shown
WIDTH = 160
# pages whose commands run elsewhere: generated ones, and that of tests/test_train_on_page.py
ELSEWHERE = frozenset({"commands.md", "rules.md", "trainers.md"})


def pages() -> list[Path]:
    """README.md and every page whose blocks `make docs` and tests/test_readme.py run."""
    return [ROOT / "README.md", *(path for path in sorted(DOCS.glob("*.md")) if path.name not in ELSEWHERE)]


def shell_commands(text: str) -> Iterator[str]:
    """The commands of a page that stand without output, one a line, continued lines joined."""
    blocks = [block for language, block in FENCE.findall(text) if language in ("", "sh")]
    blocks += [re.sub("^    ", "", block, flags=re.M) for block in INDENTED.findall(FENCE.sub("", text))]
    for block in blocks:
        if not block.startswith("$ "):
            yield from (line for line in block.replace("\\\n", " ").splitlines() if line.strip())


def link_checkout(folder: Path) -> None:
    """Link what the checkout holds into a folder in which the blocks of a page run, and write to OUT."""
    for entry in ROOT.iterdir():
        (folder / entry.name).symlink_to(entry)


def printed(command: str) -> str:
    """What a command of a page prints in this folder; it writes over what stands in OUT."""
    words = shlex.split(command)
    text, width = io.StringIO(), terminal.FIXED_WIDTH
    terminal.FIXED_WIDTH = WIDTH
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            run(words + ["--force"] * (words[0] == "convert" and "OUT" in words))
    finally:
        terminal.FIXED_WIDTH = width
    return PROGRESS.sub("", text.getvalue())
