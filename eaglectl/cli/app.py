"""The application: its common options, and every command in the order of `--help`."""

from typing import Annotated

import typer

import eaglectl
from eaglectl.cli.calibrate import calibrate_command
from eaglectl.cli.convert import convert_command
from eaglectl.cli.demo import demo_command
from eaglectl.cli.engines import engines_command
from eaglectl.cli.explain import explain_command
from eaglectl.cli.inspect import inspect_command
from eaglectl.cli.rules import rules_command
from eaglectl.cli.smoke import smoke_command
from eaglectl.cli.validate import validate_command
from eaglectl.terminal import Face

app = typer.Typer(
    name="eaglectl", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


@app.callback()
def common(
    context: typer.Context,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print results and errors only.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print more.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR does the same.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Never use the network.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Inspect and convert EAGLE-3 and EAGLE-3.1 drafters, whatever trainer wrote them."""
    context.obj = Face(quiet, verbose, no_color)
    if version:
        print(f"eaglectl {eaglectl.__version__}")
        raise typer.Exit


COMMANDS = (
    inspect_command,
    convert_command,
    calibrate_command,
    validate_command,
    smoke_command,
    explain_command,
    rules_command,
    engines_command,
    demo_command,
)
for command in COMMANDS:
    app.command(command.__name__.removesuffix("_command"))(command)
