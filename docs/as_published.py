"""benchmarks/evidence/published.md: how every configuration of fixtures/published ends, named and not."""

import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "benchmarks/evidence/published.md"
sys.path.insert(0, str(PAGE.parents[2]))

from msgspec import Struct

import eaglectl
from eaglectl.api.outputs import judge_plan
from eaglectl.engines.behaviour import ranges
from eaglectl.engines.registry import ENGINES, parse_engine
from eaglectl.errors import RefusedError, UsageError
from eaglectl.files.source import is_repo_name
from eaglectl.formats.published import PublishedDrafter, published_file
from eaglectl.verdicts import ServedAs
from tests.published import ALL, Published

from tables import table  # isort: skip

PUBLISHED, TRAINED, CONVERTED, ASKED, REFUSED = ENDINGS = (
    *("as published", "as trained", "converted", "asked", "refused"),
)
HEAD = """# Published drafters, as their authors ran them

Written by `make docs`: `inspect` and `convert --dry-run` of every configuration of
[fixtures/published](../../fixtures/published/README.md), with its target's config.

A trainer's code may leave open how a file was trained, and eaglectl then asks. It does not ask if the authors
measured the file as it is stored in an engine and published the figure: that engine runs the file **as
published**. The list is `drafters` in `eaglectl/run/published.json`; every figure has its source in
[what others reach](acceptance.md).

* A drafter is identified by the name of its repository, if its config contains all published values; a folder
  without a name by the digest of the whole config, if that is public (for none so far: a trainer's recipe is
  also the config of drafters that others train with it). For a copy with another name, or with one other key,
  eaglectl asks.
* A release runs it as published if, by eaglectl's facts, it reads the file like the release in which its
  authors measured it; if a source states no release, like all releases since. Other engines do not, and a
  layer that is known to be wrong stays wrong.
* `convert` keeps the measured reading, and open facts stay open in the output.

"""
COUNTED = """**as published**, **as trained**: how the newest known release of an engine runs the file.
**converted**: no engine does, nothing is asked, and an engine runs the output of `convert`, as far as known.
**asked**: `convert` exits with 2. **refused**: no conversion is possible, or none that an engine runs.

"""
ROWS = "\nWith the name given, by the newest known release of each engine:\n"
MEASURED = "\n## What authors measured\n\nReleases that run the file as published, and the figure.\n"


class Ending(Struct, frozen=True):
    """How one configuration ends, and what the newest release of each engine does with it as stored."""

    kind: str
    outcomes: Mapping[str, ServedAs]


def page() -> str:
    """The whole page."""
    named, unnamed = endings(is_named=True), endings(is_named=False)
    head = ["", *ENDINGS, "all"]
    counts = [("with the name given", named), ("a folder without a name", unnamed)]
    rows = [[label, *_counts(several), str(len(several))] for label, several in counts]
    columns = [f"{engine.title} {engine.releases[-1]}" for engine in ENGINES.values()]
    each = [
        [drafter.name, ending.kind, *(ending.outcomes.get(name, "") for name in ENGINES)]
        for drafter, ending in zip(ALL, named, strict=True)
    ]
    return "\n".join(
        [
            HEAD + COUNTED + table(head, rows) + MEASURED,
            measured() + ROWS,
            table(["drafter", "ends", *columns], each),
        ]
    )


def measured() -> str:
    """The table of what authors measured, and which releases run their file as they did."""
    rows = [row for drafter in published_file().drafters if not drafter.source for row in _measured(drafter)]
    return table(["drafter", "runs it as published", "figure", "source"], rows)


def _counts(several: Sequence[Ending]) -> list[str]:
    counter = Counter(ending.kind for ending in several)
    return [str(counter[kind]) for kind in ENDINGS]


@cache
def endings(*, is_named: bool) -> Sequence[Ending]:
    """How each configuration ends, in the order of tests.published.ALL."""
    found = []
    for drafter in ALL:
        with tempfile.TemporaryDirectory() as name:
            found.append(ending(place(drafter, Path(name), is_named=is_named), drafter.target(Path(name))))
    return found


def place(drafter: Published, parent: Path, *, is_named: bool) -> Path:
    """A folder of the drafter; with its name, as the Hub client's cache has it."""
    made = drafter.folder(parent)
    if not is_named or not is_repo_name(drafter.name):
        return made
    snapshot = parent / f"models--{drafter.name.replace('/', '--')}/snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    return made.rename(snapshot)


def ending(folder: Path, target: Path) -> Ending:
    """How a checkpoint ends for its target."""
    try:
        inspection = eaglectl.inspect(str(folder), target=str(target))
    except RefusedError:
        return Ending(REFUSED, {})
    outcomes = {verdict.engine: verdict.outcome for verdict in inspection.verdicts}
    for kind, outcome in ((PUBLISHED, ServedAs.AS_PUBLISHED), (TRAINED, ServedAs.AS_TRAINED)):
        if outcome in outcomes.values():
            return Ending(kind, outcomes)
    return Ending(_converted(folder, target), outcomes)


def _converted(folder: Path, target: Path) -> str:
    try:
        options = eaglectl.ConvertOptions(target=str(target), dry_run=True)
        plan = eaglectl.convert(str(folder), None, options).plan
    except UsageError:
        return ASKED
    except RefusedError:
        return REFUSED
    verdicts = [verdict for name in ENGINES for verdict in judge_plan(plan, parse_engine(name))]
    return REFUSED if all(verdict.outcome.is_known_wrong for verdict in verdicts) else CONVERTED


def _measured(drafter: PublishedDrafter) -> list[list[str]]:
    """A row for each figure of its authors that names its engine."""
    spans = _spans(next(fixture for fixture in ALL if fixture.name == drafter.name))
    return [
        [drafter.name, spans.get(str(figure.engine_name), ""), figure.words, figure.origin]
        for figure in drafter.figures
        if figure.is_by_authors and figure.engine_name
    ]


def _spans(fixture: Published) -> Mapping[str, str]:
    """By an engine's title, the releases that run a fixture as published."""
    every = [f"{name}>=0" for name in ENGINES]
    with tempfile.TemporaryDirectory() as name:
        folder, target = place(fixture, Path(name), is_named=True), fixture.target(Path(name))
        inspection = eaglectl.inspect(str(folder), target=str(target), engines=every)
    found: dict[str, list[str]] = {}
    for verdict in inspection.requested:
        if verdict.outcome == ServedAs.AS_PUBLISHED:
            found.setdefault(verdict.engine, []).append(verdict.release)
    return {
        ENGINES[name].title: f"{ENGINES[name].title} {ranges(releases, ENGINES[name].releases)}"
        for name, releases in found.items()
    }
