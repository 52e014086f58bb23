"""Architecture: the order of packages, the homes of third-party packages, light imports, and style limits."""

import ast
import dataclasses
import graphlib
import importlib
import inspect
import pydoc
import re
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from msgspec import Struct

import eaglectl
from eaglectl.formats.catalogue import FORMATS
from tests.builders import loaded_after

ROOT = Path(eaglectl.__file__).parent
# an import may only point to a package listed before its own
PACKAGES = (
    "text",
    "shell",
    "errors",
    "options",
    "base",
    "progress",
    "verdicts",
    "keywords",
    "files",
    "drafter",
    "formats",
    "engines",
    "target",
    "reference",
    "conversion",
    "judge",
    "run",
    "comparison",
    "publish",
    "results",
    "report",
    "operations",
    "terminal",
    "commands",
    "cli",
    "__main__",
)
# the packages and modules that may import a third-party package
HOMES = {
    "torch": (
        "run/sglang/",
        "run/vllm/",
        "run/installed.py",
        "files/pickles.py",
        "conversion/upgrade.py",
        "reference/",
    ),
    "safetensors": ("run/vllm/connector.py", "files/pickles.py", "reference/"),
    "numpy": (
        "run/measurement.py",
        "run/probes.py",
        "comparison/",
        "conversion/",
        "drafter/vocabulary.py",
        "judge/scanning.py",
    ),
    "packaging": ("engines/",),
    "rich": ("report/terminal.py", "terminal.py"),
    "typer": ("cli/", "commands/"),
    "vllm": ("run/vllm/",),
    "sglang": ("run/sglang/",),
    "jsonschema": ("run/server/client.py", "judge/rules/config.py"),
    "httpx2": ("run/server/client.py",),
    "anyio": ("run/server/client.py",),
    "huggingface_hub": (
        "files/hub.py",
        "files/hub_client.py",
        "files/hub_requests.py",
        "publish/",
    ),
    "transformers": ("reference/target.py",),
}
FILES = sorted(ROOT.rglob("*.py"))


@cache
def imported(path: Path) -> set[str]:
    """Modules that a file imports, anywhere in it, for types too."""
    tree = ast.parse(path.read_text())
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules


def package(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0].removesuffix(".py")


def imports_ahead(path: Path) -> list[str]:
    """Imports of a package that is not listed before the file's own."""
    here = package(path)
    allowed = {here, *PACKAGES[: PACKAGES.index(here)]}
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


def modules_imported(path: Path) -> set[Path]:
    """Files of eaglectl that a file imports, anywhere in it, for types too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    parts = [name.split(".")[1:] for name in names if name.startswith("eaglectl.")]
    files = {(ROOT.joinpath(*part[:-1]) / f"{part[-1]}.py") for part in parts}
    return {file for file in files if file.is_file()}


def import_cycle(graph: dict[str, set[str]]) -> list[str]:
    """One cycle of the graph, its first node repeated at the end; empty where there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


WITH_MODULES = sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").exists())


@pytest.mark.parametrize(
    "name",
    WITH_MODULES,
)
def test_no_package_has_an_import_cycle(name: str) -> None:
    graph = {
        path.relative_to(ROOT).as_posix(): {
            module.relative_to(ROOT).as_posix()
            for module in modules_imported(path)
            if module.is_relative_to(ROOT / name)
        }
        for path in (ROOT / name).rglob("*.py")
    }
    assert import_cycle(graph) == []


def test_a_cycle_of_imports_is_seen() -> None:
    assert import_cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert set(import_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}


MEDIA = ("ci", "json", "terminal")
# the formats of --output are those of several media
ALL_MEDIA = ROOT / "report/ci/outputs.py"


@pytest.mark.parametrize("medium", MEDIA)
def test_a_medium_of_reports_imports_no_other(medium: str) -> None:
    others = tuple(f"eaglectl.report.{name}." for name in MEDIA if name != medium)
    for path in (ROOT / "report" / medium).rglob("*.py"):
        if path != ALL_MEDIA:
            assert not [name for name in imported(path) if f"{name}.".startswith(others)], path


@pytest.mark.parametrize("package", HOMES)
def test_a_third_party_package_has_one_home(package: str) -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for path in FILES
        if any(name.split(".")[0] == package for name in imported(path))
    }
    assert users
    assert [user for user in users if not user.startswith(HOMES[package])] == []


# expressions that hold a producer's name, and what is compared with it or looked up by it
PRODUCER = re.compile(r"(^|\.)(producer|layout|format\.name|layout\.name)$")
NAMES = {format.name for format in FORMATS}
ENGINES = {"vllm", "sglang", "llama.cpp"}


def texts(node: ast.AST) -> set[str]:
    """The texts of a literal: one, or those of a tuple, list, set or the keys of a dict."""
    items = getattr(node, "elts", None) or getattr(node, "keys", None) or [node]
    return {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)}


def named_producers(tree: ast.AST) -> Iterator[int]:
    """The lines of code whose outcome a producer's name decides."""
    for node in ast.walk(tree):
        if _is_named(node):
            yield node.lineno  # type: ignore[attr-defined]


