"""A GPTQ drafter in vLLM: without a list that has vLLM's names it does not start, and converted it drafts."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.builders import call
from tests.engine.runners import assert_drafts_in_four_bits
from tests.tiny import PROMPTS, TARGET, TINY

pytest.importorskip("vllm")
# torch's, of what vLLM imports
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

GROUP = 32
SHORT = ("--target", TARGET, "--run-in", "vllm", "--engine-arg", "dtype=bfloat16", "--device", "cpu")
RUN = (*SHORT, "--prompts", PROMPTS, "--sample", 4, "--max-tokens", 16)


def words(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers of four bits [rows, columns] as words [rows, columns / 8]."""
    packed = (numbers.long().unflatten(-1, (-1, 8)) << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def in_gptq(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """A matrix as GPTQModel packs it: symmetric, and a zero is stored as one less."""
    rows, columns = weight.shape
    groups = weight.float().view(rows, columns // GROUP, GROUP)
    scale = groups.abs().amax(-1) / 7
    numbers = ((groups / scale[..., None]).round().clamp(-8, 7) + 8).view(rows, columns)
    return {
        "qweight": words(numbers).T.contiguous(),
        "qzeros": words(torch.full((columns // GROUP, rows), 7)),
        "scales": scale.T.contiguous().half(),
        "g_idx": (torch.arange(columns) // GROUP).int(),
    }


def test_the_lists_that_convert_writes_let_vllm_draft(tmp_path: Path) -> None:
    tensors = load_file(TINY / "eagle3/model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        parts = in_gptq(tensors.pop(name))
        tensors |= {f"{name.removesuffix('weight')}{part}": value for part, value in parts.items()}
    folder = tmp_path / "drafter"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    table = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
    config = json.loads((TINY / "eagle3/config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": table}))
    stopped = call("smoke", folder, *RUN)
    assert stopped.code == 1 and "no module or parameter named" in stopped.err
    assert call("convert", folder, "--target", TARGET, "--for", "vllm", "-o", tmp_path / "out").code == 0
    drafted = call("smoke", tmp_path / "out", *RUN, "--json")
    assert_drafts_in_four_bits(drafted)
