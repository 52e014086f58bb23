"""The JSON document of `diff`."""

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from eaglectl.reports.json.document import head

if TYPE_CHECKING:
    from eaglectl.comparison.comparison import Comparison, Side, TensorPair, TensorSide


def diff_document(comparison: "Comparison") -> dict[str, Any]:
    """Return eaglectl/diff/1."""
    spelling = comparison.spelling
    return {
        **head("diff"),
        "verdict": comparison.verdict,
        "values": "compared" if comparison.has_values else "not-compared",
        "is_written_alike": not spelling.differs,
        "a": _side(comparison.a),
        "b": _side(comparison.b),
        "facts": [
            {"name": fact.name, "a": fact.a, "b": fact.b, "state": fact.state, "why": fact.why}
            for fact in comparison.facts
        ],
        "tensors": [_pair(pair) for pair in comparison.tensors],
        "spelling": {
            "remarks": [{"about": remark.about, "a": remark.a, "b": remark.b} for remark in spelling.remarks],
            "names": [{"name": pair.name, "a": list(pair.a), "b": list(pair.b)} for pair in spelling.names],
            "config": [{"key": key.key, "a": key.a, "b": key.b} for key in spelling.keys],
        },
        "notes": list(comparison.notes),
    }


def _side(side: "Side") -> dict[str, Any]:
    drafter, checkpoint = side.drafter, side.checkpoint
    return {
        "source": side.source,
        "producer": drafter.producer,
        "eagle": drafter.version,
        "weights": {"files": list(checkpoint.weight_files), "bytes": checkpoint.nbytes},
    }


def _pair(pair: "TensorPair") -> dict[str, Any]:
    numbers = pair.numbers
    return {
        "name": pair.name,
        "state": pair.state,
        "a": _stored(pair.a),
        "b": _stored(pair.b),
        "numbers": numbers and asdict(numbers),
        "remark": pair.remark,
    }


def _stored(stored: "TensorSide | None") -> dict[str, Any] | None:
    if stored is None:
        return None
    return {
        "dtype": stored.dtype,
        "shape": list(stored.shape),
        "from": list(stored.origin),
        "sha256": stored.sha256,
    }
