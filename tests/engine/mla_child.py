"""Run by test_mla_maps: each map of attention in a fork of its own; vLLM on what was converted, the reference
on what was not.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", OMP_NUM_THREADS="1"
)

import torch
from msgspec.structs import replace

import eaglectl
from eaglectl.conversion.arithmetic import evaluate
from eaglectl.drafter.drafter import Drafter
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.opening import open_source
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.operations.converting import ConvertOptions
from eaglectl.target import open_target
from tests.conftest import FIXTURES
from tests.engine import pairs
from tests.engine.parity_child import in_vllm
from tests.engine.rounds import LENGTHS, difference, in_reference

# the map -> the fixture it starts from, and what is asked; all written in float32, so that no rounding hides
# an error
MAPS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "scale": ("automodel/mla", {}),
    "query": ("vllm/mla", {"has_query_lora": True}),
}


def answers(path: str) -> Answers:
    """What a fixture's file leaves open; its own rope is the one that both sides compute with."""
    known = pairs.case(path).answered()
    return replace(known, semantics={**known.semantics, "rope": "stored"})


def main() -> None:
    """Arguments: the folder with the targets, where answers go too."""
    root = Path(sys.argv[1])
    for name in MAPS:
        if os.fork() == 0:
            _answer(root, name)
        os.wait()


def _answer(root: Path, name: str) -> None:
    try:
        found = run(root, name)
    except BaseException:
        found = {"error": traceback.format_exc()}
    (root / f"{name}.json").write_text(json.dumps(found))
    os._exit(0)


def run(root: Path, name: str) -> dict[str, Any]:
    """vLLM on the converted drafter and the reference on the source, on the same prompts."""
    torch.set_num_threads(1)
    start = time.monotonic()
    path, asked = MAPS[name]
    target = root / ("mla" if pairs.case(path).attention == "MLA" else "llama")
    source, drafter = _source(path, target, root / f"{name}-source", without_rank=name == "query")
    options = ConvertOptions(dtype="F32", **asked, target=str(target), answers=answers(path))
    eaglectl.convert(str(source), root / name, options)
    dice = torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, 256, (length,), generator=dice).tolist() for length in LENGTHS]
    theirs, their_output = in_vllm(target, root / name, prompts, is_mla=drafter.dims.attention == "MLA")
    ours, generated = in_reference(target, root / f"{name}-plain", drafter, prompts)
    rounds = [pair for one, other in zip(theirs, ours, strict=True) for pair in zip(one, other, strict=False)]
    return {
        "difference": max(
            difference(one, other) for (_, a), (_, b) in rounds for one, other in zip(a, b, strict=True)
        ),
        "is_draft_equal": all(one == other for (one, _), (other, _) in rounds),
        "is_output_equal": their_output == [found.tokens for found in generated],
        "rounds": len(rounds),
        "accepted": sum(found.accepted[0] for found in generated),
        "seconds": time.monotonic() - start,
    }


def _source(path: str, target: Path, folder: Path, *, without_rank: bool) -> tuple[Path, Drafter]:
    """A copy of a fixture whose head says what the target says, as its trainer wrote it; beside it, the same
    for the reference.
    """
    before = FIXTURES / "producers" / path
    tensors = {
        name: tensor
        for file in before.glob("*.safetensors")
        for name, tensor in pairs.load_file(file).items()
    }
    drafted = torch.arange(len(tensors["lm_head.weight"])) + tensors.get("d2t", torch.tensor(0))
    tensors["lm_head.weight"] = pairs.hushed(tensors["lm_head.weight"], drafted)
    config = json.loads((before / "config.json").read_text())
    if without_rank:
        at, config["q_lora_rank"] = "layers.0.self_attn.", None
        rows, columns = tensors[f"{at}q_b_proj.weight"].shape[0], tensors[f"{at}q_a_proj.weight"].shape[1]
        for part in ("q_a_proj", "q_a_layernorm", "q_b_proj"):
            del tensors[f"{at}{part}.weight"]
        dice = torch.Generator().manual_seed(2)
        tensors[f"{at}q_proj.weight"] = (torch.randn(rows, columns, generator=dice) * 0.3).bfloat16()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    pairs.write(tensors, folder)
    checkpoint = read_checkpoint(open_source(str(folder)))
    drafter = read_drafter(checkpoint, answers(path), open_target(str(target)))
    plain = folder.with_name(folder.name.replace("-source", "-plain"))
    plain.mkdir()
    floats = {
        name: torch.from_numpy(evaluate(t, checkpoint).copy()).float()
        for name, t in drafter.tensors.items()
        if name not in ("d2t", "t2d")
    }
    pairs.write(floats | ({"d2t": tensors["d2t"]} if "d2t" in tensors else {}), plain)
    return folder, drafter


if __name__ == "__main__":
    main()
