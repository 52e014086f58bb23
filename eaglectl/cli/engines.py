"""`eaglectl engines` and `eaglectl engines scan`."""

from pathlib import Path
from typing import Annotated

import typer

from eaglectl.cli.help import GroupedCommand
from eaglectl.cli.options import Json, print_json

engines_app = typer.Typer(rich_markup_mode=None)


@engines_app.callback(invoke_without_command=True)
def engines_command(context: typer.Context, json_: Json = False) -> None:
    """Which engine release serves which kind of drafter from which layout."""
    if context.invoked_subcommand:
        return
    if json_:
        from eaglectl.reports.json.engines import engines_document

        print_json(engines_document())
        return
    from eaglectl.reports.terminal.engines import print_engines

    context.obj.show(print_engines)


@engines_app.command(
    "scan",
    cls=GroupedCommand,
    short_help="Compare a vLLM or SGLang wheel's sources with what eaglectl knows.",
)
def scan_command(
    context: typer.Context,
    wheel: Annotated[
        Path,
        typer.Argument(metavar="WHEEL", help="A wheel of vLLM or SGLang, or a folder with its Python files."),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="RELEASE_OR_SCAN",
            help="A known release (the wheel's own, else the newest), or the JSON file of a scan.",
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print all that the sources show.")] = False,
) -> None:
    """Print the entry that eaglectl's data lacks for a release, from its sources; none of them is run.

    Exits with 1 where the data and the sources differ. docs/engines.md has the steps of a new release.
    """
    from eaglectl import api
    from eaglectl.reports.terminal.scan import print_scan

    scan = api.scan_engine(wheel, against=against)
    if json_:
        print_json(scan.found)
    else:
        context.obj.show(lambda console: print_scan(console, scan, str(wheel)))
    if scan.differences:
        raise typer.Exit(1)
