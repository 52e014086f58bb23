"""docs/reference/open-facts.md and ready.md: what is said there of fixtures is so, and who is asked."""

import re
import sys
from itertools import groupby
from pathlib import Path

import pytest

import eaglectl
from eaglectl.verdicts import ServedAs
from tests.cases import CASES, STATED, Case
from tests.conftest import FIXTURES
from tests.published import ALL

sys.path.insert(0, str(FIXTURES.parent / "docs"))
import open_facts
import ready_page

TARGET = FIXTURES / "target"
# of each producer the first that it states
ONE_OF_EACH = [next(cases) for _, cases in groupby(STATED, key=lambda case: case.folder.parent)]


def is_served_without_evidence(path: str) -> bool:
    """Whether an engine is said to serve as trained what is open."""
    read = eaglectl.inspect(str(FIXTURES / "producers" / path), target=str(TARGET))
    outcomes = {verdict.outcome for verdict in read.verdicts}
    return bool(read.drafter.unsettled) and ServedAs.AS_TRAINED in outcomes


@pytest.mark.fast(3)
@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.path)
def test_one_fixture_of_each_producer_is_settled_as_it_is_known(case: Case) -> None:
    assert open_facts.outcome(case.folder, TARGET) == case.settled
    assert not is_served_without_evidence(case.path)


def test_every_producer_is_among_them() -> None:
    producers = {path.name for path in (FIXTURES / "producers").iterdir() if path.is_dir()}
    assert {case.folder.parent.name for case in ONE_OF_EACH} == producers - {"__pycache__"}


@pytest.mark.slow
def test_who_is_asked_over_all_fixtures() -> None:
    pytest.importorskip("torch")
    rows = list(open_facts.of_producers())
    for settled in ("asked", "measured"):
        expected = {case.path for case in STATED if case.settled == settled}
        assert {path for path, _, column in rows if column == settled} == expected


@pytest.mark.slow
@pytest.mark.parametrize("path", [case.path for case in CASES if not case.is_pickled])
def test_nothing_open_is_said_to_be_as_trained(path: str) -> None:
    assert not is_served_without_evidence(path)


def test_the_page_counts_all_fixtures() -> None:
    text = open_facts.PAGE.read_text()
    sums = [sum(map(int, re.findall(r"\d+", row))) for row in re.findall(r"\| \*\*all\*\* .*", text)]
    assert sums == [len(STATED), len(ALL)]


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
