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

from eaglectl.errors import EaglectlError, UsageError, input_error
from eaglectl.options import CALLER, Field, Options, fields, made, options_of
from eaglectl.progress import notebook_progress

StrPath = str | os.PathLike[str]
# whether one of the functions has called another
INSIDE: ContextVar[bool] = ContextVar("INSIDE", default=False)
F = TypeVar("F", bound=Callable[..., Any])
# a command, which stays as it is; or a flag
COMMAND_OR_FLAG = re.compile(r"`[^`]*`|(?<![\w-])--?[a-z][a-z0-9-]*(?![\w-])")


def path_text(path: StrPath | None) -> str | None:
    """A path as a text."""
    return None if path is None else os.fspath(path)


def with_keywords(function: F) -> F:
    """A function whose parameters that are options records may be given field by field: `dry_run=True`.

    Its own `**fields` stands for these keywords in its definition, and stays empty. An error whose message
    names an option has its field as `option`, and says `field=...` in place of the flag to who calls from
    Python. In a notebook progress is shown where no `on_progress` is given.
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
    names = {f"--{name.replace('_', '-')}": name for name in signature.parameters} | {"-o": "out"}
    for option in options.values():
        names |= _names_by_flag(option)

    def run(*arguments: Any, **keywords: Any) -> Any:
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
                with _naming_options(names):
                    keywords[parameter] = made(record, own)
        if given:
            raise _unknown(function.__name__, next(iter(given)), names, options)
        with _showing_progress(signature, keywords), _naming_options(names):
            return function(*arguments, **keywords)

    call = wraps(function)(_without_frames(run))
    call.__signature__ = _signature(signature, options)  # type: ignore[attr-defined]
    call.__doc__ = _documentation(function, options)
    return call  # type: ignore[return-value]


def _without_frames(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose errors that are an answer to the caller have none of our frames in their traceback."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True  # which IPython and pytest read
        try:
            return run(*arguments, **keywords)
        except EaglectlError as error:
            if CALLER.is_command_line or INSIDE.get():
                raise
            raise error.with_traceback(None) from None

    return call


@contextmanager
def _showing_progress(signature: inspect.Signature, keywords: dict[str, Any]) -> Iterator[None]:
    """Give a call its own `on_progress` in a notebook, where it may have one and has none."""
    is_open = "on_progress" in signature.parameters and keywords.get("on_progress") is None
    if not is_open or CALLER.is_command_line or INSIDE.get():
        yield
        return
    with notebook_progress() as line:
        keywords["on_progress"] = line
        yield


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
        if name not in signature.parameters and not option.option.is_former
    ]
    return signature.replace(parameters=[*kept, *added])


def _documentation(function: Callable[..., Any], options: Mapping[str, Field]) -> str:
    rows = [f"    {name}: {option.option.help}" for name, option in options.items() if option.option.help]
    return "\n".join(
        [inspect.getdoc(function) or "", "", "Options, in a record or as keyword arguments:", *rows]
    )


def _unknown(function: str, name: str, names: Mapping[str, str], options: Mapping[str, Field]) -> TypeError:
    """The error, with the keyword of the flag that is spelled so, else the nearest one."""
    flag = names.get(f"--{name.strip('_').replace('_', '-')}")
    near = (
        [flag]
        if flag
        else get_close_matches(name, [one for one in options if not options[one].option.is_former], 1)
    )
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def _names(record: type[Options]) -> set[str]:
    """What a record may be made of: its fields, and the options of the records in it."""
    return {*options_of(record), *(field.name for field in fields(record))}


def _names_by_flag(option: Field) -> dict[str, str]:
    """What Python writes for each flag of an option: its name, and for an off switch its value too."""
    names = {}
    for flags in option.flags:
        on, _, off = flags.partition("/")
        names[on] = f"{option.name}=False" if option.is_inverted else option.name
        if off:
            names[off] = f"{option.name}={None if option.record else False}"
    return names


@contextmanager
def _naming_options(names: Mapping[str, str]) -> Iterator[None]:
    """Give errors the option that their message names first, and to callers from Python its name there.

    Inside, where messages are read and joined, they keep the flags.
    """
    is_outermost = not CALLER.is_command_line and not INSIDE.get()
    token = INSIDE.set(True)
    try:
        yield
    except EaglectlError as error:
        text = str(error)
        named = (names[flag].partition("=")[0] for flag in COMMAND_OR_FLAG.findall(text) if flag in names)
        error.option = error.option or next(named, "")
        if is_outermost:
            error.args = (in_python(text, names), *error.args[1:])
        raise
    except BaseException as error:
        if (refusal := input_error(error)) is None:
            raise
        raise refusal from None
    finally:
        INSIDE.reset(token)


def in_python(message: str, names: Mapping[str, str]) -> str:
    """A message with the names of options in place of their flags; commands, between backticks, stay."""
    return COMMAND_OR_FLAG.sub(lambda match: names.get(match[0], match[0]), message)
