"""Write which releases have what eaglectl takes of engines (`python -m tools.scan.record_interface SOURCES`).

SOURCES are wheels, or folders with what they hold. What each release was found to have is kept in
tests/tools/interface/, with an extract of the oldest and the newest release that holds just these names.
"""

import ast
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglectl.engines.behaviour import release_order
from eaglectl.engines.data import FOLDER
from eaglectl.errors import EaglectlError, UnreadableError
from eaglectl.terminal import say
from tools.scan.interface import FILE, Modules, Name, has_names, names, own_attributes, split, statements
from tools.scan.sources import Sources

KEPT = Path(__file__).parents[2] / "tests/tools/interface"
ANSWERS = KEPT / "answers.json"
# of an engine: the parts of each name that a release has; by release and name
Answers = Mapping[str, Mapping[str, Sequence[str]]]


def main() -> int:
    """Scan the sources of the arguments, and write what is kept of them and the data file."""
    try:
        record([Path(argument) for argument in sys.argv[1:]])
    except EaglectlError as error:
        say(f"eaglectl: {error}", sys.stderr)
        return error.exit_code
    return 0


def record(paths: Sequence[Path]) -> None:
    """Scan sources, and write what is kept of them and the data file. Raises UnreadableError."""
    kept = {engine: dict(kept_answers(engine)) for engine in ("vllm", "sglang")}
    extracts = {}
    for path in paths:
        sources = Sources(path)
        modules = Modules(sources)
        if (found := has_names(sources, modules)) is None:
            raise UnreadableError(f"{path}: it does not hold the engine's entry point")
        kept[sources.package][sources.release] = found
        extracts[sources.package, sources.release] = extract(sources.package, modules)
    data = {engine: stated(engine, answers) for engine, answers in kept.items() if answers}
    for (engine, release), files in extracts.items():
        if release in (data[engine]["read"][0], data[engine]["read"][-1]):
            (KEPT / f"{engine}-{release}.json").write_text(json.dumps(files, indent=0) + "\n")
    ANSWERS.write_text(written({engine: packed(engine, answers) for engine, answers in kept.items()}))
    (FOLDER / FILE).write_text(written(data))


def kept_answers(engine: str) -> Answers:
    """What is kept of each release; a name that was not looked for is absent."""
    table = json.loads(ANSWERS.read_text())[engine]
    releases = table["read"]
    return {
        release: {
            row["name"]: [part for part, marks in row["found"].items() if marks[index] == "y"]
            for row in table["names"]
            if all(marks[index] != "?" for marks in row["found"].values())
        }
        for index, release in enumerate(releases)
    }


def packed(engine: str, answers: Answers) -> Mapping[str, Any]:
    """What was found, a letter for each release: y, n, or ? where a name was not looked for."""
    releases = sorted(answers, key=release_order)
    rows = [
        {
            "name": row.name,
            "found": {part: "".join(mark(answers[release], row, part) for release in releases)
                      for part in row.where},
        }
        for row in names(engine)
    ]  # fmt: skip
    return {"read": releases, "names": rows}


def mark(found: Mapping[str, Sequence[str]], row: Name, part: str) -> str:
    """The letter for a part of a name in one release."""
    if row.name not in found:
        return "?"
    return "y" if part in found[row.name] else "n"


def stated(engine: str, answers: Answers) -> Mapping[str, Any]:
    """The table of an engine: its declarations, with the releases by what was found.

    Raises UnreadableError for a name that sources of some release are still to be scanned for.
    """
    table = packed(engine, answers)
    rows = []
    for row, found in zip(names(engine), table["names"], strict=True):
        releases = {part: span(row.name, marks, table["read"]) for part, marks in found["found"].items()}
        declared = {"name": row.name, "kind": row.kind, "where": dict(row.where), "releases": releases}
        rows.append(declared | ({"without": row.without} if row.without else {}))
    return {"read": table["read"], "names": rows}


def span(name: str, marks: str, releases: Sequence[str]) -> str | None:
    """The range of the releases that have a name; None where none has it.

    Raises UnreadableError where one was not looked at, or where some between the first and the last lack it.
    """
    if "?" in marks:
        missing = [release for release, letter in zip(releases, marks, strict=True) if letter == "?"]
        raise UnreadableError(f"{name} was not looked for in {', '.join(missing)}: give their sources too")
    if "y" not in marks:
        return None
    first, last = marks.index("y"), marks.rindex("y")
    if "n" in marks[first:last]:
        raise UnreadableError(f"{name}: releases between {releases[first]} and {releases[last]} lack it")
    return f">={releases[first]}" + ("" if last == len(marks) - 1 else f",<={releases[last]}")


def written(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of a file: each name on a line."""
    parts = []
    for engine, table in tables.items():
        rows = ",\n".join(f"   {json.dumps(row)}" for row in table["names"])
        read = json.dumps(table["read"])
        parts.append(f' "{engine}": {{\n  "read": {read},\n  "names": [\n{rows}\n  ]\n }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def extract(engine: str, modules: Modules) -> Mapping[str, str]:
    """The package's files with nothing but the definitions that were looked at, functions without bodies."""
    files: dict[str, list[ast.stmt]] = {}
    for path, visited in modules.visited.items():
        kept = [node for node in statements(modules.tree(path)) if node in visited]
        files[path] = [part for node in kept for part in bare(node, visited)]
    places = [part for row in names(engine) for whole in row.where.values() for part in whole.split(" | ")]
    for place in places:
        path, text, code = split(place)[:3]
        path = f"{path}__init__.py" if path.endswith("/") else path
        if modules.hold(place) and (text or code):
            files.setdefault(path, []).extend(fragment(code) if code else [assigned("_", ast.Constant(text))])
        elif modules.tree(path) is not None:
            files.setdefault(path, [])
    return {path: ast.unparse(ast.Module(body, [])) for path, body in sorted(files.items())}


def bare(node: ast.AST, visited: set[ast.AST]) -> Iterator[ast.stmt]:
    """A definition without what was not looked at."""
    match node:
        case ast.ClassDef(name=name, bases=bases):
            parts = [part for part in ast.walk(node) if part in visited and part is not node]
            attributes = sorted({name for part in parts for name in own_attributes(part)})
            body = [line for part in parts if not own_attributes(part) for line in bare(part, visited)]
            if attributes:
                lines = "; ".join(f"self.{attribute} = None" for attribute in attributes)
                body += ast.parse(f"def __init__(self):\n    {lines}").body
            yield ast.ClassDef(name, bases, [], body or [ast.Pass()], [])
        case ast.FunctionDef(name=name, args=arguments) | ast.AsyncFunctionDef(name=name, args=arguments):
            words = [part.arg for part in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            yield ast.parse(f"def {name}({', '.join(words)}): ...").body[0]
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            value = node.value if isinstance(node.value, ast.Name) else None
            yield assigned(name, value or ast.Constant(None))
        case ast.Import() | ast.ImportFrom():
            yield node


def assigned(name: str, value: ast.expr) -> ast.stmt:
    """name = value."""
    return ast.fix_missing_locations(ast.Assign([ast.Name(name)], value))


def fragment(code: str) -> list[ast.stmt]:
    """A piece of code as the statement that it begins."""
    for end in ("", "()", ":\n    pass"):
        try:
            return ast.parse(code + end).body
        except SyntaxError:
            continue
    raise ValueError(f"{code}: not a piece of Python")


if __name__ == "__main__":
    sys.exit(main())
