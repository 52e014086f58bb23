"""The JSON documents of `inspect`, for one source or several."""

import os
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from eaglectl.files.header import StoredTensor
from eaglectl.report.documents.document import Parts, document, error_part, part
from eaglectl.report.documents.drafter import COVERAGE, DRAFTER
from eaglectl.report.inspection import next_command
from eaglectl.results import FailedSource, Inspection

PARTS: Parts = {
    **DRAFTER,
    **COVERAGE,
    Inspection: (
        "source",
        "target",
        "target_digest",
        "drafter",
        (
            "weights",
            lambda inspection: {
                "files": inspection.checkpoint.weight_files,
                "bytes": inspection.checkpoint.nbytes,
                "dtypes": inspection.drafter.dtypes,
                "unchecked": inspection.unchecked,
            },
        ),
        (
            "aux_readings",
            lambda inspection: [
                {
                    "engine": layers.engine,
                    "from": layers.key,
                    "ids": layers.ids,
                    "boundaries": layers.boundaries,
                    "is_default": layers.is_default,
                    "as_trained": layers.same_as(inspection.drafter.aux),
                }
                for layers in inspection.captured_layers
            ],
        ),
        ("engines", lambda inspection: inspection.requested or inspection.verdicts),
        "commands",
        ("next", next_command),
        ("tensors", lambda inspection: list(inspection.checkpoint.tensors.values())),
        "coverage?",
    ),
    StoredTensor: ("name", "dtype", "shape", "bytes=nbytes", "file"),
}


def inspect_document(
    results: Sequence[Inspection | FailedSource], *, names: Sequence[str] = (), version: int = 1
) -> dict[str, Any]:
    """Return eaglectl/inspect/1, in which one result stands without a list, or eaglectl/inspect/2.

    In a list each has its path: of `names`, as given on the command line.
    """
    if version == 1 and len(results) == 1 and isinstance(results[0], Inspection):
        return document("eaglectl/inspect/1", part(results[0], PARTS))
    entries: list[dict[str, Any]] = []
    for result, name in zip_longest(results, names):
        if isinstance(result, FailedSource):
            entries.append(
                {
                    "path": name or result.source,
                    "error": error_part(result.kind, result.exit_code, result.message),
                }
            )
        else:
            entries.append({"path": name or os.fspath(result), **part(result, PARTS)})
    tag = "eaglectl/inspect/1" if version == 1 else "eaglectl/inspect/2"
    return document(tag, {"inspections": entries})
