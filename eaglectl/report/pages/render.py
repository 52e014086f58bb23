"""A result as one self-contained HTML page: no script, nothing loaded from elsewhere."""

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import eaglectl
from eaglectl.base import Result
from eaglectl.report.figures import FIGURES
from eaglectl.report.outlines import outline as outline_of
from eaglectl.report.pages.markup import (
    NOTHING,
    Content,
    Markup,
    element,
    filled,
    join,
    name,
    prose,
    with_options,
)
from eaglectl.report.pages.svg import figure_markup
from eaglectl.report.section import (
    Block,
    Commands,
    Entries,
    Entry,
    Folded,
    Line,
    Lines,
    Marked,
    Outline,
    Pairs,
    Remarks,
    Section,
    Table,
    Words,
    plain,
    spans,
)
from eaglectl.text import printable

# the most rows of a table
MOST_ROWS = 200


def render_page(
    *results: Result,
    names: Sequence[str] = (),
    has_tensors: bool = False,
) -> str:
    """Return the HTML page of what `inspect`, `convert`, `validate`, `smoke`, `diagnose`, `diff`, `ready`,
    `verify` or `upload` returned.

    Several results of `inspect`, or of `validate`, share one page. `names` are the sources of `inspect` as
    given, `has_tensors` lists their tensors. The same results give the same text. Raises TypeError for other
    values, and for results that cannot share a page.
    """
    outline = outline_of(results, names=names, has_tensors=has_tensors)
    made_by = f"eaglectl {eaglectl.__version__} {outline.command}"
    subject = f": {outline.subject}" if outline.subject else ""
    # the policy allows the one style sheet and nothing else
    digest = base64.b64encode(hashlib.sha256(style_sheet().encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{outline.verdict.text}{subject} - {made_by}"),
        element("style", style_sheet()),
    )
    made = element("p", made_by, class_="about")
    header = element("header", made, element("h1", _title(outline)), _lead(outline))
    shown = element("body", header, element("main", _body(outline, 2)))
    return f"<!DOCTYPE html>\n{element('html', head, shown, lang='en')}\n"


@cache
def style_sheet() -> Markup:
    """Return the rules for pages and pictures, light and dark."""
    return Markup(files("eaglectl.report.pages").joinpath("page.css").read_text(encoding="utf-8"))


def _body(outline: Outline, level: int) -> Markup:
    """The sections of one source, and of each of several in an article; headings begin at `level`."""
    own = [_section(part, level) for part in outline.sections if part.only != "terminal"]
    articles = []
    for number, part in enumerate(outline.parts):
        head = element("h2", _title(part), id=f"checkpoint-{number}")
        articles.append(element("article", head, _lead(part), _body(part, level + 1)))
    # what is said of all of them stands behind them, but for the overview
    return join([*own[:1], *articles, *own[1:]] if articles else own)


def _lead(outline: Outline) -> Markup:
    """The sentence below the title."""
    return filled("p", _line_markup(outline.lead), class_="lead")


def _title(outline: Outline) -> Markup:
    """The verdict and the source."""
    subject = filled("span", name(outline.subject), class_="subject")
    return join([_marked(outline.verdict), " " if outline.verdict.text else None, subject])


def _section(section: Section, level: int) -> Markup:
    """The blocks under their heading, or nothing where there are neither blocks nor `about`."""
    blocks = join(_block(block, section.title) for block in section.blocks)
    if not (blocks or section.about):
        return NOTHING
    about = filled("p", section.about, class_="about")
    return element("section", element(f"h{level}", section.title), about, blocks)


def _block(block: Block, label: str) -> Markup:
    if isinstance(block, FIGURES):
        return figure_markup(block)
    if isinstance(block, Table | Lines) and block.only == "terminal":
        return NOTHING
    return WRITERS[type(block)](block, label)


def _pairs(rows: Iterable[tuple[str, Content]]) -> Markup:
    return filled("dl", *(element("div", element("dt", key), element("dd", value)) for key, value in rows))


def _table(block: Table, label: str) -> Markup:
    """A table that scrolls if it is wider than the screen; the first column names the rows."""
    rows = [[_line_markup(cell) for cell in row] for row in block.rows[:MOST_ROWS]]
    if len(block.rows) > MOST_ROWS:
        rows.append([join([f"and {len(block.rows) - MOST_ROWS:,} more; --json lists all"])])
    if not rows:
        return NOTHING
    body = element("tbody", *map(_row, rows))
    head = NOTHING
    if any(block.head):
        cells = (element("th", title, scope="col") if title else element("td") for title in block.head)
        head = element("thead", element("tr", *cells))
    style = f"scroll {block.kind}".strip()
    inner = element("table", head, body)
    return element("div", inner, class_=style, role="region", aria_label=label, tabindex="0")


def _row(cells: Sequence[Content]) -> Markup:
    first, *rest = cells
    return element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in rest))


