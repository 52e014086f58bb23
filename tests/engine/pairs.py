"""Tiny random targets on disk, with a tokenizer, and drafters for them out of the producers' fixtures."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import eaglectl
from eaglectl.drafter.drafter import Drafter
from eaglectl.operations.converting import ConvertOptions
from eaglectl.run.job import EngineJob
from tests.cases import CASES, Case

# the only tokens the targets say; every fixture drafts them, so a random drafter is right now and then
SPOKEN = (38, 82, 157, 206)
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 8,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
MLA: dict[str, Any] = {
    "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 24, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 8,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
}  # fmt: skip

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"


def llama_target(folder: Path) -> Path:
    """8 layers, hidden 32, 256 tokens, head_dim 32 (vLLM's CPU attention runs no smaller one)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SHAPE, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    return _saved(lambda: LlamaForCausalLM(config), folder)


def mla_target(folder: Path) -> Path:
    """The same sizes with MLA, dense; vLLM's kernels want kv_lora_rank 512 and 64 rotated dimensions."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(**SHAPE | {"initializer_range": 0.2}, **MLA)
    return _saved(lambda: DeepseekV3ForCausalLM(config), folder)


def _saved(make: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    model = make().float()
    with torch.no_grad():
        model.lm_head.weight.copy_(hushed(model.lm_head.weight, torch.arange(SHAPE["vocab_size"])))
    model.save_pretrained(folder)
    _save_tokenizer(folder)
    return folder


def hushed(head: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The head, its rows of tokens that are not spoken made small."""
    return torch.where(torch.isin(tokens, torch.tensor(SPOKEN))[:, None], head, head * 0.01)


def _save_tokenizer(folder: Path) -> None:
    """One token a byte, and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE).save_pretrained(folder)


def case(path: str) -> Case:
    """The producer fixture of this path."""
    return next(case for case in CASES if case.path == path)


def answer_name(path: str) -> str:
    """The file in which the parity child answers for this fixture."""
    return path.replace("/", "--") + ".json"


def drafter(path: str, target: Path, folder: Path) -> Drafter:
    """Convert a fixture into vLLM's layout in `folder`; its head says what the target says."""
    one = case(path)
    plan = eaglectl.convert(
        str(one.folder), folder, ConvertOptions(target=str(target), answers=one.answered())
    ).plan
    weights = tensors(folder)
    if "lm_head.weight" in weights:
        drafted = torch.arange(len(weights["lm_head.weight"])) + weights.get("d2t", torch.tensor(0))
        weights["lm_head.weight"] = hushed(weights["lm_head.weight"], drafted)
    write(weights, folder)
    return plan.drafter


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a drafter of one file."""
    return load_file(folder / "model.safetensors")


def write(weights: dict[str, torch.Tensor], folder: Path) -> None:
    """Make these the drafter's tensors."""
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def changed(source: Path, folder: Path, *, without: Sequence[str] = (), **config: Any) -> Path:
    """A copy of a drafter without the tensors whose names have one of these words, and with these config
    keys.
    """
    shutil.copytree(source, folder)
    write(
        {name: t for name, t in tensors(folder).items() if not any(word in name for word in without)}, folder
    )
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


def job_of(drafter: Path, target: Path, **settings: Any) -> EngineJob:
    """A job for an installed engine with what eaglectl reads of a good drafter."""
    known = eaglectl.inspect(str(drafter), target=str(target)).drafter
    return EngineJob(drafter, known, target, (), **settings)


def write_prompts(path: Path) -> Path:
    """Short texts of two sets, one in the chat template and one longer than a block of 32 tokens."""
    prompts = [
        {"set": "code", "prompt": "def f(x):"},
        {"set": "prose", "prompt": "The quick", "chat": True},
        {"set": "prose", "prompt": "One, two, three and more than 32 bytes"},
    ]
    path.write_text("\n".join(map(json.dumps, prompts)))
    return path


def marked(mark: str) -> list[int]:
    """Processes that were started with this text in their environment; those that just got a SIGKILL have
    time to go.
    """
    deadline = time.monotonic() + 5.0
    while True:
        found = [
            int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _has(folder / "environ", mark)
        ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _has(environ: Path, mark: str) -> bool:
    try:
        return mark.encode() in environ.read_bytes()
    except OSError:
        return False


def end(process: "subprocess.Popen[Any]") -> None:
    """Kill a process that leads a session, and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
