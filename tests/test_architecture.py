"""Architecture: the order of packages, the homes of third-party packages, light imports, and style limits."""

import ast
import graphlib
import inspect
import pydoc
import re
import shutil
import subprocess
import sys
import typing
from functools import cache
from pathlib import Path

import pytest

import eaglectl
from eaglectl.cli.commands import COMMANDS
from eaglectl.formats.catalogue import FORMATS
from tests.builders import loaded_after
from tests.conftest import FIXTURES
from tests.modules import tree_of

ROOT = Path(eaglectl.__file__).parent
# an import may only point to a package listed before its own
PACKAGES = (
    "text shell errors progress project options base verdicts files drafter formats engines target reference"
    " conversion judge run comparison publish results report api in_engine terminal commands cli __main__"
)
# the packages and modules that may import a third-party package
HOMES = {
    "torch": (
        "run/sglang/",
        "run/vllm/",
        "run/installed.py",
        "run/logits.py",
        "files/pickles.py",
        "conversion/upgrade.py",
        "reference/",
    ),
    "safetensors": (
        "run/vllm/connector.py",
        "run/resolved.py",
        "run/logits.py",
        "files/pickles.py",
        "reference/",
    ),
    "numpy": (
        "drafter/floats.py",
        "run/measurement.py",
        "run/probes.py",
        "comparison.py",
        "conversion/",
        "judge/scanning.py",
    ),
    "packaging": ("engines/",),
    "rich": ("report/terminal.py", "terminal.py"),
    "typer": ("cli/", "commands/"),
    "vllm": ("run/vllm/",),
    "sglang": ("run/sglang/", "in_engine/sglang.py"),
    "jsonschema": ("run/http.py", "judge/rules/config.py"),
    "httpx2": ("run/http.py",),
    "anyio": ("run/http.py",),
    "huggingface_hub": ("files/hub.py", "files/hub_client.py", "files/hub_requests.py", "publish/"),
    "transformers": ("reference/",),
}
FILES = sorted(ROOT.rglob("*.py"))


@cache
def imported(path: Path) -> set[str]:
    """Modules that a file imports, anywhere in it, for types too."""
    modules: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules


def users_of(package: str) -> set[str]:
    """Files that import a package, or a module in it."""
    importing = (path for path in FILES if package in {name.split(".")[0] for name in imported(path)})
    return {path.relative_to(ROOT).as_posix() for path in importing}


def imports_ahead(path: Path) -> list[str]:
    """Imports of a package that is not listed before the file's own."""
    here = path.relative_to(ROOT).parts[0].removesuffix(".py")
    order = PACKAGES.split()
    allowed = {here, *order[: order.index(here)]}
    own = [module for module in imported(path) if module.startswith("eaglectl.")]
    return [f"{path.relative_to(ROOT)}: {module}" for module in own if module.split(".")[1] not in allowed]


def test_imports_only_look_back() -> None:
    assert [line for path in FILES if path != ROOT / "__init__.py" for line in imports_ahead(path)] == []


def test_no_command_imports_another() -> None:
    commands = ROOT / "commands"
    crossings = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in commands.glob("*/*.py")
        for module in imported(path)
        if module.startswith("eaglectl.commands.")
        and (commands / module.split(".")[2]).is_dir()
        and module.split(".")[2] != path.parent.name
    ]
    assert crossings == []


def without_line(table: Path, name: str) -> str:
    """The table of commands without the entry of one."""
    text = table.read_text(encoding="utf-8")
    entries = next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Dict))
    entry = next(
        value
        for key, value in zip(entries.keys, entries.values, strict=True)
        if key and ast.literal_eval(key) == name
    )
    lines = text.splitlines(keepends=True)
    return "".join(lines[: entry.lineno - 1] + lines[entry.end_lineno :])


