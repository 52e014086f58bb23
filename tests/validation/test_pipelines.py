"""The hook and the action: they parse, name real options, and run."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from eaglectl.reports.ci.outputs import FORMATS
from tests.builders import STATED, call, drafter_folder
from tests.conftest import FIXTURES
from tests.hub import TOKEN, LoopbackHub, Reply, Request, User

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
    install = next(script for script in scripts if "pip install" in script)
    assert '--require-hashes --only-binary :all: --requirement "$ACTION/requirements/run.txt"' in install
    assert '"${pip[@]}" "$ACTION"' in install and "--no-deps" in install
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
    assert list(publishing["jobs"]) == ["publish"]
    assert hooks[0]["hooks"][0]["id"] == HOOK["id"]
    assert re.search(hooks[0]["hooks"][0]["files"], "drafters/a/config.json")


# the job that publishes a release


WORKFLOW: dict[str, Any] = next(
    yaml.safe_load(text)
    for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    if text.startswith("name: publish")
)
JOB = WORKFLOW["jobs"]["publish"]
STEPS = {step["name"]: step for step in JOB["steps"] if "run" in step}


def test_the_publishing_job_has_what_it_needs_and_no_more() -> None:
    # YAML 1.1 reads `on` as true
    assert WORKFLOW[True] == {"release": {"types": ["published"]}}
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert JOB["permissions"] == {"contents": "read", "id-token": "write"}
    assert "env" not in WORKFLOW and "env" not in JOB
    assert [name for name, step in STEPS.items() if "HF_OIDC_RESOURCE" in step.get("env", {})] == ["publish"]
    actions = [step["uses"] for step in JOB["steps"] if "uses" in step]
    assert actions == ["actions/checkout@v4", "actions/checkout@v4", "actions/setup-python@v5"]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|[0-9a-f]{40})", action) for action in actions)
    scripts = [step["run"] for step in STEPS.values()]
    assert not any("${{" in script for script in scripts)
    assert "--require-hashes" in STEPS["install"]["run"]
    assert "requirements/run.txt" in STEPS["install"]["run"] and (ROOT / "requirements/run.txt").is_file()


class Runner:
    """The steps of the job in plain bash, in order; `uses:` and the installation are the test's own work."""

    def __init__(self, folder: Path, hub: LoopbackHub) -> None:
        self.folder, self.path = folder, folder / "bin"
        (folder / "temp").mkdir()
        self.path.mkdir()
        commands = {
            "eaglectl": "from eaglectl.cli import main",
            "hf": "from huggingface_hub.cli.hf import main",
        }
        for name, source in commands.items():
            shim = self.path / name
            shim.write_text(f"#!{sys.executable}\n{source}\nmain()\n")
            shim.chmod(0o755)
        self.environment = {
            "PATH": f"{self.path}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder / "home"),
            "RUNNER_TEMP": str(folder / "temp"),
            "HF_ENDPOINT": hub.endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "GITHUB_ACTIONS": "true",
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{hub.endpoint}/id-token?api-version=2.0",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "request-token-of-the-job",
        }

    def run(self, step: dict[str, Any], event: dict[str, str]) -> subprocess.CompletedProcess[str]:
        given = {
            name: re.sub(r"\$\{\{ github\.event\.release\.(\w+) \}\}", lambda match: event[match[1]], value)
            for name, value in step.get("env", {}).items()
        }
        return subprocess.run(
            ["bash", "-eo", "pipefail", "-c", step["run"]],
            env=self.environment | given,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )


IDENTITY = "id_" + "plantedIdentity" * 3


def mint(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
    """GitHub's answer to a job that asks for its identity."""
    if request.path != "/id-token":
        return None
    assert request.token == "request-token-of-the-job"
    return Reply(body=json.dumps({"value": IDENTITY}).encode(), headers={"Content-Type": "application/json"})


@pytest.mark.slow
@pytest.mark.parametrize("is_trusted", [True, False])
def test_the_publishing_job_runs(is_trusted: bool, tmp_path: Path) -> None:
    with LoopbackHub() as hub:
        hub.users[TOKEN] = User("publisher", ("ORG",))
        hub.faults.append(mint)
        if is_trusted:
            hub.trusted[IDENTITY, "ORG/NAME"] = TOKEN
        repo = hub.add_repo("ORG/NAME", {})
        drafter_folder(tmp_path, "drafters/llama", card=STATED)
        runner, event = Runner(tmp_path, hub), {"tag_name": "v1.2"}
        done = {}
        for name, step in STEPS.items():
            if name == "install":  # the environment of this test is used
                continue
            done[name] = runner.run(step, event)
            said = done[name].stdout + done[name].stderr
            assert TOKEN not in said and IDENTITY not in said
            if done[name].returncode:
                break
        if is_trusted:
            assert [run.returncode for run in done.values()] == [0, 0, 0], said
            assert list(done) == ["validate", "publish", "verify"]
            assert repo.tags == {"v1.2": repo.head()} and len(repo.log()) == 2
            assert b'"revision": "v1.2"' in bytes(repo.files()["README.md"].data)  # type: ignore[arg-type]
        else:
            assert done["publish"].returncode == 3 and "trusted publisher" in done["publish"].stderr
            assert repo.tags == {} and len(repo.log()) == 1
        # only the step that uploads asked for an identity
        asked = [request.path for request in hub.requests if request.path in ("/id-token", "/oauth/token")]
        assert asked[:2] == ["/id-token", "/oauth/token"]
        assert not [request for request in hub.requests if request.token == TOKEN and not is_trusted]


def test_an_old_client_is_told_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_OIDC_RESOURCE", "org/drafter")
    monkeypatch.setattr("huggingface_hub.__version__", "1.18.0")
    done = call("upload", drafter_folder(tmp_path, card=STATED), "org/drafter", "--direct")
    assert done.code == 3 and "'huggingface-hub>=1.19'" in done.err and "this is 1.18.0" in done.err
