"""How often the intervals of `smoke` hold the truth, by the number of prompts, beside a bootstrap's.

    python benchmarks/intervals.py [--samples 2000]
    python benchmarks/intervals.py --measure
    python benchmarks/intervals.py --gate
    python benchmarks/intervals.py --estimators

Prompts are drawn from the 240 of fixtures/tiny, whose drafts and accepted drafts (k=3, 64 new tokens) are in
tests/prompt_counts.json; the truth is the value over all of them. `--measure` writes that file again (in
some minutes). `--gate` runs both drafters once as the gate does, and compares the ratio of drafts from
every position with that of rounds: how wide the intervals are, and how often they hold their truths.
`--estimators` does so on every seventh prompt, and says how far other estimators of the ratio are spread.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import eaglectl  # noqa: E402
from eaglectl.run.gate import judge_ratio  # noqa: E402
from eaglectl.run.measurement import Estimate, PromptResult, measure, ratio  # noqa: E402
from eaglectl.run.probes import Drafts  # noqa: E402
from eaglectl.verdicts import GateEnding  # noqa: E402

TINY, COUNTS = ROOT / "fixtures/tiny", ROOT / "tests/prompt_counts.json"
FILES = ("prompts.jsonl", "gate.jsonl", "calibration.jsonl")
DRAFTERS = ("eagle3", "eagle3.1")
SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 40)
RESAMPLES = 500
Prompts = Sequence[PromptResult]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--gate", action="store_true")
    parser.add_argument("--estimators", action="store_true")
    options = parser.parse_args()
    if options.estimators:
        compare_estimators()
        return
    if options.gate:
        compare_positions(options.samples)
        return
    if options.measure:
        write_counts()
    counts = json.loads(COUNTS.read_text())
    first, second = (
        [PromptResult("", row[0], tuple(row[1:]), ()) for row in counts[name]] for name in DRAFTERS
    )
    length, position = measure(first).length.value, measure(first).per_position[2].value
    quotient = ratio(second, first).value
    print("| prompts | length | position 2 | ratio | length, bootstrap | ratio, bootstrap |")
    print("|---|---|---|---|---|---|")
    for size in SIZES:
        random = np.random.default_rng(size)
        drawn = [random.integers(0, len(first), size) for _ in range(options.samples)]
        pairs = [([first[i] for i in rows], [second[i] for i in rows]) for rows in drawn]
        measured = [measure(one) for one, _ in pairs]
        resamples = random.integers(0, size, (RESAMPLES, size))
        shares = [
            covered((one.length for one in measured), length),
            covered((one.per_position[2] for one in measured), position),
            covered((ratio(other, one) for one, other in pairs), quotient),
            covered((bootstrapped(resamples, one) for one, _ in pairs), length),
            covered((bootstrapped(resamples, other, one) for one, other in pairs), quotient),
        ]
        print(f"| {size} | {' | '.join(f'{share:.1%}' for share in shares)} |", flush=True)


def compare_positions(samples: int) -> None:
    """Print width and coverage of the gate's two ratios, and how often they end in kept, by prompts.

    Kept is wrong where the bar is the truth of both ratios (a bar above them is missed more often), and right
    where the bar is 3 % below it; "rounds" judges by that ratio alone, "both" as the gate does.
    """
    rounds, runs = gate_runs()
    positions = runs[0].at_starts, runs[1].at_starts
    heads = (
        "rounds: width",
        "held",
        "every position: width",
        "held",
        "wrong: rounds",
        "both",
        "right: rounds",
    )
    print(f"| prompts | {' | '.join((*heads, 'both'))} |")
    print("|---|---|---|---|---|---|---|---|---|")
    truths = [ratio(new, old).value for old, new in (rounds, positions)]
    for size in SIZES:
        random = np.random.default_rng(size)
        drawn = [random.integers(0, len(rounds[0]), size) for _ in range(samples)]
        cells, sides = [], []
        for (old, new), truth in zip((rounds, positions), truths, strict=True):
            estimates = [ratio([new[i] for i in rows], [old[i] for i in rows]) for rows in drawn]
            width = np.median([estimate.high - estimate.low for estimate in estimates])
            cells += [f"{width:.3f}", f"{covered(estimates, truth):.1%}"]
            sides.append([relative(estimate, truth) for estimate in estimates])
        for bar in (1.0, 0.97):
            alone = [estimate.low >= bar for estimate in sides[0]]
            pairs = zip(*sides, strict=True)
            both = [judge_ratio(own, verified, bar) == GateEnding.KEPT for verified, own in pairs]
            cells += [f"{sum(kept) / samples:.1%}" for kept in (alone, both)]
        print(f"| {size} | {' | '.join(cells)} |", flush=True)


def compare_estimators() -> None:
    """Print how far the logarithm of the ratio is spread over prompts, by several estimators of it.

    The width of an interval is in proportion. Where prompts differed from each other, the two halves of an
    answer would differ less than prompts do; where they do not, longer answers narrow as more prompts do.
    """
    (old, new), runs = gate_runs(every=7)
    pairs = [pair for pair in zip(*(run.matches for run in runs), strict=True) if len(pair[0]) > 1]
    lengths = [1 + float(np.concatenate(side).mean()) for side in zip(*pairs, strict=True)]
    changes = [(1 + after) / lengths[1] - (1 + before) / lengths[0] for before, after in pairs]
    starts = float(np.mean([len(change) for change in changes]))
    middles = [(change, len(change) // 2) for change in changes]
    halves = np.array([change[:place].sum() - change[place:].sum() for change, place in middles])
    drafts = [np.array([(one.drafts, sum(one.accepted)) for one in side]).T for side in (old, new)]
    means = [accepted.sum() / count.sum() for count, accepted in drafts]
    sides = [
        (accepted - mean * count) / (count.mean() * (1 + mean))
        for (count, accepted), mean in zip(drafts, means, strict=True)
    ]
    ratios = [np.log((1 + after).mean() / (1 + before).mean()) for before, after in pairs]
    spreads = {
        "rounds of draft-and-verify": float((sides[1] - sides[0]).std(ddof=1)),
        "every position": float(np.std([change.sum() / starts for change in changes], ddof=1)),
        "every position, the mean of the prompts' logarithms": float(np.std(ratios, ddof=1)),
        "every position, were they independent": float(
            np.sqrt(np.mean([len(change) * change.var() for change in changes])) / starts
        ),
        "halves of an answer against each other": float(np.sqrt(np.mean(halves**2)) / starts),
    }
    for name, spread in spreads.items():
        print(f"| {name} | {spread:.3f} |")


def gate_runs(every: int = 1) -> tuple[tuple[Prompts, Prompts], list[Drafts]]:
    """Both drafters' rounds, and their drafts from every position, on the prompts of the trained pair."""
    from eaglectl.run.job import EngineJob, Stage
    from eaglectl.run.probes import FirstPass
    from eaglectl.run.prompts import read_prompts

    prompts = tuple(prompt for name in FILES for prompt in read_prompts(TINY / name))[::every]
    with tempfile.TemporaryDirectory() as name:
        plans = [
            eaglectl.convert(
                str(TINY / drafter),
                Path(name) / drafter,
                eaglectl.ConvertOptions(target=str(TINY / "target"), measure=None),
            ).plan
            for drafter in DRAFTERS
        ]
        jobs = [
            EngineJob(Path(name) / drafter, plan.drafter, TINY / "target", prompts, device="cpu")
            for drafter, plan in zip(DRAFTERS, plans, strict=True)
        ]
        stage = Stage(jobs[0])
        models = [stage.drafter, stage.load(jobs[1].folder, jobs[1].drafter)]
    old, new = (stage.run(model) for model in models)
    first = FirstPass(stage, stage.boundaries, old)
    return (old, new), [first.run(model, stage.boundaries) for model in models]


