"""Any result as JSON, as text and as a page; the modules of other commands are not loaded.

A table of keys (`Parts`) states for each type of record what its document has of it, in order:

* `"name"`: the attribute of that name; `"key=attribute"` where the key is another one, and `attribute` may be
  a path (`"verdict=outcome.check"`), whose value is None behind a None;
* `"*attribute"`: the keys of that record, in this place;
* `("name", function)`: what the function makes of the record.

A key that ends in `?` is absent where its value is empty. A record that the table has not is written whole.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from msgspec import to_builtins

import eaglectl
from eaglectl.base import Result
from eaglectl.errors import EaglectlError
from eaglectl.report.section import Outline
from eaglectl.report.section import plain as line_text
from eaglectl.text import printable

Parts = Mapping[type, Sequence[str | tuple[str, Callable[[Any], Any]]]]
# what is written as an escape: all but visible ASCII, and the second # of a command of a CI system
OTHER = r"[^ -~\n]|(?<=#)#(?=\w*\[)"
SURROGATE = "[\ud800-\udfff]"
# by the name of a result's class: the tag of its document, where its keys (or the function that makes it)
# stand below eaglectl, and its outline's function; modules are loaded where they are needed
RESULTS = {
    "Comparison": ("eaglectl/diff/1", "report.differences.PARTS", "report.differences.comparison_outline"),
    "Conversion": (
        "eaglectl/convert/1",
        "commands.convert.document.PARTS",
        "commands.convert.report.conversion_outline",
    ),
    "Diagnosis": (
        "eaglectl/diagnose/1",
        "report.acceptance.DIAGNOSIS",
        "report.acceptance.diagnosis_outline",
    ),
    "FailedSource": (
        "eaglectl/inspect/1",
        "report.inspection.inspect_document",
        "report.inspection.inspections_outline",
    ),
    "Inspection": (
        "eaglectl/inspect/1",
        "report.inspection.inspect_document",
        "report.inspection.inspections_outline",
    ),
    "LoadResult": ("eaglectl/load/1", "commands.smoke.document.PARTS", ""),
    "Readiness": (
        "eaglectl/ready/1",
        "commands.ready.run.PARTS",
        "commands.ready.run.readiness_outline",
    ),
    "Report": ("eaglectl/validate/1", "report.findings.validate_document", "report.findings.reports_outline"),
    "SmokeReport": ("eaglectl/smoke/1", "commands.smoke.document.PARTS", "report.acceptance.smoke_outline"),
    "Statistics": ("eaglectl/calibrate/1", "commands.calibrate.document.PARTS", ""),
    "Upload": ("eaglectl/upload/1", "commands.upload.run.PARTS", "commands.upload.run.upload_outline"),
    "Verification": (
        "eaglectl/verify/1",
        "commands.verify.run.PARTS",
        "commands.verify.run.verification_outline",
    ),
}
# whose results can share a document, which a function makes
SHARED = ("eaglectl/inspect/1", "eaglectl/validate/1")
EXPECTED = (
    "a JSON document or a page needs one result of a function of eaglectl, or several results of inspect or"
    " of validate"
)


def document(tag: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document: its tag, the schema's id, the version of eaglectl, and its keys."""
    return {"schema": tag, "version": eaglectl.__version__, **keys}


def part(record: Any, parts: Parts) -> dict[str, Any]:
    """Return the keys of a record with their values as dicts, lists, texts and numbers."""
    keys: dict[str, Any] = {}
    for entry in parts[type(record)]:
        name, make = entry if isinstance(entry, tuple) else (entry, None)
        key, _, attribute = name.partition("=")
        value = make(record) if make else _at(record, (attribute or key).strip("*?"))
        if key.startswith("*"):
            keys |= part(value, parts)
        elif value or not name.endswith("?"):
            keys[key.rstrip("?")] = plain(value, parts)
    return keys


def _at(record: Any, path: str) -> Any:
    for name in path.split("."):
        record = None if record is None else getattr(record, name)
    return record


