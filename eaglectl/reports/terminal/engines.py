"""The table of `engines`: which release serves which drafter from which layout, and the source of that."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from eaglectl.engines.behaviour import stated
from eaglectl.engines.engine import Engine
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.releases import ranges
from eaglectl.reports.engines import model_runners, serving_lines, unversioned_evidence, unversioned_notes
from eaglectl.reports.terminal.console import Console, Table, Text, indented
from eaglectl.reports.terminal.layout import table
from eaglectl.validation.support import ATTENTION, NORMS, Service, services

COLUMNS = {"GQA": "MHA, GQA, MQA", "Qwen3": "q/k norms (Qwen3)", "MLA": "MLA"}
RUNNERS = {("V1",): "V1", ("V2",): "V2", ("V1", "V2"): "V1 or V2, by the target's architecture"}
SCOPE = (
    "judged with drafters on the default aux layers (MLA: with YaRN) for Llama, Qwen3 and DeepSeek-V3 targets"
)


def print_engines(console: Console, chosen: Collection[str]) -> None:
    """Print one table for each chosen engine whose releases are followed, and notes on the others."""
    served = tuple(services())
    for engine in (ENGINES[name] for name in ENGINES if name in chosen):
        console.print(Text.assemble((engine.title, "bold"), f" {ranges(engine.releases, engine.releases)}"))
        source = f"from {engine.data['source']}"
        lines = [*_runner_lines(engine), *_default_lines(engine), *_evidence_lines(engine), source]
        _print_lines(console, [*lines, *serving_lines(engine.name), SCOPE])
        rows = _table(engine, [service for service in served if service.engine == engine.name])
        console.print(indented(rows, lines_after=1))
    notes_by_name = unversioned_notes(chosen)
    if notes_by_name:
        console.print(Text("Releases not followed", style="bold"))
    for name, notes in notes_by_name.items():
        _print_lines(console, [f"{name}: {note}" for note in notes])
    known = [name for name in notes_by_name if unversioned_evidence(name) == "read"]
    _print_lines(console, [f"read in their sources, not run: {', '.join(known)}"] if known else [])
    console.print()
    console.print("`eaglectl validate SOURCE --engine 'vllm>=0.22'` judges a checkpoint, release by release")


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(indented(Text(line, style="dim")))


def _runner_lines(engine: Engine) -> Iterator[str]:
    by_words: dict[str, list[str]] = {}
    for release in engine.releases:
        words = RUNNERS.get(model_runners(engine, release), "")
        cpu_runner = stated(engine.name, release).get("cpu_runner")
        if cpu_runner in engine.behaviour(release).runners:
            words += f" ({cpu_runner} on CPUs)"
        by_words.setdefault(words, []).append(release)
    if any(by_words):
        yield f"model runner: {_by_release(engine, by_words)}"


def _default_lines(engine: Engine) -> Iterator[str]:
    """The layers that each release captures for a drafter without ids."""
    by_words: dict[str, list[str]] = {}
    for release in engine.releases:
        runners = engine.behaviour(release).runners.values()
        rules = dict.fromkeys(rule for runner in runners for rule in runner.default_layers)
        words = ", ".join(
            f"{rule.value} for {' and '.join(rule.targets)}" if rule.targets else rule.value for rule in rules
        )
        by_words.setdefault(words, []).append(release)
    yield f"boundaries without layer ids: {_by_release(engine, by_words)}"


def _by_release(engine: Engine, by_words: Mapping[str, Sequence[str]]) -> str:
    parts = (f"{words} in {ranges(releases, engine.releases)}" for words, releases in by_words.items())
    return "; ".join(parts)


def _evidence_lines(engine: Engine) -> Iterator[str]:
    """The releases that ran recorded cases, then those that were only read."""
    run = [release for release in engine.releases if engine.runners_run(release)]
    for release in run:
        runners = (
            " and ".join(engine.runners_run(release)) if len(engine.behaviour(release).runners) > 1 else ""
        )
        count = engine.evidence(release)
        yield (
            f"run: {release}{runners and f' ({runners} runner)'}; recorded cases show {count['run']} of the"
            f" {sum(count.values())} facts about it, the others are read"
        )
    resolved = [release for release in engine.releases if engine.ids_evidence(release) == "run"]
    if resolved != run:
        yield f"the functions that resolve layer ids were run: {ranges(resolved, engine.releases)}"
    read = [release for release in engine.releases if release not in run]
    if read:
        rest = ", all else" if resolved != run else ""
        yield f"read in their sources, not run{rest}: {ranges(read, engine.releases)}"


def _table(engine: Engine, served: Sequence[Service]) -> Table:
    rows = table("drafter", "layouts", *(COLUMNS[attention] for attention in ATTENTION))
    for version in NORMS:
        layouts_by_cells: dict[tuple[str, ...], list[str]] = {}
        for layout in dict.fromkeys(service.layout for service in served if service.version == version):
            cells = tuple(_cell(engine, served, layout, version, attention) for attention in ATTENTION)
            layouts_by_cells.setdefault(cells, []).append(layout)
        for cells, layouts in layouts_by_cells.items():
            rows.add_row(f"EAGLE {version}", ", ".join(layouts), *cells)
    return rows


def _cell(engine: Engine, served: Sequence[Service], layout: str, version: str, attention: str) -> str:
    """Return the releases, "none" if no known release serves it, "" if the layout cannot express it."""
    for service in served:
        if (service.layout, service.version, service.attention) == (layout, version, attention):
            return ranges(service.releases, engine.releases) or "none"
    return ""
