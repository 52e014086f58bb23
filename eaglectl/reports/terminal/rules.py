"""The terminal output of `rules` and `explain`."""

from collections.abc import Sequence
from itertools import groupby
from string import ascii_lowercase

from eaglectl.reports.findings import rule_url
from eaglectl.reports.section import TONES
from eaglectl.reports.terminal.console import Console, Table, Text, indented
from eaglectl.reports.terminal.layout import print_heading
from eaglectl.reports.terminal.report import STYLES
from eaglectl.reports.wording import plural
from eaglectl.validation.rule import Rule


def print_rules(console: Console, rules: Sequence[Rule]) -> None:
    """Print every rule by family: id, severity, name, sentence, and releases if it is about some only."""
    for family, members in groupby(rules, key=lambda rule: rule.family):
        console.print(Text(family, style="bold"))
        grid = Table.grid(padding=(0, 2, 0, 0))
        for rule in members:
            severity = Text(rule.severity, style=STYLES[TONES[rule.severity]])
            grid.add_row(rule.id, severity, rule.name, Text(f"{rule.summary}{_releases(rule)}", style="dim"))
        console.print(indented(grid, lines_after=1))
    console.print(
        f"{plural(len(rules), 'rule')}; `eaglectl explain {rules[0].id}` says why and what to do about one"
    )


def _releases(rule: Rule) -> str:
    is_name_alone = not rule.engines.strip(ascii_lowercase + "-")
    return "" if is_name_alone else f" ({rule.engines})"


def print_rule(console: Console, rule: Rule) -> None:
    """Print one rule: what it asks, why, the fix, and how to suppress it."""
    title = (f"{rule.id} {rule.name}", "bold")
    console.print(Text.assemble(title, "  ", (rule.severity, STYLES[TONES[rule.severity]])))
    facts = (f"family {rule.family}", f"engines {rule.engines or 'all'}", rule_url(rule))
    console.print(Text("  ".join(facts), style="dim"))
    console.print()
    console.print(indented(Text(rule.summary)))
    evidence = [("Evidence", rule.evidence)] if rule.evidence else []
    for heading, text in (
        ("Why", rule.why),
        *evidence,
        ("Fix", rule.fix),
        ("To suppress it", suppression(rule)),
    ):
        print_heading(console, heading)
        for line in text.split("\n"):
            console.print(indented(line))


def suppression(rule: Rule) -> str:
    """Return how to suppress the findings of a rule: for one run, or with a reason in a policy file."""
    return (
        f"once: eaglectl validate SOURCE --ignore {rule.id}\n"
        "in eaglectl.toml, with `where` for one place only and `until` for a last day"
        " (both may be left out):\n\n"
        f'[[suppress]]\nrule = "{rule.id}"\nreason = "why this is accepted"\nuntil = 2027-06-30'
    )
