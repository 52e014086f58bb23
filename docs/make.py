"""Write the generated pages, and into README.md and the others what their commands print: `make docs`."""

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from eaglectl.cli import run
from eaglectl.commands.rules.report import suppression
from eaglectl.judge.rule import Rule
from eaglectl.judge.rules import rules

sys.path.insert(0, str(Path(__file__).parent))
import acceptance_page
import agreement
import api_page
import as_published
import blocks
import commands
import configuration
import engine_release
import interface_page
import known
import mistakes_page
import notebook
import open_facts
import picture
import published
import ranges
import ready_page
import real_pair
import round_trips
import targets
import trainers
import troubleshooting
from pains import PAINS

PAGE = Path(__file__).with_name("rules.md")
HEAD = """# The rules of `eaglectl validate`

Written by `make docs` from the rules themselves; `eaglectl rules RULE` shows the same text.

A rule that cannot look (no target was given, the weights stay closed) reports so and never passes.
Severities: an **error** does not load, or its acceptance is certainly wrong; a **warning** is a probable
loss, or not portable; a **note** is worth knowing. `--fail-on` sets the lowest severity that fails.
"""
PAINS_HEAD = """## What users met, and what catches it

Reports from the trackers of trainers and engines. What shows only when the drafter runs is left to
`eaglectl smoke`.
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
    evidence = f"\nEvidence: {rule.evidence}.\n" if rule.evidence else ""
    return f"{head}{engines}\n{rule.why}\n{evidence}\nFix: {rule.fix}\n"


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


def with_output(text: str) -> str:
    """A page with what its commands print now; blocks of commands that run a model are kept."""
    with tempfile.TemporaryDirectory() as folder:
        blocks.link_checkout(Path(folder))
        with contextlib.chdir(folder):
            return blocks.OUTPUT.sub(_block, text)


def _block(block: re.Match[str]) -> str:
    words = shlex.split(block[1])
    if blocks.RUNS_MODELS & set(words):
        return block[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        again = ["--force"] * (words[0] == "convert" and "OUT" in words)
        run(words + again)
    text = printed.getvalue()
    shown = re.search(r" in \d+\.\d+ s", block[2])
    text = re.sub(r" in \d+\.\d+ s", shown[0], text) if shown else text
    return f"```\n$ eaglectl {block[1]}\n{text.rstrip()}\n```"


if __name__ == "__main__":
    PAGE.write_text(page())
    acceptance_page.PAGE.write_text(acceptance_page.page())
    agreement.PAGE.write_text(agreement.page())
    as_published.PAGE.write_text(as_published.page())
    commands.PAGE.write_text(commands.page())
    configuration.PAGE.write_text(configuration.page())
    engine_release.PAGE.write_text(engine_release.page())
    interface_page.PAGE.write_text(interface_page.page())
    known.write()
    notebook.write()
    open_facts.PAGE.write_text(open_facts.page())
    published.PAGE.write_text(published.page())
    ready_page.PAGE.write_text(ready_page.page())
    real_pair.PAGE.write_text(real_pair.page())
    mistakes_page.PAGE.write_text(mistakes_page.page())
    mistakes_page.PICTURE.write_text(mistakes_page.drawing())
    round_trips.PAGE.write_text(round_trips.page())
    targets.PAGE.write_text(targets.page())
    for page, text in trainers.pages().items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(text)
    trainers.README.write_text(trainers.with_table(trainers.README.read_text()))
    troubleshooting.PAGE.write_text(troubleshooting.page())
    picture.PAGE.write_text(picture.page())
    api_page.PAGE.write_text(api_page.page(api_page.PAGE.read_text()))
    os.chdir(blocks.ROOT)
    for path in blocks.pages():
        path.write_text(with_output(path.read_text()))
