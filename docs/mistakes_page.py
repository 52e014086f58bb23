"""benchmarks/evidence/mistakes.md and its picture: what each mistake costs, and what engines do with it."""

import json
import sys
import tempfile
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, get_args

import numpy as np

import eaglectl
from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.behaviour import capture, judged_unversioned, unversioned_behaviour
from eaglectl.engines.engine import Switch
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.view import Case, View
from eaglectl.verdicts import ServedAs

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tables import recorded, table

from tests.stored_otherwise import Misread, Tensors, d2t_one_row_late, input_halves, rope, without
from tests.tiny import TARGET, TINY, absolute, ids

PAGE = Path(__file__).resolve().parents[1] / "benchmarks/evidence/mistakes.md"
PICTURE = PAGE.with_suffix(".svg")
TITLES = {
    "specforge": "SpecForge, 2, 15, 27",
    "speculators": "speculators, 6, 18, 28",
    "tiny": "toy, 2, 4, 5",
}
COLOURS = {"specforge": "#79c0ff", "speculators": "#d2a8ff", "tiny": "#8b949e"}
SHOWN = ("vllm", "sglang", "llama.cpp")
READ = "tensorrt-llm"  # its releases are not followed
CELLS = {
    ServedAs.AS_TRAINED: "serves it",
    ServedAs.AS_PUBLISHED: "serves it as published",
    ServedAs.DIFFERS: "replaces it",
    ServedAs.FAILS: "fails",
    ServedAs.UNKNOWN: "not known",
}
HEAD = """# What each mistake costs

Written by `make docs`; figures from `python tools/real/mistakes.py` (`fixtures/real/mistakes.json`).

One mistake at a time, k=3, greedy unless stated: two drafters of [the real pair](real-pair.md), 40 chats, and
the toy of `fixtures/tiny` (8 layers, 128 wide; 24 prompts of code), 64 new tokens each. *Lost* is the share
of accepted draft tokens that is lost, with 95 % intervals over prompts; below zero, more were accepted. The
numbers after a name are the boundaries that the drafter was trained on.

![Accepted draft tokens that each mistake costs, by drafter](mistakes.svg)
"""
LEGEND = """
A target *trained on* has seen 20 rows of 256 tokens of Python's language reference (AdamW, 1e-4):
another fine-tune, a small one. The engines' columns are what eaglectl knows of {engines} for the toy's file
with the mistake: *serves it*: it drafts with the mistake, and no message; *replaces it*: it takes a value of
its own; *not known*: `validate` finds an error, and what the engine does with it was not run. TensorRT-LLM
was read and not run: layers come from its serving config, else its default, and nothing is stated of rope,
d2t and tensors. The rule is the
first of `validate` that reports the file; where there is none, only a run shows it: the last column is the
cause that [`diagnose`](../../docs/reference/causes.md) names on the real pair.

"""
WORDS = """
## What follows

* Layers one off cost 2 to 10 % on the real pair, of which speculators' one lower is not beyond chance, and 13
  to 23 % on the toy: adjacent layers of 30 are nearly the same. No engine reports that loss. In
  reverse order nearly everything is lost.
* A norm switch that is on by mistake costs a third (norm_output) to nine tenths; of those that are off by
  mistake, on speculators' drafter, norm_before_residual alone shows a cost, 4 %.
* d2t as ids or left out loses everything, one row late 29 to 40 %: errors of `validate`.
* A rope's base or scaling that was not trained costs 0 to 7 % on texts as short as these, and SpecForge's
  nothing beyond chance: notes.
* Sampling at 0.7 costs the real pair a quarter, the toy half. No change of the file recovers that.
* Without the target's template a third is lost, with a wide interval: many answers end at once (361 rounds
  for 1,356); in Llama 2's so many do (160 rounds) that there is none.
* A target in 8 bits costs little, in 4 bits 14 to 20 %: measure with the target that you serve.
"""
LEFT, BAR, LINE = 330, 420, 13


