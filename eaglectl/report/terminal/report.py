"""A result on the terminal, and the same as plain text for a file."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from eaglectl.report.section import (
    MARKS,
    Block,
    Commands,
    Entries,
    LayerStrip,
    Line,
    Lines,
    Marked,
    Outline,
    Pairs,
    Remarks,
    Section,
    Table,
    Words,
    is_empty,
    plain,
    spans,
)
from eaglectl.report.terminal.console import (
    Console,
    Content,
    Text,
    as_plain_text,
    broken_lines,
    first_rows,
    indented,
    split_command,
)
from eaglectl.report.terminal.console import Table as Grid

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
MARKED = "underline green"
# columns beside a strip, and the fewest of a strip
STRIP_INDENT, MIN_STRIP = 6, 20
# columns of a finding's text: two, then the severity and a gap
ENTRY_INDENT = 10

# columns whose cells are kept on one line
UNWRAPPED = ("engine", "tensor", "ids it reads", "boundaries", "action")


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
        _print_line(console, line)


def _print_parts(console: Console, outline: Outline, *, is_whole: bool) -> list[str]:
    """Print a result but for its last lines, and return the titles of what is left out."""
    if outline.head:
        words = plain(outline.head).split()
        _print_line(console, outline.head, is_whole=max(map(len, words)) > console.width)
    _print_lines(console, Lines(outline.cause), 2)
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


def as_text(outline: Outline) -> str:
    """Return what the terminal shows, for a file: without colours, 160 columns wide."""
    return as_plain_text(lambda console: print_outline(console, outline))


def print_section(console: Console, section: Section, *, is_first: bool = False) -> None:
    """Print the blocks of a section that a terminal shows, under its title; nothing `is_first` above it."""
    blocks = [block for block in section.blocks if not _is_elsewhere(block)]
    if not blocks and not section.about:
        return
    if section.has_heading:
        if not is_first:
            console.print()
        heading = [Text(section.title, style="bold")]
        if section.about:
            heading.append(Text(section.about, style="dim"))
        console.print(*heading, sep="  ")
    for block in blocks:
        PRINTERS[type(block)](console, block, 2)


def _is_elsewhere(block: Block) -> bool:
    """Whether a block is for other media."""
    if isinstance(block, LayerStrip):
        return block.is_as_trained
    return isinstance(block, Lines) and block.only == "markdown"


def _print_pairs(console: Console, block: Pairs, columns: int) -> None:
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in block.rows:
        grid.add_row(name, styled(value))
    console.print(indented(grid, columns))


def _print_lines(console: Console, block: Lines, columns: int) -> None:
    for line in block.lines:
        if block.is_unbroken:
            console.print(Text.assemble(" " * columns, styled(line)), soft_wrap=True)
        elif isinstance(line, tuple):
            console.print(indented(styled(line), columns))
        else:
            text, style = _span(line)
            print_sentence(console, text, columns, style=style)


def _print_entries(console: Console, block: Entries, _: int) -> None:
    for entry in block.rows:
        word, name = _span(entry.word), _span(entry.name)
        where = "" if entry.code else entry.where
        head = Text.assemble(name, (f"  {where}" if where else "", "cyan"))
        head.append(f"  {entry.about}" if entry.about else "", style="magenta")
        grid = Grid.grid()
        grid.add_column(width=ENTRY_INDENT - 2)
        grid.add_row(Text(*word), head)
        console.print(indented(grid))
        if entry.code:
            print_sentence(console, entry.code, ENTRY_INDENT, style="cyan")
        print_sentence(console, entry.text, ENTRY_INDENT)


def _print_table(console: Console, block: Table, columns: int) -> None:
    rows = [[styled(cell) for cell in row] for row in block.rows]
    if not rows:
        return
    if block.is_bare:
        grid = Grid.grid(padding=(0, 2, 0, 0))
        grid.add_column(min_width=8, no_wrap=True)
        for _ in block.head[1:]:
            grid.add_column(overflow="fold")
        for row in rows:
            grid.add_row(*row)
    else:
        grid = filled_table(block.head, rows, is_whole=block.is_whole)
    console.print(indented(grid, columns))


def styled(line: Line) -> Text:
    """Return a line in the styles of its tones."""
    text = Text()
    for part in spans(line):
        text.append(*_span(part))
    return text


def _span(part: str | Words) -> tuple[str, str]:
    return (part, "") if isinstance(part, str) else (part.text, STYLES[part.tone])


def _print_line(console: Console, line: Line, *, is_whole: bool = True) -> None:
    """Print a line, its verdict in bold; not broken if `is_whole`, as commands may be copied from it."""
    text = Text()
    for part in spans(line):
        text.append(*_span(part))
        if isinstance(part, Words) and part.tone in ("good", "bad", "doubt"):
            text.stylize("bold", len(text) - len(part.text))
    console.print(text, soft_wrap=is_whole)


def _print_remarks(console: Console, block: Remarks, columns: int) -> None:
    width = max([8, *(len(row.word.text) for row in block.rows)]) + 2
    for row in block.rows:
        label = (f"{row.word.text:<{width}}", STYLES[row.word.tone])
        print_sentence(console, row.text, columns, label)


def _print_marked(console: Console, block: Marked, columns: int) -> None:
    """Print text with what is marked in colour, or in brackets where there is none."""
    lines = [Text()]
    opening, closing = ("", "") if console.is_terminal else ("[", "]")
    for text, is_marked in block.parts:
        first, *rest = text.split("\n")
        style = MARKED if is_marked else ""
        lines[-1].append(f"{opening}{first}" if is_marked else first, style)
        lines += [Text(line, style) for line in rest]
        if is_marked:
            lines[-1].append(closing, style)
    for line in lines:
        console.print(indented(line, columns))


def _print_commands(console: Console, block: Commands, columns: int) -> None:
    """Print each on one line, or where a terminal is narrower in lines of one command."""
    width = max((len(label) for label, _ in block.rows), default=0)
    for label, command in block.rows:
        start = f"{' ' * columns}{label:<{width}}{'  ' if width else ''}"
        room = console.width - len(start) - 2
        lines: Iterable[str] = [command]
        if console.is_terminal and len(start + command) > console.width and room >= MIN_STRIP:
            lines = split_command(command, room)
        for number, line in enumerate(lines):
            console.print(Text(f"{' ' * len(start) if number else start}{line}"), soft_wrap=True)


def _print_strip(console: Console, strip: LayerStrip, _: int) -> None:
    """Print the layers that engines capture on the target, where they are not all those of training."""
    glyphs = ASCII_GLYPHS if console.is_ascii else GLYPHS
    shown = set()
    for part in strip.captured:
        console.print(indented(Text("; ".join(part.engines))))
        marks = [part.mark(boundary, strip.trained) for boundary in range(strip.end + 1)]
        shown |= set(marks)
        for start, line in _strip_lines(marks, console.width - STRIP_INDENT):
            row = Text(f"{start:>3} ", style="dim")
            for mark, run in groupby(line):
                row.append(glyphs[mark] * len(list(run)), style=STYLES[MARK_TONES[mark]])
            console.print(indented(row))
    legend = [f"{glyphs[mark]} {words}" for mark, words in MARKS.items() if mark in shown]
    for text in filter(None, ("  ".join(legend), strip.remark)):
        console.print(indented(Text(text, style="dim")))
    console.print()


def _strip_lines(marks: Sequence[str], width: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the first boundary and the marks of each line; lines are of about one length."""
    count = -(-len(marks) // max(width, MIN_STRIP))
    size = -(-len(marks) // count)
    for start in range(0, len(marks), size):
        yield start, list(marks[start : start + size])


PRINTERS: Mapping[type, Callable[[Console, Any, int], None]] = {
    Pairs: _print_pairs,
    Table: _print_table,
    Remarks: _print_remarks,
    Lines: _print_lines,
    Marked: _print_marked,
    Commands: _print_commands,
    Entries: _print_entries,
    LayerStrip: _print_strip,
}


def filled_table(head: Sequence[str], rows: Iterable[Sequence[Content]], *, is_whole: bool = False) -> Grid:
    """Return a table of the first of these rows and the number of the rest, or of all (`is_whole`)."""
    filled = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for title in head:
        filled.add_column(title, overflow="fold", no_wrap=title in UNWRAPPED)
    for row in rows if is_whole else first_rows(rows):
        filled.add_row(*row)
    return filled


def print_sentence(
    console: Console, text: str, columns: int, label: tuple[str, str] = ("", ""), style: str = ""
) -> None:
    """Print text beside a label and its style, in lines of the console's width, `columns` from the left.

    A command in it stays on one line.
    """
    gap = " " * len(label[0])
    for number, line in enumerate(broken_lines(text, console.width - columns - len(gap))):
        start = gap if number else label
        console.print(Text.assemble(" " * columns, start, (line, style)), soft_wrap=True)
