"""Options, each declared once: as a field of a record.

    class DiffOptions(Options, frozen=True):
        headers_only: Annotated[bool, Option("Read no tensor data.")] = False

That field is `eaglectl diff --headers-only` with its help, and `headers_only=True` of `eaglectl.diff`. A
field that is a record itself stands for the options of that record.
"""

import inspect
import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from contextvars import ContextVar
from functools import cache, reduce, wraps
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, force_setattr
from msgspec.structs import fields as struct_fields

from eaglectl.errors import EaglectlError, UsageError, input_error
from eaglectl.progress import notebook_progress
from eaglectl.text import renamed_flags

StrPath = str | os.PathLike[str]
# whether one of the functions has called another
INSIDE: ContextVar[bool] = ContextVar("INSIDE", default=False)
F = TypeVar("F", bound=Callable[..., Any])
NUMBER = r"[+-]?[0-9]{1,18}"
# the values of a flag in an environment variable
SWITCHES = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
EXPECTED = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    int | tuple[int, ...]: "a whole number or several",
}


class Caller(Struct):
    """Who calls the functions: errors name options as the command line or as Python does.

    `is_quiet` hides warnings of other packages, as the command line does without -v. `remains` states what an
    interrupted command left elsewhere; "" for nothing.
    """

    is_command_line: bool = False
    is_quiet: bool = False
    remains: str = ""


CALLER = Caller()


class Option(Struct, frozen=True):
    """The declaration of an option; the field states its type and its default.

    `flags` is its spelling on the command line ("-o, --out", "--gate/--no-gate"; by default the field's
    name), `value` the placeholder in --help, `group` its panel there. A value is one of `choices`, and from
    `least` to `most`. `read` parses a text, or each text of a list, and raises ValueError with the expected
    form. `complete` is the kind of values that the shell completes (eaglectl.commands.completion).
    """

    help: str
    flags: str = ""
    value: str = ""
    group: str = ""
    choices: tuple[str, ...] = ()
    least: float = -math.inf
    most: float = math.inf
    read: Callable[[Any], Any] | None = None
    complete: str = ""


# of fields that are no option
HIDDEN = Option("")
# options of several commands
TARGET = Option(
    "The target model: a folder, config.json or Hub repository. Only its config is read. Default: the"
    " target that the checkpoint names, if it is on this machine.",
    value="MODEL",
    complete="checkpoints",
)
NO_ENGINES = Option(
    "Check the rules only, and no engine. By default, the engines in eaglectl.toml are checked; without any"
    " there, the newest known vLLM and SGLang and every installed engine.",
    "--no-engines",
)
# a group of --help
ANSWERS = "Answers to open questions"


