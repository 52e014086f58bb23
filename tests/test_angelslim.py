"""AngelSlim: what its trainer writes for a text target, and its own forward, which uses base 10000."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.formats.format import Answers
from tests.builders import changed, older_angelslim
from tests.conftest import FIXTURES
from tests.probes import largest_error

PRODUCER = FIXTURES / "producers/angelslim"
SOURCE = PRODUCER / "qwen3"
PROBE = PRODUCER / "probe.safetensors"


def test_converted_with_base_10000_alone_it_computes_what_angelslims_own_forward_does(tmp_path: Path) -> None:
    for rope, theta in (("10000", 10000.0), ("stored", 1000000.0)):
        options = ConvertOptions(answers=Answers(semantics={"rope": rope}))
        eaglectl.convert(str(SOURCE), tmp_path / rope, options)
        drafter = eaglectl.inspect(str(tmp_path / rope)).drafter
        error = largest_error(PROBE, tmp_path / rope, drafter)
        assert drafter.rope.theta == theta and (error < 1e-5 if rope == "10000" else error > 1e-3)


@pytest.mark.parametrize("fixture", ["qwen3", "ids", "gqa", "cosyvoice"])
def test_what_its_trainer_wrote_is_read_with_the_base_of_its_code_and_not_asked(fixture: str) -> None:
    drafter = eaglectl.inspect(str(PRODUCER / fixture)).drafter
    assert drafter.rope.theta == 10000.0
    assert not drafter.notes_at("question")
    assert "10000 is written" in next(n.text for n in drafter.notes if n.topic == "rope-base-doubt")


@pytest.mark.parametrize(
    "scaling",
    [{"rope_type": "default", "rope_theta": 1e6, "alpha": 1000.0}, {"rope_type": "dynamic", "alpha": 2.0}],
)
def test_an_alpha_that_its_trainer_does_not_read_is_asked_for_all_that(
    scaling: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(SOURCE, folder := tmp_path / "source")
    (folder / "config.json").write_text(json.dumps(changed(SOURCE, rope_parameters=scaling)))
    drafter = eaglectl.inspect(str(folder)).drafter
    assert "rope-untrained" in [note.topic for note in drafter.notes_at("question")]


def test_a_file_of_transformers_4_is_older_than_its_trainer_may_be_and_is_asked_beside_its_ids(
    tmp_path: Path,
) -> None:
    drafter = eaglectl.inspect(str(older_angelslim(tmp_path / "source", "ids"))).drafter
    assert drafter.aux.boundaries == (1, 4, 6)
    assert [note.topic for note in drafter.notes_at("question")] == ["rope-base-doubt"]
    assert drafter.notes_at("warning") == drafter.notes_at("problem") == ()
