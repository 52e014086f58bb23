"""HTML built from elements, so that all text is escaped in one place."""

import re
from collections.abc import Iterable, Sequence
from html import escape

from eaglectl.text import printable

# the most rows of a table
MOST_ROWS = 200
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


def section(title: str, *content: Content, about: str = "", level: int = 2) -> Markup:
    """Return a section under its heading, or nothing if it has neither content nor `about`."""
    body = join(content)
    if not (body or about):
        return NOTHING
    return element("section", element(f"h{level}", title), filled("p", about, class_="about"), body)


def table(label: str, head: Sequence[str], rows: Iterable[Sequence[Content]], kind: str = "") -> Markup:
    """Return a table that scrolls if it is wider than the screen; the first column names the rows.

    `kind`: "figures" keeps each cell on one line where there is room; "reasons" sets the last one
    below the others where there is none.
    """
    every = list(rows)
    shown = every[:MOST_ROWS]
    if len(every) > len(shown):
        shown.append((f"and {len(every) - len(shown):,} more; --json lists all",))
    body = join(_row(row) for row in shown)
    if not body:
        return NOTHING
    inner = element("table", _head(head), element("tbody", body))
    style = f"scroll {kind}".strip()
    return element("div", inner, class_=style, role="region", aria_label=label, tabindex="0")


def _head(titles: Sequence[str]) -> Markup:
    if not any(titles):
        return NOTHING
    cells = (element("th", title, scope="col") if title else element("td") for title in titles)
    return element("thead", element("tr", *cells))


def _row(cells: Sequence[Content]) -> Markup:
    first, *rest = cells
    return element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in rest))


def pairs(rows: Iterable[tuple[str, Content]]) -> Markup:
    """Return names and values."""
    return filled("dl", *(element("div", element("dt", name), element("dd", value)) for name, value in rows))


def folded(title: Content, content: Markup, anchor: str = "") -> Markup:
    """Return content behind a title that the browser opens without a script.

    The anchor is inside the closed details because a browser opens them for a link to it.
    """
    if not content:
        return NOTHING
    return element(
        "details", element("summary", title), element("div", content, id=anchor) if anchor else content
    )


def mark(word: Content, tone: str) -> Markup:
    """Return a word in the colour of its tone: good, bad, doubt or plain."""
    return element("span", word, class_=f"mark {tone}")


def remarks(rows: Iterable[tuple[str, str, Content]]) -> Markup:
    """Return a list of sentences, each after a word in its tone; a row is word, tone, sentence."""
    items = (element("li", mark(word, tone), " ", element("span", sentence)) for word, tone, sentence in rows)
    return filled("ul", *items, class_="remarks")


def command(line: str) -> Markup:
    """Return a command to copy, or nothing without one; no line break falls inside the name of an option."""
    if not line:
        return NOTHING
    return element("pre", element("code", Markup(" ".join(map(_word, printable(line).split(" "))))))


def _word(word: str) -> Markup:
    if word.startswith("--"):
        return Markup(f'<span class="option">{escape(word)}</span>')
    return name(word)
