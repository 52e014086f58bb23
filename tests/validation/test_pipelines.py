"""The hook and the action: they parse, name real options, and run."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from eaglectl.reports.ci.outputs import FORMATS
from tests.builders import call, drafter_folder
from tests.conftest import FIXTURES

ROOT = FIXTURES.parent
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
HOOK: dict[str, Any] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[0]
SCRIPT: str = next(step["run"] for step in ACTION["runs"]["steps"] if step.get("id") == "validate")


def options() -> set[str]:
    return set(re.findall(r"--[a-z-]+", call("validate", "--help").out))


@pytest.mark.parametrize("text", [HOOK["entry"], SCRIPT], ids=["hook", "action"])
def test_the_options_of_pipelines_exist(text: str) -> None:
    used = set(re.findall(r"(?<![\w-])--[a-z-]+", text))
    assert used and used <= options()


def test_the_hook_matches_configs_and_indexes_and_judges_their_folders(tmp_path: Path) -> None:
    pattern = re.compile(HOOK["files"])
    assert pattern.search("a/config.json") and pattern.search("model.safetensors.index.json")
    assert not pattern.search("tokenizer_config.json")
    folder = drafter_folder(tmp_path)
    assert call(*shlex.split(HOOK["entry"])[1:], folder / "config.json").code == 0
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert call(*shlex.split(HOOK["entry"])[1:], folder / "config.json").code == 1


def test_the_action_installs_its_own_checkout_and_trusts_no_input() -> None:
    scripts = [step["run"] for step in ACTION["runs"]["steps"] if "run" in step]
    assert any('pip install --quiet --disable-pip-version-check "$ACTION"' in script for script in scripts)
    assert not any("${{" in script for script in scripts)
    named = {
        name
        for step in ACTION["runs"]["steps"]
        for name in re.findall(r"inputs\.([a-z-]+)", json.dumps(step))
    }
    assert named == set(ACTION["inputs"])


@pytest.mark.parametrize(("is_bad", "code"), [(False, 0), (True, 1)])
def test_the_actions_script_runs(is_bad: bool, code: int, tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, "a drafter; $(touch evil)")
    if is_bad:
        (folder / "pytorch_model.bin").write_bytes(b"x")
    shim = tmp_path / "bin/eaglectl"
    shim.parent.mkdir()
    shim.write_text(f"#!{sys.executable}\nfrom eaglectl.cli import main\nmain()\n")
    shim.chmod(0o755)
    given = {
        name.upper().replace("-", "_"): str(value.get("default", ""))
        for name, value in ACTION["inputs"].items()
    }
    given |= {"SOURCE": f"{folder}\n", "ENGINE": "vllm==0.32.0\nsglang\n", "HEADERS_ONLY": "true"}
    given |= {
        "GITHUB_OUTPUT": str(tmp_path / "out"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "PATH": f"{shim.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", SCRIPT], env=given, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "out").read_text() == "sarif=eaglectl.sarif\n"
    results = json.loads((tmp_path / "eaglectl.sarif").read_text())["runs"][0]["results"]
    assert ("EGL002" in {result["ruleId"] for result in results}) is is_bad
    assert done.stdout.splitlines()[-1] == f"eaglectl: {'fail' if is_bad else 'pass'}"
    assert (tmp_path / "summary").read_text().startswith("## eaglectl validate")
    assert not (tmp_path / "evil").exists()


PAGE = (ROOT / "docs/pipelines.md").read_text()


def test_the_page_names_every_format_and_real_options() -> None:
    assert set(re.findall(r"^\| `([a-z]+)` \|", PAGE, re.MULTILINE)) == set(FORMATS)
    calls = " ".join(re.findall(r"eaglectl validate .*", PAGE))
    assert set(re.findall(r"--[a-z-]+", calls)) <= options()


def test_the_workflows_of_the_page_parse_and_give_real_inputs() -> None:
    action, publishing, _, hooks = (
        yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    )
    assert set(action["steps"][1]["with"]) <= set(ACTION["inputs"])
    assert "HF_OIDC_RESOURCE" in publishing["env"] and publishing["permissions"] == {"id-token": "write"}
    used = set(re.findall(r"--[a-z-]+", publishing["steps"][0]["run"]))
    assert used and used <= set(re.findall(r"--[a-z-]+", call("upload", "--help").out))
    assert hooks[0]["hooks"][0]["id"] == HOOK["id"]
    assert re.search(hooks[0]["hooks"][0]["files"], "drafters/a/config.json")
