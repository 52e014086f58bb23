"""The main commands on the fixtures of the checkout, each shown as a user would type it: `make demo`."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from eaglectl.cli import run

ROOT = Path(__file__).resolve().parent.parent


class DemoCommand(Struct, frozen=True):
    """A command of the demo and the exit code that it must have; OUT is a temporary folder."""

    title: str
    command: str
    exit_code: int = 0


# few prompts of few tokens, for a demo of minutes
SMOKE = "--target TARGET --run-in reference --device cpu --prompts real/test.jsonl --sample 6 --max-tokens 32"
REAL_STEPS = (
    DemoCommand(
        "A drafter of SmolLM2 as SpecForge wrote it: it states no layers, so each engine takes its default",
        "inspect real/specforge --target TARGET",
    ),
    DemoCommand(
        "Its acceptance where an engine captures each layer one too low, without a message",
        f"smoke real/specforge {SMOKE} --aux-layers 1,14,26",
    ),
    DemoCommand(
        "Converted, so that every engine reads the layers that it was trained on",
        "convert real/specforge --target TARGET -o OUT/real",
    ),
    DemoCommand(
        "Its acceptance now, and an answer with its accepted draft tokens marked",
        f"smoke OUT/real {SMOKE} --show",
    ),
    DemoCommand("Still the same drafter", "diff real/specforge OUT/real"),
)
STEPS = (
    DemoCommand(
        "A drafter from AngelSlim: its layer ids are under a key that no engine reads",
        "inspect producers/angelslim/ids --target target",
    ),
    DemoCommand(
        "The same, rewritten with everything stated",
        "convert producers/angelslim/ids --target target -o OUT/angelslim",
    ),
    DemoCommand(
        "Now vLLM and SGLang read the layers it was trained on",
        "inspect OUT/angelslim --target target",
    ),
    DemoCommand(
        "An EAGLE-3.1 drafter from speculators, for SGLang",
        "convert producers/speculators/eagle3.1 --for sglang -o OUT/sglang",
    ),
    DemoCommand(
        "A SpecForge file that can mean two different networks: eaglectl asks",
        "convert producers/specforge/eagle3.1 -o OUT/specforge",
        exit_code=2,
    ),
    DemoCommand(
        "An answer, and the plan",
        "convert producers/specforge/eagle3.1 --source-semantics specforge=pre-879 --dry-run",
    ),
    DemoCommand(
        "A head that TorchSpec's pruning broke: eaglectl refuses",
        "convert producers/torchspec/pruned -o OUT/pruned",
        exit_code=1,
    ),
    DemoCommand(
        "The check of a release pipeline",
        "validate OUT/angelslim --target target --engine 'vllm>=0.24'",
    ),
    DemoCommand(
        "EAGLE-3.1 without its data: eaglectl names what it needs",
        "convert tiny/eagle3 --to 3.1 -o OUT/upgraded",
        exit_code=2,
    ),
    DemoCommand(
        "A trained drafter with its target: how many draft tokens are accepted?",
        "smoke tiny/eagle3 --target tiny/target --run-in reference --prompts tiny/prompts.jsonl"
        " --max-tokens 32 --show",
    ),
)


def main() -> int:
    """Run every step in the folder of the fixtures; 1 after a step with another exit code than expected.

    The real pair comes first where its target can be made from the package index.
    """
    target, reason = real_target()
    steps = STEPS if target is None else (*REAL_STEPS, *STEPS)
    print(f"TARGET is {target}" if target else f"the tiny pair alone, as the real one is not there: {reason}")
    os.chdir(ROOT / "fixtures")
    with TemporaryDirectory() as out:
        for step in steps:
            print(f"\n== {step.title}\n$ eaglectl {step.command}", flush=True)
            line = step.command.replace("TARGET", shlex.quote(str(target))).replace("OUT", shlex.quote(out))
            exit_code = run(shlex.split(line))
            print(f"(exit code {exit_code})", flush=True)
            if exit_code != step.exit_code:
                print(f"exit code {step.exit_code} was expected", file=sys.stderr)
                return 1
    return 0


def real_target() -> tuple[Path | None, str]:
    """The real target's folder, made where it is missing (30 seconds); or why it is not there."""
    ended = subprocess.run(
        [sys.executable, ROOT / "tools/real/target.py"], capture_output=True, encoding="utf-8", check=False
    )
    if ended.returncode:
        lines = ended.stderr.strip().splitlines()
        return None, lines[-1] if lines else f"tools/real/target.py ended with {ended.returncode}"
    return Path(ended.stdout.splitlines()[-1]), ""


if __name__ == "__main__":
    sys.exit(main())
