"""docs/reference/ready.md: its rows are what `ready` says of the fixtures."""

import sys
from pathlib import Path

import pytest

from tests.conftest import FIXTURES

sys.path.insert(0, str(FIXTURES.parent / "docs"))
import ready_page

TEXT = ready_page.PAGE.read_text()
FOLDERS = sorted(path for path in (FIXTURES / "producers").iterdir() if any(path.glob("*/config.json")))
SAMPLE = ("automodel", "eagle", "specforge")


@pytest.mark.parametrize("name", SAMPLE)
def test_a_row_is_what_ready_says(name: str) -> None:
    row = ready_page.row(ready_page.first_case(FIXTURES / "producers" / name))
    assert row in TEXT.splitlines()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_producer_has_a_row(folder: Path) -> None:
    assert f"\n| `fixtures/producers/{folder.name}/" in TEXT
