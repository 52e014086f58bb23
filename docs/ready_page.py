"""docs/ready.md: `ready` alone on one fixture of each producer, and on the trained pair."""

import os
import subprocess
import sys
from pathlib import Path

import eaglectl

PAGE = Path(__file__).with_name("ready.md")
ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "fixtures"
TINY = "fixtures/tiny"
QUESTION = 2
HEAD = """# From a trainer's folder to a serving command

`eaglectl ready SOURCE --target TARGET` says in one call whether a drafter can be served: what it is, what
engines do with it as stored, what is left open and what measuring says of it, the conversion where one is
needed, validated and measured on the same prompts, and in the last line how to start it. `-o OUT` keeps the
conversion; without it, it is measured in a temporary folder, and the last line has the command that writes
it.

* `--engine vllm --engine sglang==0.5.23`: each that is named has to serve it. Left out: those installed
  here, else the newest vLLM and SGLang, of which one is enough. An installed vLLM or SGLang runs the files
  itself. For one that is not, eaglectl's reference stands in where that engine runs the files as trained, or
  differs by what it reads alone (layers, their order, a norm switch, the rope base): then as it reads them.
  The URL of a running server measures what it serves, and adds no other engine. llama.cpp is not run: the
  last line has the commands that start `llama-server`, and the one that [measures it there](llama-cpp.md).
* Where prompts do not tell "as stored" from "converted", the last line says how many would; `gain` in JSON is
  their ratio, paired by prompt.
* Exit codes: 0 ready, 1 not ready (the last line says why, `diagnose` the cause of low acceptance), 2 a
  question, 3 could not look: a server that cannot be reached, prompts that cannot be read, a damaged target.
  Without torch or the target's weights, acceptance is said not to be measured.
* `--like vllm-mt-bench` sets prompts, tokens and temperature as a published figure has them, and shows
  [what others reach](acceptance.md); `--prompts` takes your own traffic or [a named set](smoke.md).
* The steps and what they take are said before they begin. What was measured is kept in `eaglectl/runs` below
  `XDG_CACHE_HOME` (or `~/.cache`), the last 100 runs: a call that is repeated with the same files, options
  and releases takes it from there and says so; `--no-reuse` measures again. Without `-o` the conversion is
  made again, as its digest shows that its run may be reused: 2.6 s for 1.9 GB.
* `--page FILE.html` or `FILE.svg` and `--markdown FILE.md` write the result for a browser, as one image, and
  for a card or a pull request.
* `--json` is [the document](../schemas/ready.schema.json); in Python `eaglectl.ready(source, target, out,
  ReadyOptions(...))`.

## In the engines themselves

The trained pair of `fixtures/tiny` as other trainers write it, 24 built-in prompts of 64 tokens (llama.cpp: 6
of 32), k=3, with the engine's own counts (`tests/engine`). vLLM's V1 runner,
which it takes on CPUs, captures TorchSpec's ids one layer early, and SGLang takes nested ids for outputs.
[The real pair](real-pair.md) too.

| engine | stored as | as stored | its counts | converted | its counts |
|---|---|---|---|---|---|
| vLLM 0.32.0, CPU | TorchSpec | 2.38 | 895 accepted in 647 drafts | 2.72 | 979 in 569 |
| SGLang 0.5.23, CPU | nested boundaries | 2.12 | 815 in 729 | 2.72 | 979 in 569 |
| llama.cpp 0.3.36, `llama-server` | Automodel | not read | | 2.49 (reference: 2.58) | 110 in 74 (120 in 76) |

## Each producer

Written by `make docs`: `ready` on one fixture of each producer (no target's weights are there, so nothing
is measured), then on the trained pair. One command each; questions are those that the files leave open.

| fixture | commands | questions | exit code | last line |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    folders = sorted(path for path in (FIXTURES / "producers").iterdir() if any(path.glob("*/config.json")))
    rows = [row(first_case(folder)) for folder in folders]
    pair = row(FIXTURES / "tiny/eagle3", "--target", f"{TINY}/target", "--device", "cpu", "--no-reuse")
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
    text = lines[-1].replace("|", "\\|").removeprefix("eaglectl: ")
    questions = len(eaglectl.inspect(folder).drafter.unsettled) if code == QUESTION else 0
    return f"| `{source}` | 1 | {questions} | {code} | {text} |"
