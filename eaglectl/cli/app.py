"""The application: its common options, and its commands in the order of `--help`."""

import os
import sys
from importlib import import_module
from typing import Annotated

import typer
from typer.completion import get_completion_inspect_parameters

import eaglectl
from eaglectl.cli.command import command as command_of
from eaglectl.cli.command import print_help
from eaglectl.cli.commands import COMMANDS, EXIT_LINE
from eaglectl.cli.help import COMMON, HELP_OPTIONS, GroupedCommand, Root, terminal_width
from eaglectl.files.files import current_folder
from eaglectl.progress import set_notices
from eaglectl.terminal import OutputSettings, say

# what the Hub's client, transformers and child processes read
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
INSTALL = "Install completion for the current shell."
SHOW = "Show completion for the current shell, to copy it or customize the installation."


def make_app(name: str | None) -> typer.Typer:
    """The application with the command `name`; of the others, names and summaries alone. None: with all.

    A command's module and its options are loaded for that command only.
    """
    app = typer.Typer(
        name="eaglectl",
        cls=Root,
        no_args_is_help=True,
        epilog=EXIT_LINE,
        add_help_option=False,  # typer loads pydantic for its own, and for completion
        add_completion=False,
        context_settings={**HELP_OPTIONS, "terminal_width": terminal_width()},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    if name is None:
        get_completion_inspect_parameters()  # registers how typer answers each shell
    app.callback()(common)
    for each, command in COMMANDS.items():
        place = "eaglectl.cli.demo" if each == "demo" else f"eaglectl.commands.{each}.command"
        module = import_module(place) if name in (each, None) else None
        function = command_of(getattr(module, f"{each}_command", _not_loaded))
        app.command(each, cls=GroupedCommand, short_help=command.summary, epilog=COMMON)(function)
    return app


def _not_loaded() -> None:
    raise AssertionError("only the command that is run is loaded")


def _print_help(context: typer.Context, is_asked: bool) -> None:
    if is_asked:
        print_help(context)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        say(f"eaglectl {eaglectl.__version__}")
        raise typer.Exit


def common(
    context: typer.Context,
    quiet: Annotated[
        bool,
        typer.Option("-q", "--quiet", help="Print results and errors only; of validate, only what fails."),
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print more.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR does the same.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Never use the network; HF_HUB_OFFLINE=1 does the same.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("-V", "--version", help="Print the version.", is_eager=True, callback=_print_version),
    ] = False,
    install_completion: Annotated[bool, typer.Option("--install-completion", help=INSTALL)] = False,
    show_completion: Annotated[bool, typer.Option("--show-completion", help=SHOW)] = False,
    help_: Annotated[
        bool,
        typer.Option("-h", "--help", help="Show this message and exit.", is_eager=True, callback=_print_help),
    ] = False,
) -> None:
    """Inspect, convert, validate, run and publish EAGLE-3 and EAGLE-3.1 drafters from any trainer."""
    context.obj = OutputSettings(quiet, verbose, no_color)
    set_notices(None if quiet else lambda text: say(f"eaglectl: {text}", sys.stderr))
    if offline:
        _set_offline(context)
    current_folder()  # what was removed has neither files nor parents: it is told once, here


def _set_offline(context: typer.Context) -> None:
    """Set the environment variables of offline mode until the command ends."""
    before = {name: os.environ.get(name) for name in OFFLINE_VARIABLES}

    def restore() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    context.call_on_close(restore)
    os.environ.update(dict.fromkeys(OFFLINE_VARIABLES, "1"))
