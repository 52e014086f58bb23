"""Commands of eaglectl in what it prints: found, and parsed as the command line would parse them."""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from html import unescape
from typing import Any

import typer.main

from eaglectl.cli import common_first
from eaglectl.cli.app import make_app
from eaglectl.cli.commands import COMMANDS
from eaglectl.commands.completion import SCRIPTS
from eaglectl.formats.commands import COMMAND

VERBS = "|".join(COMMANDS)
# between backticks in a sentence, or alone on a line; what a line break or a table broke is found broken
BEGIN = rf"eaglectl (?:-\w )?(?:{VERBS})\b"
ALONE = rf"^[ ]*(?:next: +)?({BEGIN}.*)$"
IN_TEXT = re.compile(rf"{COMMAND.pattern}|`(eaglectl [^`]*)|{ALONE}", re.MULTILINE)
# what stands for something that the reader must fill in
PLACEHOLDER = re.compile(r"[A-Z]+|<[\w-]+>|\.\.\.|.*….*")
# keys of documents: what a rule of SARIF asks for, whatever the checkpoint
DOCUMENTATION = ("help", "fullDescription")
MARKDOWN_ESCAPE = re.compile(r"\\([\\`*_{}\[\]|~$])")
# commands that print documentation, which is about no checkpoint
GENERIC = ("rules", "engines")
QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")


def commands_in(text: str) -> list[str]:
    """Every command in what was printed or written: a JSON or XML document, a page, or text."""
    if text.startswith("<!DOCTYPE html"):
        return list(_in_text(text_of_page(text)))
    if text.startswith("<?xml"):
        return list(_in_text(unescape(text)))
    if text.startswith(("{", "[")):
        try:
            return [line for part in strings(json.loads(text)) for line in _in_value(part)]
        except ValueError:
            pass
    if text.startswith("## eaglectl "):
        text = unescape(MARKDOWN_ESCAPE.sub(r"\1", text)).replace("\u200b", "")
    return list(_in_text(text))


def text_of_page(page: str) -> str:
    """A page's text."""
    page = re.sub(r"<style\b.*?</style>", "", page, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]*>", "", page))


def _in_value(text: str) -> Iterator[str]:
    """The commands in a text of a document; one that begins as a command is one as a whole."""
    return iter([text]) if re.match(BEGIN, text) else _in_text(text)


def _in_text(text: str) -> Iterator[str]:
    for groups in IN_TEXT.findall(text) if "eaglectl " in text else ():
        yield "".join(groups)


def strings(value: Any) -> Iterator[str]:
    """Every text in a JSON document, but for the documentation in it."""
    match value:
        case str():
            yield value
        case dict():
            for key, part in value.items():
                yield from strings(part) if key not in DOCUMENTATION else ()
        case list():
            for part in value:
                yield from strings(part)


def fault(line: str, printed_by: Sequence[str]) -> str:
    """Why a command that another one printed cannot be run as it is, or ""; `printed_by`: its arguments."""
    if "\n" in QUOTED.sub("", line):
        return "it is broken over lines"
    # what a shell makes of it; the output of one may go to a file or another program
    try:
        words = shlex.split(re.split(r" [>|] |  # ", line)[0])
    except ValueError as error:
        return str(error)
    # names that were given, such as OUT in the blocks of README.md and docs/, which the next ones read
    known = (*printed_by, "OUT") if words[2:3] == ["OUT"] else printed_by
    blank = [word for word in words if PLACEHOLDER.fullmatch(word) and word not in known]
    verb = next((word for word in printed_by if not word.startswith("-")), "")
    if blank and verb and verb not in GENERIC:
        return f"{blank[0]} has to be filled in"
    return parse_fault(words[1:])


def parse_fault(arguments: list[str]) -> str:
    """What the command line says of these arguments before it runs anything, or ""."""
    arguments = [word for word in common_first(arguments) if word not in ("-q", "-v", "--offline")]
    if arguments[:1] == ["--show-completion"] and arguments[1] in SCRIPTS:
        return ""
    if not arguments or arguments[0] not in COMMANDS:
        return "it has no command"
    verb, *rest = arguments
    try:
        _parser(verb)(verb, rest)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return str(error.format_message())
    return ""


@cache
def _parser(verb: str) -> Callable[[str, list[str]], Any]:
    group: Any = typer.main.get_command(make_app(verb))
    make_context: Callable[[str, list[str]], Any] = group.commands[verb].make_context
    return make_context
