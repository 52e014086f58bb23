"""docs/reference/open-facts.md and ready.md: what is said there of fixtures is so, and who is asked."""

import sys
from pathlib import Path

import pytest

import eaglectl
from eaglectl.verdicts import ServedAs
from tests.cases import CASES
from tests.conftest import FIXTURES

sys.path.insert(0, str(FIXTURES.parent / "docs"))
import open_facts
import ready_page

TARGET = FIXTURES / "target"
# of each producer one fixture, and how it is settled
ONE_OF_EACH = {
    "angelslim/gqa": "by the file",
    "automodel/gqa": "measured",
    "deepspec/qwen3": "by the file",
    "eagle/safetensors": "by the file",
    "lightseekorg/mla": "measured",
    "modelopt/hf-full-vocab": "by the file",
    "modelopt-megatron/deep": "by the file",
    "nebius/truncated": "by the file",
    "sglang/aux-norm": "by the file",
    "specforge/gqa": "by the file",
    "speco/peagle": "asked",
    "speculators/default": "by the file",
    "torchspec/llama": "by the file",
    "vllm/native": "by the file",
}
# every fixture that asks beside its target; of all others the producer's code or the target says it
MEASURED = {
    *("automodel/gqa", "automodel/eagle3.1", "automodel/sidecar"),
    *("lightseekorg/mla", "lightseekorg/mla-eagle3.1", "torchspec/mla", "torchspec/mla-deepseek-v3"),
    *("modelopt/hf", "modelopt/hf-ids", "modelopt/hf-ids-unsorted", "modelopt/hf-four-aux"),
    *("modelopt/hf-two-layers", "specforge/eagle3.1", "specforge/norm-output-false"),
}
# those that ask with the target's weights too: parallel, quantised, and MLA without yarn's mscale
ASKED = {*("specforge/peagle", "speco/peagle", "modelopt/hf-fp8", "modelopt/hf-fp8-kv", "automodel/mla")}


def is_served_without_evidence(path: str) -> bool:
    """Whether an engine is said to serve as trained what is open."""
    read = eaglectl.inspect(str(FIXTURES / "producers" / path), target=str(TARGET))
    outcomes = {verdict.outcome for verdict in read.verdicts}
    return bool(read.drafter.unsettled) and ServedAs.AS_TRAINED in outcomes


@pytest.mark.fast(3)
@pytest.mark.parametrize(("path", "column"), ONE_OF_EACH.items())
def test_one_fixture_of_each_producer_is_settled_as_it_is_known(path: str, column: str) -> None:
    assert open_facts.outcome(FIXTURES / "producers" / path, TARGET) == column
    assert not is_served_without_evidence(path)


def test_every_producer_is_among_them() -> None:
    producers = {path.name for path in (FIXTURES / "producers").iterdir() if path.is_dir()}
    assert {path.partition("/")[0] for path in ONE_OF_EACH} == producers - {"__pycache__"}


@pytest.mark.slow
def test_who_is_asked_over_all_fixtures() -> None:
    pytest.importorskip("torch")
    rows = list(open_facts.of_producers())
    assert {path for path, _, column in rows if column == "asked"} == ASKED
    assert {path for path, _, column in rows if column == "measured"} == MEASURED


@pytest.mark.slow
@pytest.mark.parametrize("path", [case.path for case in CASES if not case.is_pickled])
def test_nothing_open_is_said_to_be_as_trained(path: str) -> None:
    assert not is_served_without_evidence(path)


def test_the_page_counts_all_fixtures() -> None:
    text = open_facts.PAGE.read_text()
    assert "| **all** | 43 | 3 | 0 | 0 | 14 | 5 | 3 |" in text
    assert "| **all** | 61 | 5 | 3 | 10 | 15 | 1 | 3 |" in text


TEXT = ready_page.PAGE.read_text()
FOLDERS = sorted(path for path in (FIXTURES / "producers").iterdir() if any(path.glob("*/config.json")))
SAMPLE = ("automodel", "eagle", "specforge")


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_row_is_what_ready_says(name: str) -> None:
    row = ready_page.row(ready_page.first_case(FIXTURES / "producers" / name))
    assert row in TEXT.splitlines()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_producer_has_a_row(folder: Path) -> None:
    assert f"\n| `fixtures/producers/{folder.name}/" in TEXT
