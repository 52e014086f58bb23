"""Whether somebody looked at all that changed in what a drafter's outcome depends on (`make engines-check`).

    python -m tools.scan.looked                      the releases of digests.json
    python -m tools.scan.looked SOURCES...           wheels or folders of other releases too
    python -m tools.scan.looked --record SOURCES...  writes their digests to digests.json
    python -m tools.scan.looked --diff BEFORE AFTER  what changed in two of them, by definition

A change is a file of a topic whose digest differs from that of the release before. Each one needs an entry
in looked.json that says what was read or run, and what it means for drafters: the facts or parts of the data
that state it, none where a drafter's outcome is the same. Exits with 1 for a change without an entry.
Digests are of definitions as Python 3.11 writes them; later versions write some expressions otherwise.
"""

import argparse
import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from itertools import pairwise
from pathlib import Path

from msgspec import Struct, convert, field

from eaglectl.engines.behaviour import is_since, release_order
from eaglectl.engines.data import load
from eaglectl.errors import EaglectlError, UsageError
from eaglectl.terminal import say
from tools.scan.closure import reached, scope
from tools.scan.extraction import DIGITS
from tools.scan.sources import Sources

DIGESTS, LOOKED = (Path(__file__).parent / name for name in ("digests.json", "looked.json"))
ENGINES = ("vllm", "sglang")
# by release: the digest of each file, by topic and file ("rotation: layers/rotary.py")
Table = Mapping[str, Mapping[str, str]]


class Entry(Struct, frozen=True, rename={"before": "from", "release": "to"}):
    """What somebody looked at: the changes of a topic's files between two neighbouring releases.

    `files` has the digest of each file in the later release, None for one that is gone. `means` has ids of
    facts and keys of the engine's data; none: no effect on a drafter's outcome.
    """

    topic: str
    before: str
    release: str
    files: Mapping[str, str | None]
    read: str
    means: tuple[str, ...] = field(default=())


class Unlooked(Struct, frozen=True):
    """The files of a topic that changed in a release, and that no entry has."""

    engine: str
    release: str
    topic: str
    before: str
    files: Mapping[str, str | None]

    @property
    def blank(self) -> str:
        """The entry to fill in."""
        entry = {"topic": self.topic, "from": self.before, "to": self.release, "files": self.files}
        return json.dumps({**entry, "read": "", "means": []})


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, record or compare as the arguments say, and return the exit code."""
    parser = argparse.ArgumentParser("python -m tools.scan.looked", description="Check what was looked at.")
    parser.add_argument("sources", nargs="*", type=Path, help="wheels, or folders with their Python files")
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--record", action="store_true", help="write the digests of SOURCES to digests.json")
    actions.add_argument("--diff", action="store_true", help="show what changed between two SOURCES")
    options = parser.parse_args(arguments)
    try:
        return _done(options.sources, is_recorded=options.record, is_diff=options.diff)
    except EaglectlError as error:
        say(f"eaglectl: {error}", sys.stderr)
        return error.exit_code


def _done(paths: Sequence[Path], *, is_recorded: bool, is_diff: bool) -> int:
    if is_diff:
        if len(paths) != 2:
            raise UsageError("--diff needs two sources: the earlier release, and the later one")
        for line in changed_lines(*map(Sources, paths)):
            say(line)
        return 0
    tables = {engine: {**recorded(engine)} for engine in ENGINES}
    for path in paths:
        sources = Sources(path)
        tables[sources.package][sources.release] = digests(sources)
    if is_recorded:
        DIGESTS.write_text(written(tables))
    return _reported(tables)


def _reported(tables: Mapping[str, Table]) -> int:
    """Print what was not looked at, and return the exit code."""
    missing = [row for engine, table in tables.items() for row in unlooked(engine, table, entries(engine))]
    for row in missing:
        say(f"{row.engine} {row.release}: {row.topic}: {', '.join(row.files)}")
    wrong = [line for engine, table in tables.items() for line in problems(engine, table)]
    for line in wrong:
        say(line)
    if missing:
        say(f"\n{len(missing)} to look at; add to tools/scan/looked.json, filled in:\n")
        for row in missing:
            print(f"   {row.blank},")
        say("\nwhat changed: python -m tools.scan.looked --diff BEFORE AFTER")
    else:
        counts = [f"{len(table)} releases of {engine}" for engine, table in tables.items()]
        say(f"all changes of {' and '.join(counts)} were looked at")
    return 1 if missing or wrong else 0


def entries(engine: str) -> tuple[Entry, ...]:
    """The entries of an engine."""
    return convert(json.loads(LOOKED.read_text())[engine], tuple[Entry, ...])


def recorded(engine: str) -> Table:
    """The recorded digests of each release, oldest first."""
    stored = json.loads(DIGESTS.read_text())[engine]
    table: dict[str, Mapping[str, str]] = {}
    current: dict[str, str | None] = {}
    for release in stored["read"]:
        current |= {file: changes[release] for file, changes in stored["files"].items() if release in changes}
        table[release] = {file: digest for file, digest in current.items() if digest is not None}
    return table


def digests(sources: Sources) -> Mapping[str, str]:
    """The digest of the definitions that a drafter's outcome depends on, by topic and file."""
    files: dict[str, list[str]] = {}
    for file, definitions in texts(sources).items():
        files[file] = [f"{name}\n{text}" for name, text in sorted(definitions.items())]
    return {
        file: hashlib.sha256("\n".join(parts).encode()).hexdigest()[:DIGITS]
        for file, parts in sorted(files.items())
    }


