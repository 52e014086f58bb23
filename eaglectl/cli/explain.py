"""`eaglectl explain`."""

from typing import Annotated

import typer

from eaglectl.cli.options import Json, print_json


def explain_command(
    context: typer.Context,
    rule: Annotated[str, typer.Argument(metavar="RULE", help="A rule's id or name: EGL201, missing-tensor.")],
    json_: Json = False,
) -> None:
    """Say what a rule asks, why, what to do about its findings, and how to let one pass."""
    from eaglectl.validation.catalogue import find

    found = find(rule)
    if json_:
        from eaglectl.reports import documents

        print_json(documents.explanation(found))
        return
    from eaglectl.reports.rulebook import print_rule

    context.obj.show(lambda console: print_rule(console, found))
