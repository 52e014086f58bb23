"""Every rule, by id."""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache

from eaglectl.errors import Usage
from eaglectl.validation import (
    agreement,
    config,
    config_schema,
    files,
    layers,
    leaks,
    norms,
    quantisation,
    release,
    rope,
    rows,
    serving,
    target,
    values,
    vocabulary,
    weights,
)
from eaglectl.validation.policy import Policy
from eaglectl.validation.rule import Rule

MODULES = (
    files,
    config,
    config_schema,
    agreement,
    leaks,
    weights,
    values,
    rows,
    vocabulary,
    layers,
    norms,
    rope,
    target,
    quantisation,
    release,
    serving,
)


@cache
def rules() -> tuple[Rule, ...]:
    """All rules in the order of their ids."""
    found = [one for module in MODULES for one in vars(module).values() if isinstance(one, Rule)]
    found += [one for module in MODULES for one in getattr(module, "RULES", ())]
    return tuple(sorted(found, key=lambda one: int(one.id.removeprefix("EGL"))))


def find(text: str) -> Rule:
    """The rule that `text` names, by id or by name. Raises Usage with the nearest ones."""
    by_name = {one.id: one for one in rules()} | {one.name: one for one in rules()}
    if text in by_name or text.upper() in by_name:
        return by_name.get(text) or by_name[text.upper()]
    near = get_close_matches(text.upper() if text.upper().startswith("EGL") else text, by_name, 3)
    raise Usage(f"{text} is no rule; " + (f"near it: {', '.join(near)}" if near else "`eaglectl rules` lists them"))


def chosen(select: Iterable[str], ignore: Iterable[str]) -> tuple[Rule, ...]:
    """The rules to run: all, or those that `select` names (an id, a name, or a prefix like EGL2), less those of `ignore`."""
    wanted = list(select)
    kept = {one.id for text in wanted for one in named(text)} if wanted else {one.id for one in rules()}
    left_out = {one.id for text in ignore for one in named(text)}
    return tuple(one for one in rules() if one.id in kept - left_out)


def under(policy: Policy, select: Iterable[str], ignore: Iterable[str]) -> tuple[Rule, ...]:
    """The rules to run under a policy: those chosen but for what it puts off, and always those that it requires."""
    if refused := sorted(policy.required & {one.id for text in ignore for one in named(text)}):
        raise Usage(f"--ignore {refused[0]}: the policy {policy.origin} requires it")
    ids = {one.id for one in chosen(select, ignore)} - policy.off | policy.required
    return tuple(one for one in rules() if one.id in ids)


def named(text: str) -> tuple[Rule, ...]:
    """The rules that an id, a name or a family's prefix (EGL2) means. Raises Usage with the nearest ones."""
    prefix = text.upper()
    family = tuple(one for one in rules() if prefix in ("EGL", f"EGL{int(one.id[3:]) // 100}"))
    return family or (find(text),)
