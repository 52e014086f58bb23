"""Commands of eaglectl as they are printed: whole, quoted for the shell, with what the user gave."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

from eaglectl import shell
from eaglectl.drafter.drafter import Choice
from eaglectl.errors import EaglectlError
from eaglectl.formats.format import Answers
from eaglectl.text import SHELL_WORD

# a command in a text, between backticks, as `eaglectl.shell` writes it; its output may go to a file
COMMAND = re.compile(rf"`(eaglectl(?: (?:{SHELL_WORD}|>))+)`")
# where a text is about no checkpoint yet (documentation, a rule's fix); the output may go to a file
SOURCE, GIVEN_TARGET = "SOURCE", ("--target", "TARGET")
# where the target is not known; TARGET would read as though the command could be run
WITH_TARGET = " with --target and the target's folder"
# a name from a file that may stand in a command
PLAIN = re.compile(r"\w[\w.-]{0,199}", re.ASCII)
# makes the commands in a text whole
Complete = Callable[[str], str]


def command(
    verb: str, source: str, *options: str, target: str | None = None, answers: Answers | None = None
) -> str:
    """The command line that runs `verb` on a source, with the target and the answers that were given.

    An answer that `options` contradict is left out.
    """
    given = ["--target", shell.as_path(target)] if target is not None else []
    answers = answers or Answers()
    answered = {Choice(name, value).key for name, value in pairwise(options)}
    if "--aux-layers" in answered:
        answered.add("--aux-convention")
    kept = [choice for choice in answers.choices if choice.key not in answered]
    words = [word for choice in kept for word in (choice.option, choice.value)]
    return shell.join(
        [
            "eaglectl",
            verb,
            shell.as_path(source),
            *options,
            *given,
            *words,
            *(["--assume-defaults"] * answers.assume),
        ]
    )


def completing(source: str, target: str | None = None, answers: Answers | None = None) -> Complete:
    """`completed` for all texts about one checkpoint."""
    return partial(completed, source=source, target=target, answers=answers)


def completed(text: str, source: str, target: str | None = None, answers: Answers | None = None) -> str:
    """The text with its commands on SOURCE made whole: the source, the target and the answers of this call.

    A command between backticks that names no SOURCE stays as it is.
    """

    def whole(match: re.Match[str]) -> str:
        try:
            line, redirect, file = match[1].partition(" > ")
            _, verb, *words = shell.split(line)
        except ValueError:  # text of a file
            return match[0]
        if SOURCE not in words:
            return match[0]
        words.remove(SOURCE)
        is_needed = GIVEN_TARGET in pairwise(words)
        if is_needed:
            place = words.index(GIVEN_TARGET[0])
            del words[place : place + 2]
        line = command(verb, source, *words, target=target, answers=answers)
        return f"`{line}{redirect}{file}`{WITH_TARGET if is_needed and target is None else ''}"

    return COMMAND.sub(whole, text) if SOURCE in text else text


@contextmanager
def whole_commands(complete: Complete) -> Iterator[None]:
    """Errors that are raised have whole commands in their text."""
    try:
        yield
    except EaglectlError as error:
        raise type(error)(complete(str(error)), error.topic, error.where) from None
