"""Tiny random targets on disk, with a tokenizer, and drafters for them out of the producers' fixtures."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import eaglectl
from eaglectl.drafter.drafter import Drafter
from eaglectl.run.results import SmokeReport
from tests.cases import CASES, Case
from tests.engine.agreement.bases import DEEPSEEK, MLA

# the only tokens the targets say; every fixture drafts them, so a random drafter is right now and then
SPOKEN = (38, 82, 157, 206)
SHAPE: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 8, "vocab_size": 256,
    "max_position_embeddings": 512, "initializer_range": 0.3, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"


def llama_target(folder: Path) -> Path:
    """8 layers, hidden 32, 256 tokens, head_dim 32 (vLLM's CPU attention runs no smaller one)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SHAPE, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    return _save(LlamaForCausalLM, config, folder)


def mla_target(folder: Path) -> Path:
    """The same sizes with MLA, dense; vLLM's kernels want kv_lora_rank 512 and 64 rotated dimensions."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(**SHAPE | {"initializer_range": 0.2}, **MLA, **DEEPSEEK)
    return _save(DeepseekV3ForCausalLM, config, folder)


def _save(model_class: Any, config: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    model = model_class(config).float()
    with torch.no_grad():
        model.lm_head.weight.copy_(hushed(model.lm_head.weight, torch.arange(SHAPE["vocab_size"])))
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def hushed(head: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The head, its rows of tokens that are not spoken made small."""
    return torch.where(torch.isin(tokens, torch.tensor(SPOKEN))[:, None], head, head * 0.01)


def save_tokenizer(folder: Path, merged: str = "") -> None:
    """One token a byte, and a chat template; the last token is a merge of two letters where it is given."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [tuple(merged)] if merged else []  # llama.cpp's converter refuses BPE without any
    letters[len(letters) - len(merges) :] = [merged] * len(merges)
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    kept = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=TEMPLATE, eos_token=merged or None
    )
    kept.save_pretrained(folder)


def case(path: str) -> Case:
    """The producer fixture of this path."""
    return next(case for case in CASES if case.path == path)


def drafter(path: str, target: Path, folder: Path) -> Drafter:
    """Convert a fixture into vLLM's layout in `folder`; its head says what the target says."""
    one = case(path)
    plan = eaglectl.convert(one.folder, folder, target=str(target), answers=one.answered()).plan
    weights = tensors(folder)
    if "lm_head.weight" in weights:
        drafted = torch.arange(len(weights["lm_head.weight"])) + weights.get("d2t", torch.tensor(0))
        weights["lm_head.weight"] = hushed(weights["lm_head.weight"], drafted)
    write(weights, folder)
    return plan.drafter


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a drafter."""
    return {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}


def write(weights: dict[str, torch.Tensor], folder: Path) -> None:
    """Make these the drafter's tensors."""
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def changed(source: Path, folder: Path, *, without: Sequence[str] = (), **config: Any) -> Path:
    """A copy of a drafter with these config keys, without the tensors whose names have one of these words."""
    shutil.copytree(source, folder)
    write(
        {name: t for name, t in tensors(folder).items() if not any(word in name for word in without)}, folder
    )
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


def request_of(target: Path, drafter: Path, k: int, *, is_mla: bool = False, **more: Any) -> dict[str, Any]:
    """What eaglectl asks of its child in vLLM, on a CPU."""
    kinds = {"is_mla": is_mla, "is_mla_target": is_mla, "needs_tokenizer": False}
    places = {"target": str(target), "drafter": str(drafter)}
    return {**places, "k": k, "seed": 0, "device": "cpu", **kinds, **more}


def write_prompts(path: Path) -> Path:
    """Short texts of two sets, one in the chat template and one longer than a block of 32 tokens."""
    prompts = [
        {"set": "code", "prompt": "def f(x):"},
        {"set": "prose", "prompt": "The quick", "chat": True},
        {"set": "prose", "prompt": "One, two, three and more than 32 bytes"},
    ]
    path.write_text("\n".join(map(json.dumps, prompts)))
    return path


def pair(path: str, folder: Path) -> Path:
    """A folder with a Llama target, the drafter of a fixture that says what it says, and prompts."""
    llama_target(folder / "target")
    drafter(path, folder / "target", folder / "drafter")
    write_prompts(folder / "prompts.jsonl")
    return folder


def counts(report: SmokeReport) -> list[tuple[Any, ...]]:
    """Of each prompt: its rounds, what was accepted by position, and the answer."""
    return [(found.drafts, found.accepted, found.tokens) for found in report.run.results]
