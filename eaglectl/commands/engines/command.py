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
            help="One engine: vllm, tensorrt-llm.",
            autocompletion=offering("every engine"),
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Which engine release serves which kind of drafter from which layout."""
    from eaglectl.commands.engines.report import chosen_engines, engines_document, engines_outline

    chosen = chosen_engines(name)
    if json_:
        print_json(engines_document(chosen))
    else:
        show(context.obj, engines_outline(chosen))