@pytest.mark.fast(3)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_its_folder_its_line_and_its_public_names(name: str, tmp_path: Path) -> None:
    copy = shutil.copytree(ROOT, tmp_path / "eaglectl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copy / "commands" / name)
    (copy / "cli/commands.py").write_text(without_line(copy / "cli/commands.py", name))
    for public in (copy / "__init__.py", copy / "__init__.pyi"):
        lines = public.read_text().splitlines()
        public.write_text("\n".join(line for line in lines if f".commands.{name}." not in line))
    package = f"eaglectl.commands.{name}"
    naming = [path for path in copy.rglob("*.py") if package in path.read_text()]
    assert not [path for path in naming if any(module.startswith(package) for module in imported(path))]
    other = "validate" if name == "inspect" else "inspect"
    calls = [["--help"], [other, "--help"], [other, str(FIXTURES / "producers/vllm/native")], [name]]
    code = f"""
import sys, eaglectl
from eaglectl.cli import run
values = [getattr(eaglectl, name) for name in dir(eaglectl)]
print([run(call) for call in {calls!r}], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.endswith("\n[0, 0, 0, 2]\n"), done.stderr
    assert f"\n  {name} " not in done.stdout and f"\n  {other} " in done.stdout


def modules_imported(path: Path) -> set[Path]:
    """Files of eaglectl that a file imports, anywhere in it, for types too."""
    names = imported(path) | {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    parts = [name.split(".")[1:] for name in names if name.startswith("eaglectl.")]
    files = {(ROOT.joinpath(*part[:-1]) / f"{part[-1]}.py") for part in parts}
    return {file for file in files if file.is_file()}


WITH_MODULES = sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").exists())


@pytest.mark.parametrize("name", WITH_MODULES)
def test_no_package_has_an_import_cycle(name: str) -> None:
    graph = {
        path.relative_to(ROOT).as_posix(): {
            module.relative_to(ROOT).as_posix()
            for module in modules_imported(path)
            if module.is_relative_to(ROOT / name)
        }
        for path in (ROOT / name).rglob("*.py")
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names one


@pytest.mark.parametrize("package", HOMES)
def test_a_third_party_package_has_one_home(package: str) -> None:
    users = users_of(package)
    assert users
    assert [user for user in users if not user.startswith(HOMES[package])] == []


# a producer's name that is compared, matched, looked up or looked up by, and lists of names
NAME = r"\w+\.(?:producer|layout)\b(?!\.)|(?:format|layout)\.name\b"
LITERAL = r"[(\[{]?[\"']"
BRANCHES = re.compile(
    rf"(?:{NAME}) (?:==|!=|in|not in) {LITERAL}|{LITERAL}[\w.-]+[\"'] (?:==|!=) (?:{NAME})"
    rf"|match (?:\w+\.)*(?:{NAME})|\w\[(?:\w+\.)*(?:{NAME})\]|\.(?:get|startswith)\((?:\w+\.)*(?:{NAME})"
    r"|\bby_name\([\"']"
)
NAMES = {format.name for format in FORMATS} - {"vllm", "sglang", "llama.cpp"}


def named_producers(text: str) -> list[int]:
    """The lines of code whose outcome a producer's name decides, and those that list two names or more."""
    lines = enumerate(text.splitlines(), 1)
    listed = rf"[\"'](?:{'|'.join(map(re.escape, sorted(NAMES)))})[\"']"
    return [n for n, line in lines if BRANCHES.search(line) or len(re.findall(listed, line)) > 1]


def test_no_code_branches_on_a_producers_name() -> None:
    others = [path for path in FILES if path.parent.name != "producers"]
    lines = [
        f"{path.relative_to(ROOT)}:{line}" for path in others for line in named_producers(path.read_text())
    ]
    assert lines == [], "make it a field of Format (eaglectl/formats/format.py)"


@pytest.mark.parametrize(
    "code",
    [
        'if format.name == "automodel": pass',
        'x = drafter.producer != "automodel"',
        'x = plan.layout in ("vllm", "speculators")',
        'UNSTATED = ("automodel", "modelopt", "modelopt-megatron")',
        'SCHEMAS = {"peagle": 1, "native": 2}',
        "x = SCHEMAS[drafter.producer]",
        "x = SCHEMAS.get(format.name, 1)",
        'x = by_name("specforge").title',
        "match request.layout:\n    case _: pass",
    ],
)
def test_a_branch_on_a_producers_name_is_found(code: str) -> None:
    assert set(named_producers(code)) == {1}


def test_validate_loads_no_other_command() -> None:
    folder = ROOT.parent / "fixtures/producers/vllm/native"
    validate = f"eaglectl.validate({str(folder)!r}, eaglectl.ValidateOptions(headers_only=True))"
    loaded = loaded_after(f"import eaglectl; {validate}")
    others = {"packaging", "eaglectl.publish", "eaglectl.api.convert", "eaglectl.run", "rich"}
    assert not others & loaded


def test_eaglectl_shows_the_whole_api() -> None:
    imports = [
        node
        for node in ast.parse((ROOT / "__init__.pyi").read_text()).body
        if isinstance(node, ast.ImportFrom)
    ]
    stated = {alias.name: node.module for node in imports for alias in node.names}
    assert stated == eaglectl._MODULES  # type: ignore[attr-defined]
    assert set(dir(eaglectl)) == {*stated, "__version__"}


@pytest.mark.parametrize("name", [name for name in dir(eaglectl) if name != "__version__"])
def test_a_public_name_can_be_looked_up_in_a_notebook(name: str) -> None:
    item = getattr(eaglectl, name)
    inspect.signature(item)
    typing.get_type_hints(item)
    assert name in pydoc.render_doc(item) and inspect.getdoc(item)


def test_every_public_function_and_module_is_documented() -> None:
    for path in FILES:
        tree = tree_of(path)
        assert ast.get_docstring(tree), path
        for node in tree.body:
            is_overload = any(ast.unparse(each) == "overload" for each in getattr(node, "decorator_list", ()))
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_" and not is_overload:
                assert ast.get_docstring(node), f"{path.name}: {node.name}"


def test_temporary_folders_have_one_home() -> None:
    # elsewhere one would stay when a signal or a kill ends the run
    assert users_of("tempfile") == {"files/scratch.py"}
