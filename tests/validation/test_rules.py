"""Every rule is complete: it has a bad case with exactly its finding, in one of the test modules beside
this one.
"""

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import pytest

import tests.validation
from eaglectl.validation import rules as rule_modules
from eaglectl.validation.catalogue import rules
from eaglectl.validation.rule import Rule
from tests.validation.patches import Patch

# test_serving.py has the bad cases of the rules that engines' data make
RULES = [rule for rule in rules() if not rule.family.startswith("serving")]


def patches(value: object) -> Iterator[Patch]:
    """The patches in a module's variable: one, or a tuple of them."""
    if isinstance(value, Patch):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from patches(item)


@pytest.fixture(scope="module")
def sole_findings() -> set[str]:
    """The ids of rules that some patch finds alone."""
    modules = (
        import_module(f"tests.validation.{info.name}")
        for info in pkgutil.iter_modules(tests.validation.__path__)
        if info.name.startswith("test_")
    )
    cases = (patch for module in modules for value in vars(module).values() for patch in patches(value))
    return {patch.finds[0] for patch in cases if len(set(patch.finds)) == 1}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_has_a_bad_case_with_exactly_its_finding(rule: Rule, sole_findings: set[str]) -> None:
    assert rule.id in sole_findings, f"add a Patch(..., finds=({rule.id!r},)) to a test module"


def test_every_module_of_rules_is_in_the_catalogue() -> None:
    names = {info.name for info in pkgutil.iter_modules(rule_modules.__path__)}
    assert names == {rule.check.__module__.rpartition(".")[2] for rule in rules()}
