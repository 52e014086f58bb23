"""AngelSlim: what its trainer writes for a text target, and its own forward, which uses base 10000."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.drafter.drafter import Drafter
from eaglectl.formats.format import Answers
from eaglectl.operations.converting import ConvertOptions
from tests.builders import older_angelslim
from tests.conftest import FIXTURES
from tests.probes import largest_error

PRODUCER = FIXTURES / "producers/angelslim"
SOURCE = PRODUCER / "qwen3"
PROBE = PRODUCER / "probe.safetensors"


def converted(folder: Path, rope: str) -> tuple[Path, Drafter]:
    """The fixture as vLLM names it, which are the reference's names, with that answer on the rope base."""
    out = folder / rope
    eaglectl.convert(str(SOURCE), out, ConvertOptions(answers=Answers(semantics={"rope": rope})))
    return out, eaglectl.inspect(str(out)).drafter


def test_converted_with_base_10000_it_computes_what_angelslims_own_forward_does(tmp_path: Path) -> None:
    folder, drafter = converted(tmp_path, "10000")
    assert drafter.rope.theta == 10000.0
    assert largest_error(PROBE, folder, drafter) < 1e-5


def test_converted_with_the_stored_base_it_computes_something_else(tmp_path: Path) -> None:
    folder, drafter = converted(tmp_path, "stored")
    assert drafter.rope.theta == 1000000.0
    assert largest_error(PROBE, folder, drafter) > 1e-3


def test_the_probe_tells_the_other_feedback(tmp_path: Path) -> None:
    folder, drafter = converted(tmp_path, "10000")
    assert (
        largest_error(PROBE, folder, replace(drafter, norms=replace(drafter.norms, norm_output=True))) > 1e-3
    )


def test_a_text_drafter_has_no_key_of_angelslims_own_and_is_recognised_all_the_same() -> None:
    config = json.loads((SOURCE / "config.json").read_text())
    assert not {"modal_type", "target_model_type", "rope_theta"} & set(config)
    assert eaglectl.inspect(str(SOURCE)).drafter.producer == "angelslim"


@pytest.mark.parametrize("fixture", ["qwen3", "ids", "gqa", "cosyvoice"])
def test_what_its_trainer_wrote_is_read_with_the_base_of_its_code_and_not_asked(fixture: str) -> None:
    drafter = eaglectl.inspect(str(PRODUCER / fixture)).drafter
    assert drafter.rope.theta == 10000.0
    assert not drafter.notes_at("question")
    assert "10000 is written" in next(n.text for n in drafter.notes if n.topic == "rope-base-doubt")


def test_a_base_that_its_trainer_did_not_use_is_a_finding_of_the_file() -> None:
    report = eaglectl.validate(str(SOURCE), eaglectl.ValidateOptions(select=["EGL607"]))
    assert [finding.rule.id for finding in report.findings] == ["EGL607"]


def test_the_users_answer_stands_before_that_of_its_code(tmp_path: Path) -> None:
    _, drafter = converted(tmp_path, "stored")
    assert drafter.rope.theta == 1000000.0


@pytest.mark.parametrize(
    "scaling",
    [{"rope_type": "default", "rope_theta": 1e6, "alpha": 1000.0}, {"rope_type": "dynamic", "alpha": 2.0}],
)
def test_an_alpha_that_its_trainer_does_not_read_is_asked_for_all_that(
    scaling: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(SOURCE, folder := tmp_path / "source")
    config = json.loads((SOURCE / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_parameters": scaling}))
    drafter = eaglectl.inspect(str(folder)).drafter
    assert "rope-untrained" in [note.topic for note in drafter.notes_at("question")]


def test_a_file_of_transformers_4_is_older_than_its_trainer_may_be_and_is_asked_beside_its_ids(
    tmp_path: Path,
) -> None:
    drafter = eaglectl.inspect(str(older_angelslim(tmp_path / "source", "ids"))).drafter
    assert drafter.aux.boundaries == (1, 4, 6)
    assert [note.topic for note in drafter.notes_at("question")] == ["rope-base-doubt"]
    assert drafter.notes_at("warning") == drafter.notes_at("problem") == ()
