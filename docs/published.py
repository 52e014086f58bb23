"""fixtures/published/README.md, written from the declarations: which drafters there are, and what is true."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "fixtures/published"
PAGE = FOLDER / "README.md"
HEAD = """# Published drafters

Written by `make docs` from `drafters/*.json`; `schema.json` describes each key. A declaration has the
published facts of a drafter: its config, its target's facts, its tensors (by a template of `tensors.json`),
the sources of these, and the expected results. `tests/test_published.py` makes the folder with empty weights
and compares `inspect`, `validate --headers-only --no-engines` and `convert --dry-run`, each with the target's
config and without, with the declaration.

To add a drafter that a user reports, add a file to `drafters/` with the facts from its sources, not from
eaglectl's output, and run `make docs`. If eaglectl is not right about it yet, `open` states the command
(`"convert with_target": REASON`) and how (`"is"`: wrong, asked, refused); when it becomes right, the test
fails until the mark is removed.

A published length is one line in `figures` of `eaglectl/run/published.json`
(`schemas/published.schema.json`), with its source, `steps`, `topk` and `draft_tokens` in SGLang's terms;
leave out what the source does not state. If the authors measured their file as stored, `is_by_authors` and an
entry in `drafters` set the outcome to "as published". Then `make docs schemas`.

**config**: `exact` is the published file, `recipe` the trainer's own config that the file was made from,
`reconstructed` is built from the facts of its sources. **Without a target**: the questions that remain if the
target is not known.
"""


def page() -> str:
    """The whole page."""
    said = [json.loads(path.read_text()) for path in sorted((FOLDER / "drafters").glob("*.json"))]
    settled = [drafter for drafter in said if "open" not in drafter]
    count = f"{len(said)} drafters, {len(settled)} of them read as an engineer reads them."
    head = [
        "| drafter | target | producer | EAGLE | trained on boundaries | config | with target | without |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([HEAD, f"{count}\n", *head, *map(_row, said), *_open(said), ""])


def _row(drafter: Mapping[str, Any]) -> str:
    truth, expect = drafter["truth"], drafter["expect"]
    boundaries = truth["boundaries"]
    cells = (
        f"[{drafter['name']}]({drafter['sources'][0]})",
        drafter["target"]["name"],
        drafter["producer"],
        truth["eagle"],
        boundaries if isinstance(boundaries, str) else ", ".join(map(str, boundaries)),
        drafter["config_is"],
        _verdict(expect["with_target"]),
        _verdict(expect["without_target"]),
    )
    return f"| {' | '.join(cells)} |"


def _verdict(expected: Mapping[str, Any]) -> str:
    outcome = str(expected["outcome"])
    if outcome == "asked":
        outcome = f"asked: {', '.join(expected['asks'])}"
    if outcome == "refused":
        outcome = f"refused: {', '.join(expected['says'])}"
    errors = expected.get("errors", [])
    return f"{outcome}; fails {'' if errors == 'some' else ', '.join(errors)}".rstrip() if errors else outcome


def _open(said: list[dict[str, Any]]) -> list[str]:
    faults = [(drafter["name"], drafter["open"]) for drafter in said if "open" in drafter]
    if not faults:
        return []
    rows = [f"| {name} | {fault['is']} | {_reasons(fault)} |" for name, fault in faults]
    return ["\n## Not right yet\n", "| drafter | eaglectl | why |", "|---|---|---|", *rows]


def _reasons(fault: Mapping[str, str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for command, reason in fault.items():
        if command != "is":
            by_reason.setdefault(reason, []).append(command.replace("_", " "))
    return "; ".join(f"{reason} ({', '.join(commands)})" for reason, commands in by_reason.items())


if __name__ == "__main__":
    PAGE.write_text(page())
