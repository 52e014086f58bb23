"""The base of what the public functions return: a short text, a picture for notebooks, a JSON document."""

import json
import os
from collections.abc import Collection, Mapping
from html import escape
from textwrap import fill
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import fields

import eaglectl

T = TypeVar("T")
# characters: a line, a text in it, and values that are listed rather than counted
WIDTH, TEXT, LISTED = 100, 80, 60
FRAME = '<strong>{}</strong><iframe srcdoc="{}" style="width: 100%; height: 32em; border: 0"></iframe>'

# kinds of values in documents; bounds and patterns are for readers: no document is refused for them
Count = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
Digest = Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9a-f]{64}$"})]


class Result(Struct, frozen=True):
    """What a public function returns."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON document that the command prints with --json: dicts, lists, texts and numbers."""
        document: dict[str, Any] = json.loads(self.to_json())
        return document

    def to_json(self) -> str:
        """The text of that document, in ASCII; its schema is in schemas/."""
        return eaglectl.render_json(self)

    def __repr__(self) -> str:
        """The verdict and short values; what is long is counted, evidence named, and a default left out."""
        names = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        if hasattr(self, "verdict") and "verdict" not in names:
            names.insert(0, "verdict")
        values = ", ".join(f"{name}={_short(getattr(self, name))}" for name in names)
        return fill(
            f"{type(self).__name__}({values})", WIDTH, subsequent_indent="    ", break_on_hyphens=False
        )

    def __str__(self) -> str:
        """What the terminal shows of it; the values of a result that the terminal does not show."""
        try:
            return eaglectl.render_text(self)
        except TypeError:
            return repr(self)

    def _repr_html_(self) -> str | None:
        return frame(self)


class Results(tuple[T, ...]):
    """Results of several sources, in their order, which are shown together."""

    __slots__ = ()

    def __str__(self) -> str:
        return eaglectl.render_text(*self) if self else "()"

    def _repr_html_(self) -> str | None:
        return frame(*self) if self else None


def frame(*results: Any) -> str | None:
    """The verdict and the page of results, for a notebook; None for those that have no page."""
    try:
        page, text = eaglectl.render_page(*results), eaglectl.render_text(*results)
    except TypeError:
        return None
    return FRAME.format(escape(text.partition("\n")[0]), escape(page))


def _short(value: Any) -> str:
    """A text, cut where it is long, or a number; of plain items all where they are few, else how many."""
    match value:
        case str():
            text = str(value)
            return repr(text if len(text) <= TEXT else f"{text[: TEXT - 3]}...")
        case float():
            return f"{value:.6g}"
        case None | bool() | int():
            return repr(value)
        case os.PathLike() if not isinstance(value, Struct):
            return repr(os.fspath(value))
        case Collection():
            items = value.values() if isinstance(value, Mapping) else value
            is_plain = all(isinstance(item, str | int | float | None) for item in items)
            return repr(value) if is_plain and len(repr(value)) <= LISTED else f"<{len(value)}>"
    return f"<{type(value).__name__}>"
