"""What `smoke` costs on the real pair beside transformers' `generate`: ratios of CPU seconds, and peaks.

    python -m benchmarks.real [RUN ...]     fifteen minutes of one core

Each run is a process of its own with one thread. `generate` answers the 40 chats of fixtures/real/test.jsonl
in batches of 8 of similar length, float32, 64 new tokens. Loading the target is left out of CPU seconds,
but for `commands`, whole processes.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import ROOT, eaglectl

REAL = ROOT / "fixtures/real"
DRAFTER = REAL / "speculators"
NEW_TOKENS, BATCH, K = 64, 8, 3
LONG, LONG_CHATS = 1000, 3  # as many as one batch holds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help=f"of {', '.join(RUNS)}, commands; all where none is given"
    )
    parser.add_argument("--child", choices=RUNS)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tools/real"))
    from target import cache_folder, make_target

    target = make_target(cache_folder())
    if options.child:
        for part, cpu in RUNS[options.child](target):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
            print(json.dumps({"part": part, "cpu": cpu, "peak": peak}), flush=True)
        return
    print("| run | CPU s | / `generate` | peak MB |\n|---|---|---|---|")
    plain = None
    for run in dict.fromkeys(["generate", *(options.runs or [*RUNS, "commands"])]):
        for row in commands(target) if run == "commands" else in_child(run):
            plain = plain or row["cpu"]
            print(
                f"| {row['part']} | {row['cpu']:.1f} | {row['cpu'] / plain:.2f} | {row['peak']:,.0f} |",
                flush=True,
            )


def in_child(run: str) -> Iterator[dict[str, Any]]:
    """The parts of one run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.real", "--child", run]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    output = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return (json.loads(line) for line in output.splitlines() if line.startswith("{"))


def generate(target: Path) -> Iterator[tuple[str, float]]:
    """transformers alone."""
    import torch

    from eaglectl.reference.speculation import pad_left
    from eaglectl.reference.target_model import load_target

    model = load_target(target, (), dtype="float32", device="cpu").model
    texts = sorted(tokens_of(target), key=len)
    start = time.process_time()
    for place in range(0, len(texts), BATCH):
        tokens, _, valid = pad_left(texts[place : place + BATCH], torch.device("cpu"))
        model.generate(tokens, attention_mask=valid.long(), do_sample=False, max_new_tokens=NEW_TOKENS)
    yield "`generate`, batch of 8", time.process_time() - start


def smoke(target: Path) -> Iterator[tuple[str, float]]:
    """Both passes over the chats."""
    from eaglectl.run.job import Stage
    from eaglectl.run.measurement import measure

    with job_of(target, tokens_of(target)) as job:
        stage = Stage(job)
    start = time.process_time()
    counts = measure(stage.run(stage.drafter))
    middle = time.process_time()
    stage.run(None)
    end = time.process_time()
    print(f"{counts.drafts} drafts, length {counts.length.value:.4f}", file=sys.stderr)
    yield "`smoke`, the drafted pass", middle - start
    yield "`smoke`, the plain pass", end - middle
    yield "`smoke`, both passes", end - start


def long_smoke(target: Path) -> Iterator[tuple[str, float]]:
    """Both passes over prompts of 1,000 tokens: the chats one after the other."""
    from eaglectl.run.job import run_reference

    row = [token for tokens in tokens_of(target) for token in tokens] * 3
    texts = [row[place * LONG : (place + 1) * LONG] for place in range(LONG_CHATS)]
    with job_of(target, texts) as job:
        start = time.process_time()
        run_reference(job)
    yield f"`smoke` of {LONG_CHATS} prompts of {LONG:,} tokens, with loading", time.process_time() - start


def commands(target: Path) -> Iterator[dict[str, Any]]:
    """Whole commands on SpecForge's drafter, with loading: what a user waits for."""
    pair, chats = ("--target", target, "--device", "cpu"), ("--prompts", REAL / "test.jsonl")
    with TemporaryDirectory() as name:
        statistics, out = Path(name) / "statistics", Path(name) / "out"
        upgrade = ("--to", "3.1", "--calibration", statistics, *chats, "-o", out)
        rows: dict[str, tuple[str | Path, ...]] = {
            "calibrate": ("--prompts", REAL / "calibration.jsonl", "-o", statistics),
            "convert": upgrade,
            "smoke": chats,
            "smoke --probe sensitivity": (*chats, "--probe", "sensitivity"),
            "diagnose": (*chats, "--max-tokens", "32"),
        }
        os.environ["OMP_NUM_THREADS"] = "1"
        for words, options in rows.items():
            command, *more = words.split()
            took = eaglectl(command, REAL / "specforge", *more, *pair, *options)
            yield {"part": f"`{words}`", "cpu": took.cpu, "peak": took.peak}


RUNS = {"generate": generate, "smoke": smoke, "long": long_smoke}


def tokens_of(target: Path) -> list[list[int]]:
    """The test chats in the target's template."""
    from eaglectl.reference.target_model import load_tokenizer
    from eaglectl.run.job import token_ids
    from eaglectl.run.prompts import read_prompts

    tokenizer = load_tokenizer(target)
    return [token_ids(tokenizer, prompt) for prompt in read_prompts(REAL / "test.jsonl")]


@contextmanager
def job_of(target: Path, texts: list[list[int]]) -> Iterator[Any]:
    """What `smoke` runs, for as long as the drafter in vLLM's layout is there."""
    import eaglectl
    from eaglectl.api.convert import ConvertOptions
    from eaglectl.run.job import EngineJob
    from eaglectl.run.prompts import Prompt

    prompts = tuple(Prompt("", token_ids=tuple(text)) for text in texts)
    with TemporaryDirectory() as name:
        folder = Path(name) / "drafter"
        plan = eaglectl.convert(str(DRAFTER), folder, ConvertOptions(target=str(target))).plan
        yield EngineJob(folder, plan.drafter, target, prompts, k=K, max_tokens=NEW_TOKENS, device="cpu")


if __name__ == "__main__":
    main()
