"""Every rule has a bad case with exactly its finding, in a test module beside this one."""

import gc
import pkgutil
import re
import weakref
from importlib import import_module
from pathlib import Path

from eaglectl.api import options
from eaglectl.api.validate import judge
from eaglectl.drafter.drafter import Target
from eaglectl.engines.registry import ENGINES, parse_engine
from eaglectl.files.checkpoint import open_source
from eaglectl.files.source import FolderSource
from eaglectl.judge import rules as rule_modules
from eaglectl.judge.judgement import GivenTarget, Subject, changes_serving
from eaglectl.judge.rule import Policy, Rule, rules
from eaglectl.options import Options, options_of
from tests.builders import drafter_folder
from tests.validation.judging import every_patch

# test_serving.py has the bad cases of the rules that engines' data make
RULES = [rule for rule in rules() if not rule.family.startswith("serving")]


# the shards of a distributed checkpoint are pickles, and a trainer's metadata is no file of a drafter
GOES_WITH = {"EGL009": {"EGL002"}, "EGL011": {"EGL005"}}


def sole_findings() -> set[str]:
    """The ids of rules that some patch finds alone, or with those that go with it."""
    found = [set(patch.rules) for patch in every_patch(besides=__name__)]
    pairs = [set(patch) - others for patch in found for rule, others in GOES_WITH.items() if rule in patch]
    return {next(iter(rules)) for rules in (*found, *pairs) if len(rules) == 1}


def test_every_rule_has_a_bad_case_with_exactly_its_finding() -> None:
    """Add a patch with that finding to a test module."""
    assert [rule.id for rule in RULES if rule.id not in sole_findings()] == []


def test_inspect_leaves_out_no_rule_that_concerns_every_engine() -> None:
    kept = rules(without=("release",))
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


# an option of an engine, or a variable of its environment
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+|\b(?:SGLANG|VLLM)_[A-Z_]+|draft_tensor_parallel_size")
LINE = re.compile(r"\.py(?:[, ]+vLLM)? [0-9.]+:[0-9]+|\.py, vLLM [0-9.]+:[0-9]+")


def engine_options(fix: str) -> set[str]:
    """The options in a fix that are no options of eaglectl."""
    kinds = (kind for kind in vars(options).values() if isinstance(kind, type) and issubclass(kind, Options))
    ours = {option.flag for kind in kinds for option in options_of(kind).values()}
    return set(OPTION.findall(re.sub(r"`eaglectl[^`]*`", "", fix))) - ours


def test_advice_that_names_an_option_of_an_engine_has_its_file_and_line() -> None:
    sources = {fact.rule: fact.source for engine in ENGINES.values() for fact in engine.facts}
    advising = [rule for rule in rules() if engine_options(rule.fix)]
    assert [rule.id for rule in advising if not LINE.search(sources.get(rule.id, rule.why))] == []
    assert engine_options("start it with --max-model-len 5, or `eaglectl convert SOURCE --target TARGET`")


def test_the_option_of_a_fact_is_one_of_the_engine_s_command_line() -> None:
    options = {
        (engine.name, fact.option.name)
        for engine in ENGINES.values()
        for fact in engine.facts
        if fact.option is not None
    }
    assert options == {
        ("vllm", "--max-model-len"),
        ("sglang", "--context-length"),
        ("sglang", "--dtype"),
        ("sglang", "--speculative-draft-window-size"),
    }
