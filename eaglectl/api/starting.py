"""`init`: an eaglectl.toml with what was answered, and the questions that are open."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

from eaglectl.api.inspecting import inspect
from eaglectl.errors import UsageError
from eaglectl.formats.format import Answers
from eaglectl.reports.files import write_file
from eaglectl.results import Start
from eaglectl.text import printable
from eaglectl.validation.policy_file import POLICY_FILE, parse_policy

HEAD = """# What eaglectl takes from here, in this folder and below it, where the command line says nothing.
# Written by `eaglectl init`.
"""
HOW_TO_ANSWER = {
    "target": 'target = "my-target"  # the target model: its folder (from this file) or Hub repository',
    "aux-layers": "aux-layers = [2, 16, 29]  # the trained aux layers as boundaries",
    "aux-convention": 'aux-convention = "boundary"  # what the file\'s layer ids mean: boundary or output',
}


def init(
    source: str | None = None,
    *,
    target: str | None = None,
    engines: Sequence[str] = (),
    answers: Answers | None = None,
    folder: Path | None = None,
    force: bool = False,
) -> Start:
    """Write eaglectl.toml into `folder` (the current one) with the given answers, and return what stays open.

    With a `source` it is inspected first, and what `inspect` asks about it becomes comments of the file.
    Raises UsageError where the file is there and `force` is not given, and what `inspect` raises.
    """
    path = (folder or Path()) / POLICY_FILE
    if path.exists() and not force:
        raise UsageError(f"{path} is there; edit it, or replace it with --force")
    answers = answers or Answers()
    questions: tuple[str, ...] = ()
    if source is not None:
        inspection = inspect(source, target=target, engines=engines, answers=answers)
        questions = tuple(note.text for note in inspection.drafter.unsettled)
    text = _file_text(target, engines, answers, questions)
    parse_policy(tomllib.loads(text), str(path), path.parent)
    try:
        write_file(path, text)
    except OSError as error:
        raise UsageError(f"{path} was not written: {error.strerror}") from None
    return Start(path, questions)


def _file_text(target: str | None, engines: Sequence[str], answers: Answers, questions: Sequence[str]) -> str:
    given = {
        "target": None if target is None else _quoted(target),
        "aux-layers": None if answers.aux_layers is None else str(list(answers.aux_layers)),
        "aux-convention": None if answers.aux_convention is None else _quoted(answers.aux_convention),
    }
    listed = ", ".join(map(_quoted, engines))
    lines = [HEAD, f"engines = [{listed}]" if engines else '# engines = ["vllm>=0.22", "sglang"]']
    lines += ["", "[defaults]", *(f"# open: {printable(question)}" for question in questions)]
    for key, value in given.items():
        lines.append(f"# {HOW_TO_ANSWER[key]}" if value is None else f"{key} = {value}")
    if answers.semantics:
        lines += ["", "[defaults.source-semantics]"]
        lines += [f"{_quoted(key)} = {_quoted(value)}" for key, value in answers.semantics.items()]
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    """The text as TOML's basic string, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
