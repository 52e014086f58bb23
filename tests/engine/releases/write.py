"""Writes eaglectl/engines/ENGINE_runs.json from the records: which facts a run showed, and the sums.

`python -m tests.engine.releases.write` judges every record with validate, which takes minutes. Nothing else
writes these files. A fact holds in a run if its rule alone reports the case and the engine did what the fact
says; it does not hold if the release is outside the fact's range and the engine did something else.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from eaglectl.engines.behaviour import Fact, RunnerRecord, ShownFact, is_within, release_order
from eaglectl.engines.data import FOLDER
from eaglectl.engines.registry import ENGINES, EngineRequest
from tests.engine.agreement import cases as vllm_cases
from tests.engine.agreement import judging, records
from tests.engine.agreement.cases import Case
from tests.engine.agreement.records import Record
from tests.engine.llamacpp import cases as llamacpp_cases
from tests.engine.releases.shown import SHOWN, UNCOUNTED, UNSHOWN
from tests.engine.sglang import cases as sglang_cases
from tools.engine_data import data_from

OTHERS = Path(__file__).with_name("records")
RESOLVED = Path(__file__).parents[2] / "resolving/answers.json"
CASES: Mapping[str, Mapping[str, Case]] = {
    "vllm": vllm_cases.CASES,
    "sglang": sglang_cases.CASES,
    "llama.cpp": llamacpp_cases.CASES,
}


@dataclass(frozen=True, slots=True)
class Run:
    """The records of one runner of a release; engines with one runner call it "default"."""

    engine: str
    release: str
    runner: str
    path: Path

    @property
    def request(self) -> EngineRequest:
        """The release as validate is asked for it."""
        return EngineRequest(self.engine, (self.release,), runner=self.runner)

    @property
    def cases(self) -> Mapping[str, Case]:
        """The engine's cases by name."""
        return CASES[self.engine]

    @property
    def records(self) -> Mapping[str, Record]:
        """What the runner did with its cases."""
        return records.read(self.path)


def runs() -> Iterator[Run]:
    """All runs, by engine, release and runner."""
    pinned = (
        (records.VLLM, "V1", records.RECORDS),
        (records.VLLM, "V2", records.RECORDS_V2),
        (records.SGLANG, "default", records.SGLANG_RECORDS),
        (records.LLAMACPP, "default", records.LLAMACPP_RECORDS),
    )
    found = [Run(*engine.split("=="), runner, path) for engine, runner, path in pinned]
    for path in OTHERS.glob("*.json"):
        engine, release, runner = path.stem.split("-")
        found.append(Run(engine, release, runner, path))
    yield from sorted(found, key=lambda run: (run.engine, release_order(run.release), run.runner))


def shown(run: Run, id: str, targets: Path, parent: Path) -> ShownFact | None:
    """What the recorded case of a fact shows in a run; None for nothing."""
    name = SHOWN[run.engine][id]
    fact = next(fact for fact in ENGINES[run.engine].facts if fact.id == id)
    record = run.records.get(name)
    if record is None:
        return None
    if not is_within(fact.releases, run.release):
        is_other = record.is_served or (record.stopped in ("raises", "dies")) != (fact.outcome == "fails")
        return ShownFact(False, name) if is_other else None
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        report = judging.report(run.cases[name], run.request, targets, Path(folder), [fact.rule])
    return None if judging.unshown(fact, report, record) else ShownFact(True, name)


def disagreements(run: Run, targets: Path, parent: Path) -> Mapping[str, str]:
    """The cases of a run on which validate says something else, and what."""
    found = {}
    for name, record in run.records.items():
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            report = judging.report(run.cases[name], run.request, targets, Path(folder))
        found[name] = judging.disagreement(record, report, run.cases[name].options)
    return {name: words for name, words in found.items() if words}


def facts_shown(run: Run, targets: Path, parent: Path) -> Mapping[str, ShownFact]:
    """The facts that the cases of a run show, by id."""
    found = {id: shown(run, id, targets, parent) for id in SHOWN[run.engine]}
    return {id: fact for id, fact in found.items() if fact is not None}


def documents(targets: Path, parent: Path) -> Mapping[str, dict[str, Any]]:
    """The content of each engine's file; the disagreements are printed."""
    resolved = json.loads(RESOLVED.read_text(encoding="utf-8"))["releases"]
    files: dict[str, dict[str, Any]] = {
        engine: {"ids": resolved if engine == "vllm" else [], "releases": {}} for engine in CASES
    }
    for run in runs():
        others = disagreements(run, targets, parent)
        for name, words in others.items():
            print(f"{run.engine} {run.release} {run.runner}, {name}: {words}")
        count = len(run.records)
        record = RunnerRecord(count, count - len(others), facts_shown(run, targets, parent))
        files[run.engine]["releases"].setdefault(run.release, {})[run.runner] = to_builtins(record)
    return files


def text(document: Mapping[str, Any]) -> str:
    """The file's text, one fact a line."""
    indented = json.dumps(document, indent=1) + "\n"
    one_line = re.sub(r'\{\s+"holds"[^{}]*\}', lambda fact: json.dumps(json.loads(fact[0])), indented)
    return re.sub(r'"ids": \[[^]]*\]', lambda ids: re.sub(r"\s+", " ", ids[0]), one_line)


def wanted_sides() -> set[tuple[str, bool]]:
    """The facts on vLLM that a CPU build can show, each with the sides that the releases here have.

    A fact that another replaces, with the same case and outcome, has one side: the other's is the same run.
    """
    run = ENGINES["vllm"].runs
    possible = [fact for fact in ENGINES["vllm"].facts if UNSHOWN.get(fact.id) not in UNCOUNTED]
    return {
        (fact.id, holds)
        for fact in possible
        for release in run
        for holds in [is_within(fact.releases, release)]
        if holds or not _is_replaced(fact, release)
    }


def _is_replaced(fact: Fact, release: str) -> bool:
    cases = SHOWN["vllm"]
    return any(
        other.outcome == fact.outcome
        and cases.get(other.id, "") == cases.get(fact.id)
        and is_within(other.releases, release)
        for other in ENGINES["vllm"].facts
    )


def shown_sides() -> set[tuple[str, bool]]:
    """The facts on vLLM, with the sides that a run showed."""
    engine = ENGINES["vllm"]
    return {(fact.id, run.holds) for fact in engine.facts for run in engine.runs_of(fact)}


def main() -> None:
    """Write the file of each engine, and print where validate and a run disagree, and the sums."""
    with tempfile.TemporaryDirectory() as folder:
        files = documents(judging.targets(Path(folder, "targets")), Path(folder))
    for engine, document in files.items():
        (FOLDER / f"{engine}_runs.json").write_text(text(document), encoding="utf-8")
    with data_from(FOLDER):  # as written now
        wanted = wanted_sides()
        missing = sorted(wanted - shown_sides())
        print(f"{len(wanted) - len(missing)} of {len(wanted)} sides of facts on vLLM were shown")
        print("\n".join(f"not shown: {id}, {'holds' if holds else 'does not hold'}" for id, holds in missing))


if __name__ == "__main__":
    main()