class Field(Struct, frozen=True):
    """A field of a record: `kind` is its type without None, `record` the type of a nested record.

    `flags` is its spelling on the command line. `is_list`: the flag can be repeated; `is_mapping`: and `read`
    takes all its texts together. `is_inverted`: its only flag switches off a default.
    """

    name: str
    kind: Any
    is_optional: bool
    is_required: bool
    default: Any
    option: Option
    record: "type[Options] | None"
    flags: tuple[str, ...]
    is_list: bool
    is_mapping: bool
    is_inverted: bool

    @property
    def flag(self) -> str:
        """The long one of its flags, which sets it."""
        return max(self.flags, key=len).partition("/")[0]

    @property
    def shown_default(self) -> Any:
        """The default in a signature; None for a record or a mapping, which is made anew."""
        return None if self.default is NODEFAULT else self.default

    @property
    def expected(self) -> str:
        """The expected value, in words."""
        if choices := self.option.choices:
            return " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))
        is_read = self.option.read and isinstance(self.kind, type)
        words = EXPECTED.get(self.kind, "a text" if is_read else str(self.kind))
        words = "a list of texts" if self.is_list else words
        if self.option.most < math.inf:
            return f"{words} from {self.option.least:g} to {self.option.most:g}"
        return f"{words} of at least {self.option.least:g}" if self.option.least > -math.inf else words

    def of_text(self, text: Any) -> Any:
        """Return the value of a command-line argument: a text, several, or a flag. Raises UsageError.

        The text of a flag is that of an environment variable.
        """
        if isinstance(text, str) and (self.kind is bool or self.record):
            text = SWITCHES.get(text.lower(), text)
        if isinstance(text, bool):
            return not text if self.is_inverted else text
        try:
            if "\0" in text:  # which no file's name has
                raise ValueError
            if self.kind is int and not self.option.read and re.fullmatch(NUMBER, text):
                return self.checked(int(text))
            is_number = self.kind is float and "_" not in text
            return self.checked(float(text) if is_number else text)
        except ValueError as error:
            raise self.error(f"{self.flag} {text}", error) from None

    def checked(self, value: Any) -> Any:
        """Return the value as the record stores it. Raises ValueError for a wrong value, or UsageError."""
        if value is None and self.is_optional:
            return None
        if self.option.choices and type(value) in (int, float):  # version=3.1
            value = f"{value:g}"
        try:
            value = self._read(os.fspath(value) if isinstance(value, os.PathLike) else value)
            converted = msgspec.convert(value, self.kind, dec_hook=_as_path)
        except msgspec.ValidationError:
            raise ValueError from None
        is_outside = isinstance(converted, int | float) and (
            converted < self.option.least or converted > self.option.most
        )
        if is_outside or (self.option.choices and converted not in self.option.choices):
            raise ValueError
        # the caller's mapping stays the same object
        return value if isinstance(value, Mapping) and converted == value else converted

    def _read(self, value: Any) -> Any:
        # a value as its field's type: texts are read, values of that type stay
        read = self.option.read
        if read is None or not isinstance(value, str | list | tuple | None):
            return value
        if self.is_mapping:
            return read(msgspec.convert([value] if isinstance(value, str) else value, list[str]))
        if isinstance(value, str | None):
            return value if value is None and self.is_list else read(value)
        items = (read(item) if isinstance(item, str) else item for item in value)
        return tuple(dict.fromkeys(items) if self.is_list else items)

    def error(self, argument: str, error: ValueError) -> UsageError:
        """Return the error for a wrong value; `argument` is the text or the code that gave it."""
        return UsageError(f"{argument}: {str(error) or self.expected} was expected", option=self.name)


def _as_path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise ValueError


class Options(Struct, frozen=True):
    """A record of options, which are checked when it is made."""

    def __post_init__(self) -> None:
        for option in fields(type(self)):
            value = getattr(self, option.name)
            if value is option.default:
                continue
            try:
                checked = option.checked(value)
            except ValueError as error:
                raise option.error(f"{type(self).__name__}({option.name}={value!r})", error) from None
            force_setattr(self, option.name, checked)


@cache
def fields(record: type[Options]) -> tuple[Field, ...]:
    """Return the fields of a record, in order."""
    hints = get_type_hints(record, include_extras=True)
    return tuple(_field(field, hints[field.name]) for field in struct_fields(record))


def _field(declared: FieldInfo, hint: Any) -> Field:
    # what a declaration of an option means, by its type: a list, a mapping, a flag, or a nested record
    hint, option = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, HIDDEN)
    is_optional = get_origin(hint) in (Union, UnionType) and type(None) in get_args(hint)
    kind = reduce(or_, (part for part in get_args(hint) if part is not type(None))) if is_optional else hint
    flags, is_mapping = option.flags or f"--{declared.name.replace('_', '-')}", get_origin(kind) is Mapping
    return Field(
        declared.name,
        kind,
        is_optional,
        declared.required,
        declared.default,
        option,
        record=kind if isinstance(kind, type) and issubclass(kind, Options) else None,
        flags=tuple(flags.split(", ")),
        is_list=is_mapping or (get_origin(kind) is tuple and get_args(kind)[0] is not int),
        is_mapping=is_mapping,
        is_inverted=kind is bool and declared.default is True and "/" not in flags,
    )


