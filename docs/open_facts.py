"""docs/open-facts.md: how the facts that a file leaves open are settled, counted over every fixture."""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

PAGE = Path(__file__).with_name("open-facts.md")
sys.path.insert(0, str(PAGE.parent.parent))

from eaglectl.api.converting import opened
from eaglectl.api.inputs import open_target
from eaglectl.checkpoint.opening import open_folder
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import RefusedError
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from tests.cases import CASES, REFUSED
from tests.conftest import FIXTURES
from tests.published import ALL

FILE, SHAPES, KNOWN, ASKED, NONE = "by the file", "by the target", "known by name", "asked", "refused"
COLUMNS = (FILE, SHAPES, KNOWN, ASKED, NONE)
HEAD = """# How open facts are settled

Written by `make docs` from every fixture, as its producer left it and without an answer.

**by the file**: nothing is asked, as the file and its producer's code say it. **by the target**: the target's
config settles what would be asked. **known by name**: a published drafter whose training is public
(`fixtures/published`). **asked**: `convert` exits with 2 ([what it asks](questions.md)). **refused**: no
conversion is possible.
"""


def drafter_of(folder: Path, target: Path | None) -> Drafter:
    """The drafter in a folder, pickles too."""
    with opened(open_folder(str(folder)), is_looked_at=True) as files:
        return read_drafter(files.checkpoint, Answers(), open_target(None if target is None else str(target)))


def outcome(folder: Path, target: Path, *, is_known: bool = False) -> str:
    """The column of a fixture."""
    try:
        alone, beside = drafter_of(folder, None), drafter_of(folder, target)
    except RefusedError:
        return NONE
    if not alone.notes_at("question"):
        return FILE
    if is_known:
        return KNOWN
    return ASKED if beside.notes_at("question") else SHAPES


def of_producers() -> Iterator[tuple[str, str, str]]:
    """Each fixture of fixtures/producers: its path, producer and column."""
    for path in (*(case.path for case in CASES), *REFUSED):
        folder = FIXTURES / "producers" / path
        yield path, path.partition("/")[0], outcome(folder, FIXTURES / "target")


def of_published() -> Iterator[tuple[str, str, str]]:
    """Each published drafter: its name, producer and column."""
    for drafter in ALL:
        with tempfile.TemporaryDirectory() as name:
            target = drafter.target(Path(name))
            column = outcome(drafter.folder(Path(name)), target, is_known="settles" in drafter.said)
            yield drafter.name, drafter.said["producer"], column


def counts(rows: Iterator[tuple[str, str, str]]) -> Mapping[str, Counter[str]]:
    """By producer, how many fixtures are in each column."""
    found: dict[str, Counter[str]] = {}
    for _, producer, column in rows:
        found.setdefault(producer, Counter())[column] += 1
    return dict(sorted(found.items()))


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, rows in (("Fixtures of producers", of_producers()), ("Published drafters", of_published())):
        table = counts(rows)
        total: Counter[str] = sum(table.values(), Counter())
        lines = [f"## {title}\n", f"| producer | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
        for name, count in [*table.items(), ("**all**", total)]:
            lines.append(f"| {name} | {' | '.join(str(count[column]) for column in COLUMNS)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)
