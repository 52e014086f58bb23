"""The outline of any result; the modules of other commands are not loaded."""

from collections.abc import Sequence
from typing import Any

from eaglectl.reports.section import Outline


def outline(results: Sequence[Any], *, names: Sequence[str] = (), has_tensors: bool = False) -> Outline:
    """Return results as sections: one value, or several of `inspect` or of `validate`.

    `names` are the sources of `inspect` as given. Raises TypeError for other values, and for results that
    cannot stand together.
    """
    kinds = sorted({type(result).__name__ for result in results})
    match kinds:
        case ["Inspection"] | ["FailedSource"] | ["FailedSource", "Inspection"]:
            from eaglectl.reports.inspection import inspection_outline, inspections_outline

            sources = names or [result.source for result in results]
            if kinds == ["Inspection"] and len(results) == 1:
                return inspection_outline(results[0], sources[0], has_tensors=has_tensors)
            return inspections_outline(list(zip(sources, results, strict=True)), has_tensors=has_tensors)
        case ["Report"]:
            from eaglectl.reports.findings import reports_outline

            return reports_outline(results)
        case [kind] if len(results) == 1:
            return _single(kind, results[0])
    raise _not_shown(kinds)


def _single(kind: str, result: Any) -> Outline:
    match kind:
        case "SmokeReport":
            from eaglectl.reports.acceptance import smoke_outline

            return smoke_outline(result)
        case "Diagnosis":
            from eaglectl.reports.diagnosis import diagnosis_outline

            return diagnosis_outline(result)
        case "Comparison":
            from eaglectl.reports.differences import comparison_outline

            return comparison_outline(result)
        case "Conversion":
            from eaglectl.reports.conversion import conversion_outline

            return conversion_outline(result)
        case "Readiness":
            from eaglectl.reports.readiness import readiness_outline

            return readiness_outline(result)
        case "Verification":
            from eaglectl.reports.verification import verification_outline

            return verification_outline(result)
        case "Upload":
            from eaglectl.reports.publication import upload_outline

            return upload_outline(result)
    raise _not_shown([kind])


def _not_shown(kinds: Sequence[str]) -> TypeError:
    types = ", ".join(kinds) or "nothing"
    return TypeError(
        "a page shows what inspect or validate returned, or one value of convert, smoke, diagnose, diff,"
        f" ready, verify or upload; it was given {types}"
    )
