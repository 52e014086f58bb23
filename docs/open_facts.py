"""docs/reference/open-facts.md: how the facts that a file leaves open are settled, by fixture."""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

PAGE = Path(__file__).with_name("reference") / "open-facts.md"
sys.path.insert(0, str(PAGE.parents[2]))

from eaglectl.api.convert import measurable_target
from eaglectl.api.sources import opened
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.files.checkpoint import open_folder
from eaglectl.formats.format import Answers
from eaglectl.formats.published import published_file
from eaglectl.formats.reader import read_drafter
from eaglectl.target.choice import as_target, open_target
from tests.cases import STATED
from tests.conftest import FIXTURES
from tests.open_facts import OPEN_FACTS
from tests.pairs import SECOND
from tests.published import ALL

FILE, SHAPES, KNOWN, STORED, MEASURED, ASKED, NONE = COLUMNS = (
    *("by the file", "by the target", "known by name", "as published", "measured", "asked", "refused"),
)
HEAD = """# How open facts are settled

Written by `make docs` from every fixture, as its producer left it and without an answer.

**by the file**: nothing is asked, because the file and its producer's code decide. **by the target**: the
target's config answers the question. **known by name**: a published drafter whose training is public
(`fixtures/published`). **as published**: a drafter whose authors measured it as stored, identified by name
and read as they ran it ([which](../../benchmarks/evidence/published.md)). **measured**: `convert` exits with
2 ([what it asks](../questions.md)), and asks nothing if the target's weights are available: for a trained
drafter with the same attention, measuring answered the same questions correctly
([table](../../benchmarks/README.md#what-measuring-answers)). **asked**: even with weights, because the
reference does not run the drafter (quantised, parallel, a rope that it lacks) or drafting cannot show it.
**refused**: no conversion is possible.
"""


def drafter_of(folder: Path, target: Path | None) -> Drafter:
    """The drafter in a folder, pickles too."""
    with opened(open_folder(str(folder)), is_looked_at=True) as files:
        return read_drafter(files.checkpoint, Answers(), open_target(None if target is None else str(target)))


def outcome(folder: Path, target: Path, named: str | None = None) -> str:
    """The column of a fixture; `named` is that of one whose name settles what is asked."""
    try:
        alone, beside = drafter_of(folder, None), drafter_of(folder, target)
    except RefusedError:
        return NONE
    if not alone.notes_at("question"):
        return FILE
    if named:
        return named
    if not beside.notes_at("question"):
        return SHAPES
    return MEASURED if is_measured(beside) else ASKED


def kind(drafter: Drafter, note: Note) -> tuple[str, bool]:
    """What a question is about, and whether of MLA attention."""
    return note.about, drafter.dims.attention == "MLA"


@cache
def answered_kinds() -> frozenset[tuple[str, bool]]:
    """The kinds of questions that measuring answers of trained drafters (tests/test_open_questions.py)."""
    kinds = set[tuple[str, bool]]()
    for fact in OPEN_FACTS:
        with tempfile.TemporaryDirectory() as name:
            drafter = drafter_of(fact.write(Path(name) / "source"), fact.trained.target)
            kinds.update(kind(drafter, note) for note in drafter.notes_at("question"))
    return frozenset(kinds)


def is_measured(drafter: Drafter) -> bool:
    """Whether the reference runs the drafter, and every question is of a kind that measuring answers."""
    from eaglectl.reference.model import Rotary

    questions = drafter.notes_at("question")
    try:
        measurable_target(drafter, tuple(questions), as_target(SECOND.target))
        Rotary(drafter.rope, drafter.dims.head_dim or 8, is_mla=drafter.dims.attention == "MLA", device="cpu")
    except (UnreadableError, RefusedError):
        return False
    return {kind(drafter, note) for note in questions} <= answered_kinds()


def of_producers() -> Iterator[tuple[str, str, str]]:
    """Each fixture of fixtures/producers: its path, producer and column."""
    for path in (case.path for case in STATED):
        folder = FIXTURES / "producers" / path
        yield path, path.partition("/")[0], outcome(folder, FIXTURES / "target")


def of_published() -> Iterator[tuple[str, str, str]]:
    """Each published drafter: its name, producer and column."""
    measured = {drafter.name for drafter in published_file().drafters if not drafter.source}
    for drafter in ALL:
        with tempfile.TemporaryDirectory() as name:
            target = drafter.target(Path(name))
            known = KNOWN if "settles" in drafter.said else None
            named = STORED if drafter.name in measured else known
            column = outcome(drafter.folder(Path(name)), target, named)
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
