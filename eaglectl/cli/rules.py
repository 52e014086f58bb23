"""`eaglectl rules`."""

import typer

from eaglectl.cli.options import Json, print_json, show


def rules_command(context: typer.Context, json_: Json = False) -> None:
    """List the rules of `validate`, by family."""
    from eaglectl.validation.rules import rules

    if json_:
        from eaglectl.reports.documents.rules import RulesDocument

        print_json(RulesDocument.of(rules()))
        return
    from eaglectl.reports.rules import rules_outline

    show(context.obj, rules_outline(rules()))
