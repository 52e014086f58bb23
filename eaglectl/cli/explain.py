"""`eaglectl explain`."""

from typing import Annotated

import typer

from eaglectl.cli.options import Json, print_json, show


def _offered(incomplete: str) -> list[str]:
    from eaglectl.cli.completion import rules

    return list(rules(incomplete))


def explain_command(
    context: typer.Context,
    rule: Annotated[
        str,
        typer.Argument(
            metavar="RULE", help="A rule's id or name: EGL201, missing-tensor.", autocompletion=_offered
        ),
    ],
    json_: Json = False,
) -> None:
    """Say what a rule asks, why, what to do about its findings, and how to let one pass."""
    from eaglectl.validation.rules import find_rule

    explained = find_rule(rule)
    if json_:
        from eaglectl.reports.documents.rules import ExplainDocument

        print_json(ExplainDocument.of(explained))
        return
    from eaglectl.reports.rules import rule_outline

    show(context.obj, rule_outline(explained))
