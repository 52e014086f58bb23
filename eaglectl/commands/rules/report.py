"""The rules of `validate` as sections: the list, and a page on one rule with its reason and its fix."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from string import ascii_lowercase
from typing import Any

from eaglectl.engines.behaviour import is_within
from eaglectl.engines.registry import ENGINES
from eaglectl.judge.rule import Rule
from eaglectl.report.documents import document
from eaglectl.report.findings import rule_url
from eaglectl.report.section import Lines, Outline, Section, Table, Words, first_line, toned
from eaglectl.report.wording import plural
from eaglectl.text import is_url

HEAD = ("rule", "severity", "name", "what it asks")


def rules_outline(rules: Sequence[Rule]) -> Outline:
    """Return every rule by family: id, severity, name, sentence, and releases if it is about some only."""
    sections = [
        Section(family, [Table(HEAD, [_row(rule) for rule in members], is_bare=True)])
        for family, members in groupby(rules, key=lambda rule: rule.family)
    ]
    counted = plural(len(rules), "rule")
    return Outline(
        "rules",
        Words(counted, "plain"),
        "",
        "",
        first_line("", f"{counted}; `eaglectl rules {rules[0].id}` explains one and its fix"),
        sections,
    )


def _row(rule: Rule) -> tuple[str | Words, ...]:
    is_name_alone = not rule.engines.strip(ascii_lowercase + "-")
    summary = rule.summary if is_name_alone else f"{rule.summary} ({rule.engines})"
    return rule.id, toned(rule.severity), rule.name, Words(summary, "quiet")


def rule_outline(rule: Rule) -> Outline:
    """Return a page on one rule: what it checks, why, the fix, and how to suppress it."""
    name, severity = Words(f"{rule.id} {rule.name}", "strong"), toned(rule.severity)
    url = rule_url(rule)
    address = f"  {url}" if is_url(url) else ""
    facts = f"family {rule.family}  engines {rule.engines or 'all'}{address}"
    texts = {
        "Why": rule.why,
        "Evidence": evidence(rule),
        "Fix": rule.fix,
        "To suppress it": suppression(rule),
    }
    sections = [
        Section(
            "What it asks",
            [Lines([Words(facts, "quiet")], is_unbroken=True), Lines([rule.summary])],
            has_heading=False,
        ),
        *(Section(title, [Lines(text.split("\n"))]) for title, text in texts.items() if text),
    ]
    return Outline("rules", severity, name.text, "", first_line("", name, "  ", severity), sections)


def evidence(rule: Rule) -> str:
    """Return how the engine fact behind a rule is known: where it was run, or that it was read."""
    facts = ((engine, fact) for engine in ENGINES.values() for fact in engine.facts if fact.rule == rule.id)
    for engine, fact in facts:
        concerned = {release for release in engine.releases if is_within(fact.releases, release)}
        runs = [run for run in engine.runs_of(fact) if run.holds]
        if not runs:
            return f"read in the sources of {engine.title}, not run"
        words = f"run on {engine.title} {engine.run_words(fact)}: {runs[-1].case}"
        is_all = concerned <= {run.release for run in runs}
        return words if is_all else f"{words}; read in the sources of the other releases"
    return ""


def suppression(rule: Rule) -> str:
    """Return how to suppress the findings of a rule: for one run, or with a reason in a policy file."""
    return (
        f"once: eaglectl validate SOURCE --ignore {rule.id}\n"
        "in eaglectl.toml, with `where` for one place only and `until` for a last day"
        " (both may be left out):\n\n"
        f'[[suppress]]\nrule = "{rule.id}"\nreason = "why this is accepted"\nuntil = 2027-06-30'
    )


def rules_document(rules: Iterable[Rule]) -> dict[str, Any]:
    """Return what `rules --json` prints: every rule, or the one that was named."""
    entries = [
        {
            "id": rule.id,
            "name": rule.name,
            "severity": rule.severity,
            "family": rule.family,
            "engines": [rule.engines] if rule.engines else [],
            "sentence": rule.summary,
            "why": rule.why,
            "fix": rule.fix,
            "evidence": evidence(rule),
            "doc": f"{rule.summary}\n\n{rule.why}\n\nFix: {rule.fix}",
            "url": rule_url(rule),
        }
        for rule in rules
    ]
    return document("eaglectl/rules/1", {"rules": entries})
