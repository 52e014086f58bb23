"""A result on the terminal, and the same as plain text, an HTML page or an SVG image.

The console that all terminal output is printed to makes every text safe to show. A text is one line: a line
break in it came from a file, and is escaped. What is meant to be several lines is printed as several.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.style import Style
from rich.table import Table as RichTable
from rich.terminal_theme import TerminalTheme
from rich.text import Text as RichText

from eaglectl.formats.commands import COMMAND
from eaglectl.report.section import (
    MARKS,
    Block,
    Commands,
    Entries,
    LayerStrip,
    Line,
    Lines,
    Outline,
    Pairs,
    Remarks,
    Section,
    Table,
    is_empty,
    plain,
    spans,
)
from eaglectl.text import inert, printable

# columns between those of a table
GAP = 2
# a longer word does not keep a column from being narrower
LONGEST_UNBROKEN = 60
# the most rows of a table that are shown where not all are asked for
MOST_ROWS = 40
# columns of a page and an image
PAGE_WIDTH = 120
# formats of rich: its own load fonts
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>eaglectl</title>
<style>
body {{ color: {foreground}; background: {background}; }}
pre {{ font: 14px/1.4 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; overflow-x: auto; }}
@media (max-width: 600px) {{ pre {{ font-size: 12px; white-space: pre-wrap; overflow-wrap: anywhere; }} }}
{stylesheet}
</style>
</head>
<body><pre>{code}</pre></body>
</html>
"""
IMAGE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {terminal_height}" width="{width}">
<title>eaglectl</title>
<style>
.{unique_id}-matrix {{
  font: {char_height}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre;
}}
{styles}
</style>
<defs>{lines}</defs>
<rect fill="#1b1f24" width="{width}" height="{terminal_height}" rx="8"/>
<g transform="translate({terminal_x}, -8)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
# its own background, so that it reads the same on light and dark pages
IMAGE_THEME = TerminalTheme(
    (27, 31, 36),
    (230, 237, 243),
    [
        *((72, 79, 88), (255, 123, 114), (86, 211, 100), (227, 179, 65)),
        *((121, 192, 255), (210, 168, 255), (86, 212, 221), (230, 237, 243)),
    ],
)
# a word of a shell's command, spaces in quotes included
QUOTED_WORD = re.compile(r"(?:'[^']*'|\"[^\"]*\"|\\.|[^\s'\"\\])+|\S")
# a word, or a command in backticks with what stands directly before and after it
UNBROKEN = re.compile(rf"[^\s`]*{COMMAND.pattern}\S*|\S+")
STYLES = {
    "good": "green",
    "bad": "red",
    "doubt": "yellow",
    "plain": "dim",
    "quiet": "dim",
    "strong": "bold",
    "": "",
}
# of marks on the target's layers
MARK_TONES = {"good": "good", "bad": "bad", "doubt": "doubt", "missing": "", "": "quiet"}
GLYPHS = {"good": "●", "bad": "×", "doubt": "?", "missing": "○", "": "─"}
ASCII_GLYPHS = {"good": "*", "bad": "x", "doubt": "?", "missing": "o", "": "-"}
# columns beside a strip, and the fewest of a strip
STRIP_INDENT, MIN_STRIP = 6, 20
# columns before a block, and before a finding's text: the severity and a gap
INDENT, ENTRY_INDENT = 2, 10

# columns whose cells are kept on one line
UNWRAPPED = ("engine", "tensor", "ids it reads", "boundaries", "action")


class Text(RichText):
    """Text in one style or several, safe to show; rich itself would drop some control characters unseen."""

    def __init__(self, text: str = "", style: str | Style = "", **options: Any) -> None:
        super().__init__(printable(text), style, **options)

    def append(self, text: "RichText | str", style: str | Style | None = None) -> "Text":
        """Add text at the end."""
        super().append(printable(text) if isinstance(text, str) else text, style)
        return self


