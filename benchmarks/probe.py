"""The sensitivity probe on the trained pair of fixtures/tiny: what it names, what it costs, and false alarms.

    python benchmarks/probe.py [--prompts 12] [--tokens 24] [faults] [alarms] [time]

`faults`: drafters stored otherwise (tests/stored_otherwise.py). `alarms`: good drafters on pieces of the
prompt files. `time`: the probe and one smoke run, alternately. Run it in the folder of the checkout.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eaglectl import api
from eaglectl.acceptance.report import SmokeReport
from eaglectl.api.converting import ConvertOptions
from tests.stored_otherwise import Misread, faults_of

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
LONGEST = {"tiny": 160}  # characters of a prompt: short ones are cheap
DRAFTERS = {"tiny": ("eagle3", "eagle3.1")}
REPEATS = 3


@dataclass(frozen=True)
class Settings:
    """Prompts of a run, and new tokens of each."""

    prompts: int
    tokens: int
    pairs: Sequence[str]


def texts(pair: str) -> list[str]:
    """All prompts of the tiny pair, cut for the pair."""
    names = ("prompts", "gate", "calibration")
    lines = [line for name in names for line in (FIXTURES / f"tiny/{name}.jsonl").read_text().splitlines()]
    return [json.loads(line)["prompt"].strip()[: LONGEST[pair]] for line in lines]


def write_prompts(folder: Path, chosen: Sequence[str]) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in chosen))
    return path


def smoke(drafter: Path, pair: str, prompts: Path, tokens: int, probe: str | None) -> SmokeReport:
    options = api.SmokeOptions(
        engine="reference", device="cpu", prompts=prompts, max_tokens=tokens, probe=probe
    )
    return api.smoke(str(drafter), str(FIXTURES / pair / "target"), options)


def good_drafters(scratch: Path, pairs: Sequence[str]) -> Iterator[tuple[str, str, Path]]:
    """Pair, name and folder in vLLM's layout of each good drafter."""
    for pair in pairs:
        for name in DRAFTERS[pair]:
            folder = scratch / f"{pair}-{name}"
            target = str(FIXTURES / pair / "target")
            api.convert(str(FIXTURES / pair / name), folder, ConvertOptions(target=target))
            yield pair, name, folder


def show_faults(scratch: Path, settings: Settings) -> None:
    """A row for each fault: acceptance length, what is named, the ratio, its p, whether it is the fault."""
    for pair, name, good in good_drafters(scratch, settings.pairs):
        if name != "eagle3":
            continue
        prompts = write_prompts(scratch, texts(pair)[: settings.prompts])
        for number, fault in enumerate((Misread("none", ""), *faults_of(pair))):
            folder = fault.apply(good, scratch / f"fault-{pair}-{number}")
            report = smoke(folder, pair, prompts, settings.tokens, "sensitivity")
            better = [variant for variant in report.variants if variant.is_better]
            best = max(better, key=lambda variant: (variant.is_verified, variant.ratio.value), default=None)
            named = (
                "nothing" if best is None else f"{best.option} x{best.ratio.value:.3f} p {best.p_value:.1g}"
            )
            hints = [
                f"{variant.name} x{variant.ratio.value:.3f} {variant.outcome} {variant.prompts_needed or ''}"
                for variant in report.variants
                if variant.outcome not in ("better", "no better")
            ]
            length, right = report.measured.length.value, (best.option if best else "") == fault.option
            print(
                f"{pair} | {fault.name} | {length:.2f} | {named} | {right} | {'; '.join(hints)}", flush=True
            )


def count_alarms(scratch: Path, settings: Settings) -> None:
    """Good drafters on pieces of the prompts: how many are failed, and hints beside."""
    runs = alarms = 0
    for pair, name, good in good_drafters(scratch, settings.pairs):
        pool = texts(pair)
        for start in range(0, len(pool) - settings.prompts + 1, settings.prompts):
            prompts = write_prompts(scratch, pool[start : start + settings.prompts])
            report = smoke(good, pair, prompts, settings.tokens, "sensitivity")
            named = [variant.name for variant in report.variants if variant.is_better]
            hints = [
                (variant.name, round(variant.ratio.value, 3), variant.outcome)
                for variant in report.variants
                if variant.outcome not in ("better", "no better")
            ]
            runs, alarms = runs + 1, alarms + bool(named)
            print(f"{runs} {pair} {name} from {start}: {report.verdict} {named} {hints}", flush=True)
    print(f"{alarms} alarms in {runs} runs", flush=True)


def show_times(scratch: Path) -> None:
    """Seconds of the processor: a smoke run of 20 prompts of 64 tokens, and the same with the probe."""
    pair, _, good = next(good_drafters(scratch, ["tiny"]))
    lines = (FIXTURES / "tiny/gate.jsonl").read_text().splitlines()[:20]
    prompts = write_prompts(scratch, [json.loads(line)["prompt"] for line in lines])
    broken = faults_of(pair)[0].apply(good, scratch / "broken")
    smoke(good, pair, prompts, 8, None)
    for _ in range(REPEATS):
        seconds = []
        for folder, probe in ((good, None), (good, "sensitivity"), (broken, "sensitivity")):
            start = time.process_time()
            smoke(folder, pair, prompts, 64, probe)
            seconds.append(time.process_time() - start)
        plain, probed, fault = seconds
        print(
            f"smoke {plain:.1f} s, with the probe {probed:.1f} s (x{probed / plain:.2f}), of a faulty drafter"
            f" {fault:.1f} s (x{fault / plain:.2f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["faults", "alarms", "time"])
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--pair", action="append", choices=list(DRAFTERS))
    options = parser.parse_args()
    settings = Settings(options.prompts, options.tokens, options.pair or list(DRAFTERS))
    parts = {
        "faults": lambda folder: show_faults(folder, settings),
        "alarms": lambda folder: count_alarms(folder, settings),
        "time": show_times,
    }
    for part in options.parts:
        with tempfile.TemporaryDirectory() as scratch:
            parts[part](Path(scratch))


if __name__ == "__main__":
    main()
