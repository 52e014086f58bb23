"""Run by the environment of speculators 0.9.0: load a start, run the training forward, train.

    python speculators_child.py FOLDER

FOLDER holds start/, target/ and states.safetensors (pair.py); logits.safetensors and trained/ are written to
it. Loading, maths and training are speculators' own code; one thing is stood in for: its trainer moves the
model and each batch to an accelerator's number and waits for it, and here to the CPU.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1"}

import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from speculators.model import SpeculatorModel
from speculators.train import trainer
from speculators.train.cli import build_draft_model, parse_vocab_mappings
from speculators.train.cli import main as train
from speculators.train.config import TrainConfig

DEPTH, STEPS, RATE = 3, 6, 1e-4
VERIFIER = "example/tiny-target"  # as the start names it; a folder below the working directory
ARGUMENTS = (
    f"--verifier-name-or-path {VERIFIER} --data-path data --from-pretrained start --save-path runs"
    f" --draft-attn-impl eager --loss-implementation eager --on-missing raise --ttt-steps {DEPTH} --lr {RATE}"
    f" --max-steps {STEPS} --epochs 1 --total-seq-len 96 --num-workers 0 --scheduler-type none"
).split()


def write_data(states: dict[str, torch.Tensor]) -> None:
    """The tokens as a dataset, and the states as speculators' data generation stores them."""
    tokens = states["tokens"]
    rows = {
        "input_ids": tokens.tolist(),
        "loss_mask": torch.ones_like(tokens).tolist(),
        "seq_len": [tokens.shape[1]] * len(tokens),
    }
    Dataset.from_dict(rows).with_format("torch").save_to_disk("data")
    Path("data/hidden_states").mkdir()
    for index, sequence in enumerate(tokens):
        layers = torch.cat((states["aux"][index].unflatten(-1, (3, -1)), states["last"][index][:, None]), 1)
        save_file(
            {"hidden_states": layers, "token_ids": sequence}, f"data/hidden_states/hs_{index}.safetensors"
        )


def load() -> Any:
    """The start as `speculators train --from-pretrained` loads it."""
    arguments = argparse.Namespace(**TrainConfig.resolve(ARGUMENTS).flatten())
    d2t, t2d, size = parse_vocab_mappings(arguments)
    return build_draft_model(arguments, SpeculatorModel.registry["eagle3"], t2d, d2t, size)


def forward(model: Any, states: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits of each step of the training forward, [step, sequence, time - 1, draft_vocab]."""
    seen: list[torch.Tensor] = []
    handle = model.lm_head.register_forward_hook(lambda module, given, made: seen.append(made))
    rows = []
    with torch.no_grad():
        for tokens, aux in zip(states["tokens"], states["aux"], strict=True):
            seen.clear()
            model(
                hidden_states=aux[None, :-1],
                input_ids=tokens[None, 1:],
                document_ids=torch.zeros(1, len(tokens) - 1, dtype=torch.long),
                ttt_steps=DEPTH,
            )
            rows.append(torch.cat(seen))
    handle.remove()
    return torch.stack(rows, 1)


def main() -> None:
    os.chdir(sys.argv[1])
    torch.set_num_threads(1)
    states = load_file("states.safetensors")
    Path(VERIFIER).parent.mkdir()
    Path(VERIFIER).symlink_to(Path("target").resolve())
    write_data(states)
    model = load().float()
    config = model.config
    facts = {
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "norm_before_fc": config.norm_before_fc,
        "norm_before_residual": config.norm_before_residual,
        "ids": config.eagle_aux_hidden_state_layer_ids,
        "trained": sorted(name for name, weight in model.named_parameters() if weight.requires_grad),
    }
    Path("facts.json").write_text(json.dumps(facts))
    save_file({"logits": forward(model, states).contiguous()}, "logits.safetensors")
    trainer.get_local_rank = lambda: "cpu"
    torch.accelerator.synchronize = lambda *given: None
    train(TrainConfig.resolve(ARGUMENTS))
    saved = max(Path("runs").glob("*/model.safetensors"), key=lambda path: path.stat().st_mtime).parent
    shutil.copytree(saved, "trained", ignore=shutil.ignore_patterns("*.pt"))


if __name__ == "__main__":
    main()
