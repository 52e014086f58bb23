"""`eaglectl validate`."""

from functools import partial
from typing import Annotated, Any

import typer

from eaglectl.cli.options import AuxConvention, AuxLayers, Engines, Json, Semantics, Target, print_json
from eaglectl.errors import Usage


def validate_command(
    context: typer.Context,
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="Checkpoint folders.")],
    target: Target = None,
    engine: Engines = None,
    select: Annotated[
        list[str] | None, typer.Option("--select", help="Only these rules: EGL201, a name, EGL2.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option("--ignore", help="Not these rules.")] = None,
    fail_on: Annotated[str | None, typer.Option("--fail-on", help="error, warning, note or never.")] = None,
    headers_only: Annotated[bool, typer.Option("--headers-only", help="Read no tensor data.")] = False,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
    json_: Json = False,
) -> None:
    """Judge checkpoints by rules, and by what each engine release does with them."""
    from eaglectl import api
    from eaglectl.reports import validation
    from eaglectl.validation.judging import merged

    least = _severity(fail_on)
    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [])
    judged = partial(
        api.validate, target=target, engines=engine or (), select=select or (), ignore=ignore or (), fail_on=least,
        headers_only=headers_only, answers=answers,
    )  # fmt: skip
    reports = [judged(source) for source in sources]
    if json_:
        print_json(validation.document(reports))
    else:
        context.obj.show(lambda console: validation.print_reports(console, reports))
    verdict = merged(reports)
    if verdict != "pass":
        raise typer.Exit(1 if verdict == "fail" else 3)


def _severity(text: str | None) -> Any:
    if text not in (None, "error", "warning", "note", "never"):
        raise Usage(f"--fail-on {text}: error, warning, note or never was expected")
    return text
