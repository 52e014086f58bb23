"""Write the generated pages, and into README.md and the others what their commands print: `make docs`.

`python docs/make.py output --models` writes what commands print alone, of those that run a model too.
"""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from eaglectl.commands.rules.report import evidence, suppression
from eaglectl.judge.rule import Rule, rules

sys.path.insert(0, str(Path(__file__).parent))
import acceptance_page
import agreement
import api_page
import as_published
import blocks
import budgets
import causes
import commands
import configuration
import editor_stub
import interface_page
import mistakes_page
import notebook
import open_facts
import published
import ranges
import ready_page
import real_pair
import round_trips
import targets
import trainers
from pains import PAINS

PAGE = Path(__file__).with_name("rules.md")
HEAD = """# The rules of `eaglectl validate`

Written by `make docs` from the rules themselves; `eaglectl rules RULE` shows the same text.

A rule that cannot look (no target is given, or the weights are not read) reports this and never passes.
Severities: with an **error**, the drafter does not load or certainly loses acceptance; with a **warning**, it
probably loses acceptance or is not portable; a **note** is information.
`--fail-on` sets the lowest severity that fails.
"""
PAINS_HEAD = """## What users met, and what catches it

Reports from the issue trackers of trainers and engines. `eaglectl smoke` catches problems that appear only
when the drafter runs.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, _contents(rules())]
    for family, members in groupby(rules(), key=lambda rule: rule.family):
        parts += [f"## {family.capitalize()}\n", *(_section(rule) for rule in members)]
    parts += [
        "## To let a finding pass\n",
        f"```\n{suppression(rules()[0])}\n```\n",
        ranges.section(),
        _pains(),
    ]
    return "\n".join(parts)


def _contents(rules: Iterable[Rule]) -> str:
    head = ["| id | name | severity | what it checks |", "|---|---|---|---|"]
    rows = [
        f"| [{rule.id}](#{_anchor(rule)}) | {rule.name} | {rule.severity} | {_cell(rule.summary)} |"
        for rule in rules
    ]
    return "\n".join([*head, *rows, ""])


def _section(rule: Rule) -> str:
    engines = f"\nConcerns `{rule.engines}`.\n" if rule.engines else ""
    head = f"### {rule.id} {rule.name}\n\n*{rule.severity}.* {rule.summary}\n"
    known = evidence(rule)
    shown = f"\nEvidence: {known}.\n" if known else ""
    return f"{head}{engines}\n{rule.why}\n{shown}\nFix: {rule.fix}\n"


def _pains() -> str:
    head = ["| | symptom | cause | reported in | caught by |", "|---|---|---|---|---|"]
    anchors = {rule.id: _anchor(rule) for rule in rules()}
    rows = []
    for pain in PAINS:
        caught = [f"[{rule}](#{anchors[rule]})" if rule in anchors else rule for rule in pain.rules]
        caught += [pain.also] if pain.also else []
        cells = (_cell(pain.symptom), _cell(pain.cause), _link(pain.link), ", ".join(caught))
        rows.append(f"| {pain.number} | {' | '.join(cells)} |")
    return "\n".join([PAINS_HEAD, *head, *rows, ""])


def _link(text: str) -> str:
    repository, separator, issue = text.partition("#")
    return f"[{text}](https://github.com/{repository}/issues/{issue})" if separator else text


def _anchor(rule: Rule) -> str:
    return f"{rule.id.lower()}-{rule.name.replace('.', '')}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def with_output(text: str, *, with_models: bool = False) -> str:
    """A page with what its commands print now; blocks that run a model are kept, but `with_models`."""
    with tempfile.TemporaryDirectory() as folder:
        blocks.link_checkout(Path(folder))
        with contextlib.chdir(folder):
            return blocks.OUTPUT.sub(lambda block: _block(block, with_models=with_models), text)


def _block(block: re.Match[str], *, with_models: bool) -> str:
    if blocks.RUNS_MODELS & set(block[1].split()) and not with_models:
        return block[0]
    text = blocks.printed(block[1])
    shown = re.search(r" in \d+\.\d+ s", block[2])
    text = re.sub(r" in \d+\.\d+ s", shown[0], text) if shown else text
    return f"```\n$ eaglectl {block[1]}\n{text.rstrip()}\n```"


GENERATED = (
    acceptance_page,
    agreement,
    api_page,
    editor_stub,
    as_published,
    budgets,
    causes,
    commands,
    configuration,
    interface_page,
    mistakes_page,
    open_facts,
    published,
    ready_page,
    real_pair,
    round_trips,
    targets,
)


def write(names: set[str], *, with_models: bool) -> None:
    """Write the pages of these modules, "trainers", "rules" or "output"; without names all."""
    if not names or "rules" in names:
        PAGE.write_text(page())
    for module in GENERATED:
        if not names or module.__name__ in names:
            module.PAGE.write_text(module.page())
    if not names:
        mistakes_page.PICTURE.write_text(mistakes_page.drawing())
        notebook.write()
    if not names or "trainers" in names:
        for path, text in trainers.pages().items():
            path.write_text(text)
    if not names or "output" in names:
        os.chdir(blocks.ROOT)
        for path in blocks.pages():
            path.write_text(with_output(path.read_text(), with_models=with_models))


if __name__ == "__main__":
    write({word for word in sys.argv[1:] if word != "--models"}, with_models="--models" in sys.argv)
