"""The sensitivity probe on the trained pairs: what it names, false alarms, and what it costs.

    python -m benchmarks.probe [faults] [late] [alarms] [time] [--drafter PAIR/NAME ...] [--runs 30]

`faults`: drafters stored otherwise (tests/stored_otherwise.py). `late`: a healthy one past the positions
that it was trained on. `alarms`: healthy drafters, and their conversions to 3.1, each on prompts of its own,
drawn from sources that were never trained on. `time`: one smoke run and the same with the probe, alternately.
Prints the tables of README.md. Run it in the checkout.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.api.upgrade import UpgradeOptions
from eaglectl.run.results import SmokeReport
from tests.conftest import FIXTURES
from tests.pairs import SECOND, TABLE, TINY, Trained, write_prompts
from tests.stored_otherwise import Misread, faults_of

REPEATS = 3
# prompts, new tokens and k of the runs that look for false alarms, in turn
ALARM_SETTINGS = ((12, 16, 3), (24, 16, 3), (12, 24, 2), (16, 20, 5), (8, 24, 3), (16, 16, 7))


@dataclass(frozen=True)
class Settings:
    """What a run of the probe is of."""

    max_tokens: int
    k: int = 3
    probe: str | None = "sensitivity"


def smoke(drafter: Path, trained: Trained, prompts: Path, settings: Settings) -> SmokeReport:
    options = eaglectl.SmokeOptions(
        run_in="reference",
        device="cpu",
        prompts=prompts,
        max_tokens=settings.max_tokens,
        k=settings.k,
        probe=settings.probe,
    )
    return eaglectl.smoke(str(drafter), str(trained.target), options)


# ------------------------------------------------------------------------------------------------ faults


def outcome(report: SmokeReport, option: str) -> str:
    """What is named, or told of the reading `option`; its ratio and p."""
    if (best := report.probed and report.probed.best) is not None:
        return f"`{best.option.split()[-1]}` | {best.ratio.value:.2f} | {best.p_value:.1g}"
    variant = next((variant for variant in report.variants if variant.option == option), None)
    if variant is None:
        return "nothing | | "
    said = "nothing"
    if variant.outcome == "too few prompts":
        said = f"told: about {variant.prompts_needed} prompts would show it"
    return f"{said} | {variant.ratio.value:.2f} | {variant.p_value:.1g}"


def seen_by_rules(folder: Path, good: Path, trained: Trained) -> str:
    """Rules of `validate` that report on `folder` and not on the good drafter."""
    found = []
    for path in (folder, good):
        options = eaglectl.ValidateOptions(target=str(trained.target), has_engines=False)
        judgement = eaglectl.validate(str(path), options)
        found.append({finding.rule.id for finding in judgement.findings})
    return ", ".join(sorted(found[0] - found[1]))


def show_faults(scratch: Path, drafters: Sequence[Trained], _: int) -> None:
    """A table for each drafter."""
    for trained in drafters:
        good = trained.converted(scratch / trained.key)
        prompts = write_prompts(scratch / "prompts.jsonl", trained.texts()[: trained.prompts])
        print(f"\n| {trained.key} | length | named | ratio | p |\n|---|---|---|---|---|", flush=True)
        for fault in (Misread("none", ""), *faults_of(trained.key)):
            folder = fault.apply(good, scratch / f"{trained.key}-{fault.name}")
            report = smoke(folder, trained, prompts, Settings(trained.tokens))
            length, seen = report.measured.length.value, outcome(report, fault.option)
            if seen.startswith("nothing") and (ids := seen_by_rules(folder, good, trained)):
                seen = seen.replace("nothing", f"{ids} of `validate`")
            print(f"| {fault.name} | {length:.2f} | {seen} |", flush=True)


def show_late(scratch: Path, _: Sequence[Trained], __: int) -> None:
    """The second pair's healthy drafter past its 64 positions, which its config states or not."""
    good = SECOND.converted(scratch / "good")
    prompts = write_prompts(scratch / "prompts.jsonl", SECOND.texts()[: SECOND.prompts])
    print("\n| max_position_embeddings | new tokens | length | named | note |\n|---|---|---|---|---|")
    for positions, tokens in ((64, SECOND.tokens), (64, 128), (256, 128)):
        config = {"max_position_embeddings": positions}
        folder = Misread("late", "", config=config).apply(good, scratch / f"{positions}-{tokens}")
        report = smoke(folder, SECOND, prompts, Settings(tokens))
        named, _, _ = outcome(report, "").partition(" |")
        notes = "; ".join(note for note in report.notes if "drafts begin" in note or "trained on" in note)
        print(
            f"| {positions} | {tokens} | {report.measured.length.value:.2f} | {named} | {notes} |", flush=True
        )


# ------------------------------------------------------------------------------------------ false alarms


def held_out(pair: str, count: int, seed: int) -> list[str]:
    """Prompts that no drafter of the pair was trained on: code for `tiny`, English for `second`."""
    sys.path.insert(0, str(FIXTURES / "tiny"))
    import heldout

    if pair == "tiny":
        return [str(row["prompt"]).strip() for row in heldout.prompts(count, seed, 60, 160, "characters")]
    draw = random.Random(seed)
    texts = [text for _, source in heldout.sources(held_out=True) for text in heldout.docstrings(source)]
    long = [" ".join(text.split()) for text in texts if len(text) > 200]
    pieces = []
    for text in draw.sample(long, count):
        start = text.index(" ", draw.randrange(len(text) - 120)) + 1
        pieces.append(text[start : start + draw.randint(24, 56)].strip())
    return pieces