def _remarks(block: Remarks, _: str) -> Markup:
    items = (
        element("li", _mark(row.word.text, row.word.tone or "plain"), " ", element("span", prose(row.text)))
        for row in block.rows
    )
    return filled("ul", *items, class_="remarks")


def _marked_text(block: Marked, _: str) -> Markup:
    parts = ((text.replace("\n", " "), is_marked) for text, is_marked in block.parts)
    return element("p", *(_mark(text, "good") if is_marked else text for text, is_marked in parts))


def _folded(block: Folded, _: str) -> Markup:
    """Blocks behind a title that the browser opens without a script.

    The anchor is inside the closed details because a browser opens them for a link to it.
    """
    inside = join(_block(part, plain(block.title)) for part in block.blocks)
    if not inside:
        return NOTHING
    content = element("div", inside, id=block.anchor) if block.anchor else inside
    return element("details", element("summary", _sentence(block.title)), content)


def _lines(block: Lines, _: str) -> Markup:
    if block.is_list:
        return filled("ul", *(element("li", _sentence(line)) for line in block.lines))
    return join(element("p", _sentence(line)) for line in block.lines)


def _commands(block: Commands, _: str) -> Markup:
    if any(label for label, _ in block.rows):
        return _pairs((label, _command(line)) for label, line in block.rows)
    return join(_command(line) for _, line in block.rows)


def _command(line: str) -> Markup:
    """A command to copy, or nothing without one; no line break falls inside the name of an option."""
    if not line:
        return NOTHING
    words = (
        f'<span class="option">{escape(word)}</span>' if word.startswith("--") else name(word)
        for word in printable(line).split(" ")
    )
    return element("pre", element("code", Markup(" ".join(words))))


def _entry(entry: Entry) -> Markup:
    head: list[Content] = [_marked(entry.word), " ", _marked(entry.name)]
    if entry.where:
        head += [" ", element("code", name(entry.where))]
    if entry.about:
        head += [" ", element("span", entry.about, class_="quiet")]
    fix = element("p", element("b", "fix:"), " ", prose(entry.fix), class_="fix")
    return element("li", element("p", *head, class_="head"), element("p", prose(entry.text)), fix)


def _sentence(line: Line) -> Markup:
    return join(prose(part) if isinstance(part, str) else _marked(part) for part in spans(line))


def _line_markup(line: Line) -> Markup:
    """A line in its tones; in an element of its own, for names of options in it."""
    return join(with_options(part) if isinstance(part, str) else _marked(part) for part in spans(line))


def _marked(words: Words) -> Markup:
    inside: Content = element("code", name(words.text)) if words.is_code else words.text
    if words.link:
        shown = name(words.text) if words.is_code else words.text
        rel = None if words.link.startswith("#") else "noreferrer"
        inside = element("a", shown, href=words.link, rel=rel)
    if not words.text:
        return NOTHING
    match words.tone:
        case "":
            return join([inside])
        case "strong":
            return element("strong", inside)
        case "quiet":
            return element("span", inside, class_="quiet")
    return _mark(inside, words.tone)


def _mark(word: Content, tone: str) -> Markup:
    """A word in the colour of its tone: good, bad, doubt or plain."""
    return element("span", word, class_=f"mark {tone}")


WRITERS: Mapping[type, Callable[[Any, str], Markup]] = {
    Pairs: lambda block, _: _pairs((key, _line_markup(value)) for key, value in block.rows),
    Table: _table,
    Remarks: _remarks,
    Lines: _lines,
    Marked: _marked_text,
    Commands: _commands,
    Entries: lambda block, _: filled("ul", *map(_entry, block.rows), class_="findings"),
    Folded: _folded,
}
