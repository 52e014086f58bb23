"""The scan of an engine release as lines of text."""

import json
from collections.abc import Iterator
from shlex import quote

from tools.scan.scanner import PLANS, Rerun, Scan

DATA = "eaglectl/engines/{engine}_releases.json"


def lines(scan: Scan, wheel: str) -> Iterator[str]:
    """What differs, the entry to add, what it leaves to decide, what only a run shows, what to run again."""
    release, plan = str(scan.found["release"]), PLANS[scan.engine]
    count = f"{len(plan.checks)} facts, {len(plan.claims)} claims, runners and ids"
    if names := scan.found.get("interface"):
        count += f", {len(names)} names of its interface"
    yield f"{scan.engine} {release} against {scan.compared_with}: {count}"
    for difference in scan.differences:
        before, now = _words(difference.expected), _words(difference.found)
        yield f"  {difference.what}: {before} before, {now} in these sources"
    yield f"{len(scan.differences)} changed" if scan.differences else "nothing changed"
    if scan.entry is not None:
        yield from ("", f"add to `behaviour` in {DATA.format(engine=scan.engine)}:", "", *_entry(scan))
        kept = f"tests/tools/scans/{scan.engine}-{release}.json"
        yield "and keep the scan:"
        yield f"  python -m tools.scan {quote(wheel)} --json | python -m json.tool --compact > {kept}"
    if scan.undecided:
        yield from ("", "to decide by hand:", *(f"  {text}" for text in scan.undecided))
    if scan.only_when_run:
        yield from ("", f"{len(scan.only_when_run)} facts show only when the engine runs:")
        yield f"  {', '.join(scan.only_when_run)}"
    if scan.rerun:
        yield from ("", *_rerun(scan.engine, scan.rerun))


def _entry(scan: Scan) -> Iterator[str]:
    yield from (f"    {line}" for line in json.dumps(scan.entry, indent=2).splitlines())
    yield ""


def _rerun(engine: str, rerun: Rerun) -> Iterator[str]:
    """The command that lists the recorded cases to run again, and why."""
    if not rerun.concerns:
        yield f"the functions behind the recorded cases are those of {rerun.release}: a sample is enough"
        return
    yield f"cases recorded with {rerun.release} to run again, in a checkout, with the new release installed:"
    yield f"  python -m tests.engine.again {engine} {' '.join(rerun.concerns)}"
    if rerun.functions:
        yield f"because these {len(rerun.functions)} functions are not those of {rerun.release}:"
        yield from (f"  {function}" for function in rerun.functions)


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "holds" if value else "does not hold"
    return str(value)
