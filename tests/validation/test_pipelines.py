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

from eaglectl.files.checkpoint import open_source
from eaglectl.formats.other_drafters import why_other
from eaglectl.report.outputs import FORMATS
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


PAGE = (ROOT / "docs/pipelines.md").read_text()


def test_the_options_of_pipelines_exist() -> None:
    options = set(re.findall(r"--[a-z-]+", call("validate", "--help-all").out))
    on_the_page = " ".join(re.findall(r"eaglectl validate .*", PAGE))
    for text in (HOOK["entry"], SCRIPT, on_the_page):
        used = set(re.findall(r"(?<![\w-])--[a-z-]+", text))
        assert used and used <= options
    assert set(re.findall(r"^\| `([a-z]+)` \|", PAGE, re.MULTILINE)) == set(FORMATS)


def test_the_hook_matches_configs_and_indexes_and_judges_their_folders(tmp_path: Path) -> None:
    pattern = re.compile(HOOK["files"])
    assert pattern.search("a/config.json") and pattern.search("model.safetensors.index.json")
    assert not pattern.search("tokenizer_config.json")
    folder = drafter_folder(tmp_path)
    assert call(*ENTRY, folder / "config.json").code == 0
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert call(*ENTRY, folder / "config.json").code == 1


def test_the_action_installs_its_own_checkout_trusts_no_input_and_changes_no_python_of_the_job() -> None:
    scripts = [step["run"] for step in ACTION["runs"]["steps"] if "run" in step]
    install = next(script for script in scripts if "pip install" in script)
    assert '--require-hashes --only-binary :all: --requirement "$ACTION/requirements/run.txt"' in install
    assert '"${pip[@]}" "$ACTION"' in install and "--no-deps" in install
    assert not any("${{" in script for script in scripts)
    assert set(re.findall(r"inputs\.([a-z-]+)", json.dumps(ACTION["runs"]))) == set(ACTION["inputs"])
    text = (ROOT / "action.yml").read_text()
    assert "GITHUB_PATH" not in text and "GITHUB_ENV" not in text
    setup = ACTION_STEPS["newer-python"]
    assert setup["with"]["update-environment"] is False and "steps.python.outputs.path == ''" in setup["if"]


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
    assert done.code == 0 and f"skipped: {tmp_path}: not judged" in done.out
    assert why in " ".join(done.out.split())


