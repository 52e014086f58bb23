"""A fix is words and commands: what its words say decides nothing."""

import pytest

from eaglectl.formats.commands import COMMAND, Complete, read_fix
from eaglectl.judge.rule import Rule, make_rule, rules

DOCUMENTED = "A sentence.\n\nWhy.\n\nFix: restore it from the trainer (`eaglectl convert SOURCE` copies it)."


def test_a_command_in_the_documentation_is_words_where_no_remedy_is_declared() -> None:
    plain = make_rule("EGL206", "x", "error", lambda _: iter(()), DOCUMENTED)
    assert not plain.repair.commands
    declared = make_rule("EGL206", "x", "error", lambda _: iter(()), DOCUMENTED, "convert")
    assert [offered.verb for offered in declared.repair.conversions] == ["convert"]
    assert plain.repair.text == declared.repair.text == plain.fix


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_a_rule_declares_a_remedy_where_its_documentation_names_a_command(rule: Rule) -> None:
    named = [line for line in COMMAND.findall(rule.fix) if "SOURCE" in line]
    assert [offered.line for offered in rule.repair.commands] == named
    assert rule.repair.text == rule.fix


def test_a_fix_has_steps_and_its_commands_become_whole() -> None:
    fix = read_fix(
        "restore d2t, or run `eaglectl convert SOURCE --for vllm`, which makes it; else x.", "convert"
    )
    assert [step.lead for step in fix.steps] == ["", ", or ", "; "]
    whole = fix.completed(Complete("a b"))
    assert [offered.line for offered in whole.commands] == ["eaglectl convert 'a b' --for vllm"]
    assert whole.completed(Complete("other")) == whole
    asked = read_fix("run `eaglectl smoke SOURCE --target TARGET`.", "measure").completed(Complete("x"))
    assert asked.commands[0].lacks_target
    assert asked.text == "run `eaglectl smoke x` with --target and the target's folder."


@pytest.mark.parametrize("text", ["", ".", "`eaglectl convert $(x) SOURCE`", "run `eaglectl", "; ", ", or x"])
def test_any_text_is_a_fix_that_says_it_again(text: str) -> None:
    assert read_fix(text).text == read_fix(text, "convert").text == text
    assert not read_fix(text, "convert").commands
