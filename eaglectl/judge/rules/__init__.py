"""All rules, by id, name and family; each module here declares those of one subject."""

import pkgutil
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib import import_module

from eaglectl.errors import UsageError
from eaglectl.judge.rule import Policy, Rule

# modules of which no rule concerns how every engine serves a checkpoint; `inspect` does without them
NOT_OF_EVERY_ENGINE = ("release", "serving")


@cache
def rules(without: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """The rules of the modules in validation/rules/ that `without` does not name, ordered by id."""
    names = [info.name for info in pkgutil.iter_modules(__path__) if info.name not in without]
    modules = [import_module(f"{__name__}.{name}") for name in names]
    # functions that `@rule` made rules of, and the rules that a module makes from data, in its RULES
    every = [rule for module in modules for rule in (*vars(module).values(), *getattr(module, "RULES", ()))]
    return tuple(sorted((each for each in every if isinstance(each, Rule)), key=lambda each: each.number))


def find_rule(text: str) -> Rule:
    """The rule with the id or name `text`. Raises UsageError with similar names."""
    by_name = {rule.id: rule for rule in rules()} | {rule.name: rule for rule in rules()}
    if text in by_name or text.upper() in by_name:
        return by_name.get(text) or by_name[text.upper()]
    similar = get_close_matches(text.upper() if text.upper().startswith("EGL") else text, by_name, 3)
    hint = f"near it: {', '.join(similar)}" if similar else "`eaglectl rules` lists them"
    raise UsageError(f"{text} is no rule; {hint}")


def select_rules(policy: Policy, select: Iterable[str] = (), ignore: Iterable[str] = ()) -> tuple[Rule, ...]:
    """The rules to run: those that `select` names (all if it names none), less those that `ignore` names.

    Rules that the policy turns off are left out, rules that it requires always run. Raises UsageError for an
    unknown rule, and for a required one in `ignore`.
    """
    ignored = rule_ids(ignore)
    if refused := sorted(policy.required & ignored):
        raise UsageError(f"--ignore {refused[0]}: the policy {policy.origin} requires it")
    selected = rule_ids(select) or {rule.id for rule in rules()}
    ids = selected - ignored - policy.off | policy.required
    return tuple(rule for rule in rules() if rule.id in ids)


def rule_ids(texts: Iterable[str]) -> set[str]:
    """The ids of the rules that ids, names and families' prefixes name. Raises UsageError."""
    ids: set[str] = set()
    for text in texts:
        prefix = text.upper()
        family = {rule.id for rule in rules() if prefix in ("EGL", f"EGL{rule.number // 100}")}
        ids |= family or {find_rule(text).id}
    return ids
