"""What engine releases serve which drafter, with the source: sections, and a document."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from typing import Any

from msgspec import Struct

from eaglectl.engines.behaviour import Fact, FactRun, ranges, unversioned
from eaglectl.engines.data import read
from eaglectl.engines.engine import Engine
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.targets import targets_data
from eaglectl.errors import UsageError
from eaglectl.in_engine.installed import find_plugin
from eaglectl.judge.support import ATTENTION, NORMS, Service, services
from eaglectl.report.documents import Parts, document, plain
from eaglectl.report.section import Lines, Outline, Section, Table, Words, first_line, grouped
from eaglectl.report.wording import engine_title


class FactEvidence(Struct, frozen=True):
    """A fact, and the runs that showed whether it holds."""

    fact: Fact
    runs: tuple[FactRun, ...]


KIND_WORDS = {"GQA": "MHA or GQA", "Qwen3": "q/k norms", "MLA": "MLA"}
KINDS = tuple(product(NORMS, ATTENTION))
PARTS: Parts = {
    FactEvidence: ("rule=fact.rule", "id=fact.id", "releases=fact.releases", "source=fact.source", "runs"),
    Service: ("layout", "drafter=version", "attention", "releases", "newest_says=reasons"),
}
SCOPE = (
    "judged with drafters on the default aux layers (MLA: with YaRN) for Llama, Qwen3 and DeepSeek-V3 targets"
)


def gpu_runs(engine: str) -> list[dict[str, Any]]:
    """Count the passed commands of each recorded run of an engine, newest last (written by tests/gpu)."""
    runs = []
    for run in read("gpu_runs.json")["runs"]:
        results = [row["result"] for row in run["rows"] if row["engine"] == engine]
        passed, skipped = results.count("passed"), results.count("skipped")
        if len(results) > skipped:
            place = {"release": run["packages"].get(engine)} | {
                key: run[key] for key in ("card", "date", "eaglectl")
            }
            runs.append(place | {"passed": passed, "failed": len(results) - passed - skipped})
    return runs


def chosen_engines(name: str | None) -> tuple[str, ...]:
    """Return the engine of this name, or all without one. Raises UsageError for an unknown name."""
    every = (*ENGINES, *unversioned()["engines"])
    if name is not None and name not in every:
        near = get_close_matches(name.lower(), every, 3, 0.5) or every
        raise UsageError(f"engines {name}: no such engine; near it: {', '.join(near)}")
    return every if name is None else (name,)


def _serving_lines(engine: str) -> Iterator[str]:
    for note in targets_data(engine)["notes"]:
        span = f"{note['releases']}, " if note["releases"] else ""
        yield f"{span}{note['text']} ({note['source']})"


def _not_followed(chosen: Collection[str]) -> list[dict[str, Any]]:
    return [
        {"engine": name, "evidence": "run" if data["run_in"] else "read", "notes": data["notes"]}
        for name, data in unversioned()["engines"].items()
        if name in chosen
    ]


def engines_outline(chosen: Sequence[str]) -> Outline:
    """Return how many kinds of drafter are served, from which release, and all known facts of the engines."""
    engines = [engine for engine in ENGINES.values() if engine.name in chosen]
    served = grouped((service.engine, service) for service in services())
    sections = [Section("Releases", [_matrix(engines, served)], has_heading=False)]
    sections += [section(engine) for engine in engines for section in (_followed, _facts)]
    sections.append(Section("In the engine", [_quiet([*_plugin_lines(engines)])]))
    others = _not_followed(chosen)
    lines = [f"{row['engine']}: {note}" for row in others for note in row["notes"]]
    if only_read := [row["engine"] for row in others if row["evidence"] == "read"]:
        lines.append(f"read in their sources, not run: {', '.join(only_read)}")
    if lines:
        names = ", ".join(row["engine"] for row in others)
        sections.append(Section(names, [_quiet(lines)], "releases not followed", is_more=bool(engines)))
    answer = _answer(engines, served) or f"{engine_title(chosen[0])}: its releases are not followed"
    return Outline(
        "engines",
        Words("what is known", "plain"),
        "",
        answer,
        first_line("", answer),
        sections,
        next=f"eaglectl validate SOURCE --engine {chosen[0]}",
    )


def _answer(engines: Sequence[Engine], served: Mapping[str, Sequence[Service]]) -> str:
    counts: list[str] = []
    for engine in engines:
        newest = engine.releases[-1]
        kinds = {(row.version, row.attention) for row in served[engine.name] if newest in row.releases}
        counts.append(f"{engine.title} {newest}{'' if counts else ' serves'} {len(kinds)}")
    return f"of {len(KINDS)} kinds {', '.join(counts)}" if counts else ""


def _matrix(engines: Sequence[Engine], served: Mapping[str, Sequence[Service]]) -> Table:
    # for each kind of drafter, the releases of each engine that serve it in any layout
    rows = []
    for version, attention in KINDS if engines else ():
        cells = [f"EAGLE-{version}, {KIND_WORDS[attention]}"]
        for engine in engines:
            kind = [
                row for row in served[engine.name] if (row.version, row.attention) == (version, attention)
            ]
            cells.append(
                ranges({release for row in kind for release in row.releases}, engine.releases) or "none"
            )
        rows.append(cells)
    return Table(("drafter", *(engine.title for engine in engines)), rows)


def _plugin_lines(engines: Sequence[Engine]) -> Iterator[str]:
    for engine in engines:
        if plugin := find_plugin(engine):
            loads = "loads" if plugin.is_loaded else "does not load"
            here = f"{engine.title} {plugin.release}, installed here,"
            yield f"{here} {loads} eaglectl at its start: {plugin.why}"


def _quiet(lines: Sequence[str]) -> Lines:
    return Lines([Words(line, "quiet") for line in lines])


def _followed(engine: Engine) -> Section:
    source = f"from {engine.data['source']}"
    notes = [*_evidence_lines(engine), source, *_serving_lines(engine.name), SCOPE]
    return Section(engine.title, [_quiet(notes)], ranges(engine.releases, engine.releases), is_more=True)


def _facts(engine: Engine) -> Section:
    # how each fact is known; what no run showed was read at its source
    rows: list[list[str]] = []
    for fact in engine.facts:
        run, absent = engine.run_words(fact), engine.run_words(fact, holds=False)
        evidence = [f"run {run}" if run else f"read: {fact.source}"]
        evidence += [f"run without it {absent}"] if absent else []
        rows.append([fact.rule, fact.id, fact.releases or "all", "; ".join(evidence)])
    table = Table(("rule", "fact", "releases", "how it is known"), rows)
    return Section(f"{engine.title}: facts", [table], f"{len(rows)}", is_more=True)


def _evidence_lines(engine: Engine) -> Iterator[str]:
    # how eaglectl knows a release: run with recorded cases, or read in its sources
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
    if read := [release for release in engine.releases if release not in run]:
        rest = ", all else" if resolved != run else ""
        yield f"read in their sources, not run{rest}: {ranges(read, engine.releases)}"
    runs = [
        f"{run['release']} on {run['card']} by eaglectl {run['eaglectl']} ({run['date']}), {run['passed']} of"
        f" {run['passed'] + run['failed']} commands passed"
        for run in gpu_runs(engine.name)
    ]
    yield f"run on a GPU: {'; '.join(runs) or 'nothing'}"


def engines_document(chosen: Collection[str]) -> dict[str, Any]:
    """Return what `engines --json` prints of the chosen engines, by their names."""
    served = grouped((service.engine, service) for service in services())
    engines = [_engine(engine, served[name]) for name, engine in ENGINES.items() if name in chosen]
    return document(
        "eaglectl/engines/1", plain({"engines": engines, "not_followed": _not_followed(chosen)}, PARTS)
    )


def _engine(engine: Engine, serves: Sequence[Service]) -> dict[str, Any]:
    # an engine's entry in the document
    has_several = any(len(engine.behaviour(release).runners) > 1 for release in engine.releases)
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
        "facts": [FactEvidence(fact, engine.runs_of(fact)) for fact in engine.facts],
        "serves": serves,
        "notes": list(_serving_lines(engine.name)),
        "plugin": find_plugin(engine),
    }
