"""Functions of Python that take the fields of their options as keyword arguments too."""

import inspect
import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, get_args

from eaglectl.errors import EaglectlError, UsageError
from eaglectl.options import Field, Options, fields, made, options_of

StrPath = str | os.PathLike[str]
F = TypeVar("F", bound=Callable[..., Any])
FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")


def path_text(path: StrPath | None) -> str | None:
    """A path as a text."""
    return None if path is None else os.fspath(path)


def with_keywords(function: F) -> F:
    """A function whose parameters that are options records may be given field by field: `dry_run=True`.

    Its own `**fields` stands for these keywords in its definition, and stays empty. An error whose message
    names an option has its field as `option`.
    """
    signature = inspect.signature(function)
    records = {
        parameter.name: kind
        for parameter in signature.parameters.values()
        for kind in get_args(parameter.annotation)
        if isinstance(kind, type) and issubclass(kind, Options)
    }
    options = {name: option for record in records.values() for name, option in options_of(record).items()}
    names = {
        flag: name for name, option in options.items() for flag in re.split("[,/ ]+", " ".join(option.flags))
    }

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        given = {name: keywords.pop(name) for name in [*keywords] if name not in signature.parameters}
        bound = signature.bind_partial(*arguments, **keywords).arguments
        for parameter, record in records.items():
            own = {name: given.pop(name) for name in [*given] if name in _names(record)}
            if own and bound.get(parameter) is not None:
                raise UsageError(f"{parameter} is given beside {', '.join(own)}; write all into one")
            if own:
                keywords[parameter] = made(record, own)
        if given:
            raise _unknown(function.__name__, next(iter(given)), options)
        try:
            return function(*arguments, **keywords)
        except EaglectlError as error:
            error.option = error.option or _named(str(error), names)
            raise

    call.__signature__ = _signature(signature, options)  # type: ignore[attr-defined]
    call.__doc__ = _documentation(function, options)
    return call  # type: ignore[return-value]


def _signature(signature: inspect.Signature, options: Mapping[str, Field]) -> inspect.Signature:
    kept = [one for one in signature.parameters.values() if one.kind != inspect.Parameter.VAR_KEYWORD]
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=option.shown_default, annotation=option.kind
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


def _named(message: str, names: Mapping[str, str]) -> str:
    """The first option that a message names, as Python does."""
    return next((names[flag] for flag in FLAG.findall(message) if flag in names), "")
