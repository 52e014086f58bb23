"""Commands as text that users paste into a shell.

Each argument is quoted so that bash, zsh and ksh pass the program exactly that argument, and so that
`eaglectl.text`, which makes text safe to show, changes no character of it.
"""

import re
from collections.abc import Iterable

from eaglectl.text import SHELL_WORD, URL, escaped, inert, masked, masked_url, visible, without_tokens

PLAIN = re.compile(r"(?!=)[A-Za-z0-9_@%+=:,./-]+")
LINE = rf"{SHELL_WORD}(?: {SHELL_WORD})*"
WORD = SHELL_WORD
PART = r"\$'([^'`]*)'|'([^'`]*)'|([^'`$]+)"
ESCAPED = rb"(?s)\\(?:([0-7]{3})|(.))"
NAMED = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}
LETTERS = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "\\": r"\\"}
# characters that end a shell's $'...', or that make a secret, a URL or a command of a CI system
ACTIVE = frozenset("'`!#@=:")


def join(arguments: Iterable[str]) -> str:
    """Join arguments into a command line."""
    return " ".join(map(quote, arguments))


def quote(argument: str) -> str:
    """Quote an argument for a shell; secrets in it are masked, and NUL is shown escaped.

    A file name is not changed, even if it looks like a URL with a secret, such as `a?token=b`.
    """
    text = without_secrets(argument)
    if not can_type(text):
        text = "".join(letter if can_type(letter) else escaped(letter) for letter in text)
    if PLAIN.fullmatch(text) and _is_kept(text):
        return text
    if "'" not in text and _is_kept(quoted := f"'{text}'"):
        return quoted
    return f"$'{''.join(map(_escaped, text))}'"


def option(name: str, value: str) -> str:
    """Return an option with its value, after "=" if it begins with a dash (else argparse reads an option)."""
    return f"{name}{'=' if value.startswith('-') else ' '}{quote(value)}"


def as_path(text: str) -> str:
    """Return a path that no parser reads as an option."""
    return f"./{text}" if text.startswith("-") else text


def without_secrets(argument: str) -> str:
    """Return an argument or a label without tokens, and without name, password and secrets of a URL."""
    if not re.match(URL, argument):
        return without_tokens(re.sub(URL, masked_url, argument))
    return masked(re.sub(r"[\x00-\x20\x7f]", lambda letter: f"%{ord(letter[0]):02X}", argument))


def can_type(argument: str) -> bool:
    """Whether a shell can pass the argument to a program: without NUL and without incomplete characters."""
    try:
        return "\0" not in argument and argument.encode("utf-8", "surrogateescape") is not None
    except UnicodeEncodeError:
        return False


def split(line: str) -> list[str]:
    """Split a command into arguments, as `join` writes it. Raises ValueError for any other text."""
    if not re.fullmatch(LINE, line):
        raise ValueError("this is not a command that eaglectl wrote")
    return [_unquoted(word) for word in re.findall(WORD, line)]


def _is_kept(word: str) -> bool:
    return "`" not in word and "::" not in word and inert(visible(word)) == word


def _escaped(letter: str) -> str:
    if letter in LETTERS or (letter not in ACTIVE and escaped(letter) == letter):
        return LETTERS.get(letter, letter)
    return "".join(f"\\{byte:03o}" for byte in letter.encode("utf-8", "surrogateescape"))


def _unquoted(word: str) -> str:
    text = ""
    for quoted, single, plain in re.findall(PART, word):
        raw = re.sub(ESCAPED, _byte, quoted.encode("utf-8", "surrogateescape"))
        text += raw.decode("utf-8", "surrogateescape") or single or plain
    return text


def _byte(escape: re.Match[bytes]) -> bytes:
    return bytes([int(escape[1], 8)]) if escape[1] else NAMED.get(escape[2], escape[2])
