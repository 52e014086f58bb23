"""`eaglectl engines`."""

import typer

from eaglectl.cli.options import Json, print_json


def engines_command(context: typer.Context, json_: Json = False) -> None:
    """Which engine release serves which kind of drafter from which layout."""
    if json_:
        from eaglectl.reports.json.engines import engines_document

        print_json(engines_document())
        return
    from eaglectl.reports.terminal.engines import print_engines

    context.obj.show(print_engines)
