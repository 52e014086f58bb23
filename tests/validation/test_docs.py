"""The page of the rules is made from the rules, and every pain that files can show has a rule."""

import importlib
import re
import sys
from types import ModuleType

import pytest

from eaglectl.judge.rule import rules
from eaglectl.report.findings import rule_url
from tests.conftest import FIXTURES

DOCS = FIXTURES.parent / "docs"
# what nobody sees before the drafter runs
ONLY_SMOKE = {16, 26, 42, 60, 61, 62}


@pytest.fixture(scope="module")
def make() -> ModuleType:
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("make")
    finally:
        sys.path.remove(str(DOCS))


def test_the_page_is_what_make_docs_writes(make: ModuleType) -> None:
    assert make.PAGE.read_text() == make.page(), "run `make docs`"


def test_every_rule_has_the_heading_that_reports_link_to(
    make: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLECTL_DOCS_URL", "https://example.org/rules")
    headings = {
        re.sub(r"[^a-z0-9 -]", "", text.lower()).replace(" ", "-")
        for text in re.findall(r"^### (.*)$", make.page(), re.M)
    }
    assert {rule_url(one).partition("#")[2] for one in rules()} == headings


def test_without_an_address_reports_name_the_command_that_shows_a_rule() -> None:
    (one,) = [one for one in rules() if one.id == "EGL405"]
    assert rule_url(one) == "eaglectl rules EGL405"


def test_every_pain_that_files_can_show_has_rules_and_the_others_smoke(make: ModuleType) -> None:
    known = {one.id for one in rules()}
    assert [one.number for one in make.PAINS] == list(range(1, 71))
    assert {one.number: set(one.rules) - known for one in make.PAINS if set(one.rules) - known} == {}
    assert {one.number for one in make.PAINS if not one.rules} == ONLY_SMOKE
    assert all("smoke" in one.also for one in make.PAINS if not one.rules)


def test_the_pages_table_of_pains_keeps_its_columns(make: ModuleType) -> None:
    rows = [line for line in make.page().splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(rows) == 70 and all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows)