def _plain(tensors: Tensors, config: Mapping[str, Any]) -> None:
    """Nothing."""


def _with_ones(tensors: Tensors, config: Mapping[str, Any]) -> None:
    width = tensors["fc.weight"][1][1]
    tensors["input_norm.weight"] = ("BF16", [width], np.full(width, 0x3F80, "<u2").tobytes())


def _as_ids(tensors: Tensors, config: Mapping[str, Any]) -> None:
    tensors["d2t"] = absolute(tensors["d2t"])


# the toy's file with each mistake that a file can have
FILES = {
    "layers one lower": Misread("", "", config=ids(1, 3, 4)),
    "layers one higher": Misread("", "", config=ids(3, 5, 6)),
    "layers two lower": Misread("", "", config=ids(1, 2, 3)),  # engines take any ids alike; -1 is none
    "layers in reverse order": Misread("", "", config=ids(5, 4, 2)),
    "first two layers exchanged": Misread("", "", config=ids(4, 2, 5)),
    "norm_output true": Misread("", "", config={"norm_output": True}),
    "norm_before_residual true": Misread("", "", config={"norm_before_residual": True}),
    "norm_before_fc true, weights of one": Misread("", "", _with_ones, {"norm_before_fc": True}),
    "rope base 10000": Misread("", "", config=rope(10000.0)),
    "rope scaled by 4 (linear)": Misread(
        "", "", config={"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    ),
    "d2t read as token ids": Misread("", "", _as_ids),
    "d2t left out": Misread("", "", without("d2t")),
    "d2t one row late": Misread("", "", d2t_one_row_late),
    "embedding and state exchanged": Misread("", "", input_halves),
}
# mistakes whose case of tools/real/diagnoses.py ends in a cause, and those whose case has another name
DIAGNOSED = (
    "d2t left out",
    "d2t one row late",
    "norm_output true",
    "norm_before_residual true",
    "rope base 10000",
    "embedding and state exchanged",
    "prompts without the template",
    "prompts in Llama 2's template",
    "temperature 0.7",
)
CASES = {
    "layers one lower": "boundaries one lower",
    "d2t read as token ids": "d2t as ids, no t2d",
    **{name: name for name in DIAGNOSED},
}


def page() -> str:
    """The whole page."""
    with tempfile.TemporaryDirectory() as folder:
        verdicts = judged(Path(folder))
    names = [f"{ENGINES[engine].title} {ENGINES[engine].releases[-1]}" for engine in SHOWN]
    legend = LEGEND.format(engines=", ".join(names))
    return "\n".join([HEAD, _table(recorded("mistakes.json"), verdicts), legend.strip(), WORDS])


def judged(folder: Path) -> dict[str, dict[str, str]]:
    """By mistake of a file: what each engine does with it, and the rule of `validate` that reports it."""
    good = folder / "good"
    eaglectl.convert(str(TINY / "eagle3"), good, eaglectl.ConvertOptions(target=str(TARGET)))
    right = eaglectl.inspect(str(good), target=str(TARGET)).drafter
    rows = {}
    for number, (mistake, fault) in enumerate(FILES.items()):
        place = fault.apply(good, folder / str(number))
        asked = eaglectl.ValidateOptions(target=str(TARGET), has_engines=False)
        found = eaglectl.validate(str(place), asked).findings
        rules = [finding.rule.id for finding in found if finding.severity != "note"]
        inspection = eaglectl.inspect(str(place), target=str(TARGET))
        last = {verdict.engine: verdict.outcome for verdict in inspection.verdicts}
        rows[mistake] = {
            **{engine: CELLS[last[engine]] for engine in SHOWN},
            READ: CELLS[_as_read(right, inspection.drafter, json.loads((place / "config.json").read_text()))],
            "rule": f"[{rules[0]}](../../docs/rules.md)" if rules else "",
        }
    return rows


def _as_read(right: Drafter, wrong: Drafter, config: Mapping[str, Any]) -> ServedAs:
    """What the declared behaviour of the engine that was read does with layers or switches that are wrong."""
    behaviour = unversioned_behaviour(READ)
    (runner,) = behaviour.runners.values()
    captured = capture(runner, config, wrong.target)
    case = Case(View(wrong, config, config, ()), READ, "", behaviour, {runner.label: captured})
    kept = [
        case.flag(name) == getattr(wrong.norms, name)
        for name in get_args(Switch)
        if getattr(wrong.norms, name) != getattr(right.norms, name)
    ]
    if wrong.aux.listed != right.aux.listed:
        kept.append(captured.boundaries == wrong.aux.listed)
    if not kept:
        return ServedAs.UNKNOWN
    return ServedAs.AS_TRAINED if all(kept) else ServedAs.DIFFERS


def _table(rows: list[dict[str, Any]], verdicts: Mapping[str, Mapping[str, str]]) -> str:
    names = [name for name in TITLES if any(row["drafter"] == name for row in rows)]
    found = {(row["mistake"], row["drafter"]): row for row in rows}
    causes = {
        row["case"]: row["cause"] for row in recorded("diagnoses.json") if row["drafter"] == "specforge"
    }
    titles = [cell for name in names for cell in (TITLES[name], "lost")]
    read = f"{judged_unversioned()[READ]}, read, not run"
    engines = [*(ENGINES[engine].title for engine in SHOWN), read]
    head = ["mistake", *titles, *engines, "rule", "`diagnose`"]
    lines = []
    for mistake in dict.fromkeys(row["mistake"] for row in rows):
        cells = [mistake]
        for name in names:
            row = found.get((mistake, name))
            cells += [f"{row['length']:.2f}", _lost(row)] if row else ["", ""]
        verdict = verdicts.get(mistake, {})
        cells += [verdict.get(key, "") for key in (*SHOWN, READ, "rule")]
        cells.append(causes.get(CASES.get(mistake, ""), ""))
        lines.append(cells)
    return table(head, lines)


def _lost(row: Mapping[str, Any]) -> str:
    ends = ", ".join(f"{100 * end:.0f}" for end in row.get("interval", ()))
    return f"{row['lost']:.0%} [{ends}]" if ends else f"{row['lost']:.0%}"


def drawing() -> str:
    """The picture: by mistake, a bar for the share that it costs each drafter."""
    rows = [row for row in recorded("mistakes.json") if row["mistake"] != "none"]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["mistake"], []).append(row)
    height = LINE * (len(rows) + len(groups)) + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + BAR + 90} {height}" role="img"'
        ' font-family="sans-serif" font-size="12">',
        "<title>Share of accepted draft tokens that each mistake costs</title>",
        '<rect width="100%" height="100%" fill="#1b1f24" rx="8"/>',
    ]
    left = 12
    for name, title in TITLES.items():
        parts.append(f'<text x="{left}" y="24" fill="{COLOURS[name]}">{escape(title)}</text>')
        left += 200
    top = 48
    for mistake, members in groups.items():
        middle = top + LINE * (len(members) - 1) / 2
        parts.append(
            f'<text x="{LEFT - 8}" y="{middle:.1f}" fill="#e6edf3" text-anchor="end">{escape(mistake)}</text>'
        )
        for row in sorted(members, key=lambda row: list(TITLES).index(row["drafter"])):
            width = max(0.0, min(1.0, row["lost"])) * BAR
            parts += [
                f'<rect x="{LEFT}" y="{top - 10}" width="{width:.1f}" height="10"'
                f' fill="{COLOURS[row["drafter"]]}"/>',
                f'<text x="{LEFT + width + 6:.1f}" y="{top - 1}" fill="#e6edf3"'
                f' font-size="10">{row["lost"]:.0%}</text>',
            ]
            top += LINE
        top += LINE
    return "\n".join([*parts, "</svg>", ""])
