"""Values that have their type already, handed on without pydantic.

typer 0.2x loads pydantic to convert the first value of a command, which takes longer than typer itself. A str
stays a str, and a default what it is: only what has to be converted or checked goes through it.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer import core


class _PlainParam:
    """Stands for a parameter's conversion, and makes it where a value needs it."""

    def __init__(self, convert: Callable[[], Any]) -> None:
        self.convert = convert

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as a command takes it."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        info = param.type_descriptor.parameter_info
        if getattr(info, "parser", None) is None and getattr(info, "click_type", None) is None:
            plain = _plain(value, param, ctx)
            if plain is not None:
                return plain
        return self.convert().coerce(value, param=param, ctx=ctx)


def _plain(value: Any, param: Any, ctx: Any) -> Any:
    """The value as a command takes it; None where it has to be converted or checked."""
    annotation = param.type_descriptor.annotation
    if annotation == list[str]:
        return list(value) if all(type(item) is str for item in value) else None
    if annotation is Path:
        is_new = type(value) is str and _is_free(value, param.type_descriptor.parameter_info)
        return Path(value) if is_new else None
    if annotation is int and type(value) is str:
        return _count(value, param.type_descriptor.parameter_info)
    is_typed = annotation in (str, int, float) and type(value) is annotation
    return value if is_typed and (annotation is str or not _is_given(param, ctx)) else None


def _count(value: str, info: Any) -> int | None:
    """A number in digits within the option's bounds; anything else is for pydantic to read or refuse."""
    if not re.fullmatch("[0-9]{1,9}", value) or info.clamp:
        return None
    number = int(value)
    is_out = (info.min is not None and number < info.min) or (info.max is not None and number > info.max)
    return None if is_out else number


def _is_given(param: Any, ctx: Any) -> bool:
    """Whether the user gave the value, so that its bounds are checked."""
    source = ctx.get_parameter_source(param.name)
    return source is None or source.name != "DEFAULT"


def _is_free(value: str, info: Any) -> bool:
    """Whether nothing has the path's name, and nothing must: there is nothing to check."""
    try:
        Path(value).lstat()
    except FileNotFoundError:
        return not info.exists and not info.resolve_path
    except (OSError, ValueError):
        pass
    return False


def hand_on_plain_values() -> None:
    """Have typer convert only what needs it; a typer that is built in another way is left as it is."""
    parameter = getattr(core, "_TyperParameter", None)
    convert = getattr(parameter, "get_runtime_param", None)
    if parameter is None or convert is None:
        return

    def get_runtime_param(self: Any) -> Any:
        is_known = hasattr(getattr(self, "type_descriptor", None), "annotation")
        return _PlainParam(lambda: convert(self)) if is_known else convert(self)

    parameter.get_runtime_param = get_runtime_param
