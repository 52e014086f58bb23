"""`eaglectl engines`."""

from typing import Annotated

import typer

from eaglectl.commands.arguments import Json, print_json, show
from eaglectl.commands.completion import offering


def engines_command(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[ENGINE]",
            help="Show only this engine: vllm, tensorrt-llm.",
            autocompletion=offering("every engine"),
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Show which engine releases serve which kinds of drafters, and from which layouts."""
    from eaglectl.commands.engines.report import chosen_engines, engines_document, engines_outline

    chosen = chosen_engines(name)
    if json_:
        print_json(engines_document(chosen))
    else:
        show(context.obj, engines_outline(chosen))
