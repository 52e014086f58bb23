"""Arguments and options that several commands share, their exit codes, and the output of JSON documents."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglectl.options import TARGET, Option
from eaglectl.terminal import OutputSettings, emit, say
from eaglectl.verdicts import CheckVerdict

if TYPE_CHECKING:
    from eaglectl.reports.section import Outline

# of commands that end with a verdict
EXIT_CODES = {
    CheckVerdict.PASS: 0,
    CheckVerdict.FAIL: 1,
    CheckVerdict.COULD_NOT_LOOK: 3,
    CheckVerdict.SKIPPED: 0,
}


def offered(incomplete: str) -> list[str]:
    """Checkpoints that a shell is offered as an argument."""
    from eaglectl.cli.completion import checkpoints

    return list(checkpoints(incomplete))


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
        help="Write the result as one self-contained HTML file too.",
    ),
]


def print_trust(trust_remote_code: bool) -> None:
    """Print that the target's own code was allowed to run, where it was."""
    if trust_remote_code:
        say("the target's own code was allowed to run (--trust-remote-code)")


def show(settings: OutputSettings, outline: "Outline") -> None:
    """Print a result to stdout."""
    from eaglectl.reports.terminal.report import print_outline

    settings.show(lambda console: print_outline(console, outline))


def print_json(document: Any) -> None:
    """Print one JSON document to stdout."""
    from eaglectl.reports.documents.document import as_json

    emit(as_json(document))
