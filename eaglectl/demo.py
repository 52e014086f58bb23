"""`eaglectl demo`: the main job on a checkout's fixtures, each step shown as the command a user would type."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from eaglectl.errors import EaglectlError, Unreadable

if TYPE_CHECKING:
    from rich.console import Console

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"

# what is shown, and the exit code that each step must have
STEPS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("A drafter from ModelOpt: its ids are nested, which vLLM's V2 runner does not read", ("inspect", "producers/modelopt/hf-ids", "--target", "target"), 0),
    ("The same, rewritten with everything stated", ("convert", "producers/modelopt/hf-ids", "--target", "target", "-o", "{out}/modelopt"), 0),
    ("Now vLLM and SGLang read the layers it was trained on", ("inspect", "{out}/modelopt", "--target", "target"), 0),
    ("An EAGLE-3.1 drafter from speculators, for SGLang", ("convert", "producers/speculators/eagle3.1", "--for", "sglang", "-o", "{out}/sglang"), 0),
    ("A SpecForge file that means two different networks: eaglectl asks", ("convert", "producers/specforge/eagle3.1", "-o", "{out}/asked"), 2),
    ("An answer, and the plan", ("convert", "producers/specforge/eagle3.1", "--source-semantics", "specforge=pre-879", "--dry-run"), 0),
    ("A head that TorchSpec's pruning broke: eaglectl refuses", ("convert", "producers/torchspec/pruned", "-o", "{out}/pruned"), 1),
    ("What a release pipeline asks", ("validate", "{out}/modelopt", "--target", "target", "--engine", "vllm>=0.24"), 0),
    ("EAGLE-3.1 without its data: eaglectl says what it needs", ("convert", "tiny/eagle3", "--to", "3.1", "-o", "{out}/asked"), 2),
    ("A trained pair at work: does it draft?", ("smoke", "tiny/eagle3", "--target", "tiny/target", "--engine", "reference", "--prompts", "tiny/prompts.jsonl", "--max-tokens", "32"), 0),
)  # fmt: skip


def run_demo(console: "Console", run: Callable[[list[str]], int]) -> None:
    """Run every step in the fixtures folder with `run`. Raises Unreadable outside a checkout, EaglectlError where a step ends otherwise than it should."""
    if not FIXTURES.is_dir():
        raise Unreadable("the demo needs the fixtures of a checkout; clone the repository and run `make demo`")
    with tempfile.TemporaryDirectory() as out, _inside(FIXTURES):
        for title, arguments, expected in STEPS:
            filled = [argument.format(out=out) for argument in arguments]
            console.print(f"\n== {title}", style="bold")
            console.print(f"$ eaglectl {' '.join(a.format(out='OUT') for a in arguments)}", style="cyan")
            code = run(filled)
            if code != expected:
                raise EaglectlError(f"the demo's step ended with {code}; {expected} was expected")
            console.print(f"(exit code {code})", style="dim")


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
