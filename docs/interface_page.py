"""benchmarks/evidence/interface.md: what eaglectl takes from engines, and the releases that have it."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from tables import table

from eaglectl.engines.data import read

PAGE = Path(__file__).resolve().parents[1] / "benchmarks/evidence/interface.md"
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
KINDS = {
    "import": "Imports",
    "attribute": "Attributes and methods",
    "argument": "Arguments",
    "key": "Keys of answers",
    "metric": "Metrics",
    "value": "Values of arguments",
    "variable": "Environment variables",
}
HEAD = """# What is taken from the engines

Written by `make docs` from `eaglectl/engines/interface.json`.

`smoke`, `ready` and `calibrate` run vLLM or SGLang in a separate process. This page lists every name that the
process uses from the engine, with the releases that have it, from a scan of the Python files of each release.
"all" means all releases that were read. If a release lacks a name, another name is used or a value is not
seen; the last column says which.

vLLM has two runners: V1 keeps the drafter as `runner.drafter`, V2 as `runner.speculator`;
[targets](../../docs/reference/targets.md) and `eaglectl engines` list which one a release uses. The kinds of
drafters are `llama`, `mla` (DeepSeek, Kimi) and `qwen3`.

Tests fail if eaglectl uses a name that is not listed (`tests/test_engine_interface.py`), and if an installed
engine differs from its release here (`tests/engine/test_interface.py`,
`tests/engine/sglang/test_interface_sglang.py`). `python -m tools.scan` lists the names that
[a new release](../../CONTRIBUTING.md#add-an-engine-release) lacks.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(part for engine in TITLES for part in sections(engine))])


def sections(engine: str) -> Iterator[str]:
    """The tables of an engine, one for each kind."""
    data = read("interface.json")[engine]
    releases = data["read"]
    yield f"## {TITLES[engine]}, {releases[0]} to {releases[-1]}\n"
    yield f"{len(data['names'])} names, read in {len(releases)} releases: {', '.join(releases)}.\n"
    order = [*KINDS]
    rows = sorted(data["names"], key=lambda row: order.index(row["kind"]))
    for kind, members in groupby(rows, key=lambda row: str(row["kind"])):
        yield f"### {KINDS[kind]} of {TITLES[engine]}\n"
        yield table(
            ("name", "file", "releases", "where a release lacks it"),
            [cells(row, f">={releases[0]}") for row in members],
        )


def cells(row: Mapping[str, Any], all_releases: str) -> tuple[str, ...]:
    """The cells of one name."""
    files = dict.fromkeys(
        part.partition(": ")[0] for place in row["where"].values() for part in place.split(" | ")
    )
    spans: dict[str, list[str]] = {}
    for part, span in row["releases"].items():
        spans.setdefault(in_words(span, all_releases), []).append(part)
    words = [f"{', '.join(parts)}: {text}" if len(spans) > 1 else text for text, parts in spans.items()]
    return (
        f"`{row['name']}`",
        ", ".join(f"`{file}`" for file in files),
        "; ".join(words),
        row.get("without", ""),
    )


def in_words(span: str | None, all_releases: str) -> str:
    """A range of releases as a reader says it."""
    if span is None:
        return "none"
    first, _, last = span.removeprefix(">=").partition(",<=")
    if last:
        return f"up to {last}" if f">={first}" == all_releases else f"{first} to {last}"
    return "all" if span == all_releases else f"from {first}"