def texts(sources: Sources) -> Mapping[str, Mapping[str, str]]:
    """The source of each definition by topic and file, and name."""
    limits = scope(sources.package)
    found: dict[str, dict[str, str]] = {}
    for (path, name), node in sorted(reached(sources, limits).items(), key=lambda item: item[0]):
        found.setdefault(f"{limits.topic((path, name))}: {path}", {})[name] = ast.unparse(node)
    return found


def changes(table: Table) -> Iterator[tuple[str, str, Mapping[str, str | None]]]:
    """Each pair of neighbouring releases, with the digests of the files that differ."""
    releases = sorted(table, key=release_order)
    for before, release in pairwise(releases):
        old, new = table[before], table[release]
        differing = {file: new.get(file) for file in sorted({*old, *new}) if old.get(file) != new.get(file)}
        yield before, release, differing


def unlooked(engine: str, table: Table, looked: Iterable[Entry]) -> list[Unlooked]:
    """The changes without an entry that says what was read, by release and topic."""
    known = {
        (entry.before, entry.release, f"{entry.topic}: {path}"): digest
        for entry in looked
        if entry.read
        for path, digest in entry.files.items()
    }
    missing: dict[tuple[str, str, str], dict[str, str | None]] = {}
    for before, release, differing in changes(table):
        for file, digest in differing.items():
            if known.get((before, release, file), "") != digest:
                topic, _, path = file.partition(": ")
                missing.setdefault((before, release, topic), {})[path] = digest
    return [
        Unlooked(engine, release, topic, before, files) for (before, release, topic), files in missing.items()
    ]


def problems(engine: str, table: Table) -> Iterator[str]:
    """What the data of an engine states otherwise: releases not scanned, topics not marked, unknown words."""
    data, first = load(engine), min(table, key=release_order)
    known = [release for row in data["behaviour"] for release in row["releases"]]
    for release in known:
        if is_since(first, release) and release not in table:
            yield f"{engine} {release}: no digests; run python -m tools.scan.looked --record SOURCES"
    expected: dict[str, list[str]] = {}
    for row in unlooked(engine, table, entries(engine)):
        if row.release in known:
            expected.setdefault(row.release, []).append(row.topic)
    if data.get("unlooked", {}) != expected:
        yield f"{engine}_releases.json: `unlooked` has to be {json.dumps(expected)}"
    keys = {key for row in data["behaviour"] for key in row}
    words = keys | {fact["id"] for fact in data["facts"]} | {*data}
    for entry in entries(engine):
        yield from (
            f"looked.json: {engine} {entry.release}, {entry.topic}: no fact or key is named {word}"
            for word in entry.means
            if word not in words
        )


def written(tables: Mapping[str, Table]) -> str:
    """The text of digests.json: the releases, and of each file the releases in which its digest changed."""
    parts = []
    for engine, table in tables.items():
        releases = sorted(table, key=release_order)
        files: dict[str, dict[str, str | None]] = {}
        for file, digest in table[releases[0]].items():
            files[file] = {releases[0]: digest}
        for _, release, differing in changes(table):
            for file, changed in differing.items():
                files.setdefault(file, {})[release] = changed
        rows = ",\n".join(f"   {json.dumps(file)}: {json.dumps(files[file])}" for file in sorted(files))
        parts.append(f' "{engine}": {{\n  "read": {json.dumps(releases)},\n  "files": {{\n{rows}\n  }}\n }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def changed_lines(before: Sources, after: Sources) -> Iterator[str]:
    """What changed in the definitions of two releases, as diffs without what decides nothing."""
    old, new = texts(before), texts(after)
    for file in sorted({*old, *new}):
        former, later = old.get(file, {}), new.get(file, {})
        for name in sorted({*former, *later}):
            if former.get(name) != later.get(name):
                lines = (former.get(name, "").splitlines(), later.get(name, "").splitlines())
                yield f"=== {file}: {name}"
                yield from [*unified_diff(*lines, lineterm="", n=2)][2:]


if __name__ == "__main__":
    sys.exit(main())
