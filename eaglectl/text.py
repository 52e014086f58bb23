"""Text from files and servers, made safe to show on a terminal, in a log, on a page or on a card."""

import re
from collections.abc import Iterable, Mapping

# columns of output that goes to a file or a pipe: no line is folded
FIXED_WIDTH = 10_000
# characters that show nothing, or nothing of their own, although str.isprintable() accepts them: Unicode's
# Default_Ignorable_Code_Point, the empty Braille pattern and the null notehead
INVISIBLE = (
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164"
    "\ufe00-\ufe0f\uffa0\U0001d159\U000e0100-\U000e01ef]"
)
# the beginning of a CI system's command anywhere in a line: ##[error], ##vso[task, ##teamcity[
COMMAND = re.compile(r"##(?=\w*\[)")
# the beginning of one at the start of a line, where GitHub skips spaces; styles are not part of the text
COMMAND_LINE = r"^((?:\s|\x1b\[[0-9;]*m)*):(?=:)"
# the most characters to show of a word, of a text, and of a command in it
LONGEST_WORD = 300
LONGEST = 4000
LONGEST_COMMAND = 32_000
LONG_WORD = rf"\S{{{LONGEST_WORD + 1},}}"
# a word as `eaglectl.shell` writes it, without characters that a shell interprets, and without backticks
SHELL_WORD = r"(?:[A-Za-z0-9_@%+=:,./-]|\$?'[^'`]*')++"
PROGRAMS = "eaglectl|vllm|python|llama-server|git|hf|pip|rm"
# a command in a text: of such words it is shown completely; else its backticks are escaped
PRINTED = rf"((?<![^\s`(])(?:{PROGRAMS})(?: (?:{SHELL_WORD}|&&|>))+)"
FORGED = rf"`((?:{PROGRAMS}) [^`]*)`"
WHOLE = rf"(?:{PROGRAMS})(?: (?:{SHELL_WORD}|>))*"
# a command, which is not changed; or a flag
COMMAND_OR_FLAG = r"`[^`]*`|(?<![\w-])--?[a-z][a-z0-9-]*(?![\w-])"
# the most names to show of a list
MOST = 10

# in a text: the parts of a URL by RFC 3986: its scheme, the authority before the path, and the rest
URL = r"(?i)(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{1,20}://|(?:https?|ftp|hf|s3|wss?):/)([^\s/?#]*)(\S*)"
HOST = r"(?i)(?:[\w.-]*|\[[0-9a-f:.]*\])(?::\d*)?"
# values that are secrets by their names, in a query, a fragment or a path; and headers, and tokens of the Hub
QUERY = (
    r"(?i)([?&;#][\w.-]{0,40}(?:token|key|secret|passw|pwd|auth|credential|sig)[\w.-]{0,40}=)"
    r"(?!\*\*\*)[^&;#\s]+"
)
HEADER = re.compile(
    r"(\b(?:authorization|x-api-key|api[_-]key)[\"']?\s{0,9}[:=]\s{0,9}[\"']?(?:(?:basic|bearer|digest)\s{1,9})?"
    r"|\bbearer\s{1,9}(?=[\w.~+/=-]{16}))(?!\*\*\*|basic\s|bearer\s|digest\s)[^\s\"'&;,]+",
    re.IGNORECASE,
)
TOKEN = re.compile(r"\b(hf_)[A-Za-z0-9]{20,}")


