"""Commands of eaglectl as they are printed: whole, quoted for the shell, with what the user gave."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

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
# where a step of a fix ends and another one, or an alternative, begins
BETWEEN = re.compile(r"(; |, or (?=[a-z]))")
# how an engine is to run the target: the commands that take each option, and those that take it only for an
# engine in this process (`smoke --run-in vllm`)
DEPLOYMENT: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "--tensor-parallel-size": (("inspect", "validate", "convert", "ready"), ("smoke", "calibrate")),
    "--pipeline-parallel-size": (("inspect", "validate", "convert", "ready"), ()),
    "--trust-remote-code": (("convert", "ready", "smoke", "diagnose", "calibrate"), ()),
}
IN_PROCESS = ("vllm", "sglang")
# what mends a defect: a conversion, one for an engine, one with an answer that only the user has, what a
# command shows, or another conversion of what the drafter was made of; "": words tell it
Remedy = Literal["", "convert", "serve", "settle", "measure", "anew"]


class TargetWords(Protocol):
    """The target of a call: the value of --target, and the options on how an engine is to run it."""

    @property
    def text(self) -> str | None:
        """The value of --target."""

    @property
    def deployment(self) -> Mapping[str, str]:
        """The value of each given option; "" for a flag."""


def command(
    verb: str, source: str, *options: str, target: TargetWords | None = None, answers: Answers | None = None
) -> str:
    """Return the command line that runs `verb` on a source, with its target and answers.

    An answer that `options` contradict is left out, and what the command does not take of the deployment.
    """
    target_words = [] if target is None or target.text is None else ["--target", shell.as_path(target.text)]
    target_words += [] if target is None else _deployment(verb, options, target.deployment)
    answers = answers or Answers()
    answered = {Choice(name, value).key for name, value in pairwise(options)}
    if "--aux-layers" in answered:
        answered.add("--aux-convention")
    choices = [choice for choice in answers.choices if choice.key not in answered]
    words = [word for choice in choices for word in (choice.option, choice.value)]
    return shell.join(
        [
            "eaglectl",
            verb,
            shell.as_path(source),
            *options,
            *target_words,
            *words,
            *(["--assume-defaults"] * answers.assume),
        ]
    )


def _deployment(verb: str, options: Sequence[str], deployment: Mapping[str, str]) -> list[str]:
    # of what was given, that which the command takes and does not have
    runs_engine = any(name == "--run-in" and value in IN_PROCESS for name, value in pairwise(options))
    return [
        word
        for name, value in deployment.items()
        if name not in options and verb in DEPLOYMENT[name][0] + DEPLOYMENT[name][1] * runs_engine
        for word in (name, value)
        if word
    ]


class Command(Struct, frozen=True):
    """A command of eaglectl: its verb and options, and the line that is printed.

    The line names SOURCE, and maybe TARGET, until it is made whole for one checkpoint. `lacks_target`: it
    needs a target, and none is known. `output` redirects what it prints to a file.
    """

    verb: str
    options: tuple[str, ...]
    line: str
    output: str = ""
    lacks_target: bool = False

    def values(self, option: str) -> list[str]:
        """Return the values that an option has in it."""
        return [value for name, value in pairwise(self.options) if name == option]

    @property
    def text(self) -> str:
        """The command as sentences have it: between backticks, with a note if it lacks a target."""
        return f"`{self.line}`{WITH_TARGET * self.lacks_target}"


def read_command(line: str) -> Command | None:
    """Return a command from its documentation; None for text of a file, which may look like one."""
    whole, redirect, file = line.partition(" > ")
    try:
        _, verb, *options = shell.split(whole)
    except ValueError:
        return None
    return Command(verb, tuple(options), line, redirect + file)


class Complete(Struct, frozen=True):
    """Makes commands on SOURCE whole: with the source, the target and the answers of a call."""

    source: str
    target: TargetWords | None = None
    answers: Answers | None = None

    def whole(self, offered: Command) -> Command:
        """Return the command made whole; one that names no SOURCE as it is."""
        if SOURCE not in offered.options:
            return offered
        options = [option for option in offered.options if option != SOURCE]
        needs_target = GIVEN_TARGET in pairwise(options)
        if needs_target:
            place = options.index(GIVEN_TARGET[0])
            del options[place : place + 2]
        line = command(offered.verb, self.source, *options, target=self.target, answers=self.answers)
        return Command(
            offered.verb,
            tuple(options),
            line + offered.output,
            offered.output,
            needs_target and (self.target is None or self.target.text is None),
        )

    def __call__(self, text: str) -> str:
        """Return the text with its commands made whole."""
        return Step(tuple(_parts(text))).completed(self).text if SOURCE in text else text


class Step(Struct, frozen=True):
    """Words and commands of one step of a fix.

    `lead` separates it from the step before. `lost` are the engines that do not serve its output as trained.
    """

    parts: tuple[str | Command, ...]
    lead: str = ""
    lost: str = ""

    @property
    def text(self) -> str:
        """The step in words."""
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands in it."""
        return tuple(part for part in self.parts if isinstance(part, Command))

    @property
    def conversion(self) -> Command | None:
        """The first conversion in it."""
        return next((offered for offered in self.commands if offered.verb == "convert"), None)

    def completed(self, complete: Complete) -> "Step":
        """Return the step with whole commands."""
        parts = [part if isinstance(part, str) else complete.whole(part) for part in self.parts]
        return replace(self, parts=tuple(parts))


class Fix(Struct, frozen=True):
    """What to do about a defect, step by step; false without a step. `remedy` is what mends it.

    `engines` are those for whose releases it is the smallest change.
    """

    steps: tuple[Step, ...] = ()
    remedy: Remedy = ""
    end: str = ""
    engines: str = ""

    def __bool__(self) -> bool:
        return bool(self.steps)

    @property
    def text(self) -> str:
        """The fix in words."""
        return "".join(f"{step.lead}{step.text}" for step in self.steps) + self.end

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands in it."""
        return tuple(offered for step in self.steps for offered in step.commands)

    @property
    def conversions(self) -> tuple[Command, ...]:
        """The conversions among its commands."""
        return tuple(offered for offered in self.commands if offered.verb == "convert")

    def values(self, option: str) -> list[str]:
        """Return the values that an option has in its conversions."""
        return [value for conversion in self.conversions for value in conversion.values(option)]

    def completed(self, complete: Complete) -> "Fix":
        """Return the fix with whole commands."""
        return replace(self, steps=tuple(step.completed(complete) for step in self.steps))


def read_fix(text: str, remedy: Remedy = "") -> Fix:
    """Return a fix from its documentation, in which commands stand between backticks.

    Without a remedy its commands are words like others, which may be text of a file.
    """
    sentence = text.rstrip(".")
    first, *rest = BETWEEN.split(sentence)
    pairs = [("", first), *zip(rest[::2], rest[1::2], strict=True)] if text else []
    steps = [Step(tuple(_parts(words)) if remedy else (words,), lead) for lead, words in pairs]
    return Fix(tuple(steps), remedy, text[len(sentence) :])


def _parts(words: str) -> Iterator[str | Command]:
    start = 0
    for match in COMMAND.finditer(words):
        if offered := read_command(match[1]):
            yield from filter(None, (words[start : match.start()], offered))
            start = match.end()
    yield from filter(None, (words[start:],))


@contextmanager
def whole_commands(complete: Complete) -> Iterator[None]:
    """Complete the commands in the texts of errors raised in the block."""
    try:
        yield
    except EaglectlError as error:
        raise error.reworded(complete(str(error))) from None
