"""The application: its common options, and its commands in the order of `--help`.

The function of a command has records of options; typer is given the options that their fields declare.
"""

import inspect
import math
import os
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.completion import get_completion_inspect_parameters

import eaglectl
from eaglectl.cli.commands import COMMANDS, EXIT_LINE
from eaglectl.cli.help import COMMON, HELP_ALL, HELP_OPTIONS, GroupedCommand, Root, terminal_width
from eaglectl.files.files import current_folder
from eaglectl.options import Field, Options, made, options_of
from eaglectl.progress import set_notices
from eaglectl.terminal import OutputSettings, say

# what the Hub's client, transformers and child processes read
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
# what --help shows for a number
VALUES = {int: "N", float: "X"}


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
        module = import_module(f"eaglectl.commands.{each}.command") if name in (each, None) else None
        function = _command(getattr(module, f"{each}_command", lambda: None))
        app.command(each, cls=GroupedCommand, short_help=command.summary, epilog=COMMON)(function)
    return app


def print_help(context: typer.Context, is_asked: bool = True) -> None:
    """Print the help of a command where it is asked for, and end it."""
    if is_asked:
        for line in context.get_help().splitlines():
            say(line)
        raise typer.Exit


def _print_all(context: typer.Context, is_asked: bool) -> None:
    context.meta[HELP_ALL] = is_asked
    print_help(context, is_asked)


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
    install_completion: Annotated[
        bool, typer.Option("--install-completion", help="Install completion for the current shell.")
    ] = False,
    show_completion: Annotated[
        bool,
        typer.Option(
            "--show-completion",
            help="Show completion for the current shell, to copy it or customize the installation.",
        ),
    ] = False,
    help_: Annotated[
        bool,
        typer.Option("-h", "--help", help="Show this message and exit.", is_eager=True, callback=print_help),
    ] = False,
) -> None:
    """Inspect, convert, validate, run and publish EAGLE-3 and EAGLE-3.1 drafters from any trainer."""
    context.obj = OutputSettings(quiet, verbose, no_color)
    set_notices(None if quiet else lambda text: say(f"eaglectl: {text}", sys.stderr))
    if offline:
        before = {name: os.environ[name] for name in OFFLINE if name in os.environ}
        os.environ.update(OFFLINE)
        context.call_on_close(lambda: _restore(before))
    current_folder()  # what was removed has neither files nor parents: it is told once, here


def _restore(before: dict[str, str]) -> None:
    for name in OFFLINE:
        os.environ.pop(name, None)
    os.environ.update(before)


HelpAll = Annotated[
    bool, typer.Option(HELP_ALL, help="Show all options and exit.", is_eager=True, callback=_print_all)
]


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """The function for typer, with each parameter that is an options record replaced by its options.

    `diff_command(context, options: DiffOptions)` is given `--target`, `--headers-only` and the others.
    """
    parameters = inspect.signature(function).parameters
    records = {
        name: one.annotation
        for name, one in parameters.items()
        if isinstance(one.annotation, type) and issubclass(one.annotation, Options)
    }
    options: dict[str, Field] = {}
    shown: dict[str, inspect.Parameter] = {}
    for name, parameter in parameters.items():
        if name not in records:
            shown[name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        for inner, option in options_of(records[name]).items():
            options.setdefault(inner, option)
            shown.setdefault(inner, _parameter(option))

    shown[HELP_ALL] = inspect.Parameter(
        "is_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll
    )

    @wraps(function)
    def run(context: typer.Context, *, is_all: bool, **values: Any) -> None:
        others = {name: value for name, value in values.items() if name not in options}
        given = {name: options[name].of_text(values[name]) for name in options if _is_given(context, name)}
        made_of = {name: made(record, others | given) for name, record in records.items()}
        function(context, **others, **made_of)

    run.__signature__ = inspect.Signature(list(shown.values()))  # type: ignore[attr-defined]
    return run


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _parameter(field: Field) -> inspect.Parameter:
    from eaglectl.commands.completion import offering  # late: --help of all commands needs no other package

    option = field.option
    kind: Any = list[str] if field.is_list else str
    default: Any = False if field.is_inverted else None
    if field.record is not None:  # its flag says whether there is one
        kind, default = bool, True
    elif field.kind in (bool, int, float, str):
        kind, default = field.kind, field.shown_default if default is None else default
    elif type(field.default) is int:  # one number, or several in a text
        kind, default = str, str(field.default)
    value = option.value or "|".join(option.choices) or VALUES.get(field.kind, "")
    declared = typer.Option(
        *field.flags,
        help=option.help,
        metavar=value or None,
        rich_help_panel=option.group or None,
        min=None if math.isinf(option.least) else option.least,
        max=None if math.isinf(option.most) else option.most,
        autocompletion=offering(option.complete or value),
    )
    annotation: Any = Annotated[kind if default is not None else kind | None, declared]
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
