"""DeepSpec: its class and key of layers, what engines do with its files, its own forward, its other heads."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.errors import RefusedError
from tests.builders import call, changed
from tests.cases import stored_tensors
from tests.conftest import FIXTURES
from tests.drafters import Made
from tests.probes import largest_error

PRODUCER = FIXTURES / "producers/deepspec"
SOURCE = PRODUCER / "qwen3"
TOP = "eagle_aux_hidden_state_layer_ids"
BOUNDARIES = (2, 3, 4, 5, 6)  # target_layer_ids are [1, 2, 3, 4, 5]


def edited(folder: Path, **changes: Any) -> Path:
    """The fixture with keys of its config set, or removed where a value is None."""
    return Made(changed(SOURCE, **changes), stored_tensors(SOURCE)).write(folder / "drafter")


def test_vllm_loads_the_class_that_a_conversion_writes_with_boundaries_and_five_states(
    tmp_path: Path,
) -> None:
    old, new = eaglectl.inspect(str(SOURCE), engines=["vllm==0.23.0", "vllm==0.33.0"]).requested
    assert (old.outcome, old.reasons[0]) == ("fails", "has no drafter class with q/k norms")
    assert (new.outcome, new.reasons[0]) == ("fails", "does not know the architecture Qwen3Eagle3Model")
    eaglectl.convert(str(SOURCE), tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == ["Eagle3Qwen3ForCausalLM"]
    assert config[TOP] == list(BOUNDARIES) and config["num_aux_hidden_states"] == 5
    assert (config["rope_theta"], config["norm_output"]) == (1000000.0, False)
    gone = {"target_layer_ids", "ttt_length", "step_loss_decay", "draft_num_hidden_layers"}
    assert not gone & set(config)
    (verdict,) = eaglectl.inspect(str(tmp_path / "out"), engines=["vllm==0.33.0"]).requested
    assert verdict.outcome == "as trained"


# the same weights with a config that somebody adapted to vLLM by hand
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_aux_hidden_states": 5},
        {"num_aux_hidden_states": 5, TOP: [2, 3, 4, 5, 6]},
        dict.fromkeys(("ttt_length", "step_loss_decay", "draft_num_hidden_layers")),
    ],
    ids=["the class alone", "the number of states", "boundaries too", "no keys of its training"],
)
def test_an_adapted_file_is_read_as_deepspecs(changes: dict[str, Any], tmp_path: Path) -> None:
    source = edited(tmp_path, architectures=["Eagle3Qwen3ForCausalLM"], **changes)
    drafter = eaglectl.inspect(str(source)).drafter
    assert (drafter.producer, drafter.aux.boundaries) == ("deepspec", BOUNDARIES)
    assert drafter.notes_at("question") == drafter.notes_at("problem") == ()


def test_of_lists_that_disagree_its_trainers_counts_and_the_targets_last_layer_is_doubted(
    tmp_path: Path,
) -> None:
    drafter = eaglectl.inspect(str(edited(tmp_path / "a", **{TOP: [3, 4, 5, 6, 7]}))).drafter
    assert "aux-lists" in [note.topic for note in drafter.notes_at("warning")]
    assert drafter.aux.boundaries == BOUNDARIES
    drafter = eaglectl.inspect(str(edited(tmp_path / "b", target_layer_ids=[1, 2, 3, 4, 7]))).drafter
    (warning,) = drafter.notes_at("warning")
    assert "last layer, 7" in warning.text


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("gemma4", ("a Gemma-4 draft head", "layer_scalar", "no engine")),
        ("two-layers", ("each layer takes the embedding", "layers.1.self_attn.q_proj.weight", "no engine")),
    ],
)
def test_its_heads_that_no_engine_has_are_refused_for_what_they_are(
    case: str, words: tuple[str, ...]
) -> None:
    for command in (("inspect",), ("convert", "--dry-run")):
        done = call(*command, PRODUCER / case)
        assert done.code == 1 and "DFlash" not in done.err
        assert [word for word in words if word not in done.err] == []


def test_a_dflash_file_is_still_refused_by_its_name(tmp_path: Path) -> None:
    """DFlash as DeepSpec writes it: the same key of layers, and no layer that norms a fed-back state."""
    tensors = {
        name.replace("layers.0.hidden_norm", "hidden_norm"): tensor
        for name, tensor in stored_tensors(SOURCE).items()
    }
    config = json.loads((SOURCE / "config.json").read_text())
    folder = Made({**config, "architectures": ["Qwen3Model"]}, tensors).write(tmp_path / "drafter")
    with pytest.raises(RefusedError, match="is a DFlash drafter"):
        eaglectl.inspect(str(folder))


def test_the_reference_computes_what_deepspecs_own_forward_does_and_the_probe_tells_other_maths() -> None:
    drafter, probe = eaglectl.inspect(str(SOURCE)).drafter, PRODUCER / "probe.safetensors"
    assert largest_error(probe, SOURCE, drafter) < 1e-5
    fed_back = replace(drafter, norms=replace(drafter.norms, norm_output=True))
    rotated = replace(drafter, rope=replace(drafter.rope, theta=10000.0))
    assert min(largest_error(probe, SOURCE, other) for other in (fed_back, rotated)) > 1e-3