@cache
def options_of(record: type[Options]) -> Mapping[str, Field]:
    """Return every option of a record and of its nested records, by field name."""
    options: dict[str, Field] = {}
    for field in fields(record):
        if field.option is not HIDDEN:
            options[field.name] = field
        if field.record is not None:
            options = {**options, **options_of(field.record)}
    return options


def build_record(record: type[Options], values: Mapping[str, Any]) -> Any:
    """Build an options record, with its nested records, from keyword values. Raises UsageError.

    A record that has a flag itself, like --measure/--no-measure, is None where the flag is off.
    """
    keywords: dict[str, Any] = {}
    for field in fields(record):
        if field.record is not None and not isinstance(values.get(field.name), field.record):
            inner = {name: values[name] for name in options_of(field.record) if name in values}
            if field.name in values and not values[field.name]:
                keywords[field.name] = None
            elif inner:
                keywords[field.name] = build_record(field.record, inner)
        elif field.name in values:
            keywords[field.name] = values[field.name]
    if any(field.is_required and field.name not in keywords for field in fields(record)):
        flags = [field.flag for field in fields(record) if field.option is not HIDDEN]
        raise UsageError(f"pass {' and '.join(flags)} together", options=tuple(flags))
    return record(**keywords)


def path_text(path: StrPath | None) -> str | None:
    """Return a path as a text."""
    return None if path is None else os.fspath(path)


def with_keywords(function: F) -> F:
    """Let a function take the fields of its options records as keywords: `dry_run=True`.

    In its definition `**fields` stands for these keywords, and stays empty. An error that names an option has
    the field as `option`; for callers in Python its message has `field=...` in place of the flag. In a
    notebook progress is shown unless `on_progress` is given.
    """
    signature = inspect.signature(function)
    records = {
        parameter.name: kind
        for parameter in signature.parameters.values()
        for kind in (parameter.annotation, *get_args(parameter.annotation))
        if isinstance(kind, type) and issubclass(kind, Options)
    }
    options = {name: option for record in records.values() for name, option in options_of(record).items()}
    names = {f"--{name.replace('_', '-')}": name for name in signature.parameters}
    if "out" in names.values():
        names["-o"] = "out"
    for option in options.values():
        names |= _names_by_flag(option)

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        # build the records from keywords; name an error's option as the outermost caller spells it
        __tracebackhide__ = True  # which IPython and pytest read
        is_outermost = not CALLER.is_command_line and not INSIDE.get()
        token = INSIDE.set(True)
        try:
            _fill(function.__name__, signature, records, arguments, keywords, names)
            takes_line = "on_progress" in signature.parameters and keywords.get("on_progress") is None
            with notebook_progress() if is_outermost else nullcontext() as line:
                if line is not None and takes_line:
                    keywords["on_progress"] = line
                return function(*arguments, **keywords)
        except BaseException as error:
            refusal = error if isinstance(error, EaglectlError) else input_error(error)
            if refusal is None:
                raise
            _name_option(refusal, names, is_outermost=is_outermost)
            raise (refusal.with_traceback(None) if is_outermost else refusal) from None
        finally:
            INSIDE.reset(token)

    call.__annotations__.pop("fields", None)  # of the stub, which is not imported
    call.__signature__ = _signature(signature, options)  # type: ignore[attr-defined]
    call.__doc__ = _documentation(function, options)
    return call  # type: ignore[return-value]


def _documentation(function: Callable[..., Any], options: Mapping[str, Field]) -> str:
    rows = [
        f"    {name}{'=False' if option.is_inverted else ''}: {option.option.help}"
        for name, option in options.items()
        if option.option.help
    ]
    head = f"{inspect.getdoc(function) or ''}\n\nOptions, in a record or as keyword arguments:"
    return "\n".join([head, *rows])


