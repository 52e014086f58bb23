"""A result as sections, which are the same for all media; each medium has its own writer.

Every report has one order, the answer first (`Outline`):

1. `head`: the verdict in words, with its number or its engine release, in one line;
2. `cause`: the reasons for the verdict;
3. `next`: the one command to run next, complete;
4. `sections` that support it, at most SUPPORT lines at 80 columns;
5. `sections` with `is_more`: the rest, which a terminal shows with -v, and Markdown, pages and files always;
6. `last`: totals.

The writers are `terminal.py` (also plain text and HTML) and `markdown.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from msgspec import Struct

from eaglectl.verdicts import CheckVerdict, FileState, FirstWord, VerifyVerdict, first_word

Key = TypeVar("Key")
Item = TypeVar("Item")
# "plain" is a verdict that is neither good nor bad; "quiet" and "strong" are of text beside others
Tone = Literal["", "good", "bad", "doubt", "plain", "quiet", "strong"]
# where a part is shown: everywhere, or only in one medium
Medium = Literal["", "terminal", "markdown"]

# the most lines of a terminal of 80 columns that support an answer
SUPPORT = 15
# the most lines of a list whose length depends on the checkpoint
MOST_LINES = 40
# of verdicts and severities
TONES: Mapping[str, Tone] = {
    CheckVerdict.PASS: "good",
    CheckVerdict.FAIL: "bad",
    CheckVerdict.COULD_NOT_LOOK: "doubt",
    CheckVerdict.SKIPPED: "plain",
    FirstWord.COULD_NOT_LOOK: "doubt",
    VerifyVerdict.EQUAL: "good",
    VerifyVerdict.DIFFERS: "bad",
    FileState.MISSING: "bad",
    FileState.UNLISTED: "bad",
    FileState.NOT_LOOKED: "doubt",
    "error": "bad",
    "problem": "bad",
    "warning": "doubt",
    "question": "doubt",
    "note": "plain",
}


class Words(Struct, frozen=True):
    """A part of a line in a tone; `is_code`: the name of a tensor, a key or a path."""

    text: str
    tone: Tone = ""
    is_code: bool = False


Line = str | Words | tuple[str | Words, ...]


class Pairs(Struct, frozen=True):
    """Names and values, a pair a line."""

    rows: Sequence[tuple[str, Line]]


class Table(Struct, frozen=True):
    """Rows under a head; the first column names them.

    `is_whole`: the terminal shows every row; `is_bare`: without the head.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Line]]
    is_whole: bool = False
    is_bare: bool = False


class Remark(Struct, frozen=True):
    """A sentence after a word in its tone; `code` in it is a command or a name."""

    word: Words
    text: str


class Remarks(Struct, frozen=True):
    """Sentences under each other."""

    rows: Sequence[Remark]


class Lines(Struct, frozen=True):
    """Sentences, one a line; `is_list`: they are a list of equal members.

    `is_unbroken`: the terminal does not wrap them, so that paths and commands can be copied.
    """

    lines: Sequence[Line]
    is_list: bool = False
    is_unbroken: bool = False


class Commands(Struct, frozen=True):
    """Commands to copy, each with its purpose, or ""."""

    rows: Sequence[tuple[str, str]]


class Entry(Struct, frozen=True):
    """A finding: its severity, its rule and place, the engines concerned, a sentence, and the fix.

    `code` is the line of the file that it judges. Only Markdown shows fixes beside findings.
    """

    word: Words
    name: Words
    where: str
    about: str
    text: str
    fix: str
    code: str = ""


class Entries(Struct, frozen=True):
    """Findings under each other."""

    rows: Sequence[Entry]


Block = Pairs | Table | Remarks | Lines | Commands | Entries


class Section(Struct, frozen=True):
    """Blocks under a title; `about` describes them.

    Without `has_heading`, the terminal shows the blocks without a title. With `is_more`, it shows them only
    with -v.
    """

    title: str
    blocks: Sequence[Block] = ()
    about: str = ""
    only: Medium = ""
    has_heading: bool = True
    is_more: bool = False


class Outline(Struct, frozen=True):
    """A result as sections, for one source or (`parts`) for several.

    `head` and `last` are the first line and the last lines on the terminal; Markdown has `verdict`, `subject`
    and `lead` instead. `cause` and the command `next` follow the first line everywhere. With `is_dense`, the
    terminal shows no empty lines around them.
    """

    command: str
    verdict: Words
    subject: str
    lead: Line
    head: Line
    sections: Sequence[Section]
    last: Sequence[Line] = ()
    parts: "Sequence[Outline]" = ()
    is_dense: bool = False
    cause: Sequence[Line] = ()
    next: str = ""


def is_empty(section: Section) -> bool:
    """Return whether a section has nothing to show."""
    is_full = any(getattr(block, name, ()) for block in section.blocks for name in ("rows", "lines"))
    return not is_full and (bool(section.blocks) or not section.about)


def spans(line: Line) -> Iterable[str | Words]:
    """Return the parts of a line."""
    return line if isinstance(line, tuple) else (line,)


def plain(line: Line) -> str:
    """Return a line without its tones."""
    return "".join(part if isinstance(part, str) else part.text for part in spans(line))


def toned(verdict: str) -> Words:
    """Return a verdict, or a severity, in its tone."""
    return Words(verdict, TONES[verdict])


def first_line(verdict: str, *parts: str | Words) -> Line:
    """Return the first line of a command's text: the word for the verdict, and a sentence without it."""
    word = first_word(verdict)
    first = parts[0] if parts else ""
    # a name of a checkpoint, which may be such a word, is strong
    is_word = isinstance(first, Words) and first.tone != "strong" and first.text == word
    rest = parts[2:] if is_word else parts
    return Words(word, TONES.get(word, "")), ": ", *rest


def grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Return the items of each key, in the order in which the keys first occur."""
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def first_lines(lines: Sequence[Line]) -> Sequence[Line]:
    """Return the first lines, and one that counts the rest."""
    rest = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], f"and {rest:,} more; --json lists all"] if rest > 0 else lines
