"""What engine releases serve which drafter from which layout, with the source: sections, and a document."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from typing import Any

from msgspec import Struct

from eaglectl.engines.behaviour import Behaviour, EvidenceKind, Fact, unversioned
from eaglectl.engines.data import cached, read
from eaglectl.engines.engine import Engine
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.releases import ranges
from eaglectl.engines.targets import serving_notes
from eaglectl.errors import UsageError
from eaglectl.judge.support import ATTENTION, NORMS, Service, services
from eaglectl.report.documents.document import Parts, document, plain
from eaglectl.report.section import Lines, Outline, Section, Table, Words, grouped
from eaglectl.report.wording import engine_title

KIND_WORDS = {"GQA": "MHA or GQA", "Qwen3": "Qwen3 norms", "MLA": "MLA"}
KINDS = tuple(product(NORMS, ATTENTION))
COLUMNS = {"GQA": "MHA, GQA, MQA", "Qwen3": "q/k norms (Qwen3)", "MLA": "MLA"}
PARTS: Parts = {
    Fact: ("rule", "id", "releases", "source", "run_in"),
    Service: ("layout", "drafter=version", "attention", "releases", "newest_says=reasons"),
}
SCOPE = (
    "judged with drafters on the default aux layers (MLA: with YaRN) for Llama, Qwen3 and DeepSeek-V3 targets"
)


class GpuRun(Struct, frozen=True):
    """A release of an engine on a card, at a commit of eaglectl: how many commands passed, and failed."""

    release: str | None
    card: str
    date: str
    eaglectl: str
    passed: int
    failed: int


@cached
def gpu_runs(engine: str) -> tuple[GpuRun, ...]:
    """The recorded runs of an engine, the newest last (gpu_runs.json, written by tests/gpu)."""
    runs = []
    for run in read("gpu_runs.json")["runs"]:
        results = [row["result"] for row in run["rows"] if row["engine"] == engine]
        passed, skipped = results.count("passed"), results.count("skipped")
        if len(results) > skipped:
            failed, release = len(results) - passed - skipped, run["packages"].get(engine)
            runs.append(GpuRun(release, run["card"], run["date"], run["eaglectl"], passed, failed))
    return tuple(runs)


def chosen_engines(name: str | None) -> tuple[str, ...]:
    """Return the engine of this name, or all without one. Raises UsageError for an unknown name."""
    every = (*ENGINES, *unversioned()["engines"])
    if name is not None and name not in every:
        near = get_close_matches(name.lower(), every, 3, 0.5) or every
        raise UsageError(f"engines {name}: no such engine; near it: {', '.join(near)}")
    return every if name is None else (name,)


def unversioned_notes(chosen: Collection[str]) -> Mapping[str, Sequence[str]]:
    """Return notes on those of the chosen engines whose releases are not followed, by engine."""
    rows = unversioned()["engines"].items()
    return {name: known["notes"] for name, known in rows if name in chosen}


def serving_lines(engine: str) -> Iterator[str]:
    """Yield what is known of serving in parallel and with structured output."""
    for note in serving_notes(engine):
        span = f"{note.releases}, " if note.releases else ""
        yield f"{span}{note.text} ({note.source})"


def unversioned_evidence(engine: str) -> EvidenceKind:
    """Return how an engine is known whose releases are not followed."""
    return "run" if unversioned()["engines"][engine]["run_in"] else "read"


def engines_outline(chosen: Sequence[str]) -> Outline:
    """How many kinds of drafter are served, from which release each, and all that is known of the engines."""
    engines = [engine for engine in ENGINES.values() if engine.name in chosen]
    served = [service for service in services() if service.engine in chosen]
    sections = [Section("Releases", [_matrix(engines, served)], has_heading=False)]
    sections += [
        _followed(engine, [each for each in served if each.engine == engine.name]) for engine in engines
    ]
    # then those whose releases are not followed
    notes = unversioned_notes(chosen)
    lines = [f"{name}: {note}" for name in notes for note in notes[name]]
    if known := [name for name in notes if unversioned_evidence(name) == "read"]:
        lines.append(f"read in their sources, not run: {', '.join(known)}")
    if lines:
        title = "releases not followed"
        sections.append(Section(", ".join(notes), [_quiet(lines)], title, is_more=bool(engines)))
    answer = _answer(engines, served) or f"{engine_title(chosen[0])}: its releases are not followed"
    command = f"eaglectl validate SOURCE --engine {chosen[0]}"
    return Outline("engines", Words("what is known", "plain"), "", answer, answer, sections, next=command)


def _answer(engines: Sequence[Engine], served: Sequence[Service]) -> str:
    """How many kinds of drafter the newest release of each engine serves."""
    counts: list[str] = []
    for engine in engines:
        count = sum(engine.releases[-1] in _serving(engine, kind, served) for kind in KINDS)
        counts.append(f"{engine.title} {engine.releases[-1]}{'' if counts else ' serves'} {count}")
    return f"of {len(KINDS)} kinds of drafter {', '.join(counts)}" if counts else ""


def _serving(engine: Engine, kind: tuple[str, str], served: Sequence[Service]) -> set[str]:
    rows = [row for row in served if row.engine == engine.name and (row.version, row.attention) == kind]
    return {release for row in rows for release in row.releases}


def _matrix(engines: Sequence[Engine], served: Sequence[Service]) -> Table:
    """The releases of each engine that serve each kind of drafter, "none" where no release does."""
    rows = []
    for kind in KINDS if engines else ():
        cells = (ranges(_serving(engine, kind, served), engine.releases) for engine in engines)
        rows.append((f"EAGLE-{kind[0]}, {KIND_WORDS[kind[1]]}", *(cell or "none" for cell in cells)))
    return Table(("drafter", *(engine.title for engine in engines)), rows)


def _quiet(lines: Sequence[str]) -> Lines:
    return Lines([Words(line, "quiet") for line in lines])


def _followed(engine: Engine, served: Sequence[Service]) -> Section:
    source = f"from {engine.data['source']}"
    head = ("drafter", "layouts", *(COLUMNS[attention] for attention in ATTENTION))
    table = Table(head, list(_rows(engine, served)), is_whole=True)
    facts = _quiet(
        [*_release_lines(engine), *_evidence_lines(engine), source, *serving_lines(engine.name), SCOPE]
    )
    return Section(engine.title, [facts, table], ranges(engine.releases, engine.releases), is_more=True)


def has_several_runners(engine: Engine) -> bool:
    """Whether some release has several model runners, so that it says something which one a release takes."""
    return any(len(engine.behaviour(release).runners) > 1 for release in engine.releases)


def _release_lines(engine: Engine) -> Iterator[str]:
    """The model runner of each release, and the layers that it captures for a drafter without ids."""

    def spans(words: Callable[[Behaviour], str]) -> str:
        groups = grouped((words(engine.behaviour(release)), release) for release in engine.releases)
        return "; ".join(f"{text} in {ranges(group, engine.releases)}" for text, group in groups.items())

    def runners(known: Behaviour) -> str:
        names = known.runners_for(None)
        return " or ".join(names) + (", by the target's architecture" if len(names) > 1 else "")

    def layers(known: Behaviour) -> str:
        rules = dict.fromkeys(rule for runner in known.runners.values() for rule in runner.default_layers)
        named = ((rule.value, " and ".join(rule.targets)) for rule in rules)
        return ", ".join(f"{value} for {targets}" if targets else value for value, targets in named)

    if has_several_runners(engine):
        yield f"model runner: {spans(runners)}"
    yield f"boundaries without layer ids: {spans(layers)}"


def _evidence_lines(engine: Engine) -> Iterator[str]:
    """The releases that ran recorded cases, then those that were only read."""
    run = [release for release in engine.releases if engine.runners_run(release)]
    for release in run:
        runners, count = " and ".join(engine.runners_run(release)), engine.evidence(release)
        named = f" ({runners} runner)" if len(engine.behaviour(release).runners) > 1 else ""
        yield (
            f"run: {release}{named}; recorded cases show {count['run']} of the"
            f" {sum(count.values())} facts about it, the others are read"
        )
    resolved = [release for release in engine.releases if engine.ids_evidence(release) == "run"]
    if resolved != run:
        yield f"the functions that resolve layer ids were run: {ranges(resolved, engine.releases)}"
    read = [release for release in engine.releases if release not in run]
    if read:
        rest = ", all else" if resolved != run else ""
        yield f"read in their sources, not run{rest}: {ranges(read, engine.releases)}"
    runs = [
        f"{run.release} on {run.card} by eaglectl {run.eaglectl} ({run.date}), {run.passed} of"
        f" {run.passed + run.failed} commands passed"
        for run in gpu_runs(engine.name)
    ]
    yield f"run on a GPU: {'; '.join(runs) or 'nothing'}"


def _rows(engine: Engine, served: Sequence[Service]) -> Iterator[tuple[str, ...]]:
    """The releases by layout; "none" where no known release serves it, "" where no layout expresses it."""
    cells = {
        (service.version, service.layout, service.attention): ranges(service.releases, engine.releases)
        for service in served
    }
    for version in NORMS:
        rows = (
            (tuple(cells.get((version, layout, kind)) for kind in ATTENTION), layout)
            for layout in dict.fromkeys(layout for known, layout, _ in cells if known == version)
        )
        for releases, layouts in grouped(rows).items():
            columns = ("" if each is None else each or "none" for each in releases)
            yield f"EAGLE {version}", ", ".join(layouts), *columns


def engines_document(chosen: Collection[str]) -> dict[str, Any]:
    """Return what `engines --json` prints of the chosen engines, by their names."""
    served = tuple(services())
    engines = [
        _engine(engine, [service for service in served if service.engine == name])
        for name, engine in ENGINES.items()
        if name in chosen
    ]
    not_followed = [
        {"engine": name, "evidence": unversioned_evidence(name), "notes": notes}
        for name, notes in unversioned_notes(chosen).items()
    ]
    keys = {"engines": engines, "not_followed": not_followed}
    return document("eaglectl/engines/1", plain(keys, PARTS))


def _engine(engine: Engine, serves: list[Service]) -> dict[str, Any]:
    has_several = has_several_runners(engine)
    releases = [
        {
            "release": release,
            "runners": engine.behaviour(release).runners_for(None) if has_several else (),
            "run": engine.runners_run(release),
            "ids": engine.ids_evidence(release),
            "facts": engine.evidence(release),
        }
        for release in engine.releases
    ]
    return {
        "engine": engine.name,
        "title": engine.title,
        "source": engine.data["source"],
        "releases": releases,
        "gpu_runs": gpu_runs(engine.name),
        "facts": engine.facts,
        "serves": serves,
        "notes": list(serving_lines(engine.name)),
    }
