"""The house: imports look back only, each third-party package has one home, and importing eaglectl stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import eaglectl
from eaglectl import api

ROOT = Path(eaglectl.__file__).parent
# rooms of one station may not import each other
RANK = {"errors": 0, "terminal": 1, "checkpoint": 1, "drafter": 2, "formats": 3, "engines": 3, "reference": 3, "conversion": 4, "validation": 4, "acceptance": 4, "comparison": 5, "publishing": 5, "reports": 5, "api": 6, "demo": 7, "cli": 8}  # fmt: skip
HOMES = {
    "torch": {
        "checkpoint/pickles.py",
        "conversion/upgrade.py",
        "reference/collecting.py",
        "reference/loading.py",
        "reference/model.py",
        "reference/passes.py",
        "reference/rope.py",
        "reference/speculation.py",
        "reference/target.py",
        "acceptance/vllm_child.py",
        "acceptance/vllm_connector.py",
    },
    "safetensors": {"checkpoint/pickles.py", "reference/loading.py", "acceptance/vllm_connector.py"},
    "numpy": {
        "conversion/aux_blocks.py",
        "conversion/mla.py",
        "conversion/calibration.py",
        "conversion/upgrade.py",
        "drafter/vocabulary.py",
        "conversion/arithmetic.py",
        "acceptance/measurement.py",
        "comparison/values.py",
        "validation/scanning.py",
    },
    "packaging": {"engines/facts.py", "engines/catalogue.py"},
    "rich": {
        "reports/comparison.py",
        "reports/engines.py",
        "reports/fixing.py",
        "reports/inspections.py",
        "reports/upgrade.py",
        "reports/text.py",
        "reports/smoke.py",
        "reports/upload.py",
        "reports/validation.py",
        "reports/rulebook.py",
        "terminal.py",
    },
    "typer": {
        "cli/calibrate.py",
        "cli/app.py",
        "cli/convert.py",
        "cli/demo.py",
        "cli/diff.py",
        "cli/engines.py",
        "cli/explain.py",
        "cli/fixing.py",
        "cli/inspect.py",
        "cli/options.py",
        "cli/rules.py",
        "cli/smoke.py",
        "cli/upload.py",
        "cli/validate.py",
        "cli/verify.py",
    },
    "model_signing": {"publishing/signature.py"},
    "vllm": {"acceptance/vllm_child.py", "acceptance/vllm_states_child.py", "acceptance/vllm_connector.py"},
    "jsonschema": {"validation/config_schema.py"},
    "huggingface_hub": {"checkpoint/hub.py", "publishing/calls.py", "publishing/remote.py"},
    "transformers": {"reference/target.py"},
}
FILES = sorted(ROOT.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Modules that a file imports, anywhere in it, outside `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def room(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    "path", [path for path in FILES if path != ROOT / "__init__.py"], ids=lambda path: str(path.relative_to(ROOT))
)
def test_imports_only_look_back(path: Path) -> None:
    here = room(path)
    for module in imported(path):
        if module.startswith("eaglectl.") and module != "eaglectl.__init__":
            there = module.split(".")[1]
            assert there == here or RANK[there] < RANK[here], f"{here} imports {there}"


@pytest.mark.parametrize("package", HOMES)
def test_a_third_party_package_has_one_home(package: str) -> None:
    users = {
        str(path.relative_to(ROOT)) for path in FILES if any(name.split(".")[0] == package for name in imported(path))
    }
    assert users == HOMES[package]


def loaded_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


HEAVY = {"torch", "transformers", "numpy", "huggingface_hub", "jsonschema", "rich", "safetensors"}


def test_importing_eaglectl_stays_light() -> None:
    assert not HEAVY & loaded_after("import eaglectl")


def test_the_command_line_stays_light_until_a_command_runs() -> None:
    assert not HEAVY & loaded_after("import eaglectl.cli")


def test_inspect_loads_no_numpy_and_no_torch() -> None:
    folder = ROOT.parent / "fixtures/producers/vllm/native"
    loaded = loaded_after(f"import eaglectl; eaglectl.inspect({str(folder)!r})")
    assert not (HEAVY - {"rich"}) & loaded


def test_validate_loads_no_other_verb() -> None:
    folder = ROOT.parent / "fixtures/producers/vllm/native"
    loaded = loaded_after(f"import eaglectl; eaglectl.validate({str(folder)!r}, headers_only=True)")
    assert not (HEAVY | {"packaging", "eaglectl.publishing", "eaglectl.api.converting", "eaglectl.acceptance"}) & loaded


def test_every_verb_of_the_api_has_its_home() -> None:
    assert sorted(name for names in api.HOMES.values() for name in names) == api.__all__
    assert all(getattr(api, name) for name in api.__all__)


def test_convert_loads_no_torch(tmp_path: Path) -> None:
    folder = ROOT.parent / "fixtures/producers/vllm/native"
    assert "torch" not in loaded_after(f"import eaglectl; eaglectl.convert({str(folder)!r}, {str(tmp_path / 'out')!r})")


def test_every_public_function_and_module_is_documented() -> None:
    for path in FILES:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path.name}: {node.name}"
