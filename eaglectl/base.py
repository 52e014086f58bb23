"""The base of the results of public functions: a short text, a page for notebooks, a JSON document."""

import json
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

import eaglectl

T = TypeVar("T")
FRAME = '<strong>{}</strong><iframe srcdoc="{}" style="width: 100%; height: 32em; border: 0"></iframe>'

# kinds of values in documents; bounds and patterns are for readers, eaglectl does not enforce them
Count = Annotated[int, Meta(extra_json_schema={"minimum": 0})]


class Result(Struct, frozen=True):
    """The result of a public function."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document that the command prints with --json: dicts, lists, texts and numbers."""
        document: dict[str, Any] = json.loads(self.to_json())
        return document

    def to_json(self) -> str:
        """Return the JSON document as text, in ASCII; its schema is in schemas/."""
        return eaglectl.render_json(self)

    def __repr__(self) -> str:
        """Return the class and the first line of what the terminal shows; without one, the source."""
        try:
            head = eaglectl.render_text(self, is_brief=True).partition("\n")[0]
        except TypeError:
            head = str(getattr(self, "source", ""))
        return f"<{type(self).__name__}: {head}>" if head else f"<{type(self).__name__}>"

    def __str__(self) -> str:
        """Return the text that the terminal shows; `repr` for results without one."""
        try:
            return eaglectl.render_text(self)
        except TypeError:
            return repr(self)

    def _repr_html_(self) -> str | None:
        return frame(self)


class Results(tuple[T, ...]):
    """Results of several sources, in their order, shown together."""

    __slots__ = ()

    def __str__(self) -> str:
        return eaglectl.render_text(*self) if self else "()"

    def _repr_html_(self) -> str | None:
        return frame(*self) if self else None


def frame(*results: Any) -> str | None:
    """Return the verdicts and the page of results, for a notebook; None if they have no page."""
    try:
        page, text = eaglectl.render_page(*results), eaglectl.render_text(*results, is_brief=True)
    except TypeError:
        return None
    from html import escape  # late: its table of names

    return FRAME.format(escape(text).replace("\n", "<br>"), escape(page))