def _is_named(node: ast.AST) -> bool:
    """Whether a producer's name is compared, looked up, listed, or looked up by."""
    match node:
        case ast.Compare():
            sides = [node.left, *node.comparators]
            return any(NAMES & texts(side) for side in sides) and any(map(_is_producer, sides))
        case ast.Match():
            return _is_producer(node.subject)
        case ast.Subscript():
            return _is_producer(node.slice)
        case ast.Call(func=ast.Attribute(attr="get" | "startswith")):
            return any(map(_is_producer, [node.func.value, *node.args]))
        case ast.Call(func=ast.Name(id="by_name")):
            return any(map(texts, node.args))
        case ast.Tuple() | ast.List() | ast.Set() | ast.Dict():
            listed = texts(node)
            return len(listed) > 1 and listed <= NAMES and not listed <= ENGINES
    return False


def _is_producer(node: ast.AST) -> bool:
    return PRODUCER.search(ast.unparse(node)) is not None


def test_no_code_branches_on_a_producers_name() -> None:
    others = [path for path in FILES if path.parent.name != "producers"]
    lines = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in others
        for line in named_producers(ast.parse(path.read_text()))
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
    assert set(named_producers(ast.parse(code))) == {1}


HEAVY = {"torch", "transformers", "numpy", "huggingface_hub", "jsonschema", "rich", "safetensors", "httpx2"}


def test_importing_eaglectl_stays_light() -> None:
    assert not HEAVY & loaded_after("import eaglectl")


def test_the_command_line_stays_light_until_a_command_runs() -> None:
    assert not HEAVY & loaded_after("import eaglectl.cli")


def test_inspect_loads_no_numpy_and_no_torch() -> None:
    folder = ROOT.parent / "fixtures/producers/vllm/native"
    loaded = loaded_after(f"import eaglectl; eaglectl.inspect({str(folder)!r})")
    assert not (HEAVY - {"rich"}) & loaded


def test_validate_loads_no_other_command() -> None:
    folder = ROOT.parent / "fixtures/producers/vllm/native"
    validate = f"eaglectl.validate({str(folder)!r}, eaglectl.ValidateOptions(headers_only=True))"
    loaded = loaded_after(f"import eaglectl; {validate}")
    others = {"packaging", "eaglectl.publish", "eaglectl.operations.converting", "eaglectl.run"}
    assert not (HEAVY | others) & loaded


def test_eaglectl_shows_the_whole_api() -> None:
    imports = [
        node
        for node in ast.parse((ROOT / "__init__.pyi").read_text()).body
        if isinstance(node, ast.ImportFrom)
    ]
    names = {alias.name for node in imports for alias in node.names}
    assert set(dir(eaglectl)) == {*names, "__version__"}


@pytest.mark.parametrize("name", [name for name in dir(eaglectl) if name != "__version__"])
def test_a_public_name_can_be_looked_up_in_a_notebook(name: str) -> None:
    item = getattr(eaglectl, name)
    inspect.signature(item)
    typing.get_type_hints(item)
    assert name in pydoc.render_doc(item) and inspect.getdoc(item)


def test_a_name_outside_the_api_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'eaglectl' has no attribute 'bogus'"):
        getattr(eaglectl, "bogus")  # noqa: B009


def test_convert_loads_no_torch(tmp_path: Path) -> None:
    folder = ROOT.parent / "fixtures/producers/vllm/native"
    assert "torch" not in loaded_after(
        f"import eaglectl; eaglectl.convert({str(folder)!r}, {str(tmp_path / 'out')!r})"
    )


def test_every_public_function_and_module_is_documented() -> None:
    for path in FILES:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path
        for node in tree.body:
            is_overload = any(ast.unparse(each) == "overload" for each in getattr(node, "decorator_list", ()))
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_" and not is_overload:
                assert ast.get_docstring(node), f"{path.name}: {node.name}"


def descendants(base: type) -> set[type]:
    return {base}.union(*map(descendants, base.__subclasses__()))


def own_classes() -> Iterator[type]:
    """Every class of the package, as far as it can be imported without an engine."""
    for path in FILES:
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        if name.endswith("__main__") or "run.vllm.connector" in name:
            continue
        for item in vars(importlib.import_module(name)).values():
            if isinstance(item, type) and item.__module__ == name:
                yield item


def test_a_record_is_a_struct_unless_a_field_is_hidden() -> None:
    for item in own_classes():
        if dataclasses.is_dataclass(item):
            fields = [field for kind in descendants(item) for field in dataclasses.fields(kind)]
            bases = [field for base in item.__bases__ for field in getattr(base, "__dataclass_fields__", {})]
            assert bases or not all(field.init and field.repr and field.compare for field in fields), item
        elif issubclass(item, Struct):
            # Struct takes the dataclass function `field` for a default, in silence
            assert not any(isinstance(value, dataclasses.Field) for value in item.__struct_defaults__), item


def test_temporary_folders_have_one_home() -> None:
    # elsewhere one would stay when a signal or a kill ends the run
    users = {path.relative_to(ROOT).as_posix() for path in FILES if "tempfile" in imported(path)}
    assert users == {"files/scratch.py"}
