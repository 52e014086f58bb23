"""What `inspect` found of several sources: the screens under their names, and one JSON document."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

import eaglectl
from eaglectl.errors import printable
from eaglectl.reports import machine
from eaglectl.reports.findings import Failure, Inspection
from eaglectl.reports.text import print_inspection

HEAD = ("schema", "version")
Found = Sequence[tuple[str, Inspection | Failure]]


def print_inspections(console: Console, found: Found, *, has_tensors: bool) -> None:
    """Each source's screen, or why there is none, and a last line over all."""
    for source, one in found:
        console.print(Text(f"== {printable(source)}", style="bold"), soft_wrap=True)
        if isinstance(one, Failure):
            console.print(Text(f"not inspected: {printable(one.message)}", style="yellow"), soft_wrap=True)
        else:
            print_inspection(console, one, has_tensors=has_tensors)
        console.print()
    failed = sum(isinstance(one, Failure) for _, one in found)
    console.print(f"{len(found) - failed} of {len(found)} checkpoints inspected")


def inspections(found: Found) -> dict[str, Any]:
    """eaglectl/inspect/1 of several: `path` is each source as it was given."""
    entries = [{"path": source, **_entry(one)} for source, one in found]
    return {"schema": "eaglectl/inspect/1", "version": eaglectl.__version__, "inspections": entries}


def _entry(one: Inspection | Failure) -> dict[str, Any]:
    if isinstance(one, Failure):
        return {"error": {"kind": one.kind, "exit_code": one.exit_code, "message": printable(one.message)}}
    return {key: value for key, value in machine.inspection(one).items() if key not in HEAD}
