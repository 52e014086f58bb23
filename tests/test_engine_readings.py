"""What an engine reads otherwise than was trained, as a network that the reference can run."""

import json
import shutil
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.engines.engine import NetworkReading
from eaglectl.formats.format import Answers
from tests.conftest import FIXTURES

PRODUCERS = FIXTURES / "producers"


def reading(folder: Path, engine: str = "vllm==0.33.0", **semantics: str) -> NetworkReading | None:
    """The reading of a release that serves the drafter otherwise than as trained."""
    target = FIXTURES / "tiny/target" if folder.parent.parent != PRODUCERS else None
    found = eaglectl.inspect(
        str(folder), engines=[engine], target=target, answers=Answers(semantics=semantics)
    )
    (verdict,) = found.requested
    assert verdict.outcome == "differs", verdict
    return verdict.reading


def drafter(tmp_path: Path, without: tuple[str, ...] = (), **changes: Any) -> Path:
    """The trained EAGLE-3.1 drafter with another config."""
    folder = tmp_path / "drafter"
    shutil.copytree(FIXTURES / "tiny/eagle3.1", folder)
    config = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in config.items() if key not in without}
    (folder / "config.json").write_text(json.dumps(kept | changes))
    return folder


def test_a_switch_where_the_engine_does_not_look_is_read_otherwise(tmp_path: Path) -> None:
    folder = drafter(tmp_path, ("norm_output", "eagle_config"), eagle_config={"norm_output": True})
    found = reading(folder)
    assert found == NetworkReading("vLLM 0.33.0", switches={"norm_output": False})
    assert found.words == "read as vLLM 0.33.0 reads it"


def test_the_rope_base_that_the_file_states_is_the_one_that_the_engine_takes() -> None:
    assert reading(PRODUCERS / "angelslim/qwen3", rope="10000") == NetworkReading("vLLM 0.33.0", theta=1e6)


def test_a_switch_that_the_engine_does_not_know_and_other_layers_are_one_reading(tmp_path: Path) -> None:
    nested = {"norm_output": True, "eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    folder = drafter(tmp_path, ("norm_output", "eagle_config"), eagle_config=nested)
    assert reading(folder, "sglang==0.5.23") == NetworkReading(
        "SGLang 0.5.23", (3, 5, 6), {"norm_output": False}
    )


def test_what_is_more_than_a_reading_is_none(tmp_path: Path) -> None:
    folder = drafter(
        tmp_path,
        ("norm_output", "eagle_config"),
        eagle_config={"norm_output": True},
        num_hidden_layers=2,
    )
    assert reading(folder) is None


def test_a_drafter_read_otherwise_is_the_same_but_for_that() -> None:
    drafter = eaglectl.inspect(str(FIXTURES / "tiny/eagle3.1")).drafter
    read = NetworkReading("vLLM", (1, 2, 3), {"fc_norm": False}, 10000.0).of(drafter)
    assert (read.norms.fc_norm, read.rope.theta) == (False, 10000.0)
    assert (read.dims, read.norms.norm_output, read.aux) == (drafter.dims, True, drafter.aux)


def test_layers_that_are_captured_in_another_order_are_a_reading_of_the_blocks_as_converted(
    tmp_path: Path,
) -> None:
    """The blocks of fc are for 5, 2, 4 and get 2, 4, 5: sorted, those for 2, 4, 5 get 4, 5, 2."""
    folder = tmp_path / "drafter"
    shutil.copytree(FIXTURES / "tiny/eagle3", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [4, 1, 3], "use_aux_hidden_state": True}}
    config.pop("eagle_aux_hidden_state_layer_ids", None)
    (folder / "config.json").write_text(json.dumps(config))
    assert reading(folder, "sglang==0.5.23") == NetworkReading("SGLang 0.5.23", (4, 5, 2))
