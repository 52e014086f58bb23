"""The table of `engines`: which release serves which drafter from which layout, what it rests on, and what is known of the rest."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import eaglectl
from eaglectl.engines import vllm
from eaglectl.engines.catalogue import ENGINES
from eaglectl.engines.facts import Engine, ranges
from eaglectl.validation.support import ATTENTION, NORMS, Service, services

COLUMNS = {"GQA": "MHA, GQA, MQA", "Qwen3": "q/k norms (Qwen3)", "MLA": "MLA"}
WAYS = {("V1",): "V1", ("V2",): "V2", ("V1", "V2"): "V1 or V2, by the target's architecture"}

JUDGED = "judged with drafters on the default aux layers (MLA: with YaRN) for Llama, Qwen3 and DeepSeek-V3 targets"


def document() -> dict[str, Any]:
    """eaglectl/engines/1."""
    found = tuple(services())
    return {
        "schema": "eaglectl/engines/1",
        "version": eaglectl.__version__,
        "engines": [_engine(engine, found) for engine in ENGINES.values()],
        "not_followed": [{"engine": name, "notes": list(notes)} for name, notes in unfollowed()["engines"].items()],
    }


def _engine(engine: Engine, found: Sequence[Service]) -> dict[str, Any]:
    return {
        "engine": engine.name, "title": engine.title, "source": engine.data["source"],
        "releases": [{"release": release, "runners": list(_runners(engine, release))} for release in engine.releases],
        "facts": [{"rule": fact.rule, "id": fact.id, "releases": fact.releases, "source": fact.source} for fact in engine.facts],
        "serves": [
            {"layout": one.layout, "drafter": one.version, "attention": one.attention, "releases": list(one.releases), "newest_says": list(one.reasons)}
            for one in found if one.engine == engine.name
        ],
    }  # fmt: skip


@cache
def unfollowed() -> Mapping[str, Any]:
    """What is known of engines whose releases are not followed."""
    value: Mapping[str, Any] = json.loads(files("eaglectl.engines").joinpath("unfollowed.json").read_text())
    return value


def print_engines(console: Console) -> None:
    """One table for each engine whose releases are followed, and notes on the others."""
    found = tuple(services())
    for engine in ENGINES.values():
        console.print(Text.assemble((engine.title, "bold"), f" {ranges(engine.releases, engine.releases)}"))
        _print_lines(console, [*_runner_lines(engine), f"from {engine.data['source']}", JUDGED])
        console.print(Padding(_table(engine, [one for one in found if one.engine == engine.name]), (0, 0, 1, 2)))
    console.print(Text("Releases not followed", style="bold"))
    for name, notes in unfollowed()["engines"].items():
        _print_lines(console, [f"{name}: {note}" for note in notes])
    console.print("\n`eaglectl validate SOURCE --engine 'vllm>=0.22'` judges a checkpoint, release by release")


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(Padding(Text(line, style="dim"), (0, 0, 0, 2)))


def _runners(engine: Engine, release: str) -> tuple[str, ...]:
    return vllm.runners(release, None) if engine.name == "vllm" else ()


def _runner_lines(engine: Engine) -> Iterator[str]:
    by_way: dict[tuple[str, ...], list[str]] = {}
    for release in engine.releases:
        by_way.setdefault(_runners(engine, release), []).append(release)
    if any(by_way):
        told = (f"{WAYS[way]} in {ranges(each, engine.releases)}" for way, each in by_way.items())
        yield f"model runner: {'; '.join(told)}"


def _table(engine: Engine, found: Sequence[Service]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("drafter", "layouts", *(COLUMNS[attention] for attention in ATTENTION)):
        table.add_column(title)
    for version in NORMS:
        rows: dict[tuple[str, ...], list[str]] = {}
        for layout in dict.fromkeys(one.layout for one in found if one.version == version):
            cells = tuple(_cell(engine, found, layout, version, attention) for attention in ATTENTION)
            rows.setdefault(cells, []).append(layout)
        for cells, layouts in rows.items():
            table.add_row(f"EAGLE {version}", ", ".join(layouts), *cells)
    return table


def _cell(engine: Engine, found: Sequence[Service], layout: str, version: str, attention: str) -> str:
    """The releases; "none" where no known one serves it, nothing where the layout has no place for it."""
    for one in found:
        if (one.layout, one.version, one.attention) == (layout, version, attention):
            return ranges(one.releases, engine.releases) or "none"
    return ""
