"""A result as the text of its JSON document."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from eaglectl.base import Result
from eaglectl.reports.documents.document import as_json

# by the name of a result's class: the module here, loaded where it is needed, and its type, or the function
# that makes a document of several results
DOCUMENTS = {
    "Comparison": "diff.DiffDocument",
    "Conversion": "convert.ConvertDocument",
    "Diagnosis": "diagnose.DiagnoseDocument",
    "FailedSource": "inspect.inspect_document",
    "FixResult": "validate.validate_document",
    "Inspection": "inspect.inspect_document",
    "LoadResult": "load.LoadDocument",
    "Readiness": "ready.ReadyDocument",
    "Report": "validate.validate_document",
    "SmokeReport": "smoke.SmokeDocument",
    "Start": "init.InitDocument",
    "Statistics": "calibrate.CalibrateDocument",
    "Upload": "upload.UploadDocument",
    "Verification": "verify.VerifyDocument",
}
# whose results can share a document
SHARED = ("inspect.inspect_document", "validate.validate_document")


def render_json(*results: Result, names: Sequence[str] = (), version: int = 1) -> str:
    """Return the JSON document of what a function returned, as its command prints it.

    Several results of `inspect`, or of `validate`, share one; `names` are the sources of `inspect` as given.
    `version` 2 of these two has a list for one result too. Raises TypeError for other values, and for results
    that cannot share a document.
    """
    functions = {DOCUMENTS.get(type(result).__name__) for result in results}
    name = functions.pop() if len(functions) == 1 else None
    if name is None or (name not in SHARED and len(results) > 1):
        types = ", ".join(sorted({type(result).__name__ for result in results})) or "nothing"
        raise TypeError(
            "a JSON document is of what a function of eaglectl returned, or of several results of inspect, or"
            f" of validate; it was given {types}"
        )
    module, made = name.split(".")
    kind: Any = getattr(import_module(f"eaglectl.reports.documents.{module}"), made)
    if name not in SHARED:
        return as_json(kind.of(*results))
    named = {"names": names} if module == "inspect" and names else {}
    return as_json(kind(results, version=version, **named))
