"""The scan of an engine release as lines of text."""

import json
from collections.abc import Iterator

from eaglectl.engines.checks import CHECKS, CLAIMS
from eaglectl.engines.scanner import Scan

DATA = "eaglectl/engines/vllm_releases.json"


def lines(scan: Scan) -> Iterator[str]:
    """What differs, the entry to add, what it leaves to decide, and what only a run shows."""
    release, base = str(scan.found["release"]), scan.compared_with
    yield f"vllm {release} against {base}: {len(CHECKS)} facts, {len(CLAIMS)} claims, runners and ids"
    for difference in scan.differences:
        before, now = _words(difference.expected), _words(difference.found)
        yield f"  {difference.what}: {before} before, {now} in these sources"
    count = len(scan.differences)
    yield f"{count} changed" if count else "nothing changed"
    if scan.entry is not None:
        yield from ("", f"add to `behaviour` in {DATA}:", "", *_entry(scan))
        yield f"and keep the scan: eaglectl engines scan WHEEL --json > tests/scans/vllm-{release}.json"
    if scan.undecided:
        yield from ("", "to decide by hand:", *(f"  {text}" for text in scan.undecided))
    if scan.only_when_run:
        yield from ("", f"{len(scan.only_when_run)} facts show only when the engine runs:")
        yield f"  {', '.join(scan.only_when_run)}"


def _entry(scan: Scan) -> Iterator[str]:
    yield from (f"    {line}" for line in json.dumps(scan.entry, indent=2).splitlines())
    yield ""


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "holds" if value else "does not hold"
    return str(value)
