"""A drafter whose own lm_head is packed: vLLM's V1 runner drafts with it, V2 stops as it compares heads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import eaglectl
from tests.builders import call
from tests.engine.runners import assert_drafts_in_four_bits, use_runner
from tests.tiny import PROMPTS, TARGET, TINY

pytest.importorskip("vllm")

GROUP = 32
SHORT = ("--target", TARGET, "--run-in", "vllm", "--engine-arg", "dtype=bfloat16", "--device", "cpu")
RUN = (*SHORT, "--prompts", PROMPTS, "--sample", 4, "--max-tokens", 16)


def in_int4(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """A matrix as llm-compressor packs it: eight numbers in an int32, a scale for each GROUP of a row."""
    rows, columns = weight.shape
    groups = weight.float().view(rows, columns // GROUP, GROUP)
    scale = groups.abs().amax(-1) / 7
    numbers = ((groups / scale[..., None]).round().clamp(-8, 7) + 8).long().view(rows, columns // 8, 8)
    packed = (numbers << torch.arange(0, 32, 4)).sum(-1)
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    shape = torch.tensor([rows, columns])
    return {"weight_packed": packed, "weight_scale": scale.to(torch.bfloat16), "weight_shape": shape}


@pytest.fixture(scope="module")
def packed_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    tensors = load_file(TINY / "eagle3/model.safetensors")
    parts = in_int4(tensors.pop("lm_head.weight"))
    save_file(
        {**tensors, **{f"lm_head.{name}": part for name, part in parts.items()}}, folder / "model.safetensors"
    )
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    table: dict[str, Any] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["lm_head"], "weights": weights}},
        "ignore": [],
    }
    config = json.loads((TINY / "eagle3/config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": table}))
    return folder


def test_v1_drafts_with_it_and_leaves_nothing_unfilled(
    packed_head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_runner(monkeypatch, "V1")
    assert_drafts_in_four_bits(call("smoke", packed_head, *RUN, "--json"))
    loaded = call("smoke", packed_head, "--target", TARGET, "--run-in", "vllm", "--load-only")
    assert loaded.code == 0, loaded.out + loaded.err


def test_v2_stops_at_it_as_the_verdict_says(packed_head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_runner(monkeypatch, "V2")
    done = call("smoke", packed_head, *RUN)
    assert done.code == 1 and "_should_share" in done.err, done.out + done.err
    (verdict,) = eaglectl.inspect(packed_head, target=TARGET, engines=("vllm==0.32.0",)).requested
    assert (str(verdict.outcome), verdict.rules) == ("fails", ("EGL2001",))
