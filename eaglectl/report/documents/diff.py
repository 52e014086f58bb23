"""The JSON document of `diff`."""

from eaglectl.comparison.comparison import Comparison, Side
from eaglectl.report.documents.document import Parts


def _values(comparison: Comparison) -> str:
    return "compared" if comparison.has_values else "not-compared"


def _is_written_alike(comparison: Comparison) -> bool:
    return not comparison.spelling.differs


def _weights(side: Side) -> dict[str, object]:
    return {"files": side.checkpoint.weight_files, "bytes": side.checkpoint.nbytes}


TAG = "eaglectl/diff/1"
PARTS: Parts = {
    Comparison: (
        "verdict",
        ("values", _values),
        ("is_written_alike", _is_written_alike),
        "a",
        "b",
        "facts",
        "served",
        "tensors",
        "spelling",
        "notes",
    ),
    Side: ("source", "producer=drafter.producer", "eagle=drafter.version", ("weights", _weights)),
}
