"""Functions of Python that take the fields of their options as keyword arguments too."""

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, get_args

from msgspec import Struct

from eaglectl.errors import EaglectlError, UsageError
from eaglectl.options import CALLER, Field, Options, fields, made, options_of

StrPath = str | os.PathLike[str]
# whether one of the functions has called another
INSIDE: ContextVar[bool] = ContextVar("INSIDE", default=False)
F = TypeVar("F", bound=Callable[..., Any])
FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")
# a command, which stays; or a flag, after "leave" and with the next word, which may be its value
COMMAND_OR_FLAG = re.compile(
    r"`[^`]*`|(leave )?(?<![\w-])(--?[a-z][a-z0-9-]*)(?![\w-])"
    r"(?: ((?:-(?=[0-9]))?[^\s`,;:)-][^\s`,;:)]*))?(?=(:?))"
)
PLACEHOLDER, NUMBER = re.compile("[A-Z][A-Z/=]+"), re.compile(r"[\w.=-]*[.=\d][\w.=-]*")


def path_text(path: StrPath | None) -> str | None:
    """A path as a text."""
    return None if path is None else os.fspath(path)


def with_keywords(function: F) -> F:
    """A function whose parameters that are options records may be given field by field: `dry_run=True`.

    Its own `**fields` stands for these keywords in its definition, and stays empty. An error whose message
    names an option has its field as `option`, and says `field=...` in place of the flag to who calls from
    Python.
    """
    signature = inspect.signature(function)
    records = {
        parameter.name: kind
        for parameter in signature.parameters.values()
        for kind in (parameter.annotation, *get_args(parameter.annotation))
        if isinstance(kind, type) and issubclass(kind, Options)
    }
    # not `destination` of upload, which may be a text too
    only = {
        name for name, kind in records.items() if signature.parameters[name].annotation in (kind, kind | None)
    }
    options = {name: option for record in records.values() for name, option in options_of(record).items()}
    words = {f"--{name.replace('_', '-')}": Word(name) for name in signature.parameters} | {"-o": Word("out")}
    for option in options.values():
        words |= _words(option)

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        given = {name: keywords.pop(name) for name in [*keywords] if name not in signature.parameters}
        bound = signature.bind_partial(*arguments, **keywords).arguments
        for parameter, record in records.items():
            if parameter in only and not isinstance(bound.get(parameter), record | None):
                first = next(iter(options_of(record)))
                raise TypeError(
                    f"{function.__name__}() takes {record.__name__} as {parameter}, not"
                    f" {type(bound[parameter]).__name__}; give options by name: {first}=..."
                )
            own = {name: given.pop(name) for name in [*given] if name in _names(record)}
            if own and bound.get(parameter) is not None:
                raise UsageError(f"{parameter} is given beside {', '.join(own)}; write all into one")
            if own:
                with _explaining(words):
                    keywords[parameter] = made(record, own)
        if given:
            raise _unknown(function.__name__, next(iter(given)), options)
        with _explaining(words):
            return function(*arguments, **keywords)

    call.__signature__ = _signature(signature, options)  # type: ignore[attr-defined]
    call.__doc__ = _documentation(function, options)
    return call  # type: ignore[return-value]


def _signature(signature: inspect.Signature, options: Mapping[str, Field]) -> inspect.Signature:
    kept = [one for one in signature.parameters.values() if one.kind != inspect.Parameter.VAR_KEYWORD]
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
    return signature.replace(parameters=[*kept, *added])


def _documentation(function: Callable[..., Any], options: Mapping[str, Field]) -> str:
    rows = [f"    {name}: {option.option.help}" for name, option in options.items()]
    return "\n".join(
        [inspect.getdoc(function) or "", "", "Options, in a record or as keyword arguments:", *rows]
    )


def _unknown(function: str, name: str, options: Mapping[str, Field]) -> TypeError:
    near = get_close_matches(name, options, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def _names(record: type[Options]) -> set[str]:
    """What a record may be made of: its fields, and the options of the records in it."""
    return {*options_of(record), *(field.name for field in fields(record))}


class Word(Struct, frozen=True):
    """What Python writes for a flag: the name of a field, with the value that the flag itself has."""

    name: str
    value: str = ""
    option: Field | None = None

    def text(self, value: str) -> str:
        """A field with a value that follows the flag, if it is one."""
        if self.value:
            return f"{self.name}={self.value}"
        if not value or PLACEHOLDER.fullmatch(value):
            return f"{self.name}=..."
        if self.option is not None and self.option.is_mapping and "=" in value:
            key, _, given = value.partition("=")
            return f'{self.name}={{"{key}": "{given}"}}'
        is_number = self.option.kind in (int, float) if self.option is not None else value.isdecimal()
        return f"{self.name}={value}" if is_number else f'{self.name}="{value}"'

    def takes(self, value: str, mark: str) -> bool:
        """Whether the word behind a flag is its value, and no word of the sentence."""
        choices = self.option.option.choices if self.option is not None else ()
        shapes = (PLACEHOLDER, NUMBER)
        return mark == ":" or value in choices or any(shape.fullmatch(value) for shape in shapes)


def _words(option: Field) -> dict[str, Word]:
    """What Python writes for each of an option's flags."""
    words = {}
    for flags in option.flags:
        for number, flag in enumerate(flags.split("/")):
            is_on = number == 0 and not option.is_inverted
            value = str(is_on) if option.kind is bool else ""
            if option.record is not None and not is_on:
                value = "None"
            words[flag] = Word(option.name, value, option)
    return words


@contextmanager
def _explaining(words: Mapping[str, Word]) -> Iterator[None]:
    """Give errors the option that their message names first, and to callers from Python its name there.

    Inside, where messages are read and joined, they keep the flags.
    """
    is_outermost = not CALLER.is_command_line and not INSIDE.get()
    token = INSIDE.set(True)
    try:
        yield
    except EaglectlError as error:
        text = str(error)
        named = (words[flag].name for flag in FLAG.findall(text) if flag in words)
        error.option = error.option or next(named, "")
        if is_outermost:
            error.args = (in_python(text, words), *error.args[1:])
        raise
    finally:
        INSIDE.reset(token)


def in_python(message: str, words: Mapping[str, Word]) -> str:
    """A message with the flags in it as Python writes them; commands, between backticks, stay."""

    def replaced(match: re.Match[str]) -> str:
        leave, flag, value, mark = (part or "" for part in match.groups())
        if flag not in words:
            return match[0]
        word = words[flag]
        is_taken = bool(value) and not word.value and word.takes(value, mark)
        rest = f" {value}" if value and not is_taken else ""
        if leave and not is_taken and not word.value:
            return f"{leave}{word.name}{rest}"
        return f"{leave}{word.text(value if is_taken else '')}{rest}"

    return COMMAND_OR_FLAG.sub(replaced, message)
