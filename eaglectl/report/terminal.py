"""A result on the terminal, and the same as plain text or an HTML page.

The console that all terminal output is printed to makes every text safe to show. A text is one line: a line
break in it came from a file, and is escaped. What is meant to be several lines is printed as several.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text as RichText

from eaglectl.formats.commands import COMMAND
from eaglectl.report.section import (
    Commands,
    Entries,
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
from eaglectl.text import FIXED_WIDTH, inert, printable

# columns between those of a table
GAP = 2
# a longer word does not keep a column from being narrower
LONGEST_UNBROKEN = 60
# the most rows of a table that are shown where not all are asked for
MOST_ROWS = 40
# columns of a page, and of an indent that a phone does not keep
PAGE_WIDTH, DEEP = 120, 16
# a format of rich: its own loads fonts
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
@media (max-width: 600px) {{
pre {{ font-size: 12px; white-space: pre-wrap; overflow-wrap: anywhere; }}
.in {{ display: inline-block; padding-left: var(--n); text-indent: calc(-1 * var(--n)); }}
.deep {{ display: inline-block; padding-left: 4ch; }}
.deep .gap {{ display: none; }}
{indents}
}}
{stylesheet}
</style>
</head>
<body><pre>{code}</pre></body>
</html>
"""
INDENTS = "\n".join(f".n{columns} {{{{ --n: {columns}ch; }}}}" for columns in range(1, DEEP + 1))
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
# columns before a block, and before a finding's text: the severity and a gap
INDENT, ENTRY_INDENT = 2, 10


class Text(RichText):
    """Text in one or several styles, safe to show; rich itself silently drops some control characters."""

    def __init__(self, text: str = "", style: str | Style = "", **options: Any) -> None:
        super().__init__(printable(text), style, **options)

    def append(self, text: "RichText | str", style: str | Style | None = None) -> "Text":
        """Add text at the end."""
        super().append(printable(text) if isinstance(text, str) else text, style)
        return self


class Grid(RichTable):
    """A table whose cells are safe to show.

    Under a head, columns are not made narrower than their longest word; where there is no room for that, each
    row is a block of lines, a cell on each. What is left goes to the columns that lack least.
    """

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        if not self.show_header or self._set_widths(console, options):
            yield from super().__rich_console__(console, options)
            return
        for first, *rest in zip(*(column.cells for column in self.columns), strict=True):
            named = zip(self.columns[1:], rest, strict=True)
            block = _pair_grid((str(column.header), cell) for column, cell in named if str(cell))
            yield Group(first, Padding(block, (0, 0, 0, 2)))

    def _set_widths(self, console: RichConsole, options: ConsoleOptions) -> bool:
        """Set the widths of columns so that no word is broken; return whether there is room for that."""
        cells = [[safe(str(column.header)), *column.cells] for column in self.columns]
        sizes = [[console.measure(cell, options=options) for cell in column] for column in cells]
        least = [min(max(size.minimum for size in column), LONGEST_UNBROKEN) for column in sizes]
        most = [max(size.maximum for size in column) for column in sizes]
        spare = options.max_width - GAP * (len(cells) - 1) - sum(least)
        for number in sorted(range(len(cells)), key=lambda number: most[number] - least[number]):
            width = max(least[number], min(most[number], least[number] + spare))
            self.columns[number].width, spare = width, spare + least[number] - width
        return spare >= 0

    def add_row(self, *cells: object, style: object = None, end_section: bool = False) -> None:
        """Add a row of texts."""
        assert style is None and not end_section
        super().add_row(*(safe(cell) for cell in cells))


# what may be printed; of anything else it is not known how to make it safe
Content = str | RichText | RichTable | Padding


class Console:
    """Prints to a console of rich, only text that is safe to show."""

    def __init__(self, console: RichConsole) -> None:
        self._console, self.width = console, console.width

    def print(self, *contents: Content, style: str = "", sep: str = " ", soft_wrap: bool = False) -> None:
        """Print contents on a line, tables and blocks each on their own; nothing gives an empty line."""
        self._console.print(*map(safe, contents), style=style or None, sep=sep, soft_wrap=soft_wrap)


def safe(content: object) -> RichText | RichTable | Padding:
    """Return the content with all of its text safe to show. Raises TypeError for an unknown type."""
    match content:
        case str():
            return Text(content)
        case RichText() if content.plain.isprintable():
            return content  # as Text made it
        case Grid():
            return content  # its cells were made safe as they were added
        case Padding():
            sides = (content.top, content.right, content.bottom, content.left)
            return Padding(safe(content.renderable), sides)
    raise TypeError(f"{type(content).__name__} is not printed: its text cannot be made safe")


def _filled(words: Iterable[str], width: int) -> Iterator[str]:
    line = ""
    for word in words:
        longer = f"{line} {word}" if line else word
        if line and cell_len(longer) > width:
            yield line
            longer = word
        line = longer
    yield line


def recorded(paint: Callable[[Console], None], width: int) -> RichConsole:
    """Return a console of rich that `paint` printed to, and that can export it as text or HTML."""
    console = RichConsole(
        file=io.StringIO(),
        record=True,
        width=width,
        highlight=False,
        emoji=False,
        markup=False,
        force_jupyter=False,  # else it shows all in the notebook too
    )
    paint(Console(console))
    return console


def as_page(console: RichConsole) -> str:
    """Return what was printed as an HTML page; a line that a phone folds keeps its indent."""
    page = console.export_html(code_format=PAGE.replace("{indents}", INDENTS))
    head, mark, rest = page.partition("<pre>")
    code, end, tail = rest.rpartition("</pre>")
    lines = (_hanging(line) for line in code.split("\n"))
    return "".join([head, mark, "\n".join(lines), end, tail])


