"""No value is written that nobody stated: absent keys are what the scaling or the trainer's code means."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from tests.builders import ABSENT, LLAMA3, YARN, call, changed, drafter_folder
from tests.conftest import FIXTURES

POSITIONS, EPSILON = "max_position_embeddings", "rms_norm_eps"
MLA = FIXTURES / "producers/torchspec/mla"


def written(folder: Path, out: Path, *options: str) -> dict[str, Any]:
    done = call("convert", folder, "-o", out, *options)
    assert done.code == 0, done.err
    config: dict[str, Any] = json.loads((out / "config.json").read_text())
    return config


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        (YARN, 512),
        (LLAMA3, 512),
        (None, ABSENT),
        ({"rope_type": "linear", "factor": 4.0}, ABSENT),
        ({"rope_type": "yarn", "factor": 1e30, "original_max_position_embeddings": 64}, ABSENT),
    ],
)
def test_absent_positions_are_those_of_the_scaling_or_stay_absent(
    scaling: dict[str, Any] | None, positions: object, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, config={POSITIONS: ABSENT, "rope_scaling": scaling})
    assert written(folder, tmp_path / "out", "--force-unserved").get(POSITIONS, ABSENT) == positions


def test_torchspecs_mla_gets_the_positions_of_its_yarn_and_sglang_starts_with_it(tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(FIXTURES / "target", target)
    config = changed(target, max_position_embeddings=262144, model_type="kimi_k2", rope_theta=50000.0)
    (target / "config.json").write_text(json.dumps(config))
    answers = ("--source-semantics", "rope=stored", "--target", str(target))
    assert written(MLA, tmp_path / "out", *answers)[POSITIONS] == 262144
    report = eaglectl.validate(str(tmp_path / "out"), target=str(target), engines=("vllm==0.26.0", "sglang"))
    assert not {"EGL1068", "EGL1138", "EGL603"} & {finding.rule.id for finding in report.findings}


def test_an_epsilon_that_no_trainer_signed_for_is_asked_and_taken_as_answered(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={EPSILON: ABSENT})
    refused = call("convert", folder, "-o", tmp_path / "out")
    assert refused.code == 2 and "rms_norm_eps=1e-06" in refused.err and not (tmp_path / "out").exists()
    answer = ("--source-semantics", "rms_norm_eps=1e-05")
    assert written(folder, tmp_path / "out", *answer)[EPSILON] == 1e-05


@pytest.mark.parametrize("value", ["0", "-1e-6", "nan", "0.0", "1e-06x", "", "1e400"])
def test_an_epsilon_that_is_none_is_refused(value: str, tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={EPSILON: ABSENT})
    done = call("convert", folder, "--dry-run", "--source-semantics", f"rms_norm_eps={value}")
    assert (done.code, done.out) == (2, ""), value


def test_a_producers_class_says_what_an_absent_epsilon_is(tmp_path: Path) -> None:
    folder = shutil.copytree(MLA, tmp_path / "drafter")
    config = changed(folder)
    del config[EPSILON]
    (folder / "config.json").write_text(json.dumps(config))
    options = ("--source-semantics", "rope=stored", "--force-unserved")
    assert written(folder, tmp_path / "out", *options)[EPSILON] == 1e-06
