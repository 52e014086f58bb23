"""Arguments and options that several commands share, their exit codes, and the output of results."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglectl.commands.completion import offering
from eaglectl.terminal import OutputSettings, emit, say
from eaglectl.verdicts import FirstWord, first_word

if TYPE_CHECKING:
    from eaglectl.files.output_files import Outputs
    from eaglectl.judge.rule import Policy
    from eaglectl.report.section import Outline

offered = offering("checkpoints")
Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A checkpoint folder, a weight file next to its config.json, or a Hub repository:"
        " org/name[@revision][:folder].",
        autocompletion=offered,
    ),
]
RunTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="MODEL",
        help="The folder of the target model, which is run. Default: the target that the checkpoint names,"
        " if it is on this machine.",
        autocompletion=offered,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
Page = Annotated[
    str | None,
    typer.Option(
        "--page",
        metavar="FILE.html",
        help="Also write the result as one self-contained HTML file.",
    ),
]


def policy_of(policy: "str | Policy | None", judged: Sequence[str], *, is_told: bool = False) -> "Policy":
    """Return the policy of --policy, else of the nearest file; `is_told`: a found file is named on stderr."""
    from eaglectl.judge import rule

    path = policy if isinstance(policy, str) else None
    read = rule.read_policy(path, judged=judged)
    if is_told and path is None and read != rule.Policy():
        say(f"{read.origin} gives the policy", sys.stderr)
    return read


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
    from eaglectl.report.documents import as_json

    emit(as_json(document))


def page_file(page: str | None, outputs: "Outputs" = ()) -> Path | None:
    """Return the file of --page, which is none of `outputs`. Raises UsageError."""
    if page is None:
        return None
    from eaglectl.files.output_files import parse_page

    return parse_page(page, outputs)


def write_page(file: Path | None, *results: Any) -> None:
    """Write the page of results where one is asked for."""
    if file:
        from eaglectl.files import output_files
        from eaglectl.report.documents import render_page

        output_files.write_report("--page", file, render_page(*results), "page")


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
        from eaglectl.report.documents import outline as outline_of

        show(settings, outline or outline_of([result]))
    write_page(page, result)


def exit_by(verdict: str) -> None:
    """End the command with the exit code of a verdict."""
    if code := {FirstWord.FAIL: 1, FirstWord.COULD_NOT_LOOK: 3}.get(first_word(verdict)):
        raise typer.Exit(code)
