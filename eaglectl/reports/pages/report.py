"""A result as one self-contained HTML page: no script, nothing loaded from elsewhere."""

from collections.abc import Callable, Mapping
from typing import Any

from eaglectl.reports.figures import FIGURES
from eaglectl.reports.pages.markup import (
    NOTHING,
    Content,
    Markup,
    command,
    element,
    filled,
    folded,
    join,
    mark,
    name,
    pairs,
    prose,
    remarks,
    section,
    table,
    with_options,
)
from eaglectl.reports.pages.svg import figure_markup
from eaglectl.reports.section import (
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


def body(outline: Outline, level: int = 2) -> Markup:
    """Return the sections of one source, and of each of several in an article; headings begin at `level`."""
    own = [_section(part, level) for part in outline.sections if part.only != "terminal"]
    articles = [_article(number, part, level) for number, part in enumerate(outline.parts)]
    # what is said of all of them stands behind them, but for the overview
    return join([*own[:1], *articles, *own[1:]] if articles else own)


def lead(outline: Outline) -> Markup:
    """Return the sentence below the title."""
    return filled("p", line_markup(outline.lead), class_="lead")


def title(outline: Outline) -> Markup:
    """Return the verdict and the source."""
    subject = filled("span", name(outline.subject), class_="subject")
    return join([_marked(outline.verdict), " " if outline.verdict.text else None, subject])


def _article(number: int, part: Outline, level: int) -> Markup:
    head = element("h2", title(part), id=f"checkpoint-{number}")
    return element("article", head, lead(part), body(part, level + 1))


def _section(part: Section, level: int) -> Markup:
    blocks = (_block(block, part.title) for block in part.blocks)
    return section(part.title, *blocks, about=part.about, level=level)


def _block(block: Block, label: str) -> Markup:
    if isinstance(block, FIGURES):
        return figure_markup(block)
    if isinstance(block, Table | Lines) and block.only == "terminal":
        return NOTHING
    return WRITERS[type(block)](block, label)


def _pairs(block: Pairs, _: str) -> Markup:
    return pairs((key, line_markup(value)) for key, value in block.rows)


def _table(block: Table, label: str) -> Markup:
    rows = ([line_markup(cell) for cell in row] for row in block.rows)
    return table(label, block.head, rows, block.kind)


def _remarks(block: Remarks, _: str) -> Markup:
    return remarks((row.word.text, row.word.tone or "plain", prose(row.text)) for row in block.rows)


def _marked_text(block: Marked, _: str) -> Markup:
    parts = ((text.replace("\n", " "), is_marked) for text, is_marked in block.parts)
    return element("p", *(mark(text, "good") if is_marked else text for text, is_marked in parts))


def _entries(block: Entries, _: str) -> Markup:
    return filled("ul", *map(_entry, block.rows), class_="findings")


def _folded(block: Folded, _: str) -> Markup:
    inside = join(_block(part, plain(block.title)) for part in block.blocks)
    return folded(_sentence(block.title), inside, block.anchor)


def _lines(block: Lines, _: str) -> Markup:
    if block.is_list:
        return filled("ul", *(element("li", _sentence(line)) for line in block.lines))
    return join(element("p", _sentence(line)) for line in block.lines)


def _commands(block: Commands, _: str) -> Markup:
    if any(label for label, _ in block.rows):
        return pairs((label, command(line)) for label, line in block.rows)
    return join(command(line) for _, line in block.rows)


def _entry(entry: Entry) -> Markup:
    head: list[Content] = [_marked(entry.word), " ", _marked(entry.name)]
    if entry.where:
        head += [" ", element("code", name(entry.where))]
    if entry.about:
        head += [" ", element("span", entry.about, class_="quiet")]
    fix = element("p", element("b", "fix:"), " ", prose(entry.fix), class_="fix")
    left = filled("p", prose(f"left: {entry.left}") if entry.left else None, class_="quiet")
    return element("li", element("p", *head, class_="head"), element("p", prose(entry.text)), left, fix)


def _sentence(line: Line) -> Markup:
    return join(prose(part) if isinstance(part, str) else _marked(part) for part in spans(line))


def line_markup(line: Line) -> Markup:
    """Return a line with its tones; in an element of its own, for names of options in it."""
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
    return mark(inside, words.tone)


WRITERS: Mapping[type, Callable[[Any, str], Markup]] = {
    Pairs: _pairs,
    Table: _table,
    Remarks: _remarks,
    Lines: _lines,
    Marked: _marked_text,
    Commands: _commands,
    Entries: _entries,
    Folded: _folded,
}
