"""Commands of eaglectl as they are printed: whole, quoted for the shell, with what the user gave."""

import shlex
from collections.abc import Iterator

from eaglectl.formats.format import Answers


def command(
    verb: str, source: str, *options: str, target: str | None = None, answers: Answers | None = None
) -> str:
    """The command line that runs `verb` on a source, with the target and the answers that were given."""
    place = f"./{source}" if source.startswith("-") else source
    given = ["--target", target] if target is not None else []
    return shlex.join(["eaglectl", verb, place, *options, *given, *_answer_options(answers or Answers())])


def _answer_options(answers: Answers) -> Iterator[str]:
    if answers.aux_layers is not None:
        yield from ("--aux-layers", ",".join(map(str, answers.aux_layers)))
    if answers.aux_convention is not None:
        yield from ("--aux-convention", answers.aux_convention)
    for key, value in answers.semantics.items():
        yield from ("--source-semantics", f"{key}={value}")
