"""DeepSpec: its class and key of layers, what engines do with its files, its own forward, its other heads."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.cli import run
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import RefusedError
from eaglectl.operations.converting import ConvertOptions
from tests import probes
from tests.cases import stored_tensors
from tests.conftest import FIXTURES
from tests.drafters import Made

PRODUCER = FIXTURES / "producers/deepspec"
SOURCE = PRODUCER / "qwen3"
BOUNDARIES = (2, 3, 4, 5, 6)  # target_layer_ids are [1, 2, 3, 4, 5]


def edited(folder: Path, **changes: Any) -> Path:
    """The fixture with keys of its config set, or removed where a value is None."""
    config = json.loads((SOURCE / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if value is not None}
    return Made(kept, stored_tensors(SOURCE)).write(folder / "drafter")


def outcomes(source: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    found = eaglectl.inspect(str(source), engines=["vllm==0.23.0", "vllm==0.33.0"]).requested
    return {verdict.release: (verdict.outcome, verdict.reasons) for verdict in found}


def test_vllm_does_not_load_the_class_that_deepspec_writes() -> None:
    found = {release: (outcome, reasons[0]) for release, (outcome, reasons) in outcomes(SOURCE).items()}
    assert found == {
        "0.23.0": ("fails", "has no drafter class with q/k norms"),
        "0.33.0": ("fails", "does not know the architecture Qwen3Eagle3Model"),
    }


def test_a_conversion_writes_the_class_the_boundaries_and_five_states(tmp_path: Path) -> None:
    eaglectl.convert(str(SOURCE), tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == ["Eagle3Qwen3ForCausalLM"]
    assert config["eagle_aux_hidden_state_layer_ids"] == list(BOUNDARIES)
    assert config["num_aux_hidden_states"] == 5
    assert (config["rope_theta"], config["norm_output"]) == (1000000.0, False)
    gone = {"target_layer_ids", "ttt_length", "step_loss_decay", "draft_num_hidden_layers"}
    assert not gone & set(config)
    assert outcomes(tmp_path / "out")["0.33.0"][0] == "as trained"


# the same weights with a config that somebody adapted to vLLM by hand
TOP = "eagle_aux_hidden_state_layer_ids"
ADAPTED: dict[str, dict[str, Any]] = {
    "the class alone": {},
    "the number of states": {"num_aux_hidden_states": 5},
    "the boundaries beside its own ids": {"num_aux_hidden_states": 5, TOP: [2, 3, 4, 5, 6]},
    "without the keys of its training": {
        "ttt_length": None,
        "step_loss_decay": None,
        "draft_num_hidden_layers": None,
    },
}


@pytest.mark.parametrize("changes", ADAPTED.values(), ids=ADAPTED.keys())
def test_an_adapted_file_is_read_as_deepspecs(changes: dict[str, Any], tmp_path: Path) -> None:
    drafter = eaglectl.inspect(
        str(edited(tmp_path, architectures=["Eagle3Qwen3ForCausalLM"], **changes))
    ).drafter
    assert (drafter.producer, drafter.aux.boundaries) == ("deepspec", BOUNDARIES)
    assert drafter.notes_at("question") == drafter.notes_at("problem") == ()


def test_vllm_builds_three_states_for_a_renamed_class_that_names_none(tmp_path: Path) -> None:
    outcome, reasons = outcomes(edited(tmp_path, architectures=["Eagle3Qwen3ForCausalLM"]))["0.33.0"]
    assert outcome == "fails"
    assert "3 aux states" in reasons[0]


@pytest.mark.parametrize(
    ("release", "outcome"), [("0.24.0", "differs"), ("0.25.0", "as trained"), ("0.33.0", "as trained")]
)
def test_the_v2_runner_reads_target_layer_ids_as_outputs_since_0_25(
    release: str, outcome: str, tmp_path: Path
) -> None:
    source = edited(tmp_path, architectures=["Eagle3Qwen3ForCausalLM"], num_aux_hidden_states=5)
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text('{"model_type": "qwen3", "num_hidden_layers": 8}')
    found = eaglectl.inspect(str(source), target=str(target), engines=[f"vllm=={release}"]).requested
    assert [verdict.outcome for verdict in found] == [outcome]


def test_of_lists_that_disagree_the_one_that_its_trainer_reads_counts_and_it_is_said(tmp_path: Path) -> None:
    stored = eaglectl.inspect(str(edited(tmp_path))).drafter.aux
    drafter = eaglectl.inspect(str(edited(tmp_path, **{TOP: [3, 4, 5, 6, 7]}))).drafter
    assert "aux-lists" in [note.topic for note in drafter.notes_at("warning")]
    assert drafter.aux.boundaries == stored.boundaries


def test_the_targets_last_layer_is_doubted(tmp_path: Path) -> None:
    drafter = eaglectl.inspect(str(edited(tmp_path, target_layer_ids=[1, 2, 3, 4, 7]))).drafter
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
    case: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("inspect", "convert"):
        assert run([command, str(PRODUCER / case), *(["--dry-run"] if command == "convert" else [])]) == 1
        message = capsys.readouterr().err
        assert [word for word in words if word not in message] == []
        assert "DFlash" not in message


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


def largest_error(drafter: Drafter) -> float:
    """Of the fixture, read as this drafter, against DeepSpec's own forward."""
    return probes.largest_error(PRODUCER / "probe.safetensors", SOURCE, drafter)


def test_the_reference_computes_what_deepspecs_own_forward_does() -> None:
    assert largest_error(eaglectl.inspect(str(SOURCE)).drafter) < 1e-5


def test_the_probe_tells_the_other_feedback_and_another_rope_base() -> None:
    drafter = eaglectl.inspect(str(SOURCE)).drafter
    assert largest_error(replace(drafter, norms=replace(drafter.norms, norm_output=True))) > 1e-3
    assert largest_error(replace(drafter, rope=replace(drafter.rope, theta=10000.0))) > 1e-3


def test_a_dry_run_needs_no_answer() -> None:
    plan = eaglectl.convert(str(SOURCE), options=ConvertOptions(dry_run=True)).plan
    assert plan.drafter.aux.boundaries == BOUNDARIES
