"""The outline of any result; the modules of other commands are not loaded."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from eaglectl.report.section import Outline

# by the name of a result's class: the module below eaglectl, loaded where it is needed, and its function
OUTLINES = {
    "Comparison": "report.differences.comparison_outline",
    "Conversion": "commands.convert.report.conversion_outline",
    "Diagnosis": "report.diagnosis.diagnosis_outline",
    "Readiness": "commands.ready.report.readiness_outline",
    "SmokeReport": "report.acceptance.smoke_outline",
    "Upload": "commands.upload.report.upload_outline",
    "Verification": "commands.verify.report.verification_outline",
}


def outline(results: Sequence[Any], *, names: Sequence[str] = (), has_tensors: bool = False) -> Outline:
    """Return results as sections: one value, or several of `inspect` or of `validate`.

    `names` are the sources of `inspect` as given. Raises TypeError for other values, and for results that
    cannot stand together.
    """
    kinds = sorted({type(result).__name__ for result in results})
    match kinds:
        case ["Inspection"] | ["FailedSource"] | ["FailedSource", "Inspection"]:
            from eaglectl.report.inspection import inspection_outline, inspections_outline

            sources = names or [result.source for result in results]
            if kinds == ["Inspection"] and len(results) == 1:
                return inspection_outline(results[0], sources[0], has_tensors=has_tensors)
            return inspections_outline(list(zip(sources, results, strict=True)), has_tensors=has_tensors)
        case ["Report"]:
            from eaglectl.report.findings import reports_outline

            return reports_outline(results)
        case [kind] if len(results) == 1 and kind in OUTLINES:
            module, _, function = OUTLINES[kind].rpartition(".")
            made: Outline = getattr(import_module(f"eaglectl.{module}"), function)(results[0])
            return made
    types = ", ".join(kinds) or "nothing"
    raise TypeError(
        "a page shows what inspect or validate returned, or one value of convert, smoke, diagnose, diff,"
        f" ready, verify or upload; it was given {types}"
    )
