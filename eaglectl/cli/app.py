"""The application: its common options, its commands in the order of `--help`, and that help.

The function of a command has records of options; typer gets the options that their fields declare. The
nearest eaglectl.toml can set defaults ([defaults], and its engines).
"""

import inspect
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.completion import get_completion_inspect_parameters
from typer.core import TyperArgument, TyperCommand, TyperGroup

import eaglectl
from eaglectl.cli.commands import COMMANDS, EXIT_LINE, OTHER_NAMES
from eaglectl.files.files import current_folder
from eaglectl.options import Field, Options, build_record, options_of
from eaglectl.progress import set_notices
from eaglectl.terminal import OutputSettings, say
from eaglectl.text import printable

if TYPE_CHECKING:
    from eaglectl.judge.rule import Policy

# read by the Hub's client, transformers and child processes
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
# what --help shows for a number
VALUES = {int: "N", float: "X"}


# groups that are always shown
FIRST, MORE = ("Arguments", "Options"), "More options"
HELP_ALL = "--help-all"
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
COMMON = (
    "Common options: -q/--quiet, -v/--verbose, --no-color, --offline (see eaglectl --help)."
    " Each option can be set by a variable: --fail-on by EAGLECTL_FAIL_ON."
)
# files of defaults
FILES = ("eaglectl.toml", "pyproject.toml")
# commands that read a drafter; `validate` and `upload` take the engines with the rest of the policy
READERS = ("inspect", "convert", "validate", "smoke", "calibrate", "diagnose", "diff", "upload")
# parameters of options whose value is a file or repository of somebody else
GIVEN = frozenset(
    [
        "target",
        "trained_target",
        "target_rotation",
        "base_target",
        "against",
        "prompts",
        "counts",
        "token_counts",
        "statistics",
        "training",
        "smoke",
    ]
)
WITH_ENGINES = ("inspect", "convert")
# the option of each key of [defaults], by parameter
OPTIONS = {
    "target": "--target",
    "aux_layers": "--aux-layers",
    "aux_convention": "--aux-convention",
    "semantics": "--source-semantics",
    "assume": "--assume-defaults",
    "engines": "--engine",
}
# defaults of a policy that are printed on stderr without -v
ALWAYS_SHOWN = ("target", "assume")


# typer's own copy of click, or click
_ClickContext: Any = TyperCommand.context_class


class _Formatter(_ClickContext.formatter_class):  # type: ignore[misc]
    """Help whose lines end between words: click's break `--aux-convention` at its dashes, and long names."""

    def write_text(self, text: str) -> None:
        self.write(
            "\n\n".join([self._filled(paragraph, self.current_indent) for paragraph in text.split("\n\n")])
            + "\n"
        )

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        column = self.current_indent + min(max(len(name) for name, _ in rows), col_max) + col_spacing
        for name, text in rows:
            first, body = f"{'':{self.current_indent}}{name}", self._filled(text, column)
            is_beside = len(first) + col_spacing <= column and text
            lines = first + body[len(first) :] if is_beside else f"{first}\n{body}".rstrip()
            self.write(f"{lines}\n")

    def _filled(self, text: str, indent: int) -> str:
        blank = " " * indent
        return textwrap.fill(
            " ".join(text.split()),
            self.width,
            initial_indent=blank,
            subsequent_indent=blank,
            break_long_words=False,
            break_on_hyphens=False,
        )


class _Context(_ClickContext):  # type: ignore[misc]
    formatter_class = _Formatter


class Root(TyperGroup):
    """`eaglectl` itself: its commands before its options."""

    context_class = _Context

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command; fail with its name for a word that other tools use."""
        if args[0] not in COMMANDS and (use := dict(OTHER_NAMES).get(args[0])):
            ctx.fail(f"No such command '{args[0]}'. Use `eaglectl {use}`")
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the options."""
        self.format_commands(ctx, formatter)
        rows = filter(None, (parameter.get_help_record(ctx) for parameter in self.get_params(ctx)))
        with formatter.section("Options"):
            formatter.write_dl(list(rows))


