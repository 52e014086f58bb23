"""NeMo Automodel: its own forward, the drafters of a run, and what older runs keep beside the weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.api.inspect import InspectOptions
from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.formats.format import Answers
from eaglectl.reference.model import _frequencies
from tests.builders import call
from tests.cases import stored_tensors, true_answers
from tests.conftest import FIXTURES
from tests.probes import largest_error

PRODUCER = FIXTURES / "producers/automodel"
torch = pytest.importorskip("torch")
PROBE = PRODUCER / "probe.safetensors"


def in_float32(case: str, folder: Path) -> tuple[Path, Drafter]:
    """The case as convert writes it, without the rounding of a computed tensor to bfloat16."""
    options = ConvertOptions(dtype="F32", answers=true_answers(PRODUCER / case))
    eaglectl.convert(str(PRODUCER / case), folder, options)
    return folder, eaglectl.inspect(str(folder)).drafter


@pytest.mark.parametrize("case", ["gqa", "eagle3.1", "mla"])
def test_what_is_converted_computes_what_automodels_own_forward_does(case: str, tmp_path: Path) -> None:
    assert largest_error(PROBE, *in_float32(case, tmp_path / "out"), case) < 1e-5


@pytest.mark.parametrize("layout", ["vllm", "modelopt", "specforge", "sglang"])
def test_an_output_states_the_depth_that_the_config_had_as_its_own(layout: str, tmp_path: Path) -> None:
    options = ConvertOptions(layout=layout, answers=Answers(aux_layers=(2, 4, 5)))
    written = eaglectl.convert(str(PRODUCER / "gqa"), tmp_path / "out", options)
    read = eaglectl.inspect(tmp_path / "out", engines=["vllm", "sglang"])
    assert json.loads((tmp_path / "out/config.json").read_text())["target_num_hidden_layers"] == 8
    judged = {(row.verdict.engine, row.verdict.release): row.verdict.outcome for row in written.serving}
    found = {(verdict.engine, verdict.release): verdict.outcome for verdict in read.requested}
    assert {key: judged[key] for key in found} == found


@pytest.mark.parametrize(
    ("case", "norms", "rope"),
    [
        ("gqa", {"norm_output": True}, {}),
        ("gqa", {}, {"theta": 10000.0}),
        ("eagle3.1", {"norm_output": False}, {}),
        ("eagle3.1", {"fc_norm": False}, {}),
        ("mla", {}, {"scaling": None}),
    ],
)
def test_the_probe_tells_other_maths(
    case: str, norms: dict[str, Any], rope: dict[str, Any], tmp_path: Path
) -> None:
    folder, drafter = in_float32(case, tmp_path / "out")
    other = replace(drafter, norms=replace(drafter.norms, **norms), rope=replace(drafter.rope, **rope))
    assert largest_error(PROBE, folder, other, case) > 1e-3


def test_the_recipe_trains_without_the_factor_that_convert_divides_out(tmp_path: Path) -> None:
    """The weights as stored, with the factor as engines apply it, are another drafter."""
    from safetensors.torch import load_file, save_file

    folder, drafter = in_float32("mla", tmp_path / "out")
    (path,) = folder.glob("*.safetensors")
    tensors, name = load_file(path), "layers.0.self_attn.q_b_proj.weight"
    dtype, shape, data = stored_tensors(PRODUCER / "mla")[f"model.{name}"]
    assert dtype == "BF16"
    tensors[name] = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(shape).float()
    save_file(tensors, path)
    assert largest_error(PROBE, folder, drafter, "mla") > 1e-3


YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 4096}
# of 16 frequencies by LlamaRotaryEmbedding of Automodel 0.5.0, at these settings (run)
FREQUENCIES_050 = (1.1454e-02, 4.6396e-03, 6.5031e-04, 3.8309e-05)


def changed(folder: Path, **keys: Any) -> Path:
    """The GQA drafter with these keys in its config."""
    shutil.copytree(PRODUCER / "gqa", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 131072} | keys))
    return folder


def test_a_window_of_the_target_is_none_of_the_drafter(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"] * 4
    window = {"layer_types": kinds, "sliding_window": 128, "model_type": "gpt_oss", "rope_parameters": YARN}
    folder = changed(tmp_path / "drafter", **window)
    drafter = eaglectl.inspect(str(folder)).drafter
    assert drafter.windows == (0,) and Feature.SLIDING_WINDOW not in drafter.features()
    assert any("are the target's" in note.why for note in drafter.notes)
    assert call("convert", folder, "--assume-defaults", "-o", tmp_path / "out").code == 0
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert not {"layer_types", "sliding_window"} & written.keys()
    assert written["rope_scaling"]["rope_type"] == "yarn" and written["model_type"] == "llama"


@pytest.mark.parametrize("kind", ["yarn", "linear", "dynamic", "longrope"])
def test_a_scaling_that_older_releases_rotated_otherwise_is_open(kind: str, tmp_path: Path) -> None:
    folder = changed(tmp_path / "drafter", rope_parameters={**YARN, "rope_type": kind})
    (entry,) = (note for note in eaglectl.inspect(str(folder)).drafter.unsettled if "rope" in note.about)
    assert [str(choice) for choice in entry.choices] == [
        "--source-semantics rope=stored",
        "--source-semantics rope=llama3",
    ]


@pytest.mark.parametrize("kind", ["default", "llama3"])
def test_other_scalings_are_as_stated(kind: str, tmp_path: Path) -> None:
    folder = changed(tmp_path / "drafter", rope_parameters={**YARN, "rope_type": kind})
    assert not any("rope" in note.about for note in eaglectl.inspect(str(folder)).drafter.unsettled)


def test_the_older_rotation_is_written_as_what_it_was(tmp_path: Path) -> None:
    folder = changed(tmp_path / "drafter", rope_parameters=YARN)
    options = InspectOptions(answers=Answers(semantics={"rope": "llama3"}))
    rope = eaglectl.inspect(str(folder), options).drafter.rope
    frequencies, scale = _frequencies(rope, 32)
    assert frequencies[6:10].tolist() == pytest.approx(FREQUENCIES_050, rel=1e-4) and scale == 1.0
