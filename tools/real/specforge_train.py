"""Run by the environment of SpecForge 0.2.0: train and export an EAGLE-3 drafter by its own code, on a CPU.

    python specforge_train.py FOLDER

FOLDER holds specforge/ (features of capture.py), target/, settings.json (`training` of the run's config) and,
to train on, start/; runs/ and trained/ are written to it, and a run that was stopped goes on from its last
checkpoint. One thing is stood in for: the loss has a Triton kernel, and here SpecForge's own reference of it
in plain torch is used.
"""

import json
import os
import re
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
from safetensors import safe_open
from safetensors.torch import load_file, save_file

EMBEDDING = "model.embed_tokens.weight"  # the target's head is tied to it
DRAFT_VOCAB = 8192
KEPT = (
    "attention_bias", "bos_token_id", "eos_token_id", "head_dim", "hidden_act", "hidden_size",
    "initializer_range", "intermediate_size", "max_position_embeddings", "num_attention_heads",
    "num_key_value_heads", "pad_token_id", "rms_norm_eps", "vocab_size",
)  # fmt: skip


class PlainLoss:
    """The loss without its Triton kernel."""

    @staticmethod
    def apply(logits: Any, target: Any, position_mask: Any) -> Any:
        from specforge.core.loss import _compute_loss

        return _compute_loss(logits, target, position_mask)


def write_indexed(folder: Path) -> None:
    """The target with an index file, without which SpecForge reads no head."""
    indexed = folder / "indexed"
    indexed.mkdir(exist_ok=True)
    for path in (folder / "target").resolve().iterdir():
        (indexed / path.name).unlink(missing_ok=True)
        (indexed / path.name).symlink_to(path)
    with safe_open(indexed / "model.safetensors", "pt") as file:
        names = list(file.keys())
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors")}
    (indexed / "model.safetensors.index.json").write_text(json.dumps(index))


def from_target(state: dict[str, Any], target: dict[str, Any], t2d: Any) -> dict[str, Any]:
    """What the start takes from the target: head, norm and last layer, and its last aux state as it is.

    The states have an RMS of 3, 7 and 21: against them a layer of small random weights says nothing for
    hundreds of steps. In place of that, 180 steps led to a loss of 1.96 for 2.42.
    """
    last = max(int(name.split(".")[2]) for name in target if name.startswith("model.layers."))
    layer = f"model.layers.{last}."
    found = {
        "lm_head.weight": target[EMBEDDING][t2d],
        "norm.weight": target["model.norm.weight"],
        "midlayer.hidden_norm.weight": target[layer + "input_layernorm.weight"],
    }
    for name in (
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
        "self_attn.o_proj",
        "post_attention_layernorm",
    ):
        found[f"midlayer.{name}.weight"] = target[f"{layer}{name}.weight"]
    width = len(target["model.norm.weight"])
    for name in ("q_proj", "k_proj", "v_proj"):
        # the half of the embedding stays random
        embedding = state[f"midlayer.self_attn.{name}.weight"][:, :width]
        found[f"midlayer.self_attn.{name}.weight"] = torch.cat(
            (embedding, target[f"{layer}self_attn.{name}.weight"]), 1
        )
    fc = 0.1 * state["fc.weight"]
    fc[:, -width:] += torch.eye(width)
    return found | {"fc.weight": fc}


def write_start(folder: Path) -> None:
    """A start; SpecForge's own functions choose the vocabulary."""
    from specforge.data.preprocessing import process_token_dict_to_mappings
    from specforge.training.vocab_mapping import count_effective_feature_tokens

    counts = count_effective_feature_tokens(str(folder / "specforge"))
    given = json.loads((folder / "target/config.json").read_text())
    d2t, t2d = process_token_dict_to_mappings(counts, DRAFT_VOCAB, given["vocab_size"])
    start = folder / "start"
    start.mkdir()
    kept = [name for name in KEPT if name in given]
    # what `specforge train` takes from a target where it is given no config of a draft
    config = {name: given[name] for name in kept} | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCAB,
        "rope_theta": given["rope_parameters"]["rope_theta"],
        "tie_word_embeddings": False,
        "use_cache": True,
        "torch_dtype": "bfloat16",
    }
    (start / "config.json").write_text(json.dumps(config, indent=2))
    torch.save({"d2t": d2t, "t2d": t2d}, folder / "vocab_mapping.pt")
    from specforge.modeling.auto import AutoDraftModel
    from specforge.training.model_loading import load_draft_config_source

    torch.manual_seed(27)
    model = AutoDraftModel.from_config(
        load_draft_config_source(str(start)), attention_backend="sdpa", torch_dtype=torch.float32
    )
    state = {name: value for name, value in model.state_dict().items() if "embed" not in name}
    state |= {"d2t": d2t, "t2d": t2d} | from_target(
        state, load_file(folder / "target/model.safetensors"), t2d
    )
    save_file(
        {
            name: value.contiguous().bfloat16() if value.is_floating_point() else value
            for name, value in state.items()
        },
        start / "model.safetensors",
    )


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    os.chdir(folder)
    torch.set_num_threads(1)
    write_indexed(folder)
    if not (folder / "start").exists():
        write_start(folder)
    if not (folder / "vocab_mapping.pt").exists():
        stored = load_file("start/model.safetensors")
        torch.save({name: stored[name] for name in ("d2t", "t2d")}, "vocab_mapping.pt")
    settings = json.loads((folder / "settings.json").read_text())
    run: dict[str, Any] = {
        "run_id": "run",
        "output_dir": "runs",
        "model": {
            "target_model_path": "indexed",
            "draft_checkpoint_path": "start",
            "vocab_mapping_path": "vocab_mapping.pt",
            "lm_head_key": EMBEDDING,
        },
        "data": {"hidden_states_path": "specforge", "max_length": 512, "dataloader_num_workers": 0},
        "training": {
            "strategy": "eagle3",
            "fsdp_sharding": "NO_SHARD",
            "attention_backend": "sdpa",
            "batch_size": 1,
            "max_checkpoints": 2,
            "log_interval": 20,
        }
        | settings,
    }
    saved = sorted(Path("runs").glob("run-step*"), key=lambda path: int(re.sub(r"\D", "", path.name)))
    if saved:
        run["training"]["resume_from"] = str(saved[-1])
        run["model"]["draft_checkpoint_path"] = None
        run["model"]["draft_model_config"] = "start/config.json"
    (folder / "run.json").write_text(json.dumps(run, indent=2))
    import specforge.algorithms.eagle3.model as eagle3
    from specforge.cli import main as specforge

    eagle3.LogSoftmaxLoss = PlainLoss
    if specforge(["train", "--config", "run.json"]):
        raise SystemExit("specforge train ended with a fault")
    saved = sorted(Path("runs").glob("run-step*"), key=lambda path: int(re.sub(r"\D", "", path.name)))
    export = [
        "--checkpoint",
        str(saved[-1]),
        "--draft-config",
        "start/config.json",
        "--output-dir",
        "trained",
    ]
    raise SystemExit(specforge(["export", "--to", "sglang", *export]))


if __name__ == "__main__":
    main()
