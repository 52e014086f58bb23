"""The main commands on the fixtures of the checkout, each shown as a user would type it: `make tour`."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from eaglectl.cli import run

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"


class TourCommand(Struct, frozen=True):
    """A command of the tour and the exit code that it must have."""

    title: str
    command: str
    exit_code: int = 0


# few prompts of few tokens, for a tour of minutes
SMOKE = (
    "--target smollm2 --run-in reference --device cpu --prompts real/test.jsonl --sample 6 --max-tokens 32"
)
REAL_STEPS = (
    TourCommand(
        "A drafter of SmolLM2 as SpecForge wrote it: it states no layers, so each engine takes its default",
        "inspect real/specforge --target smollm2",
    ),
    TourCommand(
        "Converted, with everything stated that it was trained on",
        "convert real/specforge --target smollm2 -o out/real",
    ),
    TourCommand(
        "Its acceptance",
        f"smoke out/real {SMOKE}",
    ),
    TourCommand("Still the same drafter", "diff real/specforge out/real --target smollm2"),
)
STEPS = (
    TourCommand(
        "A drafter from AngelSlim: its layer ids are under a key that no engine reads",
        "inspect producers/angelslim/ids --target target",
    ),
    TourCommand(
        "The same, rewritten with everything stated",
        "convert producers/angelslim/ids --target target -o out/angelslim",
    ),
    TourCommand(
        "Now vLLM and SGLang read the layers it was trained on",
        "inspect out/angelslim --target target",
    ),
    TourCommand(
        "An EAGLE-3.1 drafter from speculators, for SGLang",
        "convert producers/speculators/eagle3.1 --for sglang -o out/sglang",
    ),
    TourCommand(
        "A SpecForge file that can mean two different networks: eaglectl asks",
        "convert producers/specforge/eagle3.1 -o out/specforge",
        exit_code=2,
    ),
    TourCommand(
        "An answer, and the plan",
        "convert producers/specforge/eagle3.1 --source-semantics specforge=pre-879 --dry-run",
    ),
    TourCommand(
        "A head that TorchSpec's pruning broke: eaglectl refuses",
        "convert producers/torchspec/pruned -o out/pruned",
        exit_code=1,
    ),
    TourCommand(
        "The check of a release pipeline",
        "validate out/angelslim --target target --engine 'vllm>=0.24'",
    ),
    TourCommand(
        "EAGLE-3.1 without its data: eaglectl names what it needs",
        "convert tiny/eagle3 --to 3.1 -o out/upgraded",
        exit_code=2,
    ),
    TourCommand(
        "A trained drafter with its target: how many draft tokens are accepted?",
        "smoke tiny/eagle3 --target tiny/target --run-in reference --prompts tiny/prompts.jsonl"
        " --max-tokens 32",
    ),
)


def main() -> int:
    """Run every step beside links to the fixtures; 1 after a step with another exit code than expected.

    The real pair comes first where its target can be made from the package index.
    """
    target, reason = real_target()
    steps = STEPS if target is None else (*REAL_STEPS, *STEPS)
    print(f"smollm2 is {target}" if target else f"without the real pair: {reason}")
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        for place in FIXTURES.iterdir():
            Path(place.name).symlink_to(place)
        if target is not None:
            Path("smollm2").symlink_to(target)
        for step in steps:
            print(f"\n== {step.title}\n$ eaglectl {step.command}", flush=True)
            exit_code = run(shlex.split(step.command))
            print(f"(exit code {exit_code})", flush=True)
            if exit_code != step.exit_code:
                print(f"exit code {step.exit_code} was expected", file=sys.stderr)
                return 1
        os.chdir(ROOT)
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
