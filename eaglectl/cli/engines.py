"""`eaglectl engines`."""

import typer

from eaglectl.cli.options import Json, print_json


def engines_command(context: typer.Context, json_: Json = False) -> None:
    """Which engine release serves which kind of drafter from which layout."""
    from eaglectl.reports import engines

    if json_:
        print_json(engines.document())
        return
    context.obj.show(engines.print_engines)
