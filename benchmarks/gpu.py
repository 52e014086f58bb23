"""The runs on a GPU that eaglectl/engines/gpu_runs.json records, as the tables of benchmarks/README.md.

A run is what `make test-gpu` writes into `run.json`: the card, driver, releases, date and commit, and rows
of part, what was run, command, result, reason, figures and seconds. It is recorded by adding it to the list
`runs`; `python -m benchmarks.gpu` then writes the section "On a GPU".
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

README = Path(__file__).with_name("README.md")
RUNS = README.parent.parent / "eaglectl/engines/gpu_runs.json"
BLOCK = re.compile(r"(<!-- `python -m benchmarks.gpu` -->\n).*?(<!-- end -->)", re.DOTALL)
LONGEST = 240  # of a reason
COLUMNS = ("part", "what", "command", "result", "figures", "seconds")


def title(run: Mapping[str, Any]) -> str:
    """One line of what a run was made with."""
    driver = [f"driver {run['driver']}"] if run["driver"] else []
    packages = [f"{name} {version}" for name, version in run["packages"].items()]
    parts = [run["card"], *driver, f"Python {run['python']}", f"torch {run['torch']}", *packages]
    return ", ".join([*parts, f"eaglectl at {run['eaglectl']}, {run['date']}"])


def table(run: Mapping[str, Any]) -> str:
    """A run as a line and a table in Markdown."""
    rows = [[cell(value) for value in cells_of(row)] for row in run["rows"]]
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    text = "\n".join([title(run) + ":", "", *(f"| {' | '.join(line)} |" for line in lines), ""])
    return text + (f"\nNot run: {', '.join(run['not_run'])}.\n" if run.get("not_run") else "")


def cells_of(row: Mapping[str, Any]) -> list[str]:
    """The cells of one row; a result has its reason."""
    reason = row["reason"].partition("\n")[0][:LONGEST]
    figures = "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in row["figures"].items())
    seconds = "" if row["seconds"] is None else f"{row['seconds']:g}"
    command = f"`{row['command']}`" if row["command"] else ""
    return [
        row["part"],
        row["what"],
        command,
        ": ".join(filter(None, (row["result"], reason))),
        figures,
        seconds,
    ]


def cell(text: str) -> str:
    """A text that keeps to its cell."""
    return " ".join(text.replace("|", "\\|").split())


def section(text: str) -> str:
    """benchmarks/README.md with the tables of all recorded runs."""
    runs = json.loads(RUNS.read_text(encoding="utf-8"))["runs"]
    tables = "\n".join(table(run) for run in runs)
    return BLOCK.sub(lambda block: f"{block[1]}\n{tables}\n{block[2]}", text)


if __name__ == "__main__":
    README.write_text(section(README.read_text(encoding="utf-8")), encoding="utf-8")
