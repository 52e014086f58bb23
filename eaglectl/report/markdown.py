"""A result as Markdown, for comments and cards: text from files is harmless, and code stays code."""

from collections.abc import Iterator, Sequence

from eaglectl.report.section import (
    Block,
    Commands,
    Entries,
    Entry,
    Line,
    Lines,
    Outline,
    Pairs,
    Remarks,
    Section,
    Table,
    Words,
    is_empty,
    spans,
)
from eaglectl.text import as_markdown, printable

# a GitHub comment holds 65,536 characters, GitLab's a million
LIMIT = 60_000
# a stroke that ends no cell
STROKE = "\\|"


def markdown(outline: Outline, limit: int = LIMIT) -> str:
    """Return a result with a heading for each part; lines beyond `limit` characters are cut off."""
    lines, size = list(_lines(outline, 2)), -1
    for number, line in enumerate(lines):
        size += len(line) + 1
        if size > limit:
            return "\n".join([*lines[:number], "", f"*{len(lines) - number} more lines were cut off.*"])
    return "\n".join(lines)


def _lines(outline: Outline, level: int) -> Iterator[str]:
    # an outline and its parts, each part one level deeper
    command = f"eaglectl {outline.command}: " if level == 2 else ""
    verdict = ": ".join(as_markdown(text) for text in (outline.verdict.text, outline.subject) if text)
    yield f"{'#' * level} {command}{verdict}"
    if lead := _line(outline.lead).strip():
        yield from ("", lead)
    yield from _block(Lines(outline.cause))
    if outline.next:
        yield from _block(Commands([("next", outline.next)]))
    sections = [section for section in outline.sections if section.only != "terminal"]
    # of several, the overview stands first, and what is said of all of them last
    for section in sections[:1]:
        yield from _section(section, level + 1)
    for part in outline.parts:
        yield ""
        yield from _lines(part, level + 1)
    for section in sections[1:]:
        yield from _section(section, level + 1)


def _section(section: Section, level: int) -> Iterator[str]:
    blocks = [line for block in section.blocks for line in _block(block)]
    if is_empty(section) or not (blocks or section.about):
        return
    if section.title:
        yield from ("", f"{'#' * level} {section.title}")
    if section.about:
        yield from ("", _prose(section.about))
    yield from blocks


def _block(block: Block) -> list[str]:
    """Return an empty line and the lines of a block; nothing for a block that only the terminal shows."""
    lines: list[str] = []
    match block:
        case Pairs():
            lines = [f"* **{as_markdown(name)}** {_line(value)}" for name, value in block.rows]
        case Remarks():
            lines = [f"* **{row.word.text}** {_prose(row.text)}" for row in block.rows]
        case Table() if block.rows:
            lines = _table(block)
        case Entries():
            head = ["| severity | rule | where | finding | fix |", "|---|---|---|---|---|"]
            lines = [*head, *map(_entry, block.rows)]
        case Lines() if block.lines:
            # two line breaks end a paragraph
            start, end = ("* ", "\n") if block.is_list else ("", "\n\n")
            lines = end.join(f"{start}{_line(line)}" for line in block.lines).split("\n")
        case Commands():
            lines = _commands(block)
    return ["", *lines] if lines else []


def _table(table: Table) -> list[str]:
    return [
        _row([as_markdown(title) for title in table.head]),
        f"|{'---|' * len(table.head)}",
        *[_row([_line(cell, is_cell=True) for cell in row]) for row in table.rows],
    ]


def _commands(commands: Commands) -> list[str]:
    lines: list[str] = []
    for label, command in commands.rows:
        lines += ["", f"{as_markdown(label)}:"] if label else []
        lines += ["", f"    {printable(command)}"]
    return lines[1:]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _entry(entry: Entry) -> str:
    about = f" ({as_markdown(entry.about)})" if entry.about else ""
    text = f"{_prose(entry.text, is_cell=True)}{about}"
    where, fix = _code(entry.where, is_cell=True), _prose(entry.fix, is_cell=True)
    return _row((entry.word.text, as_markdown(entry.name.text), where, text, fix))


def _line(line: Line, *, is_cell: bool = False) -> str:
    return "".join(_span(part, is_cell=is_cell) for part in spans(line))


def _span(part: str | Words, *, is_cell: bool) -> str:
    if isinstance(part, str):
        return _prose(part, is_cell=is_cell)
    if not part.text.strip():
        return ""
    text = (_code if part.is_code else _prose)(part.text, is_cell=is_cell)
    if part.tone not in ("strong", "good", "bad", "doubt"):
        return text
    # Markdown closes emphasis behind a word alone
    return f"**{text.strip()}**{' ' * text.endswith(' ')}"


def _prose(text: str, *, is_cell: bool = False) -> str:
    """Return a sentence with its `code` as code, and the rest escaped to be shown literally."""
    # an even count of parts is an odd one of backticks: one has no partner, and none is read as code then
    parts = printable(text).split("`")
    if len(parts) % 2 == 0 or not all(parts[1::2]):
        return as_markdown(text)
    pieces = (
        _code(part, is_cell=is_cell) if place % 2 else as_markdown(part) for place, part in enumerate(parts)
    )
    return "".join(pieces)


def _code(text: str, *, is_cell: bool = False) -> str:
    """Return a name as code, in a cell with `|` escaped; a name with a backtick as text."""
    if not text or "`" in text:
        return as_markdown(text)
    return f"`{printable(text).replace('|', STROKE) if is_cell else printable(text)}`"
