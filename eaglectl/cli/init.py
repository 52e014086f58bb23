"""`eaglectl init`."""

import sys
from typing import Annotated

import typer

from eaglectl.api.options import InitOptions
from eaglectl.cli.options import Json, Target, offered
from eaglectl.terminal import OutputSettings, ProgressBar, emit, say

QUESTIONS_OPEN = 2
Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[SOURCE]",
        help="A drafter, to write down what `inspect` asks about it.",
        autocompletion=offered,
    ),
]


def init_command(
    context: typer.Context,
    source: Source = None,
    target: Target = None,
    *,
    options: InitOptions,
    json_: Json = False,
) -> None:
    """Write an eaglectl.toml into the current folder: the answers and defaults that commands take from it.

    Exits with 2 where `inspect` asks something that no option answers; the file then holds the question.
    """
    from eaglectl.api.starting import init

    settings: OutputSettings = context.obj
    with ProgressBar(settings, is_on=not (settings.quiet or json_)) as bar:
        start = init(source, target, options, on_progress=bar)
    if json_:
        emit(start.to_json())
    else:
        say(f"{start.path} written")
        for line in start.measured:
            say(line)
    for question in start.questions:
        say(f"open: {question}", sys.stderr)
    if start.questions:
        say(f"answer them under [defaults] of {start.path}", sys.stderr)
        raise typer.Exit(QUESTIONS_OPEN)