def upgraded(trained: Trained, scratch: Path) -> Path:
    """The drafter as EAGLE-3.1, calibrated on its pair's prompts."""
    out, prompts = scratch / f"{trained.key}-upgraded", scratch / "calibration.jsonl"
    write_prompts(prompts, trained.texts("calibration" if trained.pair == "tiny" else "prompts"))
    options = UpgradeOptions(prompts=prompts, has_gate=False, device="cpu")
    eaglectl.upgrade(str(trained.folder), out, options, ConvertOptions(target=str(trained.target)))
    return out


def healthy(drafters: Sequence[Trained], scratch: Path) -> Iterator[tuple[str, Trained, Path]]:
    """What each is, and its folder in vLLM's layout: the drafters, and conversions to 3.1 of those of 3."""
    for trained in drafters:
        yield trained.key, trained, trained.converted(scratch / trained.key)
        if trained.name != "eagle3.1":
            yield f"{trained.key}, converted to 3.1", trained, upgraded(trained, scratch)


def count_alarms(scratch: Path, drafters: Sequence[Trained], runs: int) -> None:
    """Healthy drafters on prompts that no two of them share: how many are failed, and how many get a hint."""
    print("\n| healthy drafter | runs | a reading named | told as too few prompts |\n|---|---|---|---|")
    totals = [0, 0, 0]
    for number, (title, trained, folder) in enumerate(healthy(drafters, scratch)):
        counts = [0, 0, 0]
        for run in range(runs):
            count, tokens, k = ALARM_SETTINGS[run % len(ALARM_SETTINGS)]
            texts = held_out(trained.pair, count, 1000 * hash_of(title) + run)
            prompts = write_prompts(scratch / f"{number}-{run}.jsonl", texts)
            report = smoke(folder, trained, prompts, Settings(tokens, k))
            named = [variant for variant in report.variants if variant.is_better]
            hints = [variant for variant in report.variants if variant.outcome == "too few prompts"]
            for place, value in enumerate((1, bool(named), bool(hints))):
                counts[place] += value
            for variant in named:
                print(
                    f"alarm: {title} run {run}: {variant.option} x{variant.ratio.value:.3f}", file=sys.stderr
                )
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        print(f"| {title} | {counts[0]} | {counts[1]} | {counts[2]} |", flush=True)
    print(f"| all | {totals[0]} | {totals[1]} | {totals[2]} |")


def hash_of(title: str) -> int:
    """A number that stays from run to run."""
    return sum(map(ord, title))


# ------------------------------------------------------------------------------------------------ cost


def show_times(scratch: Path, drafters: Sequence[Trained], _: int) -> None:
    """Seconds of the processor: a smoke run, with the probe, and with it of a faulty drafter."""
    print("\n| drafter | smoke, s | with the probe, s | ratio | of a faulty drafter |\n|---|---|---|---|---|")
    for trained in drafters:
        good = trained.converted(scratch / trained.key)
        broken = faults_of(trained.key)[0].apply(good, scratch / f"{trained.key}-broken")
        texts, tokens = trained.texts()[: trained.prompts], trained.tokens
        if trained is TINY:
            longer = Trained(trained.pair, trained.name, 20, 64, 10_000)
            texts, tokens = longer.texts("gate")[:20], 64
        prompts = write_prompts(scratch / "prompts.jsonl", texts)
        smoke(good, trained, prompts, Settings(8, probe=None))
        rows = []
        for _ in range(REPEATS):
            seconds = []
            for folder, probe in ((good, None), (good, "sensitivity"), (broken, "sensitivity")):
                start = time.process_time()
                smoke(folder, trained, prompts, Settings(tokens, probe=probe))
                seconds.append(time.process_time() - start)
            rows.append(seconds)
        plain, probed, fault = (median(column) for column in zip(*rows, strict=True))
        what = f"{trained.key}, {len(texts)} prompts of {tokens} tokens"
        print(
            f"| {what} | {plain:.1f} | {probed:.1f} | {probed / plain:.2f} | {fault / plain:.2f} |",
            flush=True,
        )


Part = Callable[[Path, Sequence[Trained], int], None]
PARTS: dict[str, Part] = {
    "faults": show_faults,
    "late": show_late,
    "alarms": count_alarms,
    "time": show_times,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {trained.key: trained for trained in (*TABLE, EAGLE31)}
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--drafter", action="append", choices=list(known))
    parser.add_argument("--runs", type=int, default=30)
    options = parser.parse_args()
    for part in options.parts:
        chosen = options.drafter or [key for key in known if part == "alarms" or key != EAGLE31.key]
        with tempfile.TemporaryDirectory() as scratch:
            PARTS[part](Path(scratch), [known[key] for key in chosen], options.runs)


EAGLE31 = Trained("tiny", "eagle3.1", TINY.prompts, TINY.tokens, TINY.longest)

if __name__ == "__main__":
    main()