class Grid(RichTable):
    """A table whose cells are safe to show.

    Under a head, columns are not made narrower than their longest word; where there is no room for that, each
    row is a block of lines, a cell on each.
    """

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        if not self.show_header or not self.columns or self._set_widths(console, options):
            yield from super().__rich_console__(console, options)
            return
        for first, *rest in zip(*(column.cells for column in self.columns), strict=True):
            block = _pair_grid()
            for column, cell in zip(self.columns[1:], rest, strict=True):
                if str(cell):
                    block.add_row(str(column.header), cell)
            yield Group(first, Padding(block, (0, 0, 0, 2)))

    def _set_widths(self, console: RichConsole, options: ConsoleOptions) -> bool:
        """Set the widths of columns so that no word is broken; return whether there is room for that.

        Of all widths that fit, they are those with the widest column narrowest.
        """
        cells = [[safe(str(column.header)), *column.cells] for column in self.columns]
        sizes = [[console.measure(cell, options=options) for cell in column] for column in cells]
        least = [min(max(size.minimum for size in column), LONGEST_UNBROKEN) for column in sizes]
        most = [max(size.maximum for size in column) for column in sizes]
        room = options.max_width - GAP * (len(cells) - 1)
        if sum(least) > room:
            return False
        whole = [most[n] if column.no_wrap else least[n] for n, column in enumerate(self.columns)]
        if sum(whole) <= room:
            least = whole
        widths = [max(low, min(high, room)) for low, high in zip(least, most, strict=True)]
        _narrow(widths, least, room)
        for column, width, high in zip(self.columns, widths, most, strict=True):
            column.width, column.no_wrap = width, column.no_wrap and width == high
        return True

    def add_row(self, *cells: object, style: object = None, end_section: bool = False) -> None:
        """Add a row of texts."""
        assert style is None and not end_section
        super().add_row(*(safe(cell) for cell in cells))


# what may be printed; of anything else it is not known how to make it safe
Content = str | RichText | RichTable | Padding


def _narrow(widths: list[int], least: Sequence[int], room: int) -> None:
    """Take from the widest column that is above its least width, until all fit in the room."""
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda n: (widths[n] > least[n], widths[n]))
        widths[widest] -= 1


class Console:
    """Prints to a console of rich, and nothing but text that is safe to show.

    `is_terminal`: a person reads it, at the width of their terminal; `is_ascii`: the stream takes no other
    characters. `is_folded`: every line is folded at the width, as nothing is copied from an image.
    """

    def __init__(self, console: RichConsole, *, is_folded: bool = False) -> None:
        self._console, self.is_folded = console, is_folded
        self.is_terminal, self.width = console.is_terminal, console.width
        self.is_ascii = console.options.ascii_only

    def print(self, *contents: Content, style: str = "", sep: str = " ", soft_wrap: bool = False) -> None:
        """Print contents on a line, tables and blocks each on their own; nothing gives an empty line."""
        shown = [safe(content) for content in contents]
        is_unbroken = soft_wrap and not self.is_folded
        self._console.print(*shown, style=style or None, sep=sep, soft_wrap=is_unbroken)


def safe(content: object) -> RichText | RichTable | Padding:
    """Return the content with all of its text safe to show. Raises TypeError for what it cannot look into."""
    match content:
        case str():
            return Text(content)
        case RichText() if content.plain.isprintable():
            return content  # as Text made it
        case Grid():
            return content  # its cells were made safe as they were added
        case Padding():
            return Padding(
                safe(content.renderable), (content.top, content.right, content.bottom, content.left)
            )
    raise TypeError(f"{type(content).__name__} is not printed: its text cannot be made safe")


def _filled(words: Iterable[str], width: int, end: str = "") -> Iterator[str]:
    """Words in lines of `width` columns, none of them broken; `end` stands behind each line but the last."""
    line = ""
    for word in words:
        if line and cell_len(line) + 1 + cell_len(word) > width:
            yield f"{line}{end}"
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line


def split_command(command: str, width: int) -> Iterator[str]:
    """Return a command in lines of about `width` columns that a shell takes as one; no quotes are broken."""
    return _filled(QUOTED_WORD.findall(printable(command)), width, " \\")


def recorded(paint: Callable[[Console], None], width: int, *, is_folded: bool = False) -> RichConsole:
    """Return a console of rich that `paint` printed to, and that can export it as text, HTML or SVG."""
    console = RichConsole(
        file=io.StringIO(), record=True, width=width, highlight=False, emoji=False, markup=False
    )
    paint(Console(console, is_folded=is_folded))
    return console


def as_plain_text(paint: Callable[[Console], None], width: int = 160) -> str:
    """Return what `paint` prints, for a file: without colours."""
    return "\n".join(inert(line.rstrip()) for line in recorded(paint, width).export_text().splitlines())


