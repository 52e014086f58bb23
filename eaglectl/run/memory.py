"""How much memory of a GPU a run of two models needs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglectl.files.target_files import read_target_config, text_part
from eaglectl.run.job import EngineJob

# what an engine takes beside weights, cache and activations: its context, its kernels, and a margin
ENGINE_BYTES = 6 << 30
BATCH_TOKENS = 16384  # that vLLM takes in one batch on large GPUs
MIN_CACHE = 256 << 20


def needed_memory(job: EngineJob, texts: Sequence[Sequence[int]]) -> int:
    """Bytes of one GPU for `texts`: weights, cache, activations, and what the engine takes beside them."""
    config = text_part(read_target_config(job.target))
    whole = weight_bytes(job.target) + weight_bytes(job.folder) + activation_bytes(config)
    return whole // job.tensor_parallel_size + needed_cache(job, texts) + ENGINE_BYTES


def needed_cache(job: EngineJob, texts: Sequence[Sequence[int]], sequences: int = 4) -> int:
    """Bytes of the keys and values of `sequences` of the longest prompts, in 16 bits.

    Of as many heads as the target's config states, in its layers and one of the drafter.
    """
    config = text_part(read_target_config(job.target))
    hidden, layers = _size(config, "hidden_size"), _size(config, "num_hidden_layers") + 1
    heads = _size(config, "num_key_value_heads") or _size(config, "num_attention_heads")
    width = heads * (_size(config, "head_dim") or hidden // max(_size(config, "num_attention_heads"), 1))
    length = max((len(text) for text in texts), default=0) + job.max_tokens + job.k
    return max(2 * 2 * layers * (width or hidden) * sequences * length, MIN_CACHE)


def activation_bytes(config: Mapping[str, Any]) -> int:
    """Bytes that a target of this config works on, for the largest batch that vLLM takes, in 16 bits."""
    return 2 * BATCH_TOKENS * (8 * _size(config, "hidden_size") + 4 * _size(config, "intermediate_size"))


def _size(config: Mapping[str, Any], key: str) -> int:
    """A size that the config states; 0 where it states none."""
    value = config.get(key)
    return value if type(value) is int and value > 0 else 0


def weight_bytes(folder: Path) -> int:
    """Bytes of a folder's weight files."""
    files = [path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".pt")]
    return sum(path.stat().st_size for path in files)
