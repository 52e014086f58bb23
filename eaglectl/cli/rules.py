"""`eaglectl rules`."""

import typer

from eaglectl.cli.options import Json, print_json


def rules_command(context: typer.Context, json_: Json = False) -> None:
    """List the rules of `validate`, by family."""
    from eaglectl.validation.catalogue import rules

    if json_:
        from eaglectl.reports import documents

        print_json(documents.catalogue(rules()))
        return
    from eaglectl.reports.rulebook import print_rules

    context.obj.show(lambda console: print_rules(console, rules()))
