"""`eaglectl demo`: the main commands on the fixtures of a checkout, each shown as a user would type it."""

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from eaglectl.checkpoint.files import current_folder
from eaglectl.checkpoint.scratch import scratch_folder
from eaglectl.errors import EaglectlError, UnreadableError

if TYPE_CHECKING:
    from eaglectl.reports.terminal.console import Console

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


class Step(Struct, frozen=True):
    """A command of the demo and the exit code that it must have; OUT is a temporary folder."""

    title: str
    command: str
    exit_code: int = 0


STEPS = (
    Step(
        "A drafter from ModelOpt: its ids are nested, which vLLM's V2 runner does not read",
        "inspect producers/modelopt/hf-ids --target target",
    ),
    Step(
        "The same, rewritten with everything stated, with what only its trainer knows",
        "convert producers/modelopt/hf-ids --target target --source-semantics rope=stored"
        " --source-semantics modelopt=pre-689 -o OUT/modelopt",
    ),
    Step(
        "Now vLLM and SGLang read the layers it was trained on",
        "inspect OUT/modelopt --target target",
    ),
    Step(
        "An EAGLE-3.1 drafter from speculators, for SGLang",
        "convert producers/speculators/eagle3.1 --for sglang -o OUT/sglang",
    ),
    Step(
        "A SpecForge file that can mean two different networks: eaglectl asks",
        "convert producers/specforge/eagle3.1 -o OUT/specforge",
        exit_code=2,
    ),
    Step(
        "An answer, and the plan",
        "convert producers/specforge/eagle3.1 --source-semantics specforge=pre-879 --dry-run",
    ),
    Step(
        "A head that TorchSpec's pruning broke: eaglectl refuses",
        "convert producers/torchspec/pruned -o OUT/pruned",
        exit_code=1,
    ),
    Step(
        "The check of a release pipeline",
        "validate OUT/modelopt --target target --engine 'vllm>=0.24'",
    ),
    Step(
        "EAGLE-3.1 without its data: eaglectl names what it needs",
        "convert tiny/eagle3 --to 3.1 -o OUT/upgraded",
        exit_code=2,
    ),
    Step(
        "A trained drafter with its target: how many draft tokens are accepted?",
        "smoke tiny/eagle3 --target tiny/target --engine reference --prompts tiny/prompts.jsonl"
        " --max-tokens 32",
    ),
)


def run_demo(show: "Callable[[Callable[[Console], None]], None]", run: Callable[[list[str]], int]) -> None:
    """Run every step in the folder of the fixtures; `show` prints, `run` takes arguments and returns
    an exit code.

    Raises UnreadableError outside a checkout, EaglectlError for a step with another exit code than expected.
    """
    if not FIXTURES.is_dir():
        raise UnreadableError(
            "the demo needs the fixtures of a checkout; clone the repository and run `make demo`"
        )
    with scratch_folder() as out, _working_folder(FIXTURES):
        for step in STEPS:
            show(partial(_print_step, step=step))
            exit_code = run([word.replace("OUT", str(out), 1) for word in shlex.split(step.command)])
            if exit_code != step.exit_code:
                raise EaglectlError(
                    f"`{step.command}` ended with exit code {exit_code}; expected {step.exit_code}"
                )
            text = f"(exit code {exit_code})"
            show(partial(_print_end, text=text))


def _print_step(console: "Console", step: Step) -> None:
    console.print()
    console.print(f"== {step.title}", style="bold")
    console.print(f"$ eaglectl {step.command}", style="cyan")


def _print_end(console: "Console", text: str) -> None:
    console.print(text, style="dim")


@contextlib.contextmanager
def _working_folder(folder: Path) -> Iterator[None]:
    before = current_folder()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