def _hanging(line: str) -> str:
    indent = len(line) - len(line.lstrip(" "))
    if indent > DEEP:  # of a column that a phone does not show beside the others
        return f'<span class="deep"><span class="gap">{line[:indent]}</span>{line[indent:]}</span>'
    return f'<span class="in n{indent}">{line}</span>' if indent else line


def as_text(outline: Outline, width: int = FIXED_WIDTH) -> str:
    """Return what the terminal shows, for a file: without colours."""
    text = recorded(lambda console: print_outline(console, outline), width).export_text()
    return "\n".join(inert(line.rstrip()) for line in text.splitlines())


def print_outline(console: Console, outline: Outline, *, is_whole: bool = True) -> None:
    """Print the answer, the sections that support it, of one source or of several, and the last lines.

    Without `is_whole`, what is more than that is named in the last line.
    """
    hidden = dict.fromkeys(_print_parts(console, outline, is_whole=is_whole))
    if (outline.parts or (outline.last and outline.sections)) and not outline.is_dense:
        console.print()
    if hidden:
        _print_sentence(console, f"more with -v: {', '.join(hidden)}", 0, style="dim")
    for line in outline.last:
        console.print(_styled(line, is_bold=True), soft_wrap=True)


def _print_parts(console: Console, outline: Outline, *, is_whole: bool) -> list[str]:
    """Print a result without its last lines, and return the titles of the sections left out."""
    if outline.head:
        # not broken where no width is enough: commands may be copied from it
        longest = max(map(len, plain(outline.head).split()))
        console.print(_styled(outline.head, is_bold=True), soft_wrap=longest > console.width)
    _print_lines(console, Lines(outline.cause))
    if outline.next:
        _print_commands(console, Commands([("next:", outline.next)]), 0)
    hidden = []
    for place, part in enumerate(outline.parts):
        if place and not outline.is_dense:
            console.print()
        hidden += _print_parts(console, part, is_whole=is_whole)
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
    """Print a section's blocks for the terminal under its title; with `is_first`, no empty line above it."""
    if section.has_heading:
        if not is_first:
            console.print()
        about = [Text(section.about, style="dim")] if section.about else []
        console.print(Text(section.title, style="bold"), *about, sep="  ")
    for block in section.blocks:
        PRINTERS[type(block)](console, block)


def _indented(content: Content) -> Content:
    return Padding(safe(content), (0, 0, 0, INDENT))


def _pair_grid(rows: Iterable[tuple[str, Any]]) -> RichTable:
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def _print_pairs(console: Console, block: Pairs) -> None:
    console.print(_indented(_pair_grid((name, _styled(value)) for name, value in block.rows)))


def _print_lines(console: Console, block: Lines) -> None:
    for line in block.lines:
        if block.is_unbroken:
            console.print(Text.assemble(" " * INDENT, _styled(line)), soft_wrap=True)
        elif isinstance(line, tuple):
            console.print(_indented(_styled(line)))
        else:
            _print_sentence(
                console, plain(line), INDENT, style="" if isinstance(line, str) else STYLES[line.tone]
            )


def _print_entries(console: Console, block: Entries) -> None:
    # each finding: severity, rule and place in a row, then its text
    for entry in block.rows:
        grid = Grid.grid()
        grid.add_column(width=ENTRY_INDENT - INDENT)
        head = _styled(entry.name)
        if entry.where and not entry.code:
            head.append(f"  {entry.where}", "cyan")
        head.append(f"  {entry.about}" if entry.about else "", "magenta")
        grid.add_row(_styled(entry.word), head)
        console.print(_indented(grid))
        if entry.code:
            _print_sentence(console, entry.code, ENTRY_INDENT, style="cyan")
        _print_sentence(console, entry.text, ENTRY_INDENT)


def _print_table(console: Console, block: Table) -> None:
    rows = [[_styled(cell) for cell in row] for row in block.rows]
    grid = filled_table(block.head, rows, is_whole=block.is_whole or block.is_bare)
    if block.is_bare:
        grid.show_header, grid.columns[0].no_wrap, grid.columns[0].min_width = False, True, 8
    if rows:
        console.print(_indented(grid))


def filled_table(head: Sequence[str], rows: Iterable[Sequence[Content]], *, is_whole: bool = False) -> Grid:
    """Return a table of the first rows and the count of the others; of all rows if `is_whole`."""
    filled = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for title in head:
        filled.add_column(title, overflow="fold")
    every = list(rows)
    if not is_whole and len(every) > MOST_ROWS + 1:
        every[MOST_ROWS:] = [(f"and {len(every) - MOST_ROWS:,} more; --json lists all",)]
    for row in every:
        filled.add_row(*row)
    return filled


def _styled(line: Line, *, is_bold: bool = False) -> Text:
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
        _print_sentence(console, row.text, INDENT, (f"{row.word.text:<{width}}", STYLES[row.word.tone]))


def _print_commands(console: Console, block: Commands, columns: int = INDENT) -> None:
    """Print each command on one line, which a terminal wraps and copies as one."""
    width = max((len(label) for label, _ in block.rows), default=0)
    for label, command in block.rows:
        start = f"{' ' * columns}{label:<{width}}{'  ' if width else ''}"
        console.print(Text(f"{start}{command}"), soft_wrap=True)


PRINTERS: Mapping[type, Callable[[Console, Any], None]] = {
    Pairs: _print_pairs,
    Table: _print_table,
    Remarks: _print_remarks,
    Lines: _print_lines,
    Commands: _print_commands,
    Entries: _print_entries,
}


def _print_sentence(
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
