"""No rule speaks where nothing is wrong: good files as they lie, and whatever convert writes."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.judge.judgement import Report
from tests.builders import HIDDEN, drafter_folder, floats
from tests.cases import CASES, REFUSED, Case
from tests.conftest import FIXTURES

TARGET = str(FIXTURES / "target")
RELEASE = "vllm==0.33.0"
RULES_ALONE = eaglectl.ValidateOptions(has_engines=False)


def loud(report: Report) -> list[str]:
    """The rules that found an error or a warning."""
    return sorted(one.rule.id for one in report.findings if one.severity != "note")


@pytest.mark.fast(6)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_of_a_producer_s_files_only_what_is_true_is_said(case: Case) -> None:
    report = eaglectl.validate(str(case.folder), replace(RULES_ALONE, answers=case.answered()))
    assert loud(report) == sorted(case.findings), [one.match for one in report.findings]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.path)
def test_what_convert_refuses_is_found(case: Case) -> None:
    report = eaglectl.validate(str(case.folder), RULES_ALONE)
    assert loud(report) == sorted(case.findings)
    assert report.verdict == ("could-not-look" if case.settled == "measured" else "fail")


@pytest.mark.fast(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_what_convert_writes_has_nothing_wrong(case: Case, tmp_path: Path) -> None:
    if case.is_pickled and find_spec("torch") is None:
        pytest.skip("reading pickles needs torch")
    out = tmp_path / "out"
    eaglectl.convert(case.folder, out, answers=case.answered())
    alone = eaglectl.validate(str(out), RULES_ALONE)
    assert (loud(alone), alone.verdict) == ([], "pass"), [one.match for one in alone.findings]
    asked = eaglectl.validate(out, target=TARGET, engines=[RELEASE])
    wrong = list(case.of_another_target)
    assert loud(asked) == wrong, [one.match for one in asked.findings]
    assert asked.verdict == ("fail" if wrong else "pass"), asked.releases


def test_two_spellings_of_the_first_layer_are_no_fault(tmp_path: Path) -> None:
    """All engines rename each tensor by itself (vLLM 0.32.0 llama_eagle3.py:291, SGLang 0.5.23 :339)."""
    name = "hidden_norm.weight"
    respelt = {f"layers.0.{name}": None, f"midlayer.{name}": floats(f"layers.0.{name}", HIDDEN)}
    one, other = drafter_folder(tmp_path, "one"), drafter_folder(tmp_path, "other", tensors=respelt)
    for engine in (RELEASE, "vllm==0.32.0", "sglang==0.5.23"):
        before, after = (eaglectl.validate(folder, engines=[engine]) for folder in (one, other))
        assert (loud(after), after.verdict) == (loud(before), before.verdict) == ([], "pass")
