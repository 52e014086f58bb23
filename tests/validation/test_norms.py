"""Rules on the norms: every bad case is a good drafter, a patch, and exactly the findings it must give."""

from collections.abc import Callable
from pathlib import Path

import pytest

import eaglectl
from eaglectl.formats.format import Answers
from tests.builders import ABSENT, HIDDEN, drafter_folder, floats, write_record
from tests.cases import CASES
from tests.validation.patches import Patch, check

FC_NORM = {f"fc_norm.{index}.weight": floats(f"fc_norm{index}", HIDDEN) for index in range(3)}
INPUT_NORM = {"input_norm.weight": floats("input_norm", 3 * HIDDEN)}
IDS = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}
ON = {"fc_norm": True, "norm_output": True}

BAD = (
    Patch(
        "fc_norm without tensors",
        ("EGL501",),
        config=ON,
        says="fc_norm: true and the file has no 3 fc_norm.N.weight",
    ),
    Patch(
        "two of three fc_norm",
        ("EGL501",),
        config=ON,
        tensors={**FC_NORM, "fc_norm.2.weight": None},
        says="2 of 3 fc_norm tensors",
    ),
    Patch(
        "fc_norm that do not count from 0",
        ("EGL501",),
        config=ON,
        tensors={**FC_NORM, "fc_norm.0.weight": None},
        says="fc_norm [1, 2]",
    ),
    Patch(
        "norm_before_fc without its tensor",
        ("EGL501",),
        config={"norm_before_fc": True},
        says="no input_norm.weight",
    ),
    Patch("fc_norm switched off", ("EGL502", "EGL508"), tensors=FC_NORM, says="fc_norm: false and"),
    Patch(
        "fc_norm unstated",
        ("EGL502", "EGL508"),
        config={"fc_norm": ABSENT},
        tensors=FC_NORM,
        says="has fc_norm.0.weight and config has no fc_norm",
    ),
    Patch(
        "input_norm unstated",
        ("EGL502",),
        config={"norm_before_fc": ABSENT},
        tensors=INPUT_NORM,
        says="has input_norm.weight and config has no norm_before_fc",
    ),
    Patch(
        "both norms",
        ("EGL503",),
        config={"fc_norm": True, "norm_before_fc": True},
        tensors={**FC_NORM, **INPUT_NORM},
        says="both fc_norm and norm_before_fc",
    ),
    Patch(
        "fc_norm and no word on norm_output",
        ("EGL505",),
        config={"fc_norm": True, "norm_output": ABSENT},
        tensors=FC_NORM,
        given={"ignore": ["EGL4"]},
        says="config has no norm_output",
    ),
    Patch(
        "fc_norm switched on elsewhere",
        ("EGL506", "EGL508"),
        config={"fc_norm": ABSENT, "eagle_architecture_config": {"fc_norm": True}},
        tensors=FC_NORM,
        given={"ignore": ["EGL4"]},
        says="only eagle_architecture_config.fc_norm enables fc_norm",
    ),
    Patch(
        "norm_output switched on elsewhere",
        ("EGL506", "EGL508"),
        config={"norm_output": ABSENT, "eagle_config": {**IDS, "return_hidden_post_norm": True}},
        given={"ignore": ["EGL4"]},
        says="only eagle_config.return_hidden_post_norm",
    ),
    Patch(
        "norm_before_residual switched on elsewhere",
        ("EGL506",),
        config={"norm_before_residual": ABSENT, "eagle_config": {**IDS, "norm_before_residual": True}},
        given={"ignore": ["EGL4"]},
    ),
    Patch(
        "fc_norm alone",
        ("EGL508",),
        config={"fc_norm": True, "norm_output": False},
        tensors=FC_NORM,
        says="fc_norm without norm_output",
    ),
    Patch("norm_output alone", ("EGL508",), config={"norm_output": True}, says="norm_output without fc_norm"),
    Patch(
        "a ModelOpt head",
        ("EGL507",),
        config={"norm_output": ABSENT, "eagle_config": {**IDS, "use_last_layernorm": True}},
        tensors={"embed_tokens.weight": None},
        given={"select": ["EGL5"], "answers": Answers(semantics={"modelopt": "post-689"})},
        says="normed twice",
    ),
)
GOOD = (
    Patch("EAGLE-3.1", (), config=ON, tensors=FC_NORM),
    Patch("the joint form", (), config={"norm_before_fc": True, "norm_output": True}, tensors=INPUT_NORM),
    Patch(
        "norm_before_fc in eagle_config",
        (),
        config={"norm_before_fc": ABSENT, "eagle_config": {**IDS, "norm_before_fc": True}},
        tensors=INPUT_NORM,
        given={"ignore": ["EGL4"]},
    ),
)


@pytest.mark.parametrize("patch", BAD + GOOD, ids=lambda patch: patch.why)
def test_norms_give_exactly_their_findings(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)


def test_a_specforge_head_of_an_unknown_time_is_a_warning() -> None:
    case = next(case for case in CASES if case.path == "specforge/eagle3.1")
    found = eaglectl.validate(str(case.folder), eaglectl.ValidateOptions(select=["EGL5"])).findings
    assert [(one.rule.id, one.severity) for one in found] == [("EGL505", "warning")]
    assert "pull request 879" in found[0].match.message
    assert not eaglectl.validate(
        str(case.folder), eaglectl.ValidateOptions(select=["EGL5"], answers=case.answered())
    ).findings


def test_what_eaglectl_has_written_means_what_engines_mean(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"fc_norm": True, "norm_output": ABSENT}, tensors=FC_NORM)
    write_record(folder)
    assert not eaglectl.validate(str(folder), eaglectl.ValidateOptions(select=["EGL505"])).findings


def stale(folder: Path) -> None:
    """A record of another config.json."""
    write_record(folder)
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: (folder / "eaglectl.json").write_text("{}"),
        lambda folder: (folder / "eaglectl.json").write_text(
            '{"schema": "eaglectl/provenance/1", "eagle": "3.1"}'
        ),
        lambda folder: (folder / "eaglectl.json").write_text('{"output": {"files": {"config.json": {}}}}'),
        stale,
    ],
)
def test_a_record_of_other_files_is_a_claim(write: Callable[[Path], object], tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"fc_norm": True, "norm_output": ABSENT}, tensors=FC_NORM)
    write(folder)
    options = eaglectl.ValidateOptions(select=["EGL505"])
    (finding,) = eaglectl.validate(str(folder), options).findings
    assert finding.rule.id == "EGL505"
    notes = [note.text for note in eaglectl.inspect(str(folder)).drafter.notes]
    assert any("its author's claim, and no evidence" in text for text in notes)
