"""The JSON document of `engines`."""

from collections.abc import Collection
from typing import Any

from eaglectl.commands.engines.report import (
    gpu_runs,
    has_several_runners,
    serving_lines,
    unversioned_evidence,
    unversioned_notes,
)
from eaglectl.engines.behaviour import Fact
from eaglectl.engines.engine import Engine
from eaglectl.engines.registry import ENGINES
from eaglectl.judge.support import Service, services
from eaglectl.report.documents.document import Parts, document, plain

PARTS: Parts = {
    Fact: ("rule", "id", "releases", "source", "run_in"),
    Service: ("layout", "drafter=version", "attention", "releases", "newest_says=reasons"),
}


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