def relative(estimate: Estimate, truth: float) -> Estimate:
    """An estimate over its truth."""
    return Estimate(estimate.value / truth, estimate.low / truth, estimate.high / truth)


def covered(estimates: Iterable[Estimate], truth: float) -> float:
    """The share of intervals that hold the truth."""
    held = [estimate.low <= truth <= estimate.high for estimate in estimates]
    return sum(held) / len(held)


def bootstrapped(resamples: "np.ndarray[tuple[int, int], np.dtype[np.int64]]", *sides: Prompts) -> Estimate:
    """The percentile bootstrap over prompts of a length, or of the ratio of two."""
    values = np.ones(len(resamples))
    for side, power in zip(sides, (1, -1), strict=False):
        drafts = np.array([result.drafts for result in side])[resamples].sum(1)
        accepted = np.array([sum(result.accepted) for result in side])[resamples].sum(1)
        values *= (1 + accepted / drafts) ** power
    low, high = np.quantile(values, (0.025, 0.975))
    return Estimate(float(values.mean()), float(low), float(high))


def write_counts() -> None:
    """Measure both drafters on all prompts of the trained pair."""
    counts = {}
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        prompts.write_text("".join((TINY / name).read_text() for name in FILES))
        for name in DRAFTERS:
            options = eaglectl.SmokeOptions(
                run_in="reference", device="cpu", prompts=prompts, ignore_eos=True
            )
            report = eaglectl.smoke(str(TINY / name), str(TINY / "target"), options)
            counts[name] = [[result.drafts, *result.accepted] for result in report.run.results]
    rows = (f"{json.dumps(name)}:{json.dumps(rows, separators=(',', ':'))}" for name, rows in counts.items())
    COUNTS.write_text("{" + ",\n".join(rows) + "}\n")


if __name__ == "__main__":
    main()
