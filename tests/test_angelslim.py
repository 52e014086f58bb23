"""AngelSlim: what its trainer writes for a text target, and its own forward, which uses base 10000."""

import json
from pathlib import Path

from msgspec.structs import replace

import eaglectl
from eaglectl.api.converting import ConvertOptions
from eaglectl.drafter.drafter import Drafter
from eaglectl.formats.format import Answers
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


def test_its_stored_base_is_doubted_beside_its_ids() -> None:
    drafter = eaglectl.inspect(str(PRODUCER / "ids")).drafter
    assert drafter.aux.boundaries == (1, 4, 6)
    assert [note.topic for note in drafter.notes_at("question")] == ["rope-base-doubt"]
    assert drafter.notes_at("warning") == drafter.notes_at("problem") == ()
