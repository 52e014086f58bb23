"""What runs models: smoke on the tiny pair, calibrate and convert with its gate, and the refit at the width
of an 8B target.

    python -m benchmarks.models [--tokens 123000] [--width 4096]

The refit runs on synthetic states: gram and cross sums over that many tokens, then the solve, each with its
peak memory.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.measure import ROOT, eaglectl, report

TINY = ROOT / "fixtures/tiny"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=123_000)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':<48}{'median':>9}{'min':>9}{'max':>9}  budget")
    with tempfile.TemporaryDirectory() as name:
        measure_tiny(Path(name), options.repeat)
    measure_refit(options.tokens, options.width)


def measure_tiny(folder: Path, repeat: int) -> None:
    twenty = folder / "twenty.jsonl"
    twenty.write_text("".join((TINY / "gate.jsonl").read_text().splitlines(keepends=True)[:20]))
    pair = [TINY / "eagle3", "--target", TINY / "target"]
    smoke = [
        "smoke",
        *pair,
        "--run-in",
        "reference",
        "--device",
        "cpu",
        "--prompts",
        twenty,
        "--max-tokens",
        "64",
    ]
    report(
        "smoke, 20 prompts of 64 tokens, k=3, s", [eaglectl("-q", *smoke).seconds for _ in range(repeat)], 10
    )
    prompts = ["--prompts", TINY / "calibration.jsonl"]
    upgrade = [
        "convert",
        *pair,
        "--to",
        "3.1",
        "--calibration",
        folder / "stats",
        "--prompts",
        TINY / "gate.jsonl",
    ]
    both = []
    for _ in range(repeat):
        calibrated = eaglectl("-q", "calibrate", *pair, *prompts, "-o", folder / "stats", "--force")
        converted = eaglectl("-q", *upgrade, "-o", folder / "out", "--force")
        both.append(calibrated.seconds + converted.seconds)
    report("calibrate, convert and gate (120 prompts), s", both, 60)


def measure_refit(tokens: int, width: int) -> None:
    import torch

    from eaglectl.drafter.drafter import Norms, Rope
    from eaglectl.drafter.tensors import Dimensions
    from eaglectl.reference.model import DraftModel
    from eaglectl.reference.states import CHUNK, add_moments, mirror_upper, normed_chunks, solve_ridge

    dims = Dimensions(width, width, 3, 1, 1, 1, 1, 1, 1, 2)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weights = {"fc.weight": torch.randn(width, 3 * width, device=device) * (3 * width) ** -0.5}
    drafter = DraftModel(
        weights, dims, Norms(False, False, False, False), Rope(1e4, None, is_interleaved=False), 1e-6
    )
    states = torch.randn(CHUNK, 3 * width, device=device)
    gram = torch.zeros(3 * width, 3 * width, dtype=torch.float64, device=device)
    cross = torch.zeros(width, 3 * width, dtype=torch.float64, device=device)
    start = time.perf_counter()
    for _ in range(-(-tokens // CHUNK)):
        for plain, normed in normed_chunks(states, drafter):
            add_moments(gram, cross, plain, normed, drafter, (1.0, 1.0, 1.0))
        states = states.roll(1, 0).mul_(0.999)
    mirror_upper(gram)
    middle, summed = time.perf_counter(), peak(device)
    prior = weights["fc.weight"].double()
    solve_ridge(gram, cross, prior, 1e-2)
    end = time.perf_counter()
    report(f"gram of {tokens} tokens, width {width}, s", [middle - start])
    report("the same, peak GB", [summed], 4)
    report("solve, s", [end - middle], 60)
    report("with the solve, peak GB", [peak(device)])


def peak(device: str) -> float:
    import torch

    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
