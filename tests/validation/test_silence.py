"""No rule speaks where nothing is wrong: good files as they lie, and whatever convert writes."""

from collections.abc import Mapping
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
V1_READS_OTHERS = ("EGL406",)  # ids that vLLM's V1 runner takes one too low
NEMO = ("EGL101", "EGL105")  # a class of its own, the target's depth
# what is truly wrong with the fixtures as their producers leave them, without and with the answers of
# tests/cases.py
TRUE: Mapping[str, tuple[str, ...]] = {
    "eagle/bin": ("EGL002",), "eagle/wide-target": ("EGL002",), "eagle/vicuna": ("EGL002", "EGL105"),
    "specforge/gqa-ids": V1_READS_OTHERS,
    "specforge/peagle": ("EGL101",),
    "torchspec/mla": V1_READS_OTHERS,
    "torchspec/dcp": ("EGL002", "EGL002", "EGL005", "EGL009"),
    "torchspec/dcp-2ranks": ("EGL002", "EGL002", "EGL002", "EGL005", "EGL009"),
    "angelslim/qwen3": ("EGL607",),  # its code trains with base 10000
    "angelslim/ids": ("EGL406", "EGL607"),  # no engine reads the key
    "angelslim/gqa": ("EGL107",),
    "angelslim/cosyvoice": ("EGL101", "EGL105", "EGL107"),
    "automodel/gqa": NEMO, "automodel/eagle3.1": NEMO, "automodel/mla": (*NEMO, "EGL117"),
    "automodel/sidecar": ("EGL002", "EGL002", "EGL105", "EGL310"),
    "deepspec/qwen3": ("EGL101", *V1_READS_OTHERS),
    "modelopt/hf": V1_READS_OTHERS,
    "modelopt/hf-full-vocab": V1_READS_OTHERS,
    "modelopt/hf-ids": V1_READS_OTHERS,
    "modelopt/hf-ids-unsorted": V1_READS_OTHERS,
    "modelopt/hf-four-aux": V1_READS_OTHERS,
    "modelopt/hf-two-layers": V1_READS_OTHERS,
    "modelopt/hf-mla": (*V1_READS_OTHERS, "EGL114"),
    "modelopt/hf-fp8": V1_READS_OTHERS,
    "modelopt/hf-fp8-kv": V1_READS_OTHERS,
    "modelopt-megatron/deep": V1_READS_OTHERS, "modelopt-megatron/deep-unsorted-ids": V1_READS_OTHERS,
    "speco/peagle": ("EGL101", "EGL118"),
    "speculators/four-aux": ("EGL408",),
    "sglang/aux-norm": (*V1_READS_OTHERS, "EGL506"),
    "sglang/two-layers": V1_READS_OTHERS,
    "sglang/mla-absorbed": V1_READS_OTHERS,
}  # fmt: skip
# fixtures that convert refuses; all but the last are errors, that one is a question
TRUE_OF_REFUSED: Mapping[str, tuple[str, ...]] = {
    "deepspec/gemma4": ("EGL103", "EGL118"),
    "deepspec/two-layers": ("EGL103",),
    "modelopt/hf-no-aux": ("EGL103",),
    "modelopt-megatron/no-d2t": ("EGL310", *V1_READS_OTHERS),
    "torchspec/pruned": ("EGL208",),
    "specforge/norm-output-false": ("EGL505",),
}
# drafters of another target than fixtures/target, which validate must say
OF_ANOTHER_TARGET: Mapping[str, tuple[str, ...]] = {
    "modelopt-megatron/deep-unsorted-ids": ("EGL402",),
    "eagle/wide-target": ("EGL701",),
}


def loud(report: Report) -> list[str]:
    """The rules that found an error or a warning."""
    return sorted(one.rule.id for one in report.findings if one.severity != "note")


@pytest.mark.fast(6)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_of_a_producer_s_files_only_what_is_true_is_said(case: Case) -> None:
    report = eaglectl.validate(str(case.folder), replace(RULES_ALONE, answers=case.answered()))
    assert loud(report) == sorted(TRUE.get(case.path, ())), [one.match for one in report.findings]


@pytest.mark.parametrize("path", REFUSED)
def test_what_convert_refuses_is_found(path: str) -> None:
    report = eaglectl.validate(str(FIXTURES / "producers" / path), RULES_ALONE)
    assert loud(report) == sorted(TRUE_OF_REFUSED[path])
    assert report.verdict == ("could-not-look" if path.endswith("norm-output-false") else "fail")


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
    wrong = list(OF_ANOTHER_TARGET.get(case.path, ()))
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


def test_the_true_findings_are_of_fixtures_that_exist() -> None:
    paths = {case.path for case in CASES}
    assert set(TRUE) <= paths and set(OF_ANOTHER_TARGET) <= paths and set(TRUE_OF_REFUSED) == set(REFUSED)
