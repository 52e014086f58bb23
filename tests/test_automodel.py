"""NeMo Automodel: its own forward, the drafters of a run, and what older runs keep beside the weights."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.drafter.drafter import Drafter
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
