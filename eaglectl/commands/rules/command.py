"""`eaglectl rules`."""

from typing import Annotated

import typer

from eaglectl.commands.arguments import Json, print_json, show
from eaglectl.commands.completion import offering


def rules_command(
    context: typer.Context,
    rule: Annotated[
        str | None,
        typer.Argument(
            metavar="[RULE]",
            help="Explain this rule, by id or name: EGL201, missing-tensor.",
            autocompletion=offering("rules"),
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """List the rules of `validate`, or explain one: requirement, reason, fix, and how to suppress it."""
    from eaglectl.commands.rules.report import rule_outline, rules_document, rules_outline
    from eaglectl.judge.rule import find_rule, rules

    listed = rules() if rule is None else (find_rule(rule),)
    if json_:
        print_json(rules_document(listed))
        return
    show(context.obj, rules_outline(listed) if rule is None else rule_outline(listed[0]))
