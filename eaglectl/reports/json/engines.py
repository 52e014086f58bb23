"""The JSON document of `engines`."""

from collections.abc import Collection, Iterable
from typing import Any

from eaglectl.engines.engine import Engine
from eaglectl.engines.registry import ENGINES
from eaglectl.reports.engines import model_runners, serving_lines, unversioned_evidence, unversioned_notes
from eaglectl.reports.json.document import head
from eaglectl.validation.support import Service, services


def engines_document(chosen: Collection[str]) -> dict[str, Any]:
    """Return eaglectl/engines/1 of the chosen engines."""
    served = tuple(services())
    return {
        **head("engines"),
        "engines": [
            _engine(engine, (service for service in served if service.engine == engine.name))
            for engine in ENGINES.values()
            if engine.name in chosen
        ],
        "not_followed": [
            {"engine": name, "evidence": unversioned_evidence(name), "notes": list(notes)}
            for name, notes in unversioned_notes(chosen).items()
        ],
    }


def _engine(engine: Engine, served: Iterable[Service]) -> dict[str, Any]:
    return {
        "engine": engine.name,
        "title": engine.title,
        "source": engine.data["source"],
        "releases": [
            {
                "release": release,
                "runners": list(model_runners(engine, release)),
                "run": list(engine.runners_run(release)),
                "ids": engine.ids_evidence(release),
                "facts": dict(engine.evidence(release)),
            }
            for release in engine.releases
        ],
        "facts": [
            {
                "rule": fact.rule,
                "id": fact.id,
                "releases": fact.releases,
                "source": fact.source,
                "run_in": dict(fact.run_in),
            }
            for fact in engine.facts
        ],
        "serves": [_service(service) for service in served],
        "notes": list(serving_lines(engine.name)),
    }


def _service(service: Service) -> dict[str, Any]:
    return {
        "layout": service.layout,
        "drafter": service.version,
        "attention": service.attention,
        "releases": list(service.releases),
        "newest_says": list(service.reasons),
    }
