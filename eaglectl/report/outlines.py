"""The outline of any result, and its page; the modules of other commands are not loaded."""

import shutil
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import eaglectl
from eaglectl.report.section import Outline
from eaglectl.report.terminal import IMAGE, IMAGE_THEME, PAGE, PAGE_WIDTH, Console, print_outline, recorded

# by the name of a result's class: the module below eaglectl, loaded where it is needed, and its function
OUTLINES = {
    "Comparison": "report.differences.comparison_outline",
    "Conversion": "commands.convert.report.conversion_outline",
    "Diagnosis": "report.diagnosis.diagnosis_outline",
    "Readiness": "commands.ready.report.readiness_outline",
    "SmokeReport": "report.acceptance.smoke_outline",
    "Upload": "commands.upload.report.upload_outline",
    "Verification": "commands.verify.run.verification_outline",
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


def render_text(*results: Any, names: Sequence[str] = (), has_tensors: bool = False) -> str:
    """Return what the terminal shows of results, without colours, as wide as the terminal.

    Takes what `render_page` takes, and raises as it does.
    """
    shown = outline(results, names=names, has_tensors=has_tensors)
    columns = shutil.get_terminal_size((PAGE_WIDTH, 24)).columns
    console = recorded(lambda console: print_outline(console, shown, is_whole=False), columns)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def render_page(
    *results: Any, names: Sequence[str] = (), has_tensors: bool = False, is_svg: bool = False
) -> str:
    """Return what the terminal shows of results as an HTML page, or as an SVG image: one self-contained file.

    Results are what `inspect`, `convert`, `validate`, `smoke`, `diagnose`, `diff`, `ready`, `verify` or
    `upload` returned; several of `inspect`, or of `validate`, share one page. `names` are the sources of
    `inspect` as given, `has_tensors` lists their tensors. The same results give the same text. Raises
    TypeError for other values, and for results that cannot share a page.
    """
    shown = outline(results, names=names, has_tensors=has_tensors)
    made_by = f"eaglectl {eaglectl.__version__} {shown.command}"
    title = f"{made_by}: {shown.subject}" if shown.subject else made_by

    def paint(console: Console) -> None:
        console.print(title, style="dim", soft_wrap=True)
        print_outline(console, shown)

    console = recorded(paint, PAGE_WIDTH, is_folded=is_svg)
    if is_svg:
        return console.export_svg(title="", theme=IMAGE_THEME, code_format=IMAGE)
    return console.export_html(code_format=PAGE)
