"""A plugin of mypy: the names and types given to `msgspec.structs.replace` are those of the record's fields.

msgspec's own stub takes any name, and only running the line shows a wrong one.
"""

from collections.abc import Callable

from mypy.nodes import ARG_NAMED_OPT, ARG_POS
from mypy.plugin import FunctionSigContext, Plugin
from mypy.types import CallableType, FunctionLike, Instance, TypeVarType, get_proper_type

REPLACE = "msgspec.structs.replace"


class CheckedReplace(Plugin):
    """Gives `replace(record, ...)` the signature of the record's own `__init__`, with all of it optional."""

    def get_function_signature_hook(
        self, fullname: str
    ) -> Callable[[FunctionSigContext], FunctionLike] | None:
        return _signature if fullname == REPLACE else None


def _signature(context: FunctionSigContext) -> FunctionLike:
    default = context.default_signature
    if not context.args or not context.args[0]:
        return default
    record = get_proper_type(context.api.get_expression_type(context.args[0][0]))
    if isinstance(record, TypeVarType):
        record = get_proper_type(record.upper_bound)
    init = record.type.get_method("__init__") if isinstance(record, Instance) else None
    made = get_proper_type(init.type) if init else None
    if not isinstance(made, CallableType):
        return default
    fields = [(name, kind) for name, kind in zip(made.arg_names[1:], made.arg_types[1:], strict=True) if name]
    return default.copy_modified(
        arg_names=[default.arg_names[0], *(name for name, _ in fields)],
        arg_kinds=[ARG_POS, *(ARG_NAMED_OPT for _ in fields)],
        arg_types=[default.arg_types[0], *(kind for _, kind in fields)],
    )


def plugin(version: str) -> type[Plugin]:
    """What mypy calls."""
    return CheckedReplace
