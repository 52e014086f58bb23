"""Write docs/rules.md from the rules' own documentation and the table of pains: `make docs`."""

import sys
from itertools import groupby
from pathlib import Path

from eaglectl.reports.rulebook import suppression
from eaglectl.validation.catalogue import rules
from eaglectl.validation.rule import Rule

sys.path.insert(0, str(Path(__file__).parent))
from pains import PAINS, Pain

PAGE = Path(__file__).with_name("rules.md")
HEAD = """# The rules of `eaglectl validate`

Written by `make docs` from the rules themselves; `eaglectl explain RULE` shows the same text.

A rule that cannot look (no target was given, the weights stay closed) says so and never passes. Severities: an **error**
will not load, or its acceptance is certainly wrong; a **warning** is a probable loss, or not portable; a **note** is worth
knowing. `--fail-on` sets the least severity that fails.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, _contents()]
    for family, members in groupby(rules(), key=lambda one: one.family):
        parts += [f"## {family.capitalize()}\n", *(_rule(one) for one in members)]
    parts += ["## To let a finding pass\n", f"```\n{suppression(rules()[0])}\n```\n", _pains()]
    return "\n".join(parts)


def _contents() -> str:
    rows = [f"| [{one.id}](#{_anchor(one)}) | {one.name} | {one.severity} | {_cell(one.sentence)} |" for one in rules()]
    return "\n".join(["| id | name | severity | what it asks |", "|---|---|---|---|", *rows, ""])


def _rule(one: Rule) -> str:
    engines = f"\nConcerns `{one.engines}`.\n" if one.engines else ""
    return f"### {one.id} {one.name}\n\n*{one.severity}.* {one.sentence}\n{engines}\n{one.why}\n\nFix: {one.fix}\n"


def _pains() -> str:
    head = (
        "## What users met, and what catches it\n\n"
        "Reports from the trackers of trainers and engines. What only shows when the drafter runs is left to `eaglectl smoke`.\n"
    )
    table = ["| | seen | cause | told in | caught by |", "|---|---|---|---|---|", *(_pain(one) for one in PAINS), ""]
    return "\n".join([head, *table])


def _pain(one: Pain) -> str:
    by_id = {each.id: each for each in rules()}
    caught = [f"[{name}](#{_anchor(by_id[name])})" if name in by_id else name for name in one.rules]
    caught += [one.also] if one.also else []
    return f"| {one.number} | {_cell(one.seen)} | {_cell(one.cause)} | {_link(one.link)} | {', '.join(caught)} |"


def _link(text: str) -> str:
    repository, number, issue = text.partition("#")
    return f"[{text}](https://github.com/{repository}/issues/{issue})" if number else text


def _anchor(one: Rule) -> str:
    return f"{one.id.lower()}-{one.name}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
