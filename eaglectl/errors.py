"""The ways eaglectl stops; each class carries the exit code that the command line promises for it."""

from typing import ClassVar


def printable(text: str) -> str:
    """`text` with control characters, line breaks and lone surrogates written as escapes: names come from files."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class EaglectlError(Exception):
    """Base of every error that is an answer to the user and not a crash; its text is one clear sentence, on one line.

    `topic` names the rule of `eaglectl validate` that this is a case of, `where` the place ("config.json:KEY", "tensor:NAME").
    """

    exit_code: ClassVar[int] = 70

    def __init__(self, message: str, topic: str = "", where: str = "") -> None:
        super().__init__(printable(message))
        self.topic = topic
        self.where = where


class Refused(EaglectlError):
    """What was asked cannot be done with this checkpoint: it contradicts itself, or the layout cannot express it."""

    exit_code: ClassVar[int] = 1


class Usage(EaglectlError):
    """The call lacks something only the user knows, or says something that makes no sense."""

    exit_code: ClassVar[int] = 2


class Unreadable(EaglectlError):
    """The input could not be looked at: missing, truncated, not what its name says."""

    exit_code: ClassVar[int] = 3
