"""HTML that is built from elements, so that every text is escaped in one place."""

from collections.abc import Iterable, Sequence
from html import escape

from eaglectl.errors import printable

VOID = ("meta",)


class Markup(str):
    """HTML that is finished; every other string is text, and is escaped."""

    __slots__ = ()


Content = str | Markup | None
NOTHING = Markup("")


def element(tag: str, /, *content: Content, **attributes: str | bool | None) -> Markup:
    """An element; texts are escaped, None is left out. `class_` and `aria_label` are written class and aria-label."""
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    return Markup(f"<{tag}{given}>" if tag in VOID else f"<{tag}{given}>{join(content)}</{tag}>")


def join(content: Iterable[Content]) -> Markup:
    """Contents one after another."""
    return Markup("".join(one if isinstance(one, Markup) else text(one or "") for one in content))


def text(given: str) -> Markup:
    """Text as it stands: characters that show nothing, or turn the line around, are written as escapes."""
    return Markup(escape(printable(given)))


def prose(given: str) -> Markup:
    """A sentence of ours or of a rule, `code` in it set as code."""
    parts = given.split("`")
    if len(parts) % 2 == 0:
        return text(given)
    return join(element("code", part) if place % 2 else part for place, part in enumerate(parts))


def _attribute(key: str, value: str | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{text(value)}"'


def section(title: str, *content: Content, about: str = "", level: int = 2) -> Markup:
    """A part of the page under its heading; nothing where it has no content."""
    body = join(content)
    caption = element("p", about, class_="about") if about else None
    return element("section", element(f"h{level}", title), caption, body) if body or about else NOTHING


def table(label: str, head: Sequence[str], rows: Iterable[Sequence[Content]], kind: str = "") -> Markup:
    """A table whose first column names the rows; it scrolls by itself where it is wider than the screen.

    `kind`: "figures" breaks no cell into lines.
    """
    body = join(_row(row) for row in rows)
    if not body:
        return NOTHING
    titles = join(element("th", title, scope="col") if title else element("td") for title in head)
    inner = element("table", element("thead", element("tr", titles)) if any(head) else None, element("tbody", body))
    return element("div", inner, class_=f"scroll {kind}".strip(), role="region", aria_label=label, tabindex="0")


def _row(cells: Sequence[Content]) -> Markup:
    first, *rest = cells
    return element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in rest))


def pairs(rows: Iterable[tuple[str, Content]]) -> Markup:
    """Names and values."""
    body = join(element("div", element("dt", name), element("dd", value)) for name, value in rows)
    return element("dl", body) if body else NOTHING


def folded(title: str, content: Markup) -> Markup:
    """What is there for who asks; the browser opens it without a script."""
    return element("details", element("summary", title), content) if content else NOTHING


def mark(word: Content, tone: str) -> Markup:
    """A word in the colour of its tone: good, bad, doubt or plain. The word alone says it too."""
    return element("span", word, class_=f"mark {tone}")


def remarks(rows: Iterable[tuple[str, str, Content]]) -> Markup:
    """Sentences, each after a word in its tone."""
    items = join(element("li", mark(word, tone), " ", element("span", said)) for word, tone, said in rows)
    return element("ul", items, class_="remarks") if items else NOTHING


def command(line: str) -> Markup:
    """A command to copy; a line never ends within an option's name."""
    words = (
        element("span", word, class_="option") if word.startswith("--") else text(word) for word in line.split(" ")
    )
    return element("pre", element("code", Markup(" ".join(words))))