class _Escapes(dict[int, str]):
    """For str.translate: the text to show for each character, computed once."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        is_shown = character.isprintable() and (code < 128 or not re.match(INVISIBLE, character))
        self[code] = character if is_shown else character.encode("unicode_escape").decode()
        return self[code]


ESCAPES = _Escapes()


def printable(text: str) -> str:
    """Return `text` safe to show: one line, all characters visible, no secrets, no commands of CI systems.

    Control characters, line breaks, marks of direction, invisible characters and lone surrogates are escaped.
    The middle of a long text is replaced by its length, except in a command that may be pasted into a shell
    (`eaglectl.shell`). Applied twice, it changes nothing more.
    """
    safe = COMMAND.sub(r"#\\x23", escaped(text))
    if "`" not in safe and len(safe) <= LONGEST_WORD:
        return masked(safe)
    parts = re.split(PRINTED, re.sub(FORGED, _forged, safe))
    for place, part in enumerate(parts):
        if place % 2 == 0:
            parts[place] = shortened(re.sub(LONG_WORD, lambda word: brief(word[0]), masked(part)))
        elif len(part) > LONGEST_COMMAND:  # a part of a command would be another command
            parts[place] = f"(a command of {len(part):,} characters)"
        else:
            parts[place] = masked_words(part)
    return "".join(parts)


def visible(text: str) -> str:
    """Return `text` as `printable` does, without shortening."""
    return masked(COMMAND.sub(r"#\\x23", escaped(text)))


def masked(text: str) -> str:
    """Return `text` with secrets replaced: names and passwords of URLs, values named like token=, headers."""
    return HEADER.sub(r"\1***", masked_words(text))


def masked_words(text: str) -> str:
    """Return `text` with secrets replaced that are single words: all but headers."""
    if ":/" in text:
        text = re.sub(URL, masked_url, text)
    if "=" in text:
        text = re.sub(QUERY, r"\1***", text)
    return without_tokens(text)


def is_url(text: str) -> bool:
    """Whether a text is a URL, also as a path of the system spells it; hf:// names a repository."""
    return re.match(URL, text) is not None and not text.startswith("hf:")


def without_tokens(text: str) -> str:
    """Return `text` without tokens of the Hub, which are secrets anywhere."""
    return TOKEN.sub(r"\1***", text)


def masked_url(url: re.Match[str]) -> str:
    """Return a URL without name and password; their / and ? may be unquoted."""
    scheme, authority, rest = url.groups()
    if "@" in authority:
        return f"{scheme}***@{authority.rpartition('@')[2]}{rest}"
    if "@" in rest and not re.fullmatch(HOST, authority):
        return f"{scheme}***@{rest.rpartition('@')[2]}"
    return url[0]


def _forged(command: re.Match[str]) -> str:
    """Return a command unchanged, or with escaped backticks if a shell would read its words differently."""
    return command[0] if re.fullmatch(WHOLE, command[1]) else rf"\x60{command[1]}\x60"


def renamed_flags(text: str, names: Mapping[str, str]) -> str:
    """Return `text` with flags replaced by `names`, except in commands between backticks."""
    return re.sub(COMMAND_OR_FLAG, lambda match: names.get(match[0], match[0]), text)


def escaped(text: str) -> str:
    """Return the text with every character escaped that is not visible."""
    return text.translate(ESCAPES)


def shortened(text: str, most: int = LONGEST) -> str:
    """Return at most `most` characters of the text: its two ends, and the length of the part left out."""
    if len(text) <= most:
        return text
    left_out, end = len(text) - most + 40, (most - 40) // 2
    return f"{text[: most - 40 - end]}(... {left_out:,} characters ...){text[-end:]}"


def brief(name: str) -> str:
    """Return a name for a sentence, without its middle if it is long."""
    return shortened(name, LONGEST_WORD)


def inert(line: str) -> str:
    """Return a line of output in which no CI system finds a command."""
    return re.sub(COMMAND_LINE, r"\1\\x3a", COMMAND.sub(r"#\\x23", line))


def as_markdown(text: str) -> str:
    """Return text that Markdown shows literally, in a table cell too: no HTML, no link, no mention."""
    escaped_text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped_text = re.sub(r"([\\`*_{}\[\]|~$])", r"\\\1", escaped_text)
    return re.sub(r"([@#]|:/|www)(?=[\w/.])", r"\1&#8203;", escaped_text)


def listed(names: Iterable[str], separator: str = ", ", most: int = MOST) -> str:
    """Return the first names in a row, and the count of the others."""
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return separator.join(every[:most]) + more


def duration(seconds: float) -> str:
    """Return an estimated time in words, with two figures."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}"
    return f"{max(seconds, 1):.0f} s"
