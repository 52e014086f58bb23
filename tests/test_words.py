"""Values decide and sentences tell: no code looks into a message, a fix or a reason that eaglectl wrote."""

import ast
import hashlib
import json
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl import errors
from eaglectl.drafter.drafter import Note
from eaglectl.engines.behaviour import AppliedFact
from eaglectl.errors import EaglectlError
from eaglectl.formats.commands import Step
from eaglectl.judge import judgement
from eaglectl.report.acceptance import smoke_outline
from eaglectl.report.findings import reports_outline
from eaglectl.run.results import Reason
from tests.builders import drafter_folder, floats
from tests.cases import STATED
from tests.conftest import FIXTURES
from tests.pages import smoke_report
from tests.validation.judging import every_patch
from tests.validation.patches import Patch

PACKAGE = Path(eaglectl.__file__).parent
# what a text is, beside those of errors
TEXTS = {
    "text", "message", "fix", "reason", "reasons", "words", "why", "how", "gap", "gaps", "failures", "title",
}  # fmt: skip
SEARCHES = {
    "partition", "rpartition", "split", "rsplit", "startswith", "endswith", "replace", "removeprefix",
    "removesuffix", "find", "index", "count", "splitlines", "isdigit", "isdecimal", "isnumeric", "isalpha",
    "isalnum", "isupper", "islower", "isspace",
}  # fmt: skip
ERRORS = {"error", "refusal", "failure"}
PATTERNS = {"search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split"}
# where text is made safe, and commands are read from documentation
MAKERS = {"text.py", "shell.py", "formats/commands.py"}
# errors of Python, of torch, of engines and of servers, which have no other field; the SOURCE as it was given
# and the message of a commit, which are the user's
FOREIGN = {
    "files/hub_requests.py: not_here", "commands/upload/run.py: _make_plan", "run/http.py: shown",
    "errors.py: error_text", "errors.py: input_error", "files/opcodes.py: read_pickle",
    "publish/card.py: _with_front_matter", "reference/target_model.py: _loading",
    "run/process.py: error_answer", "target/files.py: read_target_config", "in_engine/hooks.py: guarded",
}  # fmt: skip


def _is_text(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="report"), attr="notes"):  # elsewhere notes are values
            return True
        case ast.Attribute(attr=name):
            return name in TEXTS
        case ast.Name(id=name):
            return name in names
        case ast.Subscript(value=value) | ast.Starred(value=value):
            return _is_text(value, names)
        case ast.IfExp(body=first, orelse=second) | ast.BinOp(left=first, right=second):
            return _is_text(first, names) or _is_text(second, names)
        case ast.FormattedValue(value=value):
            return _is_text(value, names)
        case (
            ast.Tuple(elts=parts)
            | ast.List(elts=parts)
            | ast.BoolOp(values=parts)
            | ast.JoinedStr(values=parts)
        ):
            return any(_is_text(part, names) for part in parts)
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]):
            return f"error {name}" in names or name in ERRORS
        case ast.Call(func=ast.Attribute(value=value)):
            return _is_text(value, names)
    return False


@cache
def _parts(function: ast.FunctionDef) -> list[ast.AST]:
    return [*ast.walk(function)]


def _text_names(function: ast.FunctionDef, given: set[str]) -> set[str]:
    """The names of a function that hold texts, and of errors that it catches, as "error NAME".

    `given` are its parameters that callers give texts.
    """
    names = {f"error {node.name}" for node in _parts(function) if isinstance(node, ast.ExceptHandler)}
    names |= given
    for node in _parts(function):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = list(zip(targets, values, strict=False))
            case ast.FunctionDef(args=ast.arguments(args=arguments, kwonlyargs=others)):
                names |= {argument.arg for argument in (*arguments, *others)} & (TEXTS - {"text", "how"})
            case ast.Assign(targets=[target], value=value) | ast.NamedExpr(target=target, value=value):
                pairs = [(target, value)]
            case ast.comprehension(target=target, iter=value) | ast.For(target=target, iter=value):
                pairs = [(target, value)]
        for target, value in pairs:
            made = value.elt if isinstance(value, ast.ListComp | ast.GeneratorExp) else value
            if isinstance(target, ast.Name) and _is_text(made, names):
                names.add(target.id)
    return names


