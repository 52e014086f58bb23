"""`eaglectl init`."""

import sys
from typing import Annotated

import typer
from msgspec.structs import replace

from eaglectl.cli.options import (
    AssumeDefaults,
    AuxConvention,
    AuxLayers,
    Engines,
    Measure,
    Semantics,
    Target,
)
from eaglectl.terminal import OutputSettings, ProgressBar, say

QUESTIONS_OPEN = 2


def init_command(
    context: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(metavar="[SOURCE]", help="A drafter, to write down what `inspect` asks about it."),
    ] = None,
    target: Target = None,
    engine: Engines = None,
    aux_layers: AuxLayers = None,
    aux_convention: AuxConvention = None,
    source_semantics: Semantics = None,
    assume_defaults: AssumeDefaults = False,
    measure: Measure = True,
    force: Annotated[bool, typer.Option("--force", help="Replace an eaglectl.toml that is here.")] = False,
) -> None:
    """Write an eaglectl.toml into the current folder: the answers and defaults that commands take from it.

    Exits with 2 where `inspect` asks something that no option answers; the file then holds the question.
    """
    from eaglectl import api

    answers = api.parse_answers(aux_layers, aux_convention, source_semantics or [], assume=assume_defaults)
    options = api.InitOptions(tuple(engine or ()), answers, force=force)
    if not measure:
        options = replace(options, measure=None)
    settings: OutputSettings = context.obj
    with ProgressBar(settings, is_on=not settings.quiet) as bar:
        start = api.init(source, target, options, on_progress=bar)
    say(f"{start.path} written")
    for line in start.measured:
        say(line)
    for question in start.questions:
        say(f"open: {question}", sys.stderr)
    if start.questions:
        say(f"answer them under [defaults] of {start.path}", sys.stderr)
        raise typer.Exit(QUESTIONS_OPEN)