@pytest.mark.parametrize("source", ["target", "tiny/target"])
def test_the_hook_skips_a_target_and_its_index(source: str, tmp_path: Path) -> None:
    folder = tmp_path / "target"
    shutil.copytree(FIXTURES / source, folder)
    index = {"metadata": {}, "weight_map": {"model.layers.0.self_attn.q_proj.weight": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    done = call(*ENTRY, folder / "config.json", folder / "model.safetensors.index.json")
    assert done.code == 0 and done.out.count("skipped: ") == 1
    (folder / "config.json").unlink()
    assert call(*ENTRY, folder / "model.safetensors.index.json").code == 0


# what has a mark of a drafter, and what is broken in it
BROKEN = {
    "a config that is no JSON": ("config.json", b'{"draft_vocab_size": 96,,}'),
    "weights that are no safetensors": ("model.safetensors", b"\xff" * 9),
    "no weights": ("model.safetensors", None),
    "a config without marks": ("config.json", b'{"hidden_size": 16, "vocab_size": 64}'),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_hook_skips_no_drafter_that_is_broken(name: str, tmp_path: Path) -> None:
    file, data = BROKEN[name]
    folder = drafter_folder(tmp_path)
    (folder / file).unlink()
    if data:
        (folder / file).write_bytes(data)
    done = call(*ENTRY, folder / "config.json")
    assert done.code == 1 and "skipped" not in done.out, done


def test_a_folder_that_cannot_be_read_is_not_skipped(tmp_path: Path) -> None:
    done = call(*ENTRY, tmp_path / "gone")
    assert done.code == 3 and "could not look" in done.out
    (tmp_path / "config.json").symlink_to(tmp_path / "gone.json")
    assert call(*ENTRY, tmp_path).code in (1, 3)


@pytest.mark.fast(9)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_no_drafter_of_any_producer_is_skipped_even_without_weights(case: Case, tmp_path: Path) -> None:
    assert why_other(open_source(str(case.folder))) == ""
    shutil.copyfile(case.folder / "config.json", tmp_path / "config.json")
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


def command(folder: Path, name: str, module: str) -> None:
    """A command in a folder of commands, which is the function `main` of a module."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!{sys.executable}\nfrom {module} import main\nmain()\n")
    (folder / name).chmod(0o755)


def runner(tmp_path: Path) -> dict[str, str]:
    """The environment of a job whose install step has run: the environment of this test."""
    folder = tmp_path / "temp/eaglectl/bin"
    command(folder, "eaglectl", "eaglectl.cli")
    (folder / "python").symlink_to(sys.executable)
    places = {"RUNNER_TEMP": "temp", "GITHUB_OUTPUT": "out", "GITHUB_PATH": "path"}
    places["GITHUB_STEP_SUMMARY"] = "summary"
    files = {name: str(tmp_path / place) for name, place in places.items()}
    return {**files, "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}


def inputs(**given: str) -> dict[str, str]:
    """The inputs of the action as its script gets them, with their defaults."""
    environment = ACTION_STEPS["validate"]["env"]
    names = {value.removeprefix("${{ inputs.").removesuffix(" }}"): key for key, value in environment.items()}
    default = {key: str(ACTION["inputs"][name].get("default", "")) for name, key in names.items()}
    return default | given


def run_script(script: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-eo", "pipefail", "-c", script]
    return subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True)


def outputs(tmp_path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (tmp_path / "out").read_text().splitlines())


@pytest.mark.parametrize("is_bad", [False, True])
def test_the_actions_script_runs(is_bad: bool, tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, "a drafter; $(touch evil)")
    if is_bad:
        (folder / "pytorch_model.bin").write_bytes(b"x")
    given = inputs(SOURCE=f"{folder}\n", ENGINE="vllm==0.32.0\nsglang\n", HEADERS_ONLY="true")
    done = run_script(SCRIPT, tmp_path, runner(tmp_path) | given)
    assert done.returncode == is_bad, done.stderr
    verdict = "fail" if is_bad else "pass"
    assert outputs(tmp_path) == {"verdict": verdict, "sarif": "eaglectl.sarif"}
    results = json.loads((tmp_path / "eaglectl.sarif").read_text())["runs"][0]["results"]
    assert ("EGL002" in {result["ruleId"] for result in results}) is is_bad
    assert done.stdout.splitlines()[-1] == f"eaglectl: {verdict}"
    assert (tmp_path / "summary").read_text().startswith("## eaglectl validate")
    assert not (tmp_path / "evil").exists() and not (tmp_path / "path").exists()


OPEN = FIXTURES / "producers/specforge/gqa-ids"
ENDINGS: dict[str, tuple[dict[str, str], int, str]] = {
    "pass": ({"SOURCE": "good", "ENGINE": "vllm\n"}, 0, "pass"),
    "findings": ({"SOURCE": "bad"}, 1, "fail"),
    "an unknown release": ({"SOURCE": "good", "ENGINE": "vllm==99.0.0"}, 3, "could-not-look"),
    "findings of one of two": ({"SOURCE": "good\nbad\n"}, 1, "fail"),
    "a question": ({"SOURCE": "open", "ENGINE": "vllm==0.22.1"}, 3, "could-not-look"),
    "no such folder": ({"SOURCE": "gone"}, 3, "could-not-look"),
    "a folder that is no checkpoint": ({"SOURCE": "temp"}, 3, "could-not-look"),
    "no such target": ({"SOURCE": "good", "TARGET": "gone"}, 3, "could-not-look"),
    "skipped": ({"SOURCE": "other", "ARGS": "--skip-others\n"}, 0, "skipped"),
}


@pytest.mark.fast(3)
@pytest.mark.parametrize("name", ENDINGS)
def test_the_action_has_its_outputs_its_sarif_and_its_summary_however_it_ends(
    name: str, tmp_path: Path
) -> None:
    given, code, verdict = ENDINGS[name]
    drafter_folder(tmp_path, "good")
    (drafter_folder(tmp_path, "bad") / "pytorch_model.bin").write_bytes(b"x")
    shutil.copytree(OPEN, tmp_path / "open")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text("{}")
    sarif = "reports of a job.sarif"
    environment = runner(tmp_path) | {"GITHUB_ACTIONS": "true", "CI": "true"}
    done = run_script(SCRIPT, tmp_path, environment | inputs(SARIF=sarif, **given))
    assert done.returncode == code, done.stderr
    assert outputs(tmp_path) == {"verdict": verdict, "sarif": sarif}
    document = json.loads((tmp_path / sarif).read_text())
    assert document["version"] == "2.1.0" and len(document["runs"]) == 1
    summary = (tmp_path / "summary").read_text()
    assert summary.startswith(f"## eaglectl validate: {verdict}")
    # why it ends so stands where the job is read
    assert verdict == "pass" or len(done.stdout.splitlines()) > 1 or done.stderr


@pytest.mark.parametrize(
    "given",
    [{"FAIL_ON": "often"}, {"ARGS": "--no-such\n"}, {"POLICY": "gone.toml"}, {"AUX_LAYERS": "a"}],
    ids=lambda given: next(iter(given)),
)
def test_a_wrong_call_of_the_action_ends_in_2_without_a_verdict(
    given: dict[str, str], tmp_path: Path
) -> None:
    drafter_folder(tmp_path, "good")
    done = run_script(SCRIPT, tmp_path, runner(tmp_path) | inputs(SOURCE="good", **given))
    assert (done.returncode, outputs(tmp_path)["verdict"]) == (2, "")
    assert done.stderr.startswith("eaglectl: ") or "Error" in done.stderr


def test_the_report_of_an_earlier_call_in_the_job_is_not_taken_for_this_one(tmp_path: Path) -> None:
    drafter_folder(tmp_path, "good")
    environment = runner(tmp_path)
    assert run_script(SCRIPT, tmp_path, environment | inputs(SOURCE="good")).returncode in (0, 1)
    (tmp_path / "out").unlink()
    done = run_script(SCRIPT, tmp_path, environment | inputs(SOURCE="good", ARGS="--no-such\n"))
    assert done.returncode == 2 and outputs(tmp_path)["verdict"] == ""


def test_the_actions_answers_and_arguments_arrive(tmp_path: Path) -> None:
    source = FIXTURES / "producers/specforge/gqa-ids"
    given = inputs(SOURCE=str(source), TARGET=str(FIXTURES / "target"), ENGINE="vllm==0.32.0")
    environment = runner(tmp_path)
    answers = {"AUX_LAYERS": "2,4,5", "AUX_CONVENTION": "boundary", "SOURCE_SEMANTICS": "rope=stored\n"}
    done = run_script(SCRIPT, tmp_path, environment | given | answers)
    assert done.returncode == 0 and "trained on boundaries [2, 4, 5]" in done.stdout
    wrong = given | {"ARGS": "--select=EGL002\n--no-such option; touch evil\n"}
    (tmp_path / "out").unlink()
    done = run_script(SCRIPT, tmp_path, environment | wrong)
    assert done.returncode == 2 and outputs(tmp_path)["verdict"] == "" and not (tmp_path / "evil").exists()
    (tmp_path / "temp/eaglectl/bin/eaglectl").write_text('#!/bin/sh\necho "$@"\n')
    others = {"POLICY": "p.toml", "FAIL_ON": "note", "HEADERS_ONLY": "true", "ARGS": "-v\n"}
    words = run_script(SCRIPT, tmp_path, environment | given | answers | others).stdout
    for said in ("--aux-layers 2,4,5", "--aux-convention boundary", "--source-semantics rope=stored"):
        assert said in words
    assert f"--policy p.toml --fail-on note --headers-only -v -- {source}" in words


def test_the_action_takes_the_first_python_that_is_new_enough(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    commands = {old / "python3": "exit 1", new / "python3.11": f'exec "{sys.executable}" "$@"'}
    for path, text in commands.items():
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bash").symlink_to(shutil.which("bash") or "")
    script, environment = ACTION_STEPS["python"]["run"], {"GITHUB_OUTPUT": str(tmp_path / "out")}
    for folders, found in [((old, new), f"path={new / 'python3.11'}\n"), ((old,), "")]:
        (tmp_path / "out").write_text("")
        environment["PATH"] = ":".join(map(str, (*folders, tmp_path / "bin")))
        assert run_script(script, tmp_path, environment).returncode == 0
        assert (tmp_path / "out").read_text() == found


def test_the_workflows_of_the_page_parse_and_give_real_inputs() -> None:
    action, _, hooks = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    assert set(action["steps"][1]["with"]) <= set(ACTION["inputs"])
    assert hooks[0]["hooks"][0]["id"] == HOOK["id"]
    assert re.search(hooks[0]["hooks"][0]["files"], "drafters/a/config.json")


# the job that publishes a release


PUBLISHING = (ROOT / "docs/publish.md").read_text()
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


def of_job(folder: Path, hub: LoopbackHub) -> dict[str, str]:
    """The environment of the job's steps, of which `uses:` and the installation are the test's own work."""
    (folder / "temp").mkdir()
    command(folder / "bin", "eaglectl", "eaglectl.cli")
    command(folder / "bin", "hf", "huggingface_hub.cli.hf")
    return {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder / "home"),
        "RUNNER_TEMP": str(folder / "temp"),
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_DISABLE_XET": "1",
        "GITHUB_ACTIONS": "true",
        "ACTIONS_ID_TOKEN_REQUEST_URL": f"{hub.endpoint}/id-token?api-version=2.0",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "request-token-of-the-job",
    }


RELEASE_TAG = re.compile(r"\$\{\{ github\.event\.release\.tag_name \}\}")
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
        environment, done = of_job(tmp_path, hub), {}
        for name, step in STEPS.items():
            if name == "install":  # the environment of this test is used
                continue
            given = {key: RELEASE_TAG.sub("v1.2", value) for key, value in step.get("env", {}).items()}
            done[name] = run_script(step["run"], tmp_path, environment | given)
            said = done[name].stdout + done[name].stderr
            assert TOKEN not in said and IDENTITY not in said
            if done[name].returncode:
                break
        if is_trusted:
            assert [run.returncode for run in done.values()] == [0, 0, 0], said
            assert list(done) == ["validate", "publish", "verify"]
            assert repo.tags == {"v1.2": repo.head()} and len(repo.log()) == 2
        else:
            assert done["publish"].returncode == 3 and "trusted publisher" in done["publish"].stderr
            assert repo.tags == {} and len(repo.log()) == 1
        asked = [request.path for request in hub.requests if request.path in ("/id-token", "/oauth/token")]
        assert asked[:2] == ["/id-token", "/oauth/token"]
        assert not [request for request in hub.requests if request.token == TOKEN and not is_trusted]
