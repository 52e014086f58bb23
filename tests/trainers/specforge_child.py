"""Run by the environment of SpecForge 0.2.0: load a start, run the training forward, train and export.

    python specforge_child.py FOLDER

FOLDER holds start/, target/ and states.safetensors (pair.py); logits.safetensors and trained/ are written to
it. Loading, maths, training and export are SpecForge's own code.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ |= {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "SPECFORGE_DEVICE": "cpu",
    "TORCHDYNAMO_DISABLE": "1",
    "TRITON_INTERPRET": "1",
}

import torch
from safetensors.torch import load_file, save_file

DEPTH, STEPS, RATE = 3, 6, 1e-4


def write_features(states: dict[str, torch.Tensor], folder: Path) -> None:
    """SpecForge's offline features, one file a sequence, in its trainer's dtype."""
    folder.mkdir()
    for index, tokens in enumerate(states["tokens"]):
        record = {
            "input_ids": tokens,
            "loss_mask": torch.ones_like(tokens),
            "hidden_state": states["normed"][index][None].bfloat16(),
            "aux_hidden_state": states["aux"][index][None].bfloat16(),
        }
        torch.save(record, folder / f"data_{index}.ckpt")


def write_index(folder: Path) -> None:
    """The target with an index file, without which SpecForge reads no lm_head."""
    indexed = folder / "indexed"
    indexed.mkdir()
    for path in (folder / "target").iterdir():
        (indexed / path.name).symlink_to(path.resolve())
    names = load_file(indexed / "model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors")}
    (indexed / "model.safetensors.index.json").write_text(json.dumps(index))


def load(folder: Path) -> Any:
    """The start as `specforge train` loads it (model.draft_checkpoint_path), in float32."""
    from specforge.modeling.auto import AutoDraftModel
    from specforge.training.model_loading import load_draft_config_source, warm_start_draft_model

    config = load_draft_config_source(str(folder / "start"))
    model = AutoDraftModel.from_config(config, attention_backend="sdpa", torch_dtype=torch.float32)
    report = warm_start_draft_model(
        model, str(folder / "start"), draft_config=config, strategy="eagle3", allow_missing_embedding=True
    )
    model.load_embedding(str(folder / "indexed"), embedding_key="model.embed_tokens.weight")
    facts = {
        "missing": list(report.missing_keys),
        "fc_norm": model.fc_norm is not None,
        "norm_output": model.norm_output,
        "ids": config.eagle_config["eagle_aux_hidden_state_layer_ids"],
    }
    (folder / "facts.json").write_text(json.dumps(facts))
    return model


def forward(model: Any, states: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits of each step of the training forward, [step, sequence, time, draft_vocab]."""
    from specforge.algorithms.eagle3.model import OnlineEagle3Model

    seen: list[torch.Tensor] = []
    plain = model.compute_logits
    model.compute_logits = lambda hidden: seen.append(plain(hidden)) or seen[-1]
    tokens = states["tokens"]
    following = torch.cat((tokens[:, 1:], torch.zeros_like(tokens[:, :1])), 1)
    with torch.no_grad():
        OnlineEagle3Model(model, length=DEPTH, attention_backend="sdpa")(
            input_ids=following,
            attention_mask=torch.ones_like(tokens),
            target=torch.randn(*tokens.shape, model.vocab_size),
            loss_mask=torch.ones(*tokens.shape, 1),
            hidden_states=states["aux"],
        )
    model.compute_logits = plain
    return torch.stack(seen)


def specforge(*arguments: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "specforge.cli", *arguments], cwd=folder, check=True)


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    torch.set_num_threads(1)
    states = load_file(folder / "states.safetensors")
    write_index(folder)
    save_file({"logits": forward(load(folder), states).contiguous()}, folder / "logits.safetensors")
    write_features(states, folder / "features")
    stored = load_file(folder / "start/model.safetensors")
    torch.save({name: stored[name] for name in ("d2t", "t2d")}, folder / "vocab_mapping.pt")
    run = {
        "run_id": "run",
        "output_dir": "runs",
        "model": {
            "target_model_path": "indexed",
            "draft_checkpoint_path": "start",
            "vocab_mapping_path": "vocab_mapping.pt",
        },
        "data": {"hidden_states_path": "features", "max_length": 512, "dataloader_num_workers": 0},
        "training": {
            "strategy": "eagle3",
            "fsdp_sharding": "NO_SHARD",
            "max_steps": STEPS,
            "save_interval": STEPS,
            "learning_rate": RATE,
            "lr_scheduler": "constant",
            "ttt_length": DEPTH,
            "attention_backend": "sdpa",
        },
    }
    (folder / "run.json").write_text(json.dumps(run))
    specforge("train", "--config", "run.json", folder=folder)
    checkpoint = f"runs/run-step{STEPS}"
    export = ["--checkpoint", checkpoint, "--draft-config", "start/config.json", "--output-dir", "trained"]
    specforge("export", "--to", "sglang", *export, folder=folder)
    shutil.rmtree(folder / "runs")


if __name__ == "__main__":
    main()
