"""A command of typer, of a function whose options records stand for the options that their fields declare."""

import inspect
import math
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from eaglectl.options import Field, Options, made, options_of
from eaglectl.terminal import say

HELP_ALL = "--help-all"
# what --help shows for a number
VALUES = {int: "N", float: "X"}


def _print_all(context: typer.Context, is_all: bool) -> None:
    """Print the help of a command with all its options."""
    if is_all:
        context.meta[HELP_ALL] = True
        print_help(context)


HelpAll = Annotated[
    bool, typer.Option(HELP_ALL, help="Show all options and exit.", is_eager=True, callback=_print_all)
]


def print_help(context: typer.Context) -> None:
    """Print the help of a command, and end it."""
    for line in context.get_help().splitlines():
        say(line)
    raise typer.Exit


def command(function: Callable[..., None]) -> Callable[..., None]:
    """The function for typer, with each parameter that is an options record replaced by its options.

    `diff_command(context, options: DiffOptions)` is given `--target`, `--headers-only` and the others.
    """
    parameters = inspect.signature(function).parameters
    records = {name: one.annotation for name, one in parameters.items() if _is_record(one)}
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


def _is_record(parameter: inspect.Parameter) -> bool:
    return isinstance(parameter.annotation, type) and issubclass(parameter.annotation, Options)


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether the command line, or eaglectl.toml, gives an option."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _parameter(field: Field) -> inspect.Parameter:
    """An option as typer has it declared."""
    option = field.option
    kind: Any = list[str] if field.is_list else str
    default: Any = False if field.is_inverted else None
    if field.record is not None:  # its flag says whether there is one
        kind, default = bool, True
    elif field.kind in (bool, int, float, str):
        kind, default = field.kind, field.shown_default if default is None else default
    elif type(field.default) is int:  # one number, or several in a text
        kind, default = str, str(field.default)
    declared = typer.Option(
        *field.flags,
        help=option.help,
        metavar=option.value or "|".join(option.choices) or VALUES.get(field.kind),
        rich_help_panel=option.group or None,
        hidden=option.is_former,
        min=None if math.isinf(option.least) else option.least,
        max=None if math.isinf(option.most) else option.most,
        autocompletion=_completion(field),
    )
    annotation: Any = Annotated[kind if default is not None else kind | None, declared]
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _completion(field: Field) -> Callable[[str], list[str]]:
    """What offers a shell the values of an option."""
    option = field.option

    def complete(incomplete: str) -> list[str]:
        from eaglectl.commands import completion

        values = completion.choices(option)
        if option.complete:
            values = getattr(completion, option.complete)(incomplete)
        return list(values)  # typer leaves out what begins otherwise

    return complete
