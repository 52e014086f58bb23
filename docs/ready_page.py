"""docs/reference/ready.md: `ready` alone on one fixture of each producer, and on the trained pair."""

import os
import subprocess
import sys
from pathlib import Path

import eaglectl

PAGE = Path(__file__).with_name("reference") / "ready.md"
ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "fixtures"
TINY = "fixtures/tiny"
QUESTION = 2
HEAD = """# `eaglectl ready` on each producer

Written by `make docs`: `ready` on one fixture of each producer (without the target's weights, so nothing
is measured), then on the trained pair. "Questions" lists what the files leave open.

| fixture | questions | exit code | last line |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    folders = sorted(path for path in (FIXTURES / "producers").iterdir() if any(path.glob("*/config.json")))
    rows = [row(first_case(folder)) for folder in folders]
    pair = row(FIXTURES / "tiny/eagle3", "--target", f"{TINY}/target", "--device", "cpu")
    return HEAD + "\n".join([*rows, pair, ""])


def first_case(folder: Path) -> Path:
    """The fixture of a producer that the page shows."""
    return min(path.parent for path in folder.glob("*/config.json"))


def row(folder: Path, *options: str) -> str:
    """The row of a fixture."""
    source = str(folder.relative_to(ROOT))
    done = subprocess.run(
        [sys.executable, "-m", "eaglectl", "-q", "ready", source, *options],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    code = done.returncode
    lines = (done.stdout or done.stderr).splitlines()
    text = lines[-1].strip().replace("|", "\\|").removeprefix("eaglectl: ")
    questions = len(eaglectl.inspect(folder).drafter.unsettled) if code == QUESTION else 0
    return f"| `{source}` | {questions} | {code} | {text} |"
