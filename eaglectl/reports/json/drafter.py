"""A canonical drafter as a part of JSON documents."""

from collections.abc import Sequence
from typing import Any

from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.engines.engine import Verdict


def drafter_part(drafter: Drafter) -> dict[str, Any]:
    """Return a drafter without its tensors."""
    dims, aux = drafter.dims, drafter.aux
    dimensions = {key: getattr(dims, key) for key in dims.__struct_fields__}
    return {
        "producer": drafter.producer,
        "evidence": drafter.evidence,
        "eagle": drafter.version,
        "attention": dims.attention,
        "dimensions": {key: number for key, number in dimensions.items() if number},
        "norms": {key: getattr(drafter.norms, key) for key in drafter.norms.__struct_fields__},
        "aux": {
            "count": aux.count,
            "boundaries": optional_list(aux.boundaries),
            "is_default": aux.is_default,
            "how": aux.how,
            "ids": optional_list(aux.ids),
            "convention": aux.convention,
        },
        "rope": {
            "theta": drafter.rope.theta,
            "scaling": drafter.rope.scaling,
            "is_interleaved": drafter.rope.is_interleaved,
        },
        "target": {
            key: getattr(drafter.target, key) for key in ("name", "model_type", "depth", "hidden", "vocab")
        },
        "features": sorted(feature.name.lower() for feature in drafter.features()),
        "is_quantised": drafter.quantisation is not None,
        "notes": [note_part(note) for note in drafter.notes],
    }


def note_part(note: Note) -> dict[str, str]:
    """Return a note of a drafter or of a plan."""
    return {"level": note.level, "about": note.about, "text": note.text}


def verdict_part(verdict: Verdict) -> dict[str, Any]:
    """Return what an engine's release does with a drafter."""
    return {
        "engine": verdict.engine,
        "release": verdict.release,
        "outcome": verdict.outcome,
        "reasons": list(verdict.reasons),
    }


def optional_list(values: Sequence[int] | None) -> list[int] | None:
    """Return the values as a list; None stays None."""
    return None if values is None else list(values)
