"""The console that all terminal output is printed to; it makes every text safe to show.

A text is one line: a line break in it came from a file, and is escaped. What is meant to be several lines is
printed as several.
"""

import io
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.style import Style
from rich.table import Table as RichTable
from rich.terminal_theme import TerminalTheme
from rich.text import Text as RichText

from eaglectl.formats.commands import COMMAND
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


class Text(RichText):
    """Text in one style or several, safe to show; rich itself would drop some control characters unseen."""

    def __init__(self, text: str = "", style: str | Style = "", **options: Any) -> None:
        super().__init__(printable(text), style, **options)

    def append(self, text: "RichText | str", style: str | Style | None = None) -> "Text":
        """Add text at the end."""
        super().append(printable(text) if isinstance(text, str) else text, style)
        return self


# what may be printed; of anything else it is not known how to make it safe
Content = str | RichText | RichTable | Padding | Group


class Table(RichTable):
    """A table whose cells are safe to show.

    Under a head, columns are not made narrower than their longest word; where there is no room for that, each
    row is a block of lines, a cell on each.
    """

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        """Render it at the width of the console."""
        if not self.show_header or not self.columns:
            yield from super().__rich_console__(console, options)
            return
        heads = [Text(str(column.header)) for column in self.columns]
        if self._set_widths(console, options, heads):
            yield from super().__rich_console__(console, options)
            return
        rows = zip(*(column.cells for column in self.columns), strict=True)
        yield from (self._block(heads, row) for row in rows)

    def _set_widths(self, console: RichConsole, options: ConsoleOptions, heads: Sequence[RichText]) -> bool:
        """Set the widths of columns so that no word is broken; return whether there is room for that."""
        widths = [
            _widths([console.measure(cell, options=options) for cell in (head, *column.cells)])
            for head, column in zip(heads, self.columns, strict=True)
        ]
        room = options.max_width - GAP * (len(widths) - 1)
        least = [low for low, _ in widths]
        if sum(least) > room:
            return False
        most = [high for _, high in widths]
        whole = [most[n] if column.no_wrap else least[n] for n, column in enumerate(self.columns)]
        fitted = _level(whole if sum(whole) <= room else least, most, room)
        for column, width, high in zip(self.columns, fitted, most, strict=True):
            column.width, column.no_wrap = width, column.no_wrap and width == high
        return True

    def _block(self, heads: Sequence[RichText], row: Sequence[Any]) -> Group:
        """A row as lines: its first cell, and below it every other with its head."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        first, *rest = row
        for head, cell in zip(heads[1:], rest, strict=True):
            if str(cell):
                grid.add_row(head, cell)
        return Group(safe(first), Padding(grid, (0, 0, 0, 2)))

    def add_row(self, *cells: object, style: object = None, end_section: bool = False) -> None:
        """Add a row of texts."""
        assert style is None and not end_section
        super().add_row(*(safe(cell) for cell in cells))


class Console:
    """Prints to a console of rich, and nothing but text that is safe to show."""

    def __init__(self, console: RichConsole) -> None:
        self._console = console

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads it, at the width of their terminal."""
        return self._console.is_terminal

    @property
    def width(self) -> int:
        """The columns of a line."""
        return self._console.width

    @property
    def is_ascii(self) -> bool:
        """Whether the stream takes no characters but those of ASCII."""
        return self._console.options.ascii_only

    def print(self, *contents: Content, style: str = "", sep: str = " ", soft_wrap: bool = False) -> None:
        """Print contents on a line, tables and blocks each on their own; nothing gives an empty line."""
        self._console.print(
            *(safe(content) for content in contents), style=style or None, sep=sep, soft_wrap=soft_wrap
        )


class FoldingConsole(Console):
    """A console whose every line is folded at its width, as nothing is copied from an image."""

    def print(self, *contents: Content, style: str = "", sep: str = " ", soft_wrap: bool = False) -> None:
        """Print contents, none of them wider than the console."""
        super().print(*contents, style=style, sep=sep)


