"""Every rule is complete: it has a bad case with exactly its finding, in one of the test modules beside
this one.
"""

import gc
import pkgutil
import weakref
from importlib import import_module
from pathlib import Path

import pytest

import tests.validation
from eaglectl.drafter.drafter import Target
from eaglectl.engines.registry import parse_engine
from eaglectl.files.opening import open_source
from eaglectl.files.source import FolderSource
from eaglectl.judge import rules as rule_modules
from eaglectl.judge.judgement import changes_serving
from eaglectl.judge.rule import Policy, Rule
from eaglectl.judge.rules import NOT_OF_EVERY_ENGINE, rules
from eaglectl.judge.subject import GivenTarget, Subject
from eaglectl.operations.validating import judge
from tests.builders import drafter_folder
from tests.validation.judging import patches

# test_serving.py has the bad cases of the rules that engines' data make
RULES = [rule for rule in rules() if not rule.family.startswith("serving")]


# the shards of a distributed checkpoint are pickles
GOES_WITH = {"EGL009": {"EGL002"}}


@pytest.fixture(scope="module")
def sole_findings() -> set[str]:
    """The ids of rules that some patch finds alone, or with those that go with it."""
    modules = (
        import_module(f"tests.validation.{info.name}")
        for info in pkgutil.iter_modules(tests.validation.__path__)
        if info.name.startswith("test_")
    )
    cases = (patch for module in modules for value in vars(module).values() for patch in patches(value))
    found = [set(patch.finds) for patch in cases]
    pairs = [set(patch) - others for patch in found for rule, others in GOES_WITH.items() if rule in patch]
    return {next(iter(rules)) for rules in (*found, *pairs) if len(rules) == 1}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_has_a_bad_case_with_exactly_its_finding(rule: Rule, sole_findings: set[str]) -> None:
    assert rule.id in sole_findings, f"add a Patch(..., finds=({rule.id!r},)) to a test module"


def test_inspect_leaves_out_no_rule_that_concerns_every_engine() -> None:
    kept = rules(without=NOT_OF_EVERY_ENGINE)
    assert [rule.id for rule in rules() if changes_serving(rule) and rule not in kept] == []
    assert len(kept) < len(rules())


class Watched(Subject, frozen=True, eq=False, dict=True, weakref=True):
    """A subject that a test can see go."""


def test_what_was_judged_is_freed_without_a_look_for_garbage(tmp_path: Path) -> None:
    """A thousand checkpoints, each with its tables, are in memory one after the other."""
    source = open_source(str(drafter_folder(tmp_path)))
    assert isinstance(source, FolderSource)
    gc.collect()
    gc.disable()
    try:
        subject = Watched(source, GivenTarget(Target()), (parse_engine("vllm"),))
        report = judge(subject, rules(), Policy(), "error", str(tmp_path))
        judged = weakref.ref(subject)
        del subject
        assert judged() is None
    finally:
        gc.enable()
    assert report.passed


def test_every_module_of_rules_is_in_the_catalogue() -> None:
    known = {rule.id for rule in rules()}
    for info in pkgutil.iter_modules(rule_modules.__path__):
        module = import_module(f"{rule_modules.__name__}.{info.name}")
        declared = {value.id for value in vars(module).values() if isinstance(value, Rule)}
        declared |= {rule.id for rule in getattr(module, "RULES", ())}
        assert declared, info.name
        assert declared <= known