def as_text(outline: Outline) -> str:
    """Return what the terminal shows, for a file: without colours, 160 columns wide."""
    return as_plain_text(lambda console: print_outline(console, outline))


def print_outline(console: Console, outline: Outline, *, is_whole: bool = True) -> None:
    """Print the answer, the sections that support it, of one source or of several, and the last lines.

    Without `is_whole`, what is more than that is named in the last line.
    """
    hidden = dict.fromkeys(_print_parts(console, outline, is_whole=is_whole))
    if outline.last and outline.sections and not outline.is_dense:
        console.print()
    if hidden:
        print_sentence(console, f"more with -v: {', '.join(hidden)}", 0, style="dim")
    for line in outline.last:
        console.print(styled(line, is_bold=True), soft_wrap=True)


def _print_parts(console: Console, outline: Outline, *, is_whole: bool) -> list[str]:
    """Print a result but for its last lines, and return the titles of what is left out."""
    if outline.head:
        # not broken where no width is enough: commands may be copied from it
        is_unbroken = max(map(len, plain(outline.head).split())) > console.width
        console.print(styled(outline.head, is_bold=True), soft_wrap=is_unbroken)
    _print_lines(console, Lines(outline.cause))
    if outline.next:
        _print_commands(console, Commands([("next:", outline.next)]), 0)
    hidden = []
    for part in outline.parts:
        hidden += _print_parts(console, part, is_whole=is_whole)
        if not outline.is_dense:
            console.print()
    is_first = not outline.head and not outline.parts
    for section in outline.sections:
        if section.only == "markdown" or is_empty(section):
            continue
        if section.is_more and not is_whole:
            hidden.append(section.title)
        else:
            print_section(console, section, is_first=is_first)
            is_first = False
    return hidden


def print_section(console: Console, section: Section, *, is_first: bool = False) -> None:
    """Print the blocks of a section that a terminal shows, under its title; nothing `is_first` above it."""
    blocks = [block for block in section.blocks if not _is_elsewhere(block)]
    if not blocks and not section.about:
        return
    if section.has_heading:
        if not is_first:
            console.print()
        about = [Text(section.about, style="dim")] if section.about else []
        console.print(Text(section.title, style="bold"), *about, sep="  ")
    for block in blocks:
        PRINTERS[type(block)](console, block)


def _is_elsewhere(block: Block) -> bool:
    if isinstance(block, LayerStrip):
        return all(part.as_trained == "yes" for part in block.captured)
    return isinstance(block, Lines) and block.only == "markdown"


def _indented(content: Content) -> Content:
    return Padding(safe(content), (0, 0, 0, INDENT))


def _pair_grid() -> RichTable:
    """A table without a head: names, and values that may take several lines."""
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _print_pairs(console: Console, block: Pairs) -> None:
    grid = _pair_grid()
    for name, value in block.rows:
        grid.add_row(name, styled(value))
    console.print(_indented(grid))


def _print_lines(console: Console, block: Lines) -> None:
    for line in block.lines:
        if block.is_unbroken:
            console.print(Text.assemble(" " * INDENT, styled(line)), soft_wrap=True)
        elif isinstance(line, tuple):
            console.print(_indented(styled(line)))
        else:
            print_sentence(
                console, plain(line), INDENT, style="" if isinstance(line, str) else STYLES[line.tone]
            )


def _print_entries(console: Console, block: Entries) -> None:
    for entry in block.rows:
        grid = Grid.grid()
        grid.add_column(width=ENTRY_INDENT - INDENT)
        head = styled(entry.name)
        if entry.where and not entry.code:
            head.append(f"  {entry.where}", "cyan")
        head.append(f"  {entry.about}" if entry.about else "", "magenta")
        grid.add_row(styled(entry.word), head)
        console.print(_indented(grid))
        if entry.code:
            print_sentence(console, entry.code, ENTRY_INDENT, style="cyan")
        print_sentence(console, entry.text, ENTRY_INDENT)


def _print_table(console: Console, block: Table) -> None:
    rows = [[styled(cell) for cell in row] for row in block.rows]
    if block.is_bare:
        grid = Grid.grid(padding=(0, 2, 0, 0))
        grid.add_column(min_width=8, no_wrap=True)
        for _ in block.head[1:]:
            grid.add_column(overflow="fold")
        for row in rows:
            grid.add_row(*row)
    else:
        grid = filled_table(block.head, rows, is_whole=block.is_whole)
    if rows:
        console.print(_indented(grid))