def _widths(cells: Sequence[Measurement]) -> tuple[int, int]:
    """Return the width of the longest word of a column, and of its longest cell."""
    return min(max(cell.minimum for cell in cells), LONGEST_UNBROKEN), max(cell.maximum for cell in cells)


def _level(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """Return widths of columns: of all that fit into `room`, those with the widest column narrowest."""
    widths = [max(low, min(high, room)) for low, high in zip(least, most, strict=True)]
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda index: (widths[index] > least[index], widths[index]))
        if widths[widest] <= least[widest]:
            break
        widths[widest] -= 1
    return widths


def safe(content: object) -> RichText | Table | Padding | Group:
    """Return the content with all of its text safe to show. Raises TypeError for what it cannot look into."""
    match content:
        case str():
            return Text(content)
        case RichText() if content.plain.isprintable():
            return content  # as Text made it
        case Table():
            return content  # its cells were made safe as they were added
        case Padding():
            space = (content.top, content.right, content.bottom, content.left)
            return Padding(safe(content.renderable), space)
        case Group():
            return Group(*(safe(part) for part in content.renderables))
    raise TypeError(f"{type(content).__name__} is not printed: its text cannot be made safe")


def indented(content: Content, columns: int = 2) -> Content:
    """Return the content moved to the right."""
    return Padding(Group(safe(content)), (0, 0, 0, columns))


def broken_lines(text: str, width: int) -> Iterator[str]:
    """Yield a text in lines of `width` columns; a word is not broken, nor a command, as it is copied."""
    line = ""
    for match in UNBROKEN.finditer(printable(text)):
        word = match[0]
        if line and cell_len(line) + 1 + cell_len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line


def split_command(command: str, width: int) -> Iterator[str]:
    """Yield a command in lines of about `width` columns that a shell takes as one.

    Each but the last ends in a backslash, and none is broken inside quotes.
    """
    line = ""
    for word in QUOTED_WORD.findall(printable(command)):
        if line and cell_len(line) + 1 + cell_len(word) > width:
            yield f"{line} \\"
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line


def recorded(paint: Callable[[Console], None], width: int, kind: type[Console] = Console) -> RichConsole:
    """Return a console of rich that `paint` printed to, and that can export it as text, HTML or SVG."""
    stream = io.StringIO()
    console = RichConsole(file=stream, record=True, width=width, highlight=False, emoji=False, markup=False)
    paint(kind(console))
    return console


def as_plain_text(paint: Callable[[Console], None], width: int = 160) -> str:
    """Return what `paint` prints, for a file: without colours."""
    return "\n".join(inert(line.rstrip()) for line in recorded(paint, width).export_text().splitlines())


def as_page(paint: Callable[[Console], None]) -> str:
    """Return what `paint` prints as an HTML page that loads and runs nothing."""
    return recorded(paint, PAGE_WIDTH).export_html(code_format=PAGE)


def as_text(paint: Callable[[Console], None]) -> str:
    """Return what `paint` prints as lines without colours, as wide as the terminal."""
    columns = shutil.get_terminal_size((PAGE_WIDTH, 24)).columns
    lines = recorded(paint, columns).export_text().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def as_image(paint: Callable[[Console], None]) -> str:
    """Return what `paint` prints as an SVG image that loads nothing; lines are folded at its edge."""
    console = recorded(paint, PAGE_WIDTH, FoldingConsole)
    return console.export_svg(title="", theme=IMAGE_THEME, code_format=IMAGE)


def first_rows(rows: Iterable[Sequence[Content]], most: int = MOST_ROWS) -> list[Sequence[Content]]:
    """Return the first rows, and one that counts the rest."""
    every = list(rows)
    if len(every) <= most + 1:
        return every
    return [*every[:most], (f"and {len(every) - most:,} more; --json lists all",)]
