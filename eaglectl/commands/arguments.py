"""Arguments and options that several commands share, their exit codes, and the output of results."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglectl.commands.completion import offering
from eaglectl.options import TARGET, Option
from eaglectl.terminal import OutputSettings, emit, say
from eaglectl.verdicts import CheckVerdict, DiffVerdict

if TYPE_CHECKING:
    from eaglectl.report.output_files import Outputs
    from eaglectl.report.section import Outline

# by the text of a verdict; CheckVerdict, DiffVerdict and VerifyVerdict spell alike what they share
EXIT_CODES: Mapping[str, int] = {
    CheckVerdict.PASS: 0,
    CheckVerdict.SKIPPED: 0,
    DiffVerdict.EQUAL: 0,
    DiffVerdict.SAME_HEADERS: 0,
    CheckVerdict.FAIL: 1,
    DiffVerdict.DIFFERS: 1,
    CheckVerdict.COULD_NOT_LOOK: 3,
}


offered = offering("checkpoints")
Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A checkpoint folder, a weight file beside its config.json, or a Hub repository:"
        " org/name[@revision].",
        autocompletion=offered,
    ),
]
RunTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="MODEL",
        help="The target model's folder; it is run. Left out, the one that the checkpoint names, if it is"
        " here.",
        autocompletion=offered,
    ),
]
Target = Annotated[
    str | None,
    typer.Option("--target", metavar="MODEL", help=TARGET.help, autocompletion=offered),
]
# of commands whose document has one result, or a list of several
JSON_VERSION = Option("Of the JSON document: 1, or 2, which has a list for one SOURCE too.", least=1, most=2)
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Page = Annotated[
    str | None,
    typer.Option(
        "--page",
        metavar="FILE.html",
        help="Write what the terminal shows as one self-contained HTML file too; as an image to FILE.svg.",
    ),
]


def print_trust(trust_remote_code: bool) -> None:
    """Print that the target's own code was allowed to run, where it was."""
    if trust_remote_code:
        say("the target's own code was allowed to run (--trust-remote-code)")


def show(settings: OutputSettings, outline: "Outline") -> None:
    """Print a result to stdout; with -v all of it."""
    from eaglectl.report.terminal import print_outline

    settings.show(lambda console: print_outline(console, outline, is_whole=settings.verbose))


def print_json(document: Any) -> None:
    """Print one JSON document to stdout."""
    from eaglectl.report.documents.document import as_json

    emit(as_json(document))


def page_file(page: str | None, outputs: "Outputs" = ()) -> Path | None:
    """Return the file of --page, which is none of `outputs`. Raises UsageError."""
    if page is None:
        return None
    from eaglectl.report.output_files import parse_page

    return parse_page(page, outputs)


def write_page(file: Path | None, *results: Any, **shown: Any) -> None:
    """Write the page of results where one is asked for; `shown` is as in `render_page`."""
    if file:
        from eaglectl.report import output_files
        from eaglectl.report.outlines import render_page

        is_svg = file.suffix.lower() == ".svg"
        output_files.write_page(file, render_page(*results, is_svg=is_svg, **shown))


def print_result(
    settings: OutputSettings,
    result: Any,
    outline: "Outline | None" = None,
    *,
    is_json: bool,
    page: Path | None = None,
) -> None:
    """Print a result and write its page; `outline`: other sections than its usual ones."""
    if is_json:
        emit(result.to_json())
    else:
        from eaglectl.report.outlines import outline as outline_of

        show(settings, outline or outline_of([result]))
    write_page(page, result)


def exit_by(verdict: str) -> None:
    """End the command with the exit code of a verdict."""
    if code := EXIT_CODES[verdict]:
        raise typer.Exit(code)