def filled_table(head: Sequence[str], rows: Iterable[Sequence[Content]], *, is_whole: bool = False) -> Grid:
    """Return a table of the first of these rows and the number of the rest, or of all (`is_whole`)."""
    filled = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for title in head:
        filled.add_column(title, overflow="fold", no_wrap=title in UNWRAPPED)
    every = list(rows)
    if not is_whole and len(every) > MOST_ROWS + 1:
        every[MOST_ROWS:] = [(f"and {len(every) - MOST_ROWS:,} more; --json lists all",)]
    for row in every:
        filled.add_row(*row)
    return filled


def styled(line: Line, *, is_bold: bool = False) -> Text:
    """Return a line in the styles of its tones; `is_bold`: its verdicts in bold."""
    text = Text()
    for part in spans(line):
        if isinstance(part, str):
            text.append(part)
        else:
            is_verdict = is_bold and part.tone in ("good", "bad", "doubt")
            text.append(part.text, f"{STYLES[part.tone]}{' bold' * is_verdict}")
    return text


def _print_remarks(console: Console, block: Remarks) -> None:
    width = max([8, *(len(row.word.text) for row in block.rows)]) + 2
    for row in block.rows:
        print_sentence(console, row.text, INDENT, (f"{row.word.text:<{width}}", STYLES[row.word.tone]))


def _print_commands(console: Console, block: Commands, columns: int = INDENT) -> None:
    """Print each on one line, or where a terminal is narrower in lines of one command."""
    width = max((len(label) for label, _ in block.rows), default=0)
    for label, command in block.rows:
        start = f"{' ' * columns}{label:<{width}}{'  ' if width else ''}"
        room = console.width - len(start) - 2
        lines: Iterable[str] = [command]
        if console.is_terminal and len(start + command) > console.width and room >= MIN_STRIP:
            lines = split_command(command, room)
        for line in lines:
            console.print(Text(f"{start}{line}"), soft_wrap=True)
            start = " " * len(start)


def _print_strip(console: Console, strip: LayerStrip) -> None:
    """Print the layers that engines capture on the target, where they are not all those of training."""
    glyphs = ASCII_GLYPHS if console.is_ascii else GLYPHS
    # lines of about one length
    count = -(-(strip.end + 1) // max(console.width - STRIP_INDENT, MIN_STRIP))
    size = -(-(strip.end + 1) // count)
    shown = set()
    for part in strip.captured:
        console.print(_indented("; ".join(part.engines)))
        marks = [part.mark(boundary, strip.trained) for boundary in range(strip.end + 1)]
        shown |= set(marks)
        for start in range(0, len(marks), size):
            row = Text(f"{start:>3} ", style="dim")
            for mark, run in groupby(marks[start : start + size]):
                row.append(glyphs[mark] * len(list(run)), style=STYLES[MARK_TONES[mark]])
            console.print(_indented(row))
    legend = [f"{glyphs[mark]} {words}" for mark, words in MARKS.items() if mark in shown]
    undrawn = f"not drawn, as the target decides: {'; '.join(strip.undrawn)}" if strip.undrawn else ""
    for text in filter(None, ("  ".join(legend), undrawn)):
        console.print(_indented(Text(text, style="dim")))
    console.print()


PRINTERS: Mapping[type, Callable[[Console, Any], None]] = {
    Pairs: _print_pairs,
    Table: _print_table,
    Remarks: _print_remarks,
    Lines: _print_lines,
    Commands: _print_commands,
    Entries: _print_entries,
    LayerStrip: _print_strip,
}


def print_sentence(
    console: Console, text: str, columns: int, label: tuple[str, str] = ("", ""), style: str = ""
) -> None:
    """Print text beside a label and its style, in lines of the console's width, `columns` from the left.

    A command in it stays on one line.
    """
    gap = " " * len(label[0])
    words = (match[0] for match in UNBROKEN.finditer(printable(text)))
    for number, line in enumerate(_filled(words, console.width - columns - len(gap))):
        start = gap if number else label
        console.print(Text.assemble(" " * columns, start, (line, style)), soft_wrap=True)
