"""The rules themselves on the screen: the catalogue, and one rule explained."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eaglectl.reports.tallies import plural, rule_url
from eaglectl.reports.validation import STYLES
from eaglectl.validation.rule import Rule


def print_rules(console: Console, rules: Sequence[Rule]) -> None:
    """Every rule, by family: id, severity, name, and its sentence."""
    for family, members in groupby(rules, key=lambda one: one.family):
        console.print(Text(family, style="bold"))
        table = Table.grid(padding=(0, 2, 0, 0))
        for one in members:
            engines = f" ({one.engines})" if one.engines.strip("abcdefghijklmnopqrstuvwxyz-") else ""
            severity = Text(one.severity, style=STYLES[one.severity])
            table.add_row(one.id, severity, one.name, Text(f"{one.sentence}{engines}", style="dim"))
        console.print(Padding(table, (0, 0, 1, 2)))
    console.print(f"{plural(len(rules), 'rule')}; `eaglectl explain RULE` says why and what to do")


def print_rule(console: Console, rule: Rule) -> None:
    """One rule's page."""
    console.print(Text.assemble((f"{rule.id} {rule.name}", "bold"), "  ", (rule.severity, STYLES[rule.severity])))
    facts = (f"family {rule.family}", f"engines {rule.engines or 'all'}", rule_url(rule))
    console.print(Text("  ".join(facts), style="dim"))
    for title, text in (("", rule.sentence), ("Why", rule.why), ("Fix", rule.fix)):
        console.print(Text(f"\n{title}" if title else "", style="bold"))
        console.print(Padding(Text(text), (0, 0, 0, 2)))
    console.print(Text("\nTo let it pass", style="bold"))
    console.print(Padding(Text(suppression(rule)), (0, 0, 0, 2)))


def suppression(rule: Rule) -> str:
    """How to suppress findings of a rule: once, or with a reason in a policy."""
    return (
        f"once: eaglectl validate ... --ignore {rule.id}\n"
        "in eaglectl.toml, with `where` for one place only and `until` for a last day (both may be left out):\n\n"
        f'[[suppress]]\nrule = "{rule.id}"\nreason = "why this is accepted"\nuntil = 2027-06-30'
    )
