"""docs/ready.md: `ready` alone on one fixture of each producer, and on the trained pair."""

import os
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("ready.md")
ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "fixtures"
TINY = "fixtures/tiny"
HEAD = """# From a trainer's folder to a serving command

`eaglectl ready SOURCE --target TARGET` says in one call whether a drafter can be served: what it is, what
engines do with it as stored, what is left open and what measuring says of it, the conversion where one is
needed, validated and measured on the same prompts, and in the last line how to start it. `-o OUT` keeps the
conversion; without it, it is measured in a temporary folder, and the last line has the command that writes
it.

* `--engine vllm --engine sglang==0.5.23`: each that is named has to serve it. Left out: those installed
  here, else the newest vLLM and SGLang, of which one is enough. An installed vLLM or SGLang runs the files
  itself; for one that is not installed, eaglectl's reference stands in, and only where that engine runs the
  files as trained. The URL of a running server measures what it serves.
* Exit codes: 0 ready, 1 not ready (the last line says why, `diagnose` the cause of low acceptance), 2 a
  question, 3 could not look.
* `--like vllm-mt-bench` sets prompts, tokens and temperature as a published figure has them, and shows
  [what others reach](acceptance.md); `--prompts` takes your own traffic or [a named set](smoke.md).
* `--json` is [the document](../schemas/ready.schema.json); in Python `eaglectl.ready(source, target, out,
  ReadyOptions(...))`.

Written by `make docs`: `ready` on one fixture of each producer (no target's weights are there, so nothing
is measured), then on the trained pair.

| fixture | exit code | last line |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    folders = sorted(path for path in (FIXTURES / "producers").iterdir() if any(path.glob("*/config.json")))
    rows = [_row(_first_case(folder)) for folder in folders]
    pair = _row(FIXTURES / "tiny/eagle3", "--target", f"{TINY}/target", "--device", "cpu")
    return HEAD + "\n".join([*rows, pair, ""])


def _first_case(folder: Path) -> Path:
    return min(path.parent for path in folder.glob("*/config.json"))


def _row(folder: Path, *options: str) -> str:
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
    text = lines[-1].replace("|", "\\|").removeprefix("eaglectl: ")
    return f"| `{source}` | {code} | {text} |"
