"""What the benchmarks share: child processes and what they took, pairs of runs, rows of a table, drafters."""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BLOCK = 4 << 20
WEIGHTS = "model.safetensors"


class Child(NamedTuple):
    """What a process took; `cpu` are seconds of all cores, which other work on the machine changes less."""

    seconds: float
    cpu: float
    peak: float = 0  # MB


def eaglectl(*arguments: str | Path) -> Child:
    """Run the command line of the checkout, as its console script does."""
    return python("-c", "from eaglectl.__main__ import main; main()", *arguments)


def python(*arguments: str | Path) -> Child:
    """Run Python in the checkout. This process must stay small: Linux counts it into its children's peaks."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    errors = process.stderr.read() if process.stderr else ""
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(map(str, arguments))}: exit code {process.returncode}\n{errors}")
    return Child(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


def alternating(
    repeat: int, run_base: Callable[[], Child], run_other: Callable[[], Child]
) -> list[tuple[Child, Child]]:
    """Pairs of results; who goes first changes each time, so that a disk that slows down favours neither."""
    pairs = []
    for index in range(repeat):
        early = run_other() if index % 2 else None
        pairs.append((run_base(), early or run_other()))
    return pairs


def report(what: str, values: list[float], most: float | None = None, least: float | None = None) -> None:
    """Print a row: median, least and most of the values, and whether the median keeps its limit."""
    median = statistics.median(values)
    limit = ""
    if most is not None:
        limit = f"at most {most:g}, {'met' if median <= most else 'NOT MET'}"
    if least is not None:
        limit = f"at least {least:g}, {'met' if median >= least else 'NOT MET'}"
    print(
        f"| {what:<62} |{median:>8.3f} |{min(values):>8.3f} |{max(values):>8.3f} | {limit:<22} |", flush=True
    )


def print_head() -> None:
    """Print the head of the table of `report`."""
    print(f"| {'':<62} | {'median':>7} | {'min':>7} | {'max':>7} | {'limit':<22} |")
    print("|---|---|---|---|---|", flush=True)


def remove(folder: Path) -> None:
    """Remove a folder; what the removal still has to write belongs to no measurement."""
    shutil.rmtree(folder)
    os.sync()


def finite_block(seed: int) -> bytes:
    """Bfloat16 numbers of the size of weights."""
    noise = random.Random(seed)
    exponents = bytes(0x3C | byte & 0x81 for byte in range(256))
    block = bytearray(BLOCK)
    block[0::2], block[1::2] = noise.randbytes(BLOCK // 2), noise.randbytes(BLOCK // 2).translate(exponents)
    return bytes(block)


def make_drafter(folder: Path, hidden: int, intermediate: int, head_dim: int, *, has_embedding: bool) -> Path:
    """A drafter for a Llama 3 as SpecForge saves it; its numbers have the size of weights."""
    vocab, draft_vocab, query, key_value = 128_256, 32_000, 32 * head_dim, 8 * head_dim
    shapes = {
        **({"embed_tokens": (vocab, hidden)} if has_embedding else {}),
        "fc": (hidden, 3 * hidden),
        "lm_head": (draft_vocab, hidden),
        "midlayer.hidden_norm": (hidden,),
        "midlayer.input_layernorm": (hidden,),
        "midlayer.mlp.down_proj": (hidden, intermediate),
        "midlayer.mlp.gate_proj": (intermediate, hidden),
        "midlayer.mlp.up_proj": (intermediate, hidden),
        "midlayer.post_attention_layernorm": (hidden,),
        "midlayer.self_attn.k_proj": (key_value, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, query),
        "midlayer.self_attn.q_proj": (query, 2 * hidden),
        "midlayer.self_attn.v_proj": (key_value, 2 * hidden),
        "norm": (hidden,),
    }
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": 1,
        "head_dim": head_dim,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": vocab,
        "draft_vocab_size": draft_vocab,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    }
    # what trainers draw: the frequent tokens have low ids, the others lie scattered
    targets = [
        token if token < draft_vocab // 2 else 7 * token - 3 * draft_vocab for token in range(draft_vocab)
    ]
    d2t, drawn = array("q", (token - i for i, token in enumerate(targets))).tobytes(), set(targets)
    weights = [(f"{name}.weight", "BF16", shape, 2) for name, shape in shapes.items()]
    header, end = {}, 0
    for name, dtype, shape, width in [
        ("d2t", "I64", (draft_vocab,), 8),
        *weights,
        ("t2d", "BOOL", (vocab,), 1),
    ]:
        start, end = end, end + prod(shape) * width
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    raw = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    raw += b" " * (-len(raw) % 8)
    block, left = finite_block(hidden), end - len(d2t) - vocab
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / WEIGHTS).open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw + d2t)
        while left:
            left -= file.write(block[: min(BLOCK, left)])
        file.write(bytes(token in drawn for token in range(vocab)))
        for name, shape in shapes.items():
            if len(shape) == 1:  # about one, as norms are
                file.seek(8 + len(raw) + header[f"{name}.weight"]["data_offsets"][0])
                file.write((b"\x80\x3f\x70\x3f" * shape[0])[: 2 * shape[0]])
    os.sync()
    return folder