def _looks(node: ast.AST, names: set[str]) -> bool:
    match node:
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn(), *_], comparators=[searched, *_]):
            return _is_text(searched, names) or _is_text(left, names)
        case ast.Call(func=ast.Attribute(value=value, attr=method), args=arguments):
            is_cut = method in SEARCHES and _is_text(value, names)
            return is_cut or (method in PATTERNS and any(_is_text(argument, names) for argument in arguments))
    return False


def _given_texts(
    function: ast.FunctionDef, names: set[str], parameters: dict[str, list[str]]
) -> Iterator[tuple[str, str]]:
    """The functions and their parameters that a function of the same module gives texts."""
    for node in _parts(function):
        match node:
            case ast.Call(func=ast.Name(id="map"), args=[ast.Name(id=called), *arguments]):
                keywords = []
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(value=ast.Name(id="self"), attr=called),
                args=arguments,
                keywords=keywords,
            ):
                pass
            case _:
                continue
        pairs = [*zip(parameters.get(called, ()), arguments, strict=False)]
        pairs += [(keyword.arg or "", keyword.value) for keyword in keywords]
        yield from ((called, name) for name, argument in pairs if _is_text(argument, names))


def looked_into(source: str) -> Iterator[str]:
    """The functions of a module that look into a text, or into a parameter that another one gives a text."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    parameters = {
        node.name: [argument.arg for argument in node.args.args if argument.arg != "self"]
        for node in functions
    }
    given: dict[str, set[str]] = {node.name: set() for node in functions}
    names, changed = dict[ast.FunctionDef, set[str]](), functions
    while changed:
        names |= {node: _text_names(node, given[node.name]) for node in changed}
        pairs = {pair for node in changed for pair in _given_texts(node, names[node], parameters)}
        pairs = {(called, name) for called, name in pairs if name not in given.get(called, {name})}
        for called, name in pairs:
            given[called].add(name)
        changed = [node for node in functions if node.name in {called for called, _ in pairs}]
    for node in functions:
        if any(_looks(part, names[node]) for part in _parts(node)):
            yield node.name


def places() -> set[str]:
    modules = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    return {
        f"{module}: {name}"
        for module, path in modules.items()
        if module not in MAKERS
        for name in looked_into(path.read_text())
    }


def test_no_code_looks_into_a_text_that_eaglectl_wrote() -> None:
    assert places() - FOREIGN == set()


@pytest.mark.parametrize(
    "line",
    [
        "return 'convert' in finding.fix",
        "return note.text.partition('; pass')[0]",
        "fix = finding.fix\n    return re.search('convert', fix)",
        "return any(part in text for text in [each.reason for each in found] for part in text)",
        "texts = [each.message for each in found]\n    return any('x' in text for text in texts)",
        "if why := verdict.reasons:\n        return why[0].startswith('x')",
        "try:\n        f()\n    except ValueError as error:\n        return '--drop' in str(error)",
        "return PATTERN.findall(finding.match.message)",
        "return any(character.isdigit() for character in finding.title)",
        "return 'x' in f'{finding.source}: {finding.message}'",
        "return 'x' in (finding.fix or 'y')",
    ],
)
def test_the_lint_finds_what_it_is_for(line: str) -> None:
    assert [*looked_into(f"def decide(finding, note, found):\n    {line}\n")] == ["decide"]


@pytest.mark.parametrize(
    "call",
    ["[*map(cut, (*report.failures, *report.gaps))]", "cut(report.notes[0])", "cut(text=report.title)"],
)
def test_the_lint_follows_a_text_into_the_functions_that_get_it(call: str) -> None:
    module = f"def decide(report):\n    return {call}\ndef cut(text):\n    return text.rpartition(': ')[2]\n"
    assert [*looked_into(module)] == ["cut"]


@pytest.mark.parametrize(
    "line",
    [
        "return finding.option in options",
        "return f'{finding.fix}'",
        "return text in known",
        "return part.split(',')",
    ],
)
def test_the_lint_leaves_values_alone(line: str) -> None:
    assert not [*looked_into(f"def decide(finding, part):\n    {line}\n")]


def noise(text: str) -> str:
    """Another text for each text, in which no word of it is left."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _noisy(text: Any, owner: object) -> str:
    return noise(text(owner))


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Every error, note, finding, fix and reason says noise."""
    bounded = judgement._bounded
    for kind in (Note, Step):
        text: Any = kind.__dict__["text"].fget
        monkeypatch.setattr(kind, "text", property(partial(_noisy, text)))
    monkeypatch.setattr(errors, "printable", noise)
    applied = "eaglectl.engines.engine.AppliedFact"
    monkeypatch.setattr(applied, lambda fact, text, option: AppliedFact(fact, noise(text), option))
    monkeypatch.setattr(
        judgement,
        "_bounded",
        lambda matches: (replace(match, message=noise(match.message)) for match in bounded(matches)),
    )
    return monkeypatch


def decided(folder: Path, **given: Any) -> list[object]:
    """Return what inspect, validate and a dry conversion decide: outcomes, exit codes and commands."""
    decisions: list[object] = []
    for function in (_inspected, _validated, _converted):
        try:
            decisions.append(function(str(folder), **given))
        except EaglectlError as error:
            decisions.append((type(error), error.exit_code, error.topic, error.option))
    return decisions


def _inspected(source: str, **given: Any) -> object:
    result = eaglectl.inspect(source, **given)
    outcomes = [(verdict.engine, verdict.release, verdict.outcome) for verdict in result.verdicts]
    return outcomes, result.following.command, [*result.following.choices], result.commands, result.validate


def _validated(source: str, **given: Any) -> object:
    report = eaglectl.validate(source, **given)
    findings = [(finding.rule.id, finding.severity, finding.match.where) for finding in report.findings]
    commands = [offered.line for change in report.changes for offered in change.commands]
    offered = [command.line for finding in report.findings for command in finding.repair.commands]
    outcomes = [(verdict.release, verdict.outcome, verdict.rules) for verdict in report.releases]
    following = [report.following.command, *report.following.choices, reports_outline([report]).next]
    return report.verdict, findings, commands, offered, outcomes, following


def _converted(source: str, **given: Any) -> object:
    result = eaglectl.convert(source, None, dry_run=True, measure=None, **given)
    serving = [(row.verdict.engine, row.verdict.outcome, row.is_worse) for row in result.serving]
    return serving, [(step.name, step.action, step.stored) for step in result.plan.steps], result.is_missed


def test_what_a_finding_reports_is_not_stated_again(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, tensors={"fc.weight": floats("fc", 16, 50)})
    report = eaglectl.validate(str(folder))
    (finding,) = (finding for finding in report.findings if finding.severity == "error")
    assert finding.match.key in {gap.key for gap in report.unchecked}
    assert not any("do not describe one drafter" in str(line) for line in reports_outline([report]).cause)


@pytest.mark.parametrize("kind", ["failure", "gap", "note"])
def test_the_next_command_of_a_measurement_is_no_part_of_a_sentence(kind: Any) -> None:
    report = replace(smoke_report(verdict="pass"), against=None)
    shown = [
        smoke_outline(replace(report, reasons=(Reason(kind, words, ("eaglectl inspect x",)),)))
        for words in ("do this", noise("do this"), "do `this`: `that`")
    ]
    assert {outline.next for outline in shown} == {"eaglectl inspect x"}


SAMPLED = [
    pytest.param(case, id=case.path, marks=[pytest.mark.slow] if number % 9 else [])
    for number, case in enumerate(STATED)
]


# of these a conversion that a fix offers is the next command
OFFERED = ("bfloat16 as float16", "an unknown tensor")


@pytest.mark.parametrize("target", [None, str(FIXTURES / "target")])
@pytest.mark.parametrize("case", SAMPLED)
def test_other_words_of_a_producers_files_change_no_decision(
    case: Any, target: str | None, noisy: pytest.MonkeyPatch
) -> None:
    shown = decided(case.folder, target=target)
    noisy.undo()
    assert decided(case.folder, target=target) == shown


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(
            patch, id=patch.why, marks=[pytest.mark.slow] if number % 40 and patch.why not in OFFERED else []
        )
        for number, patch in enumerate(every_patch(besides=__name__))
    ],
)
def test_other_words_of_a_bad_drafter_change_no_decision(
    patch: Patch, noisy: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = None
    if patch.target_config is not None:
        target = tmp_path / "target"
        target.mkdir()
        (target / "config.json").write_text(json.dumps(patch.target_config))
    folder = patch.build(tmp_path)
    shown = decided(folder, target=target)
    noisy.undo()
    assert decided(folder, target=target) == shown