class GroupedCommand(TyperCommand):
    """A command whose `--help` shows its options in their groups, and its examples."""

    context_class = _Context

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command in its line of usage: typer's has arguments in braces."""
        arguments = (parameter for parameter in self.get_params(ctx) if isinstance(parameter, TyperArgument))
        return ["[OPTIONS]", *(str(argument.metavar) for argument in arguments)]

    def sections(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Return the parameters of each group, by its title: what they take, and their help.

        The first are the arguments and the common options.
        """
        common = COMMANDS[self.name or ""].common
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], MORE: []}
        for parameter in sorted(self.get_params(ctx), key=lambda option: _place(option, common)):
            record = parameter.get_help_record(ctx)
            if record is None or HELP_ALL in parameter.opts:
                continue
            title = getattr(parameter, "rich_help_panel", None) or (MORE if common else "Options")
            if isinstance(parameter, TyperArgument):
                title = "Arguments"
            elif _place(parameter, common) < len(common) or parameter.name == "help":
                title = "Options"
            name = re.sub(r" <[^>]*>$", "", record[0])  # the type of a text
            sections.setdefault(title, []).append((name, record[1]))
        return {title: rows for title, rows in sections.items() if rows}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the common options or each group of all, and the examples."""
        is_whole, count = ctx.meta.get(HELP_ALL) or not COMMANDS[self.name or ""].common, 0
        for title, rows in self.sections(ctx).items():
            if title not in FIRST and not is_whole:
                count += len(rows)
                continue
            with formatter.section(title):
                formatter.write_dl(rows)
        if count:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(f"{count} more options: {ctx.command_path} {HELP_ALL}")
        with formatter.section("Examples"):
            for example in examples(ctx.command_path, self.name or ""):
                parts = textwrap.wrap(
                    example, formatter.width - 4, break_long_words=False, break_on_hyphens=False
                )
                formatter.write(textwrap.indent(" \\\n  ".join(parts), "  ") + "\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments and keep values as texts, which the options records convert.

        typer's own types would load pydantic. The error for an extra argument names the option that may be
        meant.
        """
        values, rest, order = self.make_parser(ctx).parse_args(args=list(args))
        _check_engine(ctx, order)
        parameters = self.get_params(ctx)
        names = GIVEN.union(option.name for option in parameters if isinstance(option, TyperArgument))
        is_verbose = getattr(ctx.obj, "verbose", False)
        ctx.default_map = command_defaults(
            self.name or "", [*map(values.get, names)], values.get("policy"), is_verbose=is_verbose
        )
        for parameter in sorted(parameters, key=lambda option: not option.is_eager):
            value, source = parameter.consume_value(ctx, values)
            if isinstance(value, bool) or (value in (None, (), []) and parameter.required):
                parameter.handle_parse_result(ctx, values, rest)  # runs its callback, or reports it missing
            elif parameter.expose_value:
                ctx.set_parameter_source(parameter.name, source)
                ctx.params[parameter.name] = () if value is None and parameter.multiple else value
        if rest and not ctx.resilient_parsing:
            has_target = any("--target" in option.opts for option in parameters)
            hint = "; pass the target model with --target" if has_target else ""
            ctx.fail(f"Got unexpected extra argument(s) ({' '.join(map(printable, rest))}){hint}")
        ctx.args = rest
        return rest


def _check_engine(ctx: Any, order: Sequence[Any]) -> None:
    # for other options the last one counts, as usual
    if len([option for option in order if "--engine" in option.opts and not option.multiple]) > 1:
        ctx.fail(f"{ctx.command.name} takes one --engine; leave the others out")


def _place(parameter: Any, common: Sequence[str]) -> int:
    return next((place for place, flag in enumerate(common) if flag in parameter.opts), len(common))


def examples(path: str, name: str) -> list[str]:
    """Return whole command lines of a command at `path`, like `eaglectl inspect`."""
    return [f"{path} {options}".rstrip() for options in COMMANDS[name].examples]


def command_defaults(
    command: str, arguments: Sequence[Any], policy: str | None = None, *, is_verbose: bool = False
) -> Mapping[str, Any]:
    """Return the defaults of a command's parameters, from the file `policy` if given, else the nearest one.

    A target and `assume` are printed on stderr, as they decide what is judged and assumed; the others if
    `is_verbose`. A file inside one of the command's `arguments` does not count. Raises UsageError for an
    invalid file.
    """
    here = current_folder()
    places = (folder / name for folder in (here, *here.parents) for name in FILES)
    if command not in READERS or not (policy or any(place.is_file() for place in places)):
        return {}
    from eaglectl.judge.rule import find_policy, ignored_file

    judged = [
        text
        for argument in arguments
        for text in ([argument] if isinstance(argument, str) else argument or ())
    ]
    file = find_policy(policy, judged=judged)
    values = {} if file is None else _parameters(file, command, is_verbose=is_verbose)
    if policy is None and (ignored := ignored_file(judged)):
        say(f"ignoring {ignored}: it is part of a checkpoint or a download", sys.stderr)
    return values


def _parameters(file: "Policy", command: str, *, is_verbose: bool) -> dict[str, Any]:
    # the policy file's defaults as the command's parameters, without empty ones; those that decide are
    # printed
    keys = file.defaults
    values: dict[str, Any] = {
        "target": file.target,
        "aux_layers": ",".join(map(str, keys.aux_layers or ())),
        "aux_convention": keys.aux_convention,
        "semantics": [f"{key}={value}" for key, value in keys.source_semantics.items()],
        "assume": keys.assume,
        "engines": list(file.engines) if command in WITH_ENGINES else (),
    }
    values = {name: value for name, value in values.items() if value}
    words = [
        OPTIONS[name] if text is True else f"{OPTIONS[name]} {text}"
        for name, value in values.items()
        if is_verbose or name in ALWAYS_SHOWN
        for text in (value if isinstance(value, list) else [value])
    ]
    if words:
        say(f"defaults from {file.origin}: {' '.join(words)}", sys.stderr)
    return values


def make_app(name: str | None) -> typer.Typer:
    """Build the application with the command `name` alone; with all commands (None), or their summaries.

    An unknown name gives the summaries. A command's module and its options are loaded for that command only.
    """
    app = typer.Typer(
        name="eaglectl",
        cls=Root,
        no_args_is_help=True,
        epilog=EXIT_LINE,
        add_help_option=False,  # typer loads pydantic for its own, and for completion
        add_completion=False,
        context_settings=HELP_OPTIONS,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    if name is None:
        get_completion_inspect_parameters()  # registers typer's completion of each shell
    app.callback()(common)
    for command_name, command in COMMANDS.items():
        if name != command_name and name in COMMANDS:
            continue
        module = (
            import_module(f"eaglectl.commands.{command_name}.command")
            if name in (command_name, None)
            else None
        )
        app.command(command_name, cls=GroupedCommand, short_help=command.summary, epilog=COMMON)(
            _command(getattr(module, f"{command_name}_command", lambda: None))
        )
    return app


def print_help(context: typer.Context, parameter: typer.CallbackParam, is_asked: bool) -> None:
    """Print the help of a command if it is requested, and exit."""
    if is_asked:
        context.meta[HELP_ALL] = HELP_ALL in parameter.opts
        for line in context.get_help().splitlines():
            say(line)
        raise typer.Exit


def _print_version(is_asked: bool) -> None:
    if is_asked:
        say(f"eaglectl {eaglectl.__version__}")
        raise typer.Exit


def common(
    context: typer.Context,
    quiet: Annotated[
        bool,
        typer.Option("-q", "--quiet", help="Print only results and errors; `validate` prints only failures."),
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print more details.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Disable colors, like NO_COLOR.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not use the network, like HF_HUB_OFFLINE=1.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("-V", "--version", help="Print the version.", is_eager=True, callback=_print_version),
    ] = False,
    show_completion: Annotated[
        bool, typer.Option("--show-completion", help="Print the completion script for bash, zsh or fish.")
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
    current_folder()  # raises if the folder was removed


def _restore(before: dict[str, str]) -> None:
    for name in OFFLINE:
        os.environ.pop(name, None)
    os.environ.update(before)


HelpAll = Annotated[
    bool, typer.Option(HELP_ALL, help="Show all options and exit.", is_eager=True, callback=print_help)
]


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function for typer, with each options record among its parameters replaced by its options.

    `diff_command(context, options: DiffOptions)` gets `--target`, `--headers-only` and the others.
    """
    records: dict[str, type[Options]] = {}
    options: dict[str, Field] = {}
    signature: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = parameter.annotation
        if not (isinstance(kind, type) and issubclass(kind, Options)):
            signature[name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        records[name] = kind
        for inner, option in options_of(kind).items():
            options.setdefault(inner, option)
            signature.setdefault(inner, _parameter(option))
    signature[HELP_ALL] = inspect.Parameter(
        "is_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll
    )

    @wraps(function)
    def run(context: typer.Context, *, is_all: bool, **values: Any) -> None:
        # `is_all` is typer's value of --help-all, whose callback has printed the help and exited; `arguments`
        # are the command's own parameters, which no options record declares
        arguments = {name: value for name, value in values.items() if name not in options}
        sources = {name: context.get_parameter_source(name) for name in options}
        variables = [options[name].flag for name, source in sources.items() if _is_variable(source)]
        if variables:
            words = (f"{variable(flag)}={os.environ[variable(flag)]}" for flag in variables)
            say(f"options from the environment: {' '.join(words)}", sys.stderr)
        given_values = {
            name: options[name].of_text(values[name])
            for name, source in sources.items()
            # None: a variable of blanks, which lists nothing
            if source is not None and source.name != "DEFAULT" and values[name] is not None
        }
        function(
            context,
            **arguments,
            **{name: build_record(record, arguments | given_values) for name, record in records.items()},
        )

    run.__signature__ = inspect.Signature(list(signature.values()))  # type: ignore[attr-defined]
    return run


def _is_variable(source: Any) -> bool:
    return source is not None and source.name == "ENVIRONMENT"


def variable(flag: str) -> str:
    """Return the environment variable of an option, like EAGLECTL_FAIL_ON of --fail-on."""
    return f"EAGLECTL{flag.removeprefix('-').replace('-', '_').upper()}"


def _parameter(field: Field) -> inspect.Parameter:
    # the typer option that a record's field declares; values stay texts, which the records convert
    from eaglectl.commands.completion import offering  # late: --help of all commands needs no other package

    option = field.option
    kind: Any = list[str] if field.is_list else str
    default: Any = False if field.is_inverted else None
    if field.record is not None:  # a flag for a record: with or without it
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
        envvar=variable(field.flag),
        show_envvar=False,
    )
    annotation: Any = Annotated[kind if default is not None else kind | None, declared]
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
