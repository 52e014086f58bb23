"""Functions of Python that take the fields of their options as keyword arguments too."""

import inspect
import os
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
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
    options = {name: option for record in records.values() for name, option in options_of(record).items()}
    names = {f"--{name.replace('_', '-')}": name for name in signature.parameters} | {"-o": "out"}
    for option in options.values():
        names |= _names_by_flag(option)

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True  # which IPython and pytest read
        is_outermost = not CALLER.is_command_line and not INSIDE.get()
        token = INSIDE.set(True)
        try:
            if unknown := _fill(function.__name__, signature, records, arguments, keywords):
                raise _unknown(function.__name__, unknown, names, options)
            has_own = "on_progress" not in signature.parameters or keywords.get("on_progress") is not None
            with nullcontext() if has_own or not is_outermost else notebook_progress() as line:
                if line is not None:
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

    call.__signature__ = _signature(signature, options)  # type: ignore[attr-defined]
    rows = [f"    {name}: {option.option.help}" for name, option in options.items() if option.option.help]
    head = [inspect.getdoc(function) or "", "", "Options, in a record or as keyword arguments:"]
    call.__doc__ = "\n".join([*head, *rows])
    return call  # type: ignore[return-value]


def _fill(
    function: str,
    signature: inspect.Signature,
    records: Mapping[str, type[Options]],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> str:
    """Make records of the keywords that are fields of them; the first of no record, or ""."""
    given = {name: keywords.pop(name) for name in [*keywords] if name not in signature.parameters}
    bound = signature.bind_partial(*arguments, **keywords).arguments
    for parameter, record in records.items():
        value, kind = bound.get(parameter), signature.parameters[parameter].annotation
        # not `destination` of upload, which may be a text too
        if not isinstance(value, record | None) and kind in (record, record | None):
            first = next(iter(options_of(record)))
            raise TypeError(
                f"{function}() takes {record.__name__} as {parameter}, not {type(value).__name__}; give"
                f" options by name: {first}=..."
            )
        # its fields, and the options of the records in it
        names = {*options_of(record), *(field.name for field in fields(record))}
        own = {name: given.pop(name) for name in [*given] if name in names}
        if own and value is not None:
            raise UsageError(f"{parameter} is given beside {', '.join(own)}; write all into one")
        if own:
            keywords[parameter] = made(record, own)
    return next(iter(given), "")


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


def _unknown(function: str, name: str, names: Mapping[str, str], options: Mapping[str, Field]) -> TypeError:
    """The error, with the keyword of the flag that is spelled so, else the nearest one."""
    flag = names.get(f"--{name.strip('_').replace('_', '-')}")
    near = [flag] if flag else get_close_matches(name, options, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def _names_by_flag(option: Field) -> dict[str, str]:
    """What Python writes for each flag of an option: its name, and for an off switch its value too."""
    names = {}
    for flags in option.flags:
        on, _, off = flags.partition("/")
        names[on] = f"{option.name}=False" if option.is_inverted else option.name
        if off:
            names[off] = f"{option.name}={None if option.record else False}"
    return names


def _name_option(error: EaglectlError, names: Mapping[str, str], *, is_outermost: bool) -> None:
    """Give an error the option that its message names first, and to callers from Python its name there.

    Inside, where messages are read and joined, they keep the flags; commands, between backticks, do always.
    """
    text = str(error)
    named = (names[flag].partition("=")[0] for flag in COMMAND_OR_FLAG.findall(text) if flag in names)
    error.option = error.option or next(named, "")
    if is_outermost:
        text = COMMAND_OR_FLAG.sub(lambda match: names.get(match[0], match[0]), text)
        error.args = (text, *error.args[1:])
