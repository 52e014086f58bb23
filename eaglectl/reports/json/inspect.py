"""The JSON documents of `inspect`, for one source or several."""

from collections.abc import Iterable
from typing import Any

from eaglectl.engines.layers import CapturedLayers
from eaglectl.reports.inspection import next_command
from eaglectl.reports.json.document import head
from eaglectl.reports.json.drafter import drafter_part, optional_list, verdict_part
from eaglectl.results import FailedSource, Inspection


def inspect_document(inspection: Inspection) -> dict[str, Any]:
    """Return eaglectl/inspect/1 of one source."""
    return {**head("inspect"), **_inspection(inspection)}


def inspections_document(results: Iterable[tuple[str, Inspection | FailedSource]]) -> dict[str, Any]:
    """Return eaglectl/inspect/1 of several sources, each with the path as given on the command line."""
    entries = [{"path": path, **_entry(result)} for path, result in results]
    return {**head("inspect"), "inspections": entries}


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