def plain(value: Any, parts: Parts) -> Any:
    """Return a value as dicts, lists, texts and numbers."""
    if type(value) in parts:
        return part(value, parts)
    match value:
        case Mapping():
            return {key: plain(item, parts) for key, item in value.items()}
        case list() | tuple():
            return [plain(item, parts) for item in value]
    # a number of numpy, a text of a class of its own (torch's names of types), or a path
    return to_builtins(value, enc_hook=lambda other: float(other) if isinstance(other, float) else str(other))


def as_json(document: Any) -> str:
    """Return the text of a document: every value complete, in ASCII, without commands of CI systems."""
    return re.sub(OTHER, _escape, json.dumps(plain(document, {}), indent=2, ensure_ascii=False))


def _escape(character: re.Match[str]) -> str:
    """Return the escape in JSON; strict readers refuse half a surrogate pair, which becomes its own name."""
    if re.match(SURROGATE, character[0]):
        return character[0].encode("unicode_escape").decode().replace("\\", r"\\")
    return json.dumps(character[0])[1:-1].replace("#", r"\u0023")


def error_part(kind: str, exit_code: int, message: str) -> dict[str, Any]:
    """Return an error as keys of a document."""
    return {"kind": kind, "exit_code": exit_code, "message": message}


def error_document(error: EaglectlError) -> dict[str, Any]:
    """Return the document that any command prints with --json when it stops."""
    return document("eaglectl/error/1", error_part(error.kind, error.exit_code, str(error)))


def render_json(*results: Result) -> str:
    """Return the JSON document of a result, as its command prints it.

    Several results of `inspect`, or of `validate`, share one. Raises TypeError for other values, and for
    results that cannot share a document.
    """
    tag, made_by = _registered(results, 1)
    return as_json(made_by(results) if tag in SHARED else document(tag, part(results[0], made_by)))


def _registered(results: Sequence[Any], column: int) -> tuple[str, Any]:
    """Return the tag of the document of results, and a column's entry in RESULTS. Raises TypeError."""
    entries = {RESULTS.get(type(result).__name__, ("", "", "")) for result in results}
    entry = entries.pop() if len(entries) == 1 else ("", "", "")
    if not entry[column] or (len(results) > 1 and entry[0] not in SHARED):
        types = ", ".join(sorted({type(result).__name__ for result in results})) or "nothing"
        raise TypeError(f"{EXPECTED}; got {types}")
    module, _, name = entry[column].rpartition(".")
    return entry[0], getattr(import_module(f"eaglectl.{module}"), name)


def outline(results: Sequence[Any]) -> Outline:
    """Return results as sections: one value, or several of `inspect` or of `validate`.

    Raises TypeError for other values, and for results that cannot stand together.
    """
    tag, make = _registered(results, 2)
    sections: Outline = make(results if tag in SHARED else results[0])
    return sections


def render_text(*results: Any, is_brief: bool = False) -> str:
    """Return what the terminal shows of results, without colours, as wide as the terminal.

    With `is_brief`, only the first line of each, unbroken. Takes the same results as `render_page`, and
    raises the same errors.
    """
    from eaglectl.report.terminal import PAGE_WIDTH, print_outline, recorded  # late: rich

    sections = outline(results)
    if is_brief:
        heads = (part.head for part in (sections, *sections.parts) if part.head)
        return "\n".join(printable(line_text(head)) for head in heads)
    columns = shutil.get_terminal_size((PAGE_WIDTH, 24)).columns
    console = recorded(lambda console: print_outline(console, sections, is_whole=False), columns)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def render_page(*results: Any) -> str:
    """Return an HTML page of what the terminal shows of results with -v: one self-contained file.

    Takes results of `inspect`, `convert`, `validate`, `smoke`, `diagnose`, `diff`, `ready`, `verify` or
    `upload`; several of `inspect`, or of `validate`, share one page. The same results give the same text.
    Raises TypeError for other values, and for results that cannot share a page.
    """
    from eaglectl.report import terminal  # late: rich

    sections = outline(results)
    made_by = f"eaglectl {eaglectl.__version__} {sections.command}"
    title = f"{made_by}: {sections.subject}" if sections.subject else made_by

    def paint(console: terminal.Console) -> None:
        console.print(title, style="dim", soft_wrap=True)
        terminal.print_outline(console, sections)

    return terminal.as_page(terminal.recorded(paint, terminal.PAGE_WIDTH))
