"""Errors that are an answer to the user; each class carries its exit code of the command line."""

import errno
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from eaglectl.text import printable, shortened


class EaglectlError(Exception):
    """Base class of every error that is an answer to the user and not a crash; its text is one line, in
    which the secrets of URLs are masked.

    `topic` names the rule of `eaglectl validate` that reports the same defect, `where` the place
    ("config.json:KEY", "tensor:NAME"). `options` are those of the command line that it is about or asks for,
    with a value where that is known ("--rope-style interleaved"), `option` is the first by its name in
    Python. `source` is the checkpoint that the text names, "" if it names none. `kind` is the name of the
    error in JSON documents.
    """

    exit_code: ClassVar[int] = 70
    kind: ClassVar[str] = "fault"

    def __init__(
        self,
        message: str,
        topic: str = "",
        where: str = "",
        options: tuple[str, ...] = (),
        *,
        option: str = "",
        source: str = "",
    ) -> None:
        super().__init__(printable(message))
        self.topic = topic
        self.where = where
        self.options = options
        self.option = option
        self.source = source

    def reworded(self, message: str) -> Self:
        """Return this error with another text."""
        self.args = (printable(message),)
        return self


KEPT_LINES = 2  # of a foreign error's text; pydantic names the fault in the second line


def error_text(error: Exception) -> str:
    """Return the class and message of a foreign exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:KEPT_LINES])[:400] or '(no message)'}"


# the module of Rust's panics (tokenizers, safetensors), which are no subclass of Exception
PANIC = "pyo3_runtime"
NO_MEMORY = "not enough memory for this input; free some, or raise the limit (ulimit -v, the container's)"
# a thread needs an entry in the system's table, and memory for its stack
NO_THREADS = (
    "no more threads or processes may start; raise the limit of their number (ulimit -u, the container's"
    " pids) or of memory (ulimit -v)"
)
NO_FILES = "too many open files; raise the limit (ulimit -n)"
# how to lift each limit of the system, by the number of an OSError
LIMITS: Mapping[int | None, str] = {
    errno.EAGAIN: NO_THREADS,
    errno.EMFILE: NO_FILES,
    errno.ENFILE: NO_FILES,
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room, or raise the quota",
    errno.EFBIG: "raise the limit (ulimit -f)",
}
# how to reach a file that the system does not give
UNREACHED: Mapping[int | None, str] = {
    errno.EACCES: "check its permissions, and those of the folders above it",
    errno.EPERM: "check its permissions",
    errno.ENAMETOOLONG: "shorten the name, or the target of the link",
    errno.EIO: "check the disk",
    errno.ESTALE: "mount the file system again",
}
# and by the message of Python and of the dynamic loader, whose errors have no number
LIMIT_WORDS: Mapping[str, str] = {
    "can't start new thread": NO_THREADS,
    "failed to map segment": NO_MEMORY,
    "annot allocate memory": NO_MEMORY,
    "cannot create shared object descriptor": NO_MEMORY,
    "cannot open shared object file: Error 24": NO_FILES,
}


class RefusedError(EaglectlError):
    """The request cannot be done: the checkpoint contradicts itself, or the layout cannot express it."""

    exit_code: ClassVar[int] = 1
    kind: ClassVar[str] = "refused"


class OptionNeededError(RefusedError):
    """The request needs an option, which the text names."""


class UsageError(EaglectlError):
    """The call lacks something that only the user knows, or its options make no sense together."""

    exit_code: ClassVar[int] = 2
    kind: ClassVar[str] = "usage"


class OpenFactError(UsageError):
    """The files leave open what was trained; measuring may show it."""


class UnreadableError(EaglectlError):
    """The input could not be read: missing, truncated, or not what its name says."""

    exit_code: ClassVar[int] = 3
    kind: ClassVar[str] = "unreadable"


class OutdatedError(UnreadableError):
    """This version of eaglectl has no data on what it has to judge; a newer one may."""

    kind: ClassVar[str] = "outdated"


def check(*faults: tuple[object, *tuple[Any, ...]], error: Callable[..., EaglectlError] = UsageError) -> None:
    """Raise `error` for the first fault whose condition holds.

    A fault is a condition, the text, and optionally the topic, the place and a tuple of options.
    """
    for is_present, *words in faults:
        if is_present:
            options = words.pop() if isinstance(words[-1], tuple) else ()
            raise error(*words, options=options)


def input_error(error: BaseException) -> UnreadableError | None:
    """Return the user's error for a limit of the system, a file that it does not give, or a panic of a Rust
    library; None for all others.
    """
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return UnreadableError(NO_MEMORY)
    if isinstance(error, OSError):
        advice = {**(UNREACHED if error.filename else {}), **LIMITS}.get(error.errno)
        if advice:
            return UnreadableError(f"{error.filename or 'the system'}: {error.strerror}; {advice}")
    if isinstance(error, RuntimeError | ImportError | OSError):
        limits = (limit for words, limit in LIMIT_WORDS.items() if words in str(error))
        return next(map(UnreadableError, limits), None)
    if type(error).__module__ != PANIC:
        return None
    return UnreadableError(f"a library (in Rust) could not process the input: {shortened(str(error))}")
