"""Text from files and servers, made safe to show on a terminal, in a log, on a page or on a card."""

import re
from collections.abc import Iterable

# characters that show nothing, or nothing of their own, though str.isprintable() takes them: Unicode's
# Default_Ignorable_Code_Point, the empty Braille pattern and the null notehead
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0100-\U000e01ef]"
)
# how a command of a CI system begins anywhere in a line: ##[error], ##vso[task, ##teamcity[
COMMAND = re.compile(r"##(?=\w*\[)")
# and at the start of one, which GitHub looks for after spaces; styles are not part of the text
COMMAND_LINE = re.compile(r"^((?:\s|\x1b\[[0-9;]*m)*):(?=:)")
# the most characters that are shown of text without a space, and of any one text
LONGEST_WORD = 300
LONGEST = 4000
LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")
# the most names that are shown of a list
MOST = 10

# in a URL: name and password before the host, and the values of a query that are secrets by their names
USERINFO = re.compile(r"(?<=://)[^/?#\s]*@")
QUERY = re.compile(
    r"([?&;][\w.-]{0,40}(?:token|key|secret|passw|pwd|auth|credential|sig)[\w.-]{0,40}=)[^&;#\s]+",
    re.IGNORECASE,
)


class _Escapes(dict[int, str]):
    """For str.translate: what is shown of each character, worked out once."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        is_shown = character.isprintable() and not INVISIBLE.match(character)
        self[code] = character if is_shown else character.encode("unicode_escape").decode()
        return self[code]


ESCAPES = _Escapes()


def printable(text: str) -> str:
    """Return `text` as it may be shown: one line, everything in it visible, no command of a CI system.

    Control characters, line breaks, marks of direction, invisible characters and lone surrogates are
    escaped; the middle of a long text is left out and its length told. The result is its own printable form.
    """
    return shortened(LONG_WORD.sub(_shortened_word, COMMAND.sub(r"#\\x23", escaped(text))))


def masked(text: str) -> str:
    """Return `text` with the secrets of URLs replaced: name and password, and values like that of token=."""
    if "://" in text:
        text = USERINFO.sub("***@", text)
    return QUERY.sub(r"\1***", text) if "=" in text else text


def escaped(text: str) -> str:
    """Return the whole text with every character escaped that is not visible as itself."""
    return text.translate(ESCAPES)


def shortened(text: str, most: int = LONGEST) -> str:
    """Return at most `most` characters of the text: its ends, and how much was left out between them."""
    if len(text) <= most:
        return text
    left_out = len(text) - most + 40
    end = (len(text) - left_out) // 2
    return f"{text[: len(text) - left_out - end]}(... {left_out:,} characters ...){text[-end:]}"


def brief(name: str) -> str:
    """Return a name for a sentence, its middle left out where it is long."""
    return shortened(name, LONGEST_WORD)


def _shortened_word(word: re.Match[str]) -> str:
    return shortened(word[0], LONGEST_WORD)


def inert(line: str) -> str:
    """Return a line of output in which no CI system finds a command."""
    return COMMAND_LINE.sub(r"\1\\x3a", COMMAND.sub(r"#\\x23", line))


def as_markdown(text: str) -> str:
    """Return text that Markdown shows literally, in a table cell too: no HTML, no link, no mention."""
    shown = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = re.sub(r"([\\`*_{}\[\]|~$])", r"\\\1", shown)
    return re.sub(r"([@#]|:/|www)(?=[\w/.])", r"\1&#8203;", shown)


def listed(names: Iterable[str], separator: str = ", ", most: int = MOST) -> str:
    """Return names in a row: the first of them, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return separator.join(every[:most]) + more


def duration(seconds: float) -> str:
    """Return a time in words of two figures, as an estimate has."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}"
    return f"{max(seconds, 1):.0f} s"
