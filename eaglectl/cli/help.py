"""`--help` in groups with two examples for each command, and the values of a command line as texts.

What it leaves out may be in the nearest eaglectl.toml: its [defaults], and its engines.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

from eaglectl.cli.commands import COMMANDS
from eaglectl.files.files import current_folder
from eaglectl.terminal import say
from eaglectl.text import printable

if TYPE_CHECKING:
    from eaglectl.judge.policy_file import PolicyFile

# click's help is this wide at least
LEAST_WIDTH = 50
# the longest name that keeps its help beside it below that width
NARROW_NAME = 12
# groups that are always shown
FIRST, MORE = ("Arguments", "Options"), "More options"
HELP_ALL = "--help-all"
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
COMMON = "Of every command: -q/--quiet, -v/--verbose, --no-color, --offline (see eaglectl --help)."
# files of defaults
FILES = ("eaglectl.toml", "pyproject.toml")
# commands that read a drafter; `validate` and `upload` take the engines with the rest of the policy
READERS = ("inspect", "convert", "validate", "smoke", "calibrate", "diagnose", "diff", "upload")
WITH_ENGINES = ("inspect", "convert")
# the options that the keys of [defaults] stand for, by parameter
OPTIONS = {
    "target": "--target",
    "aux_layers": "--aux-layers",
    "aux_convention": "--aux-convention",
    "semantics": "--source-semantics",
    "assume": "--assume-defaults",
}
ALWAYS_SHOWN = ("target", "assume")


# typer's own copy of click, or click
_ClickContext: Any = TyperCommand.context_class


class _Formatter(_ClickContext.formatter_class):  # type: ignore[misc]
    """Help whose lines end between words: click's break `--aux-convention` at its dashes, and long names."""

    def write_text(self, text: str) -> None:
        paragraphs = [self._filled(paragraph, self.current_indent) for paragraph in text.split("\n\n")]
        self.write("\n\n".join(paragraphs) + "\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        widest = max(len(name) for name, _ in rows)
        if self.width < LEAST_WIDTH and widest > NARROW_NAME:
            col_max = 4  # else names take the room of their help
        column = self.current_indent + min(widest, col_max) + col_spacing
        for name, text in rows:
            first = f"{'':{self.current_indent}}{name}"
            body = self._filled(text, column)
            is_beside = len(first) + col_spacing <= column and text
            self.write(first + body[len(first) :] if is_beside else f"{first}\n{body}".rstrip())
            self.write("\n")

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

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the options."""
        self.format_commands(ctx, formatter)
        rows = [parameter.get_help_record(ctx) for parameter in self.get_params(ctx)]
        with formatter.section("Options"):
            formatter.write_dl([row for row in rows if row])


class GroupedCommand(TyperCommand):
    """A command whose `--help` shows its options in their groups, and its examples."""

    context_class = _Context

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What the line of usage has after the command: typer's has arguments in braces."""
        arguments = (each for each in self.get_params(ctx) if isinstance(each, TyperArgument))
        return ["[OPTIONS]", *(str(argument.metavar) for argument in arguments)]

    def sections(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """By the title of each group: parameters with what they take, and their help.

        The first are the arguments and the common options.
        """
        common = COMMANDS[self.name or ""].common
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], MORE: []}
        for parameter in sorted(self.get_params(ctx), key=lambda each: _place(each, common)):
            record = parameter.get_help_record(ctx)
            if record is None or HELP_ALL in parameter.opts:
                continue
            title = getattr(parameter, "rich_help_panel", None) or (MORE if common else "Options")
            if isinstance(parameter, TyperArgument):
                title = "Arguments"
            elif _place(parameter, common) < len(common) or parameter.name == "help":
                title = "Options"
            name = re.sub(r" <[^>]*>$", "", record[0])  # types of texts say nothing
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
            text = f"{count} more options: {ctx.command_path} {HELP_ALL}"
            lines = textwrap.fill(text, formatter.width, initial_indent="  ", subsequent_indent="  ")
            formatter.write_paragraph()
            formatter.write(f"{lines}\n")
        with formatter.section("Examples"):
            for example in examples(ctx.command_path, self.name or ""):
                parts = textwrap.wrap(
                    example, formatter.width - 4, break_long_words=False, break_on_hyphens=False
                )
                formatter.write(textwrap.indent(" \\\n  ".join(parts), "  ") + "\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and keep values as texts, which the options records read: typer's own types load pydantic,
        which takes longer than typer.

        An argument too many is answered with the option that it may be meant for.
        """
        values, rest, _ = self.make_parser(ctx).parse_args(args=list(args))
        parameters = self.get_params(ctx)
        arguments = [values.get(one.name) for one in parameters if isinstance(one, TyperArgument)]
        is_verbose = getattr(ctx.obj, "verbose", False)
        ctx.default_map = command_defaults(
            self.name or "", arguments, values.get("policy"), is_verbose=is_verbose
        )
        for parameter in sorted(parameters, key=lambda one: not one.is_eager):
            value, source = parameter.consume_value(ctx, values)
            if isinstance(value, bool) or (value in (None, (), []) and parameter.required):
                parameter.handle_parse_result(ctx, values, rest)  # it acts, or it is missing
            elif parameter.expose_value:
                ctx.set_parameter_source(parameter.name, source)
                ctx.params[parameter.name] = () if value is None and parameter.multiple else value
        if rest and not ctx.resilient_parsing:
            has_target = any("--target" in one.opts for one in parameters)
            hint = "; the target model is given by --target" if has_target else ""
            ctx.fail(f"Got unexpected extra argument(s) ({' '.join(map(printable, rest))}){hint}")
        ctx.args = rest
        return rest


def _place(parameter: Any, common: Sequence[str]) -> int:
    """Where a parameter stands among the common options; behind them, where it is none."""
    return next((place for place, flag in enumerate(common) if flag in parameter.opts), len(common))


def terminal_width() -> int | None:
    """The width of help where click would not go below its own least; None: click's."""
    width = shutil.get_terminal_size().columns - 2
    return max(width, 20) if width < LEAST_WIDTH else None


def examples(path: str, name: str) -> list[str]:
    """Whole command lines of a command, which stands at `path`, like `eaglectl inspect`."""
    return [f"{path} {options}".rstrip() for options in COMMANDS[name].examples]


def command_defaults(
    command: str, arguments: Sequence[Any], policy: str | None = None, *, is_verbose: bool = False
) -> Mapping[str, Any]:
    """Values of a command's parameters that the command line may leave out, from the file `policy` if given.

    A target and `assume` are told on stderr, as they decide what is judged and taken for trained; the others
    where `is_verbose`.

    What lies in one of the command's `arguments` says nothing. Raises UsageError for a file that is not as it
    should be.
    """
    here = current_folder()
    places = (folder / name for folder in (here, *here.parents) for name in FILES)
    if command not in READERS or not (policy or any(place.is_file() for place in places)):
        return {}
    from eaglectl.judge.policy_file import find_policy_file, ignored_file

    judged = [text for one in arguments for text in ([one] if isinstance(one, str) else one or ())]
    file = find_policy_file(policy, judged=judged)
    values = {} if file is None else _parameters(file, is_verbose=is_verbose)
    if policy is None and (ignored := ignored_file(judged)):
        say(f"{ignored} is not read: it lies in a checkpoint or a download", sys.stderr)
    if command not in WITH_ENGINES:
        values.pop("engines", None)
    return values


def _parameters(file: "PolicyFile", *, is_verbose: bool) -> dict[str, Any]:
    keys = file.keys.defaults
    values: dict[str, Any] = {
        "target": file.target,
        "aux_layers": ",".join(map(str, keys.aux_layers or ())),
        "aux_convention": keys.aux_convention,
        "semantics": [f"{key}={value}" for key, value in keys.source_semantics.items()],
        "assume": keys.assume,
        "engines": list(file.keys.engines),
    }
    values = {name: value for name, value in values.items() if value}
    shown = []
    for name, value in values.items():
        if name in ALWAYS_SHOWN or (is_verbose and name in OPTIONS):
            texts = value if isinstance(value, list) else [value]
            shown += [OPTIONS[name] if text is True else f"{OPTIONS[name]} {text}" for text in texts]
    if shown:
        say(f"{file.label} gives {' '.join(shown)}, where the command line says nothing else", sys.stderr)
    return values
