"""A result as one SVG file, for a card or a pull request: its figures, and tables in lines of text."""

import re
from collections.abc import Iterator
from textwrap import wrap

from msgspec import Struct

from eaglectl.report.figures import FIGURES, Bars, Figure, LayerStrip, Panels, Timelines
from eaglectl.report.pages.markup import Content, Markup, element, join
from eaglectl.report.pages.render import style_sheet
from eaglectl.report.pages.svg import LABELS, LINES, SAMPLE, drawn, lines, sample
from eaglectl.report.section import Block, Lines, Outline, Section, Table, plain
from eaglectl.text import printable

# pixels; LETTERS of a line of text fit into the width
WIDTH, EDGE, TEXT, GAP, LETTERS = 760, 16, 18, 8, 104
STYLE = """
svg { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
.paper { fill: var(--paper); } .ink { fill: var(--ink); } .title { font-weight: 600; }
text.quiet { fill: var(--quiet); }
text.good { fill: var(--good); } text.bad { fill: var(--bad); } text.doubt { fill: var(--doubt); }
"""


class Piece(Struct, frozen=True):
    """A part of the image of the full width, and its height in pixels."""

    content: Content
    height: int


def image(outline: Outline) -> str:
    """Return the text of the file: light or dark as the reader's screen, nothing loaded from elsewhere."""
    y, placed = EDGE, []
    for piece in _pieces(outline):
        width = str(WIDTH - 2 * EDGE)
        part = element("svg", piece.content, x=str(EDGE), y=str(y), width=width, height=str(piece.height))
        placed.append(part)
        y += piece.height
    return element(
        "svg",
        element("title", f"{outline.command} {outline.subject}: {plain(outline.lead)}"),
        Markup(f"<style>{style_sheet()}{STYLE}</style>"),
        element("rect", width="100%", height="100%", rx="8", class_="paper"),
        *placed,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {y + EDGE}",
        width=str(WIDTH),
        role="img",
    )


def _pieces(outline: Outline) -> Iterator[Piece]:
    """The title, the lead, and every section that has a figure or a table."""
    yield from _text(f"{outline.command}: {outline.verdict.text}", f"title {outline.verdict.tone}")
    yield from _text(plain(outline.lead), "ink title")
    yield from _text(outline.subject, "quiet")
    for section in outline.sections:
        yield from _section(section)


def _section(section: Section) -> Iterator[Piece]:
    shown = [block for block in section.blocks if isinstance(block, (*FIGURES, Table, Lines))]
    if section.only == "terminal" or not any(isinstance(block, (*FIGURES, Table)) for block in shown):
        return
    yield Piece(None, GAP)
    yield from _text(section.title, "ink title")
    for block in shown:
        yield from _block(block)
    if section.about:
        yield from _text(section.about, "quiet")


def _block(block: Block) -> Iterator[Piece]:
    match block:
        case Table():
            for first, *rest in block.rows:
                cells = (f"{head}: {plain(cell)}" for head, cell in zip(block.head[1:], rest, strict=True))
                yield from _text(" · ".join([plain(first), *cells]), "ink")
        case Lines():
            for line in block.lines:
                yield from _text(plain(line), "quiet")
        case Panels():
            for panel in block.panels:
                yield from _text(panel.title, "quiet")
                yield Piece(lines(panel), LINES)
        case Bars() | LayerStrip() | Timelines():
            yield from _figure(block)


def _figure(figure: Figure) -> Iterator[Piece]:
    """Each row of a figure below its name and its words, and the scale below them."""
    shown = drawn(figure)
    yield from _text(shown.caption, "quiet")
    for row in shown.rows:
        yield from _text(f"{_words(row.name)}: {_words(row.words)}", "ink")
        yield Piece(row.image, row.height + GAP)
    if shown.axis:
        yield Piece(shown.axis, LABELS + GAP)
    for name, shapes in shown.legend:
        yield Piece(join([sample(shapes), _line(name, "quiet", x="44")]), SAMPLE)
    yield from _text(shown.remark, "quiet")


def _words(content: Content) -> str:
    """Text without its elements, which are those of HTML."""
    return re.sub(r"<[^>]*>", "", content or "") if isinstance(content, Markup) else content or ""


def _text(text: str, kind: str) -> Iterator[Piece]:
    """Lines of a text, none of an empty one."""
    return (Piece(_line(part, kind), TEXT) for part in wrap(printable(text), LETTERS))


def _line(text: str, kind: str, x: str = "0") -> Markup:
    return element("text", text, x=x, y="13", class_=kind.strip())
