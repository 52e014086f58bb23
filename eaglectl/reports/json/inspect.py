"""The JSON documents of `inspect`, for one source or several."""

import os
from collections.abc import Sequence
from typing import Any

from eaglectl.engines.layers import CapturedLayers
from eaglectl.reports.inspection import next_command
from eaglectl.reports.json.document import head
from eaglectl.reports.json.drafter import drafter_part, optional_list, verdict_part
from eaglectl.results import FailedSource, Inspection


def inspect_document(
    results: Sequence[Inspection | FailedSource], *, names: Sequence[str] = (), version: int = 1
) -> dict[str, Any]:
    """Return eaglectl/inspect/1, in which one result stands without a list, or eaglectl/inspect/2.

    In a list each has its path: of `names`, as given on the command line.
    """
    if version == 1 and len(results) == 1 and isinstance(results[0], Inspection):
        return {**head("inspect"), **_inspection(results[0])}
    paths = names or [_path(result) for result in results]
    entries = [{"path": path, **_entry(result)} for path, result in zip(paths, results, strict=True)]
    return {**head("inspect", version), "inspections": entries}


def _path(result: Inspection | FailedSource) -> str:
    return result.source if isinstance(result, FailedSource) else os.fspath(result)


def _entry(result: Inspection | FailedSource) -> dict[str, Any]:
    if isinstance(result, FailedSource):
        message = result.message
        return {"error": {"kind": result.kind, "exit_code": result.exit_code, "message": message}}
    return _inspection(result)


def _inspection(inspection: Inspection) -> dict[str, Any]:
    checkpoint, drafter = inspection.checkpoint, inspection.drafter
    return {
        "source": inspection.source,
        "drafter": drafter_part(drafter),
        "weights": {
            "files": list(checkpoint.weight_files),
            "bytes": checkpoint.nbytes,
            "dtypes": list(drafter.dtypes),
            "unchecked": list(inspection.unchecked),
        },
        "aux_readings": [_captured_layers(layers, inspection) for layers in inspection.captured_layers],
        "engines": [verdict_part(verdict) for verdict in inspection.requested or inspection.verdicts],
        "commands": dict(inspection.commands),
        "next": next_command(inspection),
        "tensors": [
            {
                "name": tensor.name,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "bytes": tensor.nbytes,
                "file": tensor.file,
            }
            for tensor in checkpoint.tensors.values()
        ],
    }


def _captured_layers(layers: CapturedLayers, inspection: Inspection) -> dict[str, Any]:
    return {
        "engine": layers.engine,
        "from": layers.key,
        "ids": optional_list(layers.ids),
        "boundaries": optional_list(layers.boundaries),
        "is_default": layers.is_default,
        "as_trained": layers.same_as(inspection.drafter.aux),
    }
