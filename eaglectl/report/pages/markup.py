"""HTML built from elements, so that all text is escaped in one place."""

import re
from collections.abc import Iterable
from html import escape

from eaglectl.text import printable

VOID = ("meta", "wbr")
# parts of a name: what ends at a separator, or 24 characters of it; a number like 3.1 is one part
PART = re.compile(r"(?:[^./_:=-]|\.(?=\d)){1,24}(?:[/_:=-]|\.(?!\d))?|[./_:=-]{1,24}")
# elements whose text may hold names of options, which are kept on one line
WITH_OPTIONS = ("p", "td", "dd", "li", "span", "code")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")


class Markup(str):
    """Finished HTML; any other string is text, and is escaped."""

    __slots__ = ()


Content = str | Markup | None
NOTHING = Markup("")


def element(tag: str, /, *content: Content, **attributes: str | bool | None) -> Markup:
    """Return an element; text is escaped, None left out, `class_` written class, `aria_label` aria-label."""
    start = f"<{tag}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    if tag in VOID:
        return Markup(start)
    inside = map(with_options, content) if tag in WITH_OPTIONS else content
    return Markup(f"{start}{join(inside)}</{tag}>")


def filled(tag: str, /, *content: Content, **attributes: str | bool | None) -> Markup:
    """Return an element, or nothing if it would be empty."""
    inside = join(content)
    return element(tag, inside, **attributes) if inside else NOTHING


def join(contents: Iterable[Content]) -> Markup:
    """Return contents one after another."""
    return Markup("".join(map(_escaped, contents)))


def _escaped(content: Content) -> Markup:
    if isinstance(content, Markup):
        return content
    return text(content or "")


def with_options(content: Content) -> Content:
    """Return text with each name of an option in an element that is not broken at its hyphens."""
    if not content or isinstance(content, Markup) or "--" not in content:
        return content
    parts = OPTION.split(printable(content))
    return join(
        Markup(f'<span class="option">{part}</span>') if n % 2 else part for n, part in enumerate(parts)
    )


def text(plain: str) -> Markup:
    """Return escaped text; characters that are invisible or change the direction are shown as escapes."""
    return Markup(escape(printable(plain)))


def name(plain: str) -> Markup:
    """Return the name of a tensor or a path, which folds after its separators and not inside words."""
    return Markup(element("wbr").join(map(escape, PART.findall(printable(plain)))))


def prose(plain: str) -> Markup:
    """Return a sentence with `code` in it set as code."""
    parts = plain.split("`")
    if len(parts) % 2 == 0:
        return text(plain)
    return join(element("code", part) if place % 2 else part for place, part in enumerate(parts))


def _attribute(key: str, value: str | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {name}="{text(value)}"'
