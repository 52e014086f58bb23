"""The keys of a canonical drafter and of an engine's verdict on it in JSON documents."""

from msgspec.structs import asdict

from eaglectl.drafter.boundaries import AuxLayers
from eaglectl.drafter.drafter import Drafter, Note, Rope, Target
from eaglectl.engines.engine import Verdict
from eaglectl.report.documents.document import Parts


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
