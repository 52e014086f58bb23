"""The hook and the action: they parse, name real options, and run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from eaglectl.files.opening import open_source
from eaglectl.formats.other_drafters import why_other
from eaglectl.report.ci.outputs import FORMATS
from tests.builders import STATED, call, drafter_folder
from tests.cases import CASES, Case
from tests.conftest import FIXTURES
from tests.hub import TOKEN, LoopbackHub, Reply, Request, User

ROOT = FIXTURES.parent
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
HOOK: dict[str, Any] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[0]
ACTION_STEPS: dict[str, dict[str, Any]] = {
    step["id"]: step for step in ACTION["runs"]["steps"] if "id" in step
}
SCRIPT: str = ACTION_STEPS["validate"]["run"]
ENTRY: list[str] = shlex.split(HOOK["entry"])[1:]


def options() -> set[str]:
    return set(re.findall(r"--[a-z-]+", call("validate", "--help-all").out))


@pytest.mark.parametrize("text", [HOOK["entry"], SCRIPT], ids=["hook", "action"])
def test_the_options_of_pipelines_exist(text: str) -> None:
    used = set(re.findall(r"(?<![\w-])--[a-z-]+", text))
    assert used and used <= options()


def test_the_hook_matches_configs_and_indexes_and_judges_their_folders(tmp_path: Path) -> None:
    pattern = re.compile(HOOK["files"])
    assert pattern.search("a/config.json") and pattern.search("model.safetensors.index.json")
    assert not pattern.search("tokenizer_config.json")
    folder = drafter_folder(tmp_path)
    assert call(*ENTRY, folder / "config.json").code == 0
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert call(*ENTRY, folder / "config.json").code == 1


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


# what the hook's pattern matches and is no drafter's: the config's text, and why it is skipped
OTHERS = {
    "another tool's": ('{"debug": true}', "config.json has no mark of a drafter"),
    "of another tool, with a comment": ('{"port": 80} // for tests', "is no JSON object"),
    "a list": ("[1, 2]", "is no JSON object"),
    "nothing": ("", "is no JSON object"),
    "a model's": ('{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}', "(LlamaForCausalLM)"),
    "a head of another method": ('{"speculators_model_type": "mtp"}', "multi-token-prediction"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_hook_skips_what_is_no_drafters(name: str, tmp_path: Path) -> None:
    config, why = OTHERS[name]
    (tmp_path / "config.json").write_text(config)
    done = call(*ENTRY, tmp_path / "config.json")
    assert done.code == 0 and f"SKIPPED {tmp_path}: not judged" in done.out
    assert why in " ".join(done.out.split()) and "skipped  not judged" in done.out


@pytest.mark.parametrize("source", ["target", "tiny/target"])
def test_the_hook_skips_a_target_and_its_index(source: str, tmp_path: Path) -> None:
    folder = tmp_path / "target"
    shutil.copytree(FIXTURES / source, folder)
    index = {"metadata": {}, "weight_map": {"model.layers.0.self_attn.q_proj.weight": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    done = call(*ENTRY, folder / "config.json", folder / "model.safetensors.index.json")
    assert done.code == 0 and done.out.count("SKIPPED ") == 1
    (folder / "config.json").unlink()
    assert call(*ENTRY, folder / "model.safetensors.index.json").code == 0


# what has a mark of a drafter: what is broken in it, and the exit code
BROKEN: dict[str, tuple[Callable[[Path], object], int]] = {
    "a config that is no JSON": (
        lambda folder: (folder / "config.json").write_text('{"draft_vocab_size": 96,,}'),
        1,
    ),
    "weights that are no safetensors": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 9),
        1,
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), 1),
    "a config without marks": (
        lambda folder: (folder / "config.json").write_text('{"hidden_size": 16, "vocab_size": 64}'),
        1,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_hook_skips_no_drafter_that_is_broken(name: str, tmp_path: Path) -> None:
    damage, code = BROKEN[name]
    folder = drafter_folder(tmp_path)
    damage(folder)
    done = call(*ENTRY, folder / "config.json")
    assert done.code == code and "skipped" not in done.out, done


def test_a_folder_that_cannot_be_read_is_not_skipped(tmp_path: Path) -> None:
    done = call(*ENTRY, tmp_path / "gone")
    assert done.code == 3 and "could-not-look" in done.out
    (tmp_path / "config.json").symlink_to(tmp_path / "gone.json")
    assert call(*ENTRY, tmp_path).code in (1, 3)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_no_drafter_of_any_producer_is_skipped_even_without_weights(case: Case, tmp_path: Path) -> None:
    source = open_source(str(FIXTURES / "producers" / case.path))
    assert why_other(source) == ""
    shutil.copyfile(FIXTURES / "producers" / case.path / "config.json", tmp_path / "config.json")
    assert why_other(open_source(str(tmp_path))) == ""


def test_skipped_is_worse_than_nothing_and_hides_nothing(tmp_path: Path) -> None:
    other, good, bad = tmp_path / "other", drafter_folder(tmp_path, "good"), drafter_folder(tmp_path, "bad")
    other.mkdir()
    (other / "config.json").write_text("{}")
    (bad / "pytorch_model.bin").write_bytes(b"x")
    for sources, verdict, code in [
        ((other,), "skipped", 0),
        ((other, good), "pass", 0),
        ((other, good, bad), "fail", 1),
        ((other, tmp_path / "gone"), "could-not-look", 3),
    ]:
        done = call("validate", "--headers-only", "--skip-others", "--json", *sources)
        assert (done.document["verdict"], done.code) == (verdict, code)
    assert call("validate", "--headers-only", other).code == 1  # without the option nothing is skipped


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_report_says_what_was_skipped(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    text = call("validate", "--skip-others", "--format", name, tmp_path).out
    assert "skipped" in text and "has no mark of a drafter" in text


def runner(tmp_path: Path) -> dict[str, str]:
    """The environment of a job whose install step has run: the environment of this test."""
    folder = tmp_path / "temp/eaglectl/bin"
    folder.mkdir(parents=True)
    shims = {"eaglectl": "from eaglectl.cli import main\nmain()", "python": ""}
    (folder / "eaglectl").write_text(f"#!{sys.executable}\n{shims['eaglectl']}\n")
    (folder / "eaglectl").chmod(0o755)
    (folder / "python").symlink_to(sys.executable)
    return {
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GITHUB_OUTPUT": str(tmp_path / "out"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_PATH": str(tmp_path / "path"),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
    }


def inputs(**given: str) -> dict[str, str]:
    """The inputs of the action as its script gets them, with their defaults."""
    environment = ACTION_STEPS["validate"]["env"]
    names = {value.removeprefix("${{ inputs.").removesuffix(" }}"): key for key, value in environment.items()}
    default = {key: str(ACTION["inputs"][name].get("default", "")) for name, key in names.items()}
    return default | given


def run_script(script: str, tmp_path: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)


def outputs(tmp_path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (tmp_path / "out").read_text().splitlines())


@pytest.mark.parametrize(("is_bad", "code"), [(False, 0), (True, 1)])
def test_the_actions_script_runs(is_bad: bool, code: int, tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, "a drafter; $(touch evil)")
    if is_bad:
        (folder / "pytorch_model.bin").write_bytes(b"x")
    given = inputs(SOURCE=f"{folder}\n", ENGINE="vllm==0.32.0\nsglang\n", HEADERS_ONLY="true")
    done = run_script(SCRIPT, tmp_path, runner(tmp_path) | given)
    assert done.returncode == code, done.stderr
    verdict = "fail" if is_bad else "pass"
    assert outputs(tmp_path) == {"verdict": verdict, "sarif": "eaglectl.sarif"}
    results = json.loads((tmp_path / "eaglectl.sarif").read_text())["runs"][0]["results"]
    assert ("EGL002" in {result["ruleId"] for result in results}) is is_bad
    assert done.stdout.splitlines()[-1] == f"eaglectl: {verdict}"
    assert (tmp_path / "summary").read_text().startswith("## eaglectl validate")
    assert not (tmp_path / "evil").exists() and not (tmp_path / "path").exists()


def test_the_actions_answers_and_arguments_arrive(tmp_path: Path) -> None:
    source = FIXTURES / "producers/specforge/gqa-ids"
    given = inputs(SOURCE=str(source), TARGET=str(FIXTURES / "target"), ENGINE="vllm==0.32.0")
    environment = runner(tmp_path)
    assert run_script(SCRIPT, tmp_path, environment | given).returncode == 1
    answers = {
        "AUX_LAYERS": "2,4,5",
        "AUX_CONVENTION": "boundary",
        "SOURCE_SEMANTICS": "rope=stored\n",
    }
    done = run_script(SCRIPT, tmp_path, environment | given | answers)
    assert done.returncode in (0, 1) and "2, 4, 5" in done.stdout + (tmp_path / "eaglectl.sarif").read_text()
    wrong = given | {"ARGS": "--select=EGL002\n--no-such option; touch evil\n"}
    (tmp_path / "out").unlink()
    done = run_script(SCRIPT, tmp_path, environment | wrong)
    assert done.returncode == 2 and outputs(tmp_path)["verdict"] == "" and not (tmp_path / "evil").exists()
    (tmp_path / "out").unlink()
    done = run_script(SCRIPT, tmp_path, environment | given | {"ARGS": "--select=EGL002\n\n"})
    assert done.returncode == 0 and outputs(tmp_path)["verdict"] == "pass"


def test_the_action_changes_no_python_of_the_job(tmp_path: Path) -> None:
    text = (ROOT / "action.yml").read_text()
    assert "GITHUB_PATH" not in text and "GITHUB_ENV" not in text
    setup = ACTION_STEPS["newer-python"]
    assert setup["with"]["update-environment"] is False and "steps.python.outputs.path == ''" in setup["if"]


def test_the_action_takes_the_first_python_that_is_new_enough(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, name, text in [
        (old, "python3", "exit 1"),
        (new, "python3.11", f'exec "{sys.executable}" "$@"'),
    ]:
        folder.mkdir()
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bash").symlink_to(shutil.which("bash") or "")
    script, environment = ACTION_STEPS["python"]["run"], {"GITHUB_OUTPUT": str(tmp_path / "out")}
    for folders, found in [((old, new), f"path={new / 'python3.11'}\n"), ((old,), "")]:
        (tmp_path / "out").write_text("")
        path = ":".join(map(str, (*folders, tmp_path / "bin")))
        assert run_script(script, tmp_path, environment | {"PATH": path}).returncode == 0
        assert (tmp_path / "out").read_text() == found


PAGE = (ROOT / "docs/pipelines.md").read_text()
PUBLISHING = (ROOT / "docs/publish.md").read_text()


def test_the_page_names_every_format_and_real_options() -> None:
    assert set(re.findall(r"^\| `([a-z]+)` \|", PAGE, re.MULTILINE)) == set(FORMATS)
    calls = " ".join(re.findall(r"eaglectl validate .*", PAGE))
    assert set(re.findall(r"--[a-z-]+", calls)) <= options()


def test_the_workflows_of_the_page_parse_and_give_real_inputs() -> None:
    action, _, hooks = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    assert set(action["steps"][1]["with"]) <= set(ACTION["inputs"])
    assert hooks[0]["hooks"][0]["id"] == HOOK["id"]
    assert re.search(hooks[0]["hooks"][0]["files"], "drafters/a/config.json")


# the job that publishes a release


WORKFLOW: dict[str, Any] = yaml.safe_load(PUBLISHING.partition("```yaml\n")[2].partition("```")[0])
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
