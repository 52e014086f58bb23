"""What the reference engine costs beside transformers' `generate`, on random weights of a real vocabulary.

    python -m benchmarks.reference [--prompts 40] [--longest 250] [--layers 6] [--sizes 128256x4096]

Targets of few layers (by default 49,152 tokens as SmolLM2 has them, 128,256 as Llama 3), each with a random
drafter of 8,192 draft tokens, of which next to nothing is accepted. Each row is a process of its own, whose
peak memory is given beyond that of a process that only loads what it runs: the target for `generate`, target
and drafter for the others. `smoke` is both passes at k=3.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SIZES = ("49152x576", "128256x1024")  # vocabulary and hidden size
DRAFT_VOCAB = 8192
NEW_TOKENS = 64
HEAD = 64
BATCH = 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--longest", type=int, default=250)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--runs", nargs="+", default=[name for name in RUNS if name not in LOADED])
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        name, folder = options.child
        row = measured(RUNS[name], Path(folder), texts_of(options))
        print(json.dumps(row))
        return
    print("| vocabulary, width | run | s | over generate | CPU s | peak MB beyond the weights |")
    print("|---|---|---|---|---|---|", flush=True)
    for size in options.sizes:
        vocab, width = map(int, size.split("x"))
        with tempfile.TemporaryDirectory() as name:
            make_pair(Path(name), vocab, width, options.layers)
            loaded = {run: in_child(run, name, options)["peak"] for run in LOADED}
            plain = None
            for run in dict.fromkeys(("generate", *options.runs)):
                row = in_child(run, name, options)
                plain = plain or row["seconds"]
                share = f"{row['seconds'] / plain:.2f}"
                more = row["peak"] - loaded["target" if run == "generate" else "pair"]
                print(
                    f"| {vocab:,}, {width:,} | {run} | {row['seconds']:.1f} | {share} | {row['cpu']:.1f}"
                    f" | {more:,.0f} |",
                    flush=True,
                )


def in_child(run: str, folder: str, options: argparse.Namespace) -> dict[str, float]:
    """The figures of one run in a process of its own."""
    sizes = [f"--{name}={getattr(options, name)}" for name in ("prompts", "longest", "layers")]
    command = [sys.executable, "-m", "benchmarks.reference", *sizes, "--child", run, folder]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    row: dict[str, float] = json.loads(output.splitlines()[-1])
    return row


def measured(run: Callable[[Any], None], folder: Path, texts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Load the pair, run, and return seconds, CPU seconds and the peak of the process in MB."""
    from eaglectl.files.checkpoint import open_folder, read_checkpoint
    from eaglectl.formats.format import Answers
    from eaglectl.formats.reader import read_drafter
    from eaglectl.run.job import EngineJob
    from eaglectl.run.prompts import Prompt
    from eaglectl.target.choice import open_target

    drafter = read_drafter(
        read_checkpoint(open_folder(str(folder / "drafter"))), Answers(), open_target(str(folder / "target"))
    )
    prompts = tuple(Prompt("", token_ids=tuple(text)) for text in texts)
    job = EngineJob(
        folder / "drafter",
        drafter,
        folder / "target",
        prompts,
        max_tokens=NEW_TOKENS,
        ignores_eos=True,
        device="cpu",
    )
    start, cpu = time.perf_counter(), time.process_time()
    run(job)
    return {
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - cpu,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def load(job: Any) -> Any:
    """The target as the reference loads it."""
    from eaglectl.reference.target_model import load_target

    return load_target(job.target, job.drafter.aux.boundaries, dtype="float32", device="cpu")


def load_pair(job: Any) -> Any:
    """Target and drafter."""
    from eaglectl.reference.model import load_drafter

    return load(job), load_drafter(job.folder, job.drafter, dtype="float32", device="cpu")


def generate(job: Any) -> None:
    """transformers alone, in batches of texts of similar length."""
    import torch

    from eaglectl.reference.speculation import pad_left

    model = load(job).model
    texts = sorted((prompt.token_ids for prompt in job.prompts), key=len)
    for start in range(0, len(texts), BATCH):
        tokens, _, valid = pad_left(texts[start : start + BATCH], torch.device("cpu"))
        model.generate(
            tokens,
            attention_mask=valid.long(),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
        )


def smoke(job: Any) -> None:
    """The drafted and the plain pass of `smoke --run-in reference`."""
    from eaglectl.run.job import run_reference

    run = run_reference(job)
    print(f"drafted {run.seconds:.1f} s, plain {run.plain_seconds:.1f} s", file=sys.stderr)


def calibrate(job: Any) -> None:
    """The target's answers, then the two passes of `calibrate`."""
    from eaglectl.reference.states import Batch, TransformersEngine, collect_moments, collect_sizes
    from eaglectl.run.prompts import batches_by_length

    target, model = load_pair(job)
    engine = TransformersEngine(target, "cpu", "float32")
    texts = [prompt.token_ids for prompt in job.prompts]
    batches = []
    for indices in batches_by_length(texts, NEW_TOKENS):
        chosen = [texts[index] for index in indices]
        answers = engine.answers(chosen, NEW_TOKENS)
        whole = [[*text, *answer] for text, answer in zip(chosen, answers, strict=True)]
        batches.append(Batch(whole, ["prompts"] * len(whole)))
    sizes = collect_sizes(engine, model, batches, int)
    collect_moments(engine, model, sizes.rms, batches, int)


def gate(job: Any) -> None:
    """The gate of `convert --to 3.1`."""
    from eaglectl.run.gate import run_gate

    run_gate(job, job, 0.97)


def probe(job: Any) -> None:
    """The sensitivity probe, without the run of the stated reading."""
    from eaglectl.run.measurement import PromptResult
    from eaglectl.run.probes import probe_sensitivity

    random.seed(0)
    answers = [tuple(random.choices(range(8000), k=NEW_TOKENS)) for _ in job.prompts]
    probe_sensitivity(job, [PromptResult("prompts", 40, (10, 5, 2), answer) for answer in answers])


LOADED = ("target", "pair")
RUNS = {
    "target": load,
    "pair": load_pair,
    "generate": generate,
    "smoke": smoke,
    "calibrate": calibrate,
    "gate": gate,
    "probe": probe,
}


def texts_of(options: argparse.Namespace) -> list[list[int]]:
    """Prompts of token ids, of a tenth of the longest length up to it."""
    draw = random.Random(0)
    lengths = [draw.randint(options.longest // 10, options.longest) for _ in range(options.prompts)]
    return [[draw.randrange(8000) for _ in range(length)] for length in lengths]


def make_pair(folder: Path, vocab: int, width: int, layers: int) -> None:
    """A target with its drafter, both of random weights."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads, kv_heads, inner = width // HEAD, max(1, width // HEAD // 3), width * 8 // 3
    shape = {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads if heads % kv_heads == 0 else 1,
        "head_dim": HEAD,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }
    config = LlamaConfig(
        **shape, num_hidden_layers=layers, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2
    )
    LlamaForCausalLM(config).save_pretrained(folder / "target")
    key_value = shape["num_key_value_heads"] * HEAD
    sizes = {
        "fc": (width, 3 * width),
        "lm_head": (DRAFT_VOCAB, width),
        "midlayer.mlp.down_proj": (width, inner),
        "midlayer.mlp.gate_proj": (inner, width),
        "midlayer.mlp.up_proj": (inner, width),
        "midlayer.self_attn.k_proj": (key_value, 2 * width),
        "midlayer.self_attn.o_proj": (width, heads * HEAD),
        "midlayer.self_attn.q_proj": (heads * HEAD, 2 * width),
        "midlayer.self_attn.v_proj": (key_value, 2 * width),
    }
    tensors = {f"{name}.weight": torch.randn(size) * 0.02 for name, size in sizes.items()}
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        tensors[f"midlayer.{name}.weight"] = torch.ones(width)
    tensors["norm.weight"] = torch.ones(width)
    tensors["d2t"] = torch.zeros(DRAFT_VOCAB, dtype=torch.int64)
    tensors["t2d"] = torch.arange(vocab) < DRAFT_VOCAB
    described = {
        **shape,
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCAB,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, layers // 2, layers - 2]},
    }
    (folder / "raw").mkdir()
    (folder / "raw/config.json").write_text(json.dumps(described))
    save_file(tensors, folder / "raw/model.safetensors")
    import eaglectl
    from eaglectl.api.convert import ConvertOptions

    options = ConvertOptions(target=str(folder / "target"), measure=None, force_unserved=True)
    eaglectl.convert(str(folder / "raw"), folder / "drafter", options)


if __name__ == "__main__":
    main()