def _fill(
    function: str,
    signature: inspect.Signature,
    records: Mapping[str, type[Options]],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    names: Mapping[str, str],
) -> None:
    """Build the records whose fields are among the keywords. Raises TypeError for any other keyword.

    `names` has the keyword of each flag.
    """
    fields_given = {name: keywords.pop(name) for name in [*keywords] if name not in signature.parameters}
    bound = signature.bind_partial(*arguments, **keywords).arguments
    _check_paths(function, signature, bound)
    for parameter, record in records.items():
        value, kind = bound.get(parameter), signature.parameters[parameter].annotation
        # not `destination` of upload, which may be a text too
        if not isinstance(value, record | None) and kind in (record, record | None):
            first = next(iter(options_of(record)))
            raise TypeError(
                f"{function}() takes {record.__name__} as {parameter}, not {type(value).__name__}; pass"
                f" options by name: {first}=..."
            )
        # its fields, and the options of the records in it
        inner = {*options_of(record), *(field.name for field in fields(record))}
        record_fields = {name: fields_given.pop(name) for name in [*fields_given] if name in inner}
        if record_fields and value is not None:
            raise UsageError(
                f"{', '.join(record_fields)} cannot be passed beside {parameter}; put all into one"
                f" {record.__name__}"
            )
        if record_fields:
            keywords[parameter] = build_record(record, record_fields)
    if fields_given:
        wrong = next(iter(fields_given))
        raise TypeError(f"{function}() got an unexpected keyword argument {wrong!r}{_hint(wrong, names)}")


def _check_paths(function: str, signature: inspect.Signature, bound: Mapping[str, Any]) -> None:
    """Raise TypeError for a value that can be no path where a path is taken."""
    for name, value in bound.items():
        kinds = get_args(signature.parameters[name].annotation)
        is_missing = value is None and type(None) not in kinds
        if str in kinds and (is_missing or isinstance(value, bytes | int | float)):
            raise TypeError(f"{function}() takes a path or a name as {name}, not {value!r}")


def _hint(wrong: str, names: Mapping[str, str]) -> str:
    """Return the keyword to use in place of a wrong one: that of the flag, else one spelled like it."""
    from difflib import get_close_matches  # late: errors alone need it

    flags = {flag.lstrip("-").replace("-", "_"): name for flag, name in names.items()}
    close = get_close_matches(wrong, [*flags.values()], 1, 0.75)
    keyword = flags.get(wrong) or "".join(close)
    return f"; use {keyword}" if "=" in keyword else f"; use {keyword}=..." * bool(keyword)


def _signature(signature: inspect.Signature, options: Mapping[str, Field]) -> inspect.Signature:
    # a function's signature with its records' fields as keywords, for help() and editors
    named = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind != inspect.Parameter.VAR_KEYWORD
    ]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.shown_default,
            annotation=option.kind if option.shown_default is not None else option.kind | None,
        )
        for name, option in options.items()
        if name not in signature.parameters
    ]
    return signature.replace(parameters=[*named, *added])


def _names_by_flag(option: Field) -> dict[str, str]:
    """Return the Python spelling of each flag of an option: its name, with the value for an off switch."""
    names = {}
    for flags in option.flags:
        on, _, off = flags.partition("/")
        names[on] = f"{option.name}=False" if option.is_inverted else option.name
        if off:
            names[off] = f"{option.name}={None if option.record else False}"
    return names


def _name_option(error: EaglectlError, names: Mapping[str, str], *, is_outermost: bool) -> None:
    """Set an error's `option`, if it has none, to the Python name of the first of its options in `names`.

    With `is_outermost`, also reword the flags in its message, but those of commands in backticks. An inner
    call's message may become part of an outer one, which is then reworded as a whole.
    """
    flags = (option.partition(" ")[0] for option in error.options)
    error.option = error.option or next(
        (names[flag].partition("=")[0] for flag in flags if flag in names), ""
    )
    if is_outermost:
        error.reworded(renamed_flags(str(error), names))
