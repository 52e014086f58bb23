"""The nine checkpoints on which `speculators convert` loses data and reports success (fixtures/nine)."""

import json
from pathlib import Path

import pytest

import eaglectl
from eaglectl import Conversion
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.format import Answers
from eaglectl.operations.converting import ConvertOptions
from tests.cases import digests
from tests.conftest import FIXTURES

NINE = FIXTURES / "nine"


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "target" / "config.json"
    path.parent.mkdir()
    path.write_text(
        json.dumps({"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 32, "vocab_size": 256})
    )
    return str(path)


def convert(name: str, out: Path, target: str | None = None, **semantics: str) -> Conversion:
    return eaglectl.convert(
        str(NINE / name), out, ConvertOptions(target=target, answers=Answers(semantics=semantics))
    )


def renamed(folder: Path) -> dict[str, str]:
    return {name.replace("midlayer.", "layers.0."): digest for name, digest in digests(folder).items()}


def test_a_plain_drafter_keeps_every_tensor(tmp_path: Path) -> None:
    convert("plain", tmp_path / "out")
    assert digests(tmp_path / "out") == renamed(NINE / "plain")


def test_fc_norm_tensors_are_kept(tmp_path: Path) -> None:
    done = convert("fc-norm", tmp_path / "out", specforge="post-879")
    assert digests(tmp_path / "out") == renamed(NINE / "fc-norm")
    assert {f"fc_norm.{i}.weight" for i in range(3)} <= set(digests(tmp_path / "out"))
    assert (done.plan.config["fc_norm"], done.plan.config["norm_output"]) == (True, True)


def test_norm_output_of_unknown_meaning_is_asked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="specforge=pre-879"):
        convert("fc-norm", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_input_norm_is_kept(tmp_path: Path) -> None:
    done = convert("norm-before-fc", tmp_path / "out")
    assert digests(tmp_path / "out") == renamed(NINE / "norm-before-fc")
    assert "input_norm.weight" in digests(tmp_path / "out") and done.plan.config["norm_before_fc"] is True


def test_the_second_layer_is_kept(tmp_path: Path) -> None:
    done = convert("two-layers", tmp_path / "out")
    assert digests(tmp_path / "out") == renamed(NINE / "two-layers")
    assert done.plan.config["num_hidden_layers"] == 2 and "layers.1.self_attn.q_proj.weight" in digests(
        tmp_path / "out"
    )


def test_nested_ids_become_top_level_boundaries(tmp_path: Path, target: str) -> None:
    done = convert("nested-ids", tmp_path / "out", target)
    assert done.plan.config["eagle_aux_hidden_state_layer_ids"] == [1, 5, 8]
    assert done.plan.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 4, 7]


def test_nested_ids_without_a_target_are_asked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--aux-convention"):
        convert("nested-ids", tmp_path / "out")


def test_four_aux_layers_are_kept_and_counted(tmp_path: Path, target: str) -> None:
    done = convert("four-aux", tmp_path / "out", target)
    assert digests(tmp_path / "out") == renamed(NINE / "four-aux")
    assert done.plan.config["num_aux_hidden_states"] == 4
    assert done.plan.config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 6, 8]


def test_a_misspelt_lm_head_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"lm_head.*misspelt"):
        convert("misspelt-lm-head", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_rope_base_of_rope_parameters_and_the_dtype_are_kept(tmp_path: Path) -> None:
    done = convert("rope-parameters", tmp_path / "out")
    assert done.plan.config["rope_theta"] == 500000.0
    assert done.plan.config["torch_dtype"] == "float16" and digests(tmp_path / "out") == renamed(
        NINE / "rope-parameters"
    )


def test_norm_before_residual_is_kept(tmp_path: Path) -> None:
    assert convert("norm-before-residual", tmp_path / "out").plan.config["norm_before_residual"] is True
