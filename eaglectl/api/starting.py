"""`init`: an eaglectl.toml with what was answered, and the questions that are open."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglectl.api.inspecting import inspect
from eaglectl.api.keywords import StrPath, path_text, with_keywords
from eaglectl.api.open_questions import OpenQuestions, measured_questions
from eaglectl.api.options import InitOptions
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import UnreadableError, UsageError
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import known_semantics
from eaglectl.progress import OnProgress
from eaglectl.reports.output_files import write_file
from eaglectl.results import Start
from eaglectl.text import printable
from eaglectl.validation.policy_file import POLICY_FILE, may_hold_policy, parse_policy

HEAD = """# What eaglectl takes from here, in this folder and below it, where the command line says nothing.
# Written by `eaglectl init`.
"""
# a fact of a trainer in a question: rope=plain
FACT = re.compile(r"(?<![\w=.-])([a-z][a-z0-9_-]*)=([\w.,-]*\w)")
HOW_TO_ANSWER = {
    "target": 'target = "my-target"  # the target model: its folder (from this file) or Hub repository',
    "aux-layers": "aux-layers = [2, 16, 29]  # the trained aux layers as boundaries",
    "aux-convention": 'aux-convention = "boundary"  # what the file\'s layer ids mean: boundary or output',
}


@with_keywords
def init(
    source: StrPath | None = None,
    target: StrPath | None = None,
    options: InitOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> Start:
    """Write eaglectl.toml with the given answers, and return what stays open.

    With a `source` it is inspected first. What `inspect` asks about it is measured where the target runs
    here; what stays open becomes comments of the file. Raises UsageError where the file is there and
    `options.force` is not given, and what `inspect` raises.
    """
    source, target, options = path_text(source), path_text(target), options or InitOptions()
    path = (options.folder or Path()) / POLICY_FILE
    if path.exists() and not options.force:
        raise UsageError(f"{path} is there; edit it, or replace it with --force")
    judged = () if source is None else (source,)
    if not may_hold_policy(path.parent.absolute(), judged):
        raise UsageError(
            f"{path} lies in a checkpoint or a download, where none is read; run this in a folder around it"
        )
    found, questions = OpenQuestions(options.answers), tuple[str, ...]()
    if source is not None:
        found = measured_questions(source, target, options.answers, options.measure, on_progress)
        inspection = inspect(source, target=target, engines=options.engines, answers=found.answers)
        questions = tuple(_questions(inspection.drafter))
    measured = tuple(answer.text for answer in found.measured)
    comments = (*measured, *(f"open: {question}" for question in questions))
    if questions and found.gap:
        comments = (*comments, found.gap)
    text = _file_text(target, options.engines, found.answers, comments, _asked(questions))
    parse_policy(tomllib.loads(text), str(path), path.parent)
    try:
        write_file(path, text)
    except OSError as error:
        raise UnreadableError(f"{path} was not written: {error.strerror}; give another folder") from None
    return Start(path, questions, measured)


def _questions(drafter: Drafter) -> Iterator[str]:
    """What an answer settles; a network that no engine computes is no question."""
    return (note.text for note in drafter.unsettled if note.level == "question" or note.choices)


def _asked(questions: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """The facts that questions ask for by --source-semantics, with the values named; all where it is one."""
    facts: dict[str, dict[str, None]] = {}
    for question in questions:
        for key, value in FACT.findall(question if "--source-semantics" in question else ""):
            facts.setdefault(key, {})[value] = None
    known = known_semantics()
    return {
        key: tuple(values) if len(values) > 1 else known.get(key) or tuple(values)
        for key, values in facts.items()
    }


def _file_text(
    target: str | None,
    engines: Sequence[str],
    answers: Answers,
    comments: Sequence[str],
    asked: Mapping[str, Sequence[str]],
) -> str:
    given = {
        "target": None if target is None else _quoted(target),
        "aux-layers": None if answers.aux_layers is None else str(list(answers.aux_layers)),
        "aux-convention": None if answers.aux_convention is None else _quoted(answers.aux_convention),
    }
    listed = ", ".join(map(_quoted, engines))
    lines = [HEAD, f"engines = [{listed}]" if engines else '# engines = ["vllm>=0.22", "sglang"]']
    lines += ["", "[defaults]", *(f"# {printable(comment)}" for comment in comments)]
    for key, value in given.items():
        answer = f"# {HOW_TO_ANSWER[key]}" if value is None else f"{key} = {value}"
        lines.append(answer + _how_answered(answers, f"--{key}"))
    if answers.assume:
        lines.append("assume = true")
    return "\n".join([*lines, *_facts(answers, asked), ""])


def _facts(answers: Answers, asked: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The lines of source-semantics: what was answered, and each value that is asked for as a comment."""
    commented = [(key, _quoted(value)) for key, values in asked.items() for value in values]
    if not answers.semantics and len(asked) < 2:
        yield from (f"# source-semantics = {{ {key} = {value} }}" for key, value in commented)
        return
    yield from ("", "[defaults.source-semantics]")
    for key, value in answers.semantics.items():
        yield f"{_quoted(key)} = {_quoted(value)}{_how_answered(answers, key)}"
    yield from (f"# {key} = {value}" for key, value in commented)


def _how_answered(answers: Answers, key: str) -> str:
    """The comment on an answer that the user did not give: that it was measured, and by how much."""
    origin = answers.origins.get(key)
    return f"  # {origin.by}: {printable(origin.evidence)}" if origin else ""


def _quoted(text: str) -> str:
    """The text as TOML's basic string, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
