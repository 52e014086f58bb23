"""The tables of docs/api.md: what can be imported from eaglectl, from the code itself."""

import inspect
import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import eaglectl

PAGE = Path(__file__).with_name("api.md")
TABLE = re.compile(r"(<!-- (\w+), written by make docs -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """The page with each of its tables as the code is now."""
    return TABLE.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n\n{match[3]}", text)


def _public() -> dict[str, Any]:
    return {name: getattr(eaglectl, name) for name in sorted(dir(eaglectl)) if name != "__version__"}


def _is_error(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, Exception)


def _fields(item: Any) -> tuple[str, ...]:
    """The names of a record's fields, in order; none of what is no record."""
    return getattr(item, "__match_args__", ())


def _first_line(item: Any) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(item) or "").partition("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".").replace("|", "\\|")


def functions() -> str:
    """Every function with what it takes and returns."""
    rows = ["| function | returns | |", "|---|---|---|"]
    for name, item in _public().items():
        if inspect.isfunction(item):
            signature = inspect.signature(item)
            taken = ", ".join(key for key in signature.parameters if not key.startswith("on_"))
            returned = inspect.formatannotation(signature.return_annotation).strip("'")
            returned = returned.rpartition(".")[2]
            rows.append(f"| `{name}({taken})` | `{returned}` | {_first_line(item)} |")
    return "\n".join(rows)


def options() -> str:
    """Every class that a caller makes, with its fields."""
    rows = ["| class | fields |", "|---|---|"]
    for name, item in _public().items():
        if _fields(item) and _is_given(name):
            fields = ", ".join(f"`{field}`" for field in _fields(item))
            rows.append(f"| `{name}` | {fields} |")
    return "\n".join(rows)


def results() -> str:
    """Every class that a function returns or a result holds, with its fields."""
    rows = ["| class | | fields |", "|---|---|---|"]
    for name, item in _public().items():
        if _fields(item) and not _is_given(name):
            fields = ", ".join(f"`{field}`" for field in _fields(item))
            rows.append(f"| `{name}` | {_first_line(item)} | {fields} |")
    return "\n".join(rows)


def errors() -> str:
    """Every error with its exit code."""
    rows = ["| class | `kind` | `exit_code` | |", "|---|---|---|---|"]
    for name, item in _public().items():
        if _is_error(item):
            rows.append(f"| `{name}` | {item.kind} | {item.exit_code} | {_first_line(item)} |")
    return "\n".join(rows)


def verdicts() -> str:
    """Every enum with its members."""
    rows = ["| enum | | members |", "|---|---|---|"]
    for name, item in _public().items():
        if isinstance(item, type) and issubclass(item, StrEnum):
            members = ", ".join(f'`{member.name}` "{member}"' for member in item)
            rows.append(f"| `{name}` | {_first_line(item)} | {members} |")
    return "\n".join(rows)


def _is_given(name: str) -> bool:
    """Whether a caller makes it: options, answers, places and keys."""
    return name.endswith(("Options", "Answers")) or name in ("Destination", "Policy")


TABLES = {
    "functions": functions,
    "options": options,
    "results": results,
    "verdicts": verdicts,
    "errors": errors,
}
