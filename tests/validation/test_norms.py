"""Rules on the norms: every bad case is a good drafter, a patch, and exactly the findings it must give."""

import json
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.formats.format import Answers
from tests.builders import ABSENT, HIDDEN, drafter_folder, floats, write_record
from tests.cases import CASES
from tests.validation.patches import Patch, exact, store, without

FC_NORM = {f"fc_norm.{index}.weight": floats(f"fc_norm{index}", HIDDEN) for index in range(3)}
INPUT_NORM = {"input_norm.weight": floats("input_norm", 3 * HIDDEN)}
BOTH = {**FC_NORM, **INPUT_NORM}
ON = {"fc_norm": True, "norm_output": True}
UNSTATED = {"fc_norm": True, "norm_output": ABSENT}
ELSEWHERE = {"fc_norm": ABSENT, "eagle_architecture_config": {"fc_norm": True}}
NO_EMBEDDING = {"embed_tokens.weight": None}
REST = without("EGL4")
ANSWERS = Answers(semantics={"modelopt": "post-689"})
SINCE_689 = {"tensors": NO_EMBEDDING, "given": {"select": ["EGL5"], "answers": ANSWERS}}


def inside(absent: str, finds: str, key: str, says: str = "", **more: Any) -> Patch:
    """A switch that is not at the top of the config, and one in its eagle_config that is on."""
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}
    config = {absent: ABSENT, "eagle_config": {**ids, key: True}}
    return Patch(f"eagle_config.{key}", finds, config, says or (finds and f"only eagle_config.{key}"), **more)


BAD = (
    Patch("fc_norm without tensors", "EGL501", ON, "fc_norm: true and the file has no 3 fc_norm.N.weight"),
    Patch("two of three fc_norm", "EGL501", ON, "2 of 3 fc_norm", {**FC_NORM, "fc_norm.2.weight": None}),
    Patch("fc_norm from 1", "EGL501", ON, "fc_norm [1, 2]", {**FC_NORM, "fc_norm.0.weight": None}),
    Patch("norm_before_fc without its tensor", "EGL501", {"norm_before_fc": True}, "no input_norm.weight"),
    store("fc_norm switched off", "EGL502 EGL508", FC_NORM, "fc_norm: false and"),
    Patch("fc_norm unstated", "EGL502 EGL508", {"fc_norm": ABSENT}, "config has no fc_norm", tensors=FC_NORM),
    Patch("input_norm unstated", "EGL502", {"norm_before_fc": ABSENT}, "no norm_before_fc", INPUT_NORM),
    Patch("both norms", "EGL503", {"fc_norm": True, "norm_before_fc": True}, "both fc_norm and", BOTH),
    Patch("no word on norm_output", "EGL505", UNSTATED, "config has no norm_output", FC_NORM, given=REST),
    Patch("elsewhere", "EGL506 EGL508", ELSEWHERE, "only eagle_architecture", FC_NORM, given=REST),
    inside("norm_output", "EGL506 EGL508", "return_hidden_post_norm", given=REST),
    inside("norm_before_residual", "EGL506", "norm_before_residual", given=REST),
    Patch("alone", "EGL508", {"fc_norm": True}, "fc_norm without norm_output", FC_NORM),
    Patch("norm_output alone", "EGL508", {"norm_output": True}, "norm_output without fc_norm"),
    inside("norm_output", "EGL507", "use_last_layernorm", "normed twice", **SINCE_689),
)
GOOD = (
    Patch("EAGLE-3.1", "", ON, tensors=FC_NORM),
    Patch("the joint form", "", {"norm_before_fc": True, "norm_output": True}, tensors=INPUT_NORM),
    inside("norm_before_fc", "", "norm_before_fc", tensors=INPUT_NORM, given=REST),
)

test_norms_give_exactly_their_findings = exact(BAD + GOOD)


def test_a_specforge_head_of_an_unknown_time_is_a_warning() -> None:
    case = next(case for case in CASES if case.path == "specforge/eagle3.1")
    found = eaglectl.validate(case.folder, select=["EGL5"]).findings
    assert [(one.rule.id, one.severity) for one in found] == [("EGL505", "warning")]
    assert "pull request 879" in found[0].match.message
    assert not eaglectl.validate(case.folder, select=["EGL5"], answers=case.answered()).findings


CLAIMS = {"schema": "eaglectl/provenance/1", "eagle": "3.1"}


RECORDS: tuple[Any, ...] = ({}, CLAIMS, {"output": {"files": {"config.json": {}}}}, "stale", "its own")


@pytest.mark.parametrize("record", RECORDS)
def test_only_a_record_of_these_files_says_that_they_mean_what_engines_mean(
    record: Any, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, config=UNSTATED, tensors=FC_NORM)
    (folder / "eaglectl.json").write_text(json.dumps(record))
    if record in ("stale", "its own"):
        write_record(folder)
    if record == "stale":
        (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    found = [finding.rule.id for finding in eaglectl.validate(folder, select=["EGL505"]).findings]
    notes = [note.text for note in eaglectl.inspect(str(folder)).drafter.notes]
    is_claim = any("is not evidence of these files" in text for text in notes)
    assert (found, is_claim) == (([], False) if record == "its own" else (["EGL505"], True))
