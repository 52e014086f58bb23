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
        ("features", lambda drafter: sorted(feature.name.lower() for feature in drafter.features())),
        ("is_quantised", lambda drafter: drafter.quantisation is not None),
        "notes",
    ),
    AuxLayers: ("count", "boundaries", "is_default", "how", "ids", "convention"),
    Rope: ("theta", "scaling", "is_interleaved"),
    Target: ("name", "model_type", "depth", "hidden", "vocab"),
    Note: ("level", "about", "text"),
    Verdict: ("engine", "release", "outcome", "reasons", "rules", "unread"),
}


# the keys of coverage in all, and of each set and script
SHARE = ("tokens", "covered", "share", "most_length")


def _shares(parts: Mapping[str, Coverage]) -> dict[str, Any]:
    return {name: {key: getattr(part, key) for key in SHARE} for name, part in parts.items()}


COVERAGE: Parts = {
    Coverage: (
        *SHARE,
        ("sets", lambda coverage: _shares(coverage.sets)),
        ("scripts", lambda coverage: _shares(coverage.scripts)),
        "next=commands?",
    )
}
