"""Blocks that the terminal output of several commands shares: headings, tables, labelled text."""

from collections.abc import Iterable, Sequence

from eaglectl.reports.terminal.console import Console, Content, Table, Text, broken_lines, first_rows

# columns whose cells are kept on one line
UNWRAPPED = ("engine", "tensor", "ids it reads", "boundaries", "action")


def print_heading(console: Console, title: str, about: str = "", *, is_first: bool = False) -> None:
    """Print the title of a block after an empty line (but `is_first`), and what it is about in grey."""
    if not is_first:
        console.print()
    heading = Text(title, style="bold")
    if about:
        console.print(heading, Text(about, style="dim"), sep="  ")
    else:
        console.print(heading)


def filled_table(head: Sequence[str], rows: Iterable[Sequence[Content]], *, is_whole: bool = False) -> Table:
    """Return a table of the first of these rows and the number of the rest, or of all (`is_whole`)."""
    filled = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for title in head:
        filled.add_column(title, overflow="fold", no_wrap=title in UNWRAPPED)
    for row in rows if is_whole else first_rows(rows):
        filled.add_row(*row)
    return filled


def pairs(rows: Iterable[tuple[str, Content]]) -> Content:
    """Return names and values, a pair a line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value)
    return grid


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
