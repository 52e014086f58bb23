"""The keys of a canonical drafter, of its coverage, and of an engine's verdict on it in JSON documents."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from eaglectl.drafter.boundaries import AuxLayers
from eaglectl.drafter.drafter import Drafter, Note, Rope, Target
from eaglectl.engines.engine import Verdict
from eaglectl.report.documents.document import Parts
from eaglectl.run.coverage import Coverage


def _dimensions(drafter: Drafter) -> dict[str, int]:
    return {key: number for key, number in asdict(drafter.dims).items() if number}


def _features(drafter: Drafter) -> list[str]:
    return sorted(feature.name.lower() for feature in drafter.features())


def _is_quantised(drafter: Drafter) -> bool:
    return drafter.quantisation is not None


DRAFTER: Parts = {
    Drafter: (
        "producer",
        "evidence",
        "eagle=version",
        "attention=dims.attention",
        ("dimensions", _dimensions),
        "norms",
        "aux",
        "rope",
        "target",
        ("features", _features),
        ("is_quantised", _is_quantised),
        "notes",
    ),
    AuxLayers: ("count", "boundaries", "is_default", "how", "ids", "convention"),
    Rope: ("theta", "scaling", "is_interleaved"),
    Target: ("name", "model_type", "depth", "hidden", "vocab"),
    Note: ("level", "about", "text"),
    Verdict: ("engine", "release", "outcome", "reasons", "rules", "unread"),
}


def _sets(coverage: Coverage) -> dict[str, Any]:
    return _shares(coverage.sets)


def _scripts(coverage: Coverage) -> dict[str, Any]:
    return _shares(coverage.scripts)


def _shares(parts: Mapping[str, Coverage]) -> dict[str, Any]:
    return {name: {key: getattr(part, key) for key in SHARE} for name, part in parts.items()}


# the keys of coverage in all, and of each set and script
SHARE = ("tokens", "covered", "share", "most_length")
COVERAGE: Parts = {Coverage: (*SHARE, ("sets", _sets), ("scripts", _scripts), "next=commands?")}
