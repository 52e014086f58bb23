"""What eaglectl costs beside what the machine needs for the same work: a report in ratios, not a test (see
README.md).
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BLOCK = 4 << 20
WEIGHTS = "model.safetensors"
HEAVY = ("torch", "transformers", "huggingface_hub", "jsonschema")
# what the console script does, and then which of HEAVY it loaded
EAGLECTL = f"""import sys; from eaglectl.cli import run; code = run(sys.argv[1:])
print(*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr); sys.exit(code)"""


class Child(NamedTuple):  # what it took, and what it said on stderr
    seconds: float
    cpu: float  # seconds of all cores, which other work on the machine hardly changes
    peak: float = 0  # MB
    stderr: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--scratch", type=Path, help="a folder on the disk to measure; 7 GB are written and removed"
    )
    parser.add_argument("--repeat", type=int, default=7, help="how often each conversion is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eaglectl-benchmark-", dir=options.scratch) as name:
        folder = Path(name).resolve()
        if shutil.disk_usage(folder).free < 7e9:
            sys.exit(f"{folder}: less than 7 GB are free; give another --scratch")
        # installed packages have their bytecode; the checkout's is made by the first run, and kept out of the
        # checkout
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        large = make_drafter(
            folder / "large", 4096, 14336, 128, has_embedding=True
        )  # for Llama 3.1 8B: 1.9 GB
        small = make_drafter(
            folder / "small", 2048, 8192, 64, has_embedding=False
        )  # for Llama 3.2 1B: 0.29 GB
        print(f"{'':<48}{'median':>9}{'min':>9}{'max':>9}  budget")
        measure_inspect(large, 3 * options.repeat)
        measure_convert(large, small, folder / "out", options.repeat)
        measure_link(large, folder / "settled", folder / "out", options.repeat)
        print(f"load average {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")


def measure_inspect(source: Path, repeat: int) -> None:
    for arguments in ("inspect", source), ("-q", "convert", source, "--dry-run"):
        eaglectl(*arguments)  # makes the bytecode
    pairs = alternating(repeat, lambda: eaglectl(code="import typer"), lambda: eaglectl("inspect", source))
    report("import typer, s", [base.seconds for base, _ in pairs])
    report("inspect, s", [run.seconds for _, run in pairs])
    report("inspect - import typer, s", [run.seconds - base.seconds for base, run in pairs], 0.25)
    report("the same, CPU s", [run.cpu - base.cpu for base, run in pairs])
    report("inspect, peak MB", [run.peak for _, run in pairs])


def measure_convert(large: Path, small: Path, out: Path, repeat: int) -> None:
    # each after an untimed copy: the source is in the page cache, and memory and disk are in the same state
    # for both
    pairs = alternating(
        repeat,
        lambda: copy(large, out) and copy(large, out),
        lambda: copy(large, out) and convert(large, out),
    )
    others = [convert(small, out) for _ in range(repeat)]
    sizes = [f"{(source / WEIGHTS).stat().st_size / 1e9:.2f} GB" for source in (large, small)]
    report(f"copy_file_range and fsync of {sizes[0]}, s", [base.seconds for base, _ in pairs])
    report(f"convert of {sizes[0]}, s", [run.seconds for _, run in pairs])
    report("copy, CPU s", [base.cpu for base, _ in pairs])
    report("convert, CPU s", [run.cpu for _, run in pairs])
    report("convert / copy", [run.seconds / base.seconds for base, run in pairs], 1.2)
    report(f"convert of {sizes[0]}, peak MB", [run.peak for _, run in pairs], 120)
    report(f"convert of {sizes[1]}, peak MB", [run.peak for run in others], 120)
    print_loaded([run for _, run in pairs])


def print_loaded(runs: list[Child]) -> None:
    """Which heavy packages `convert` imports."""
    loaded = " ".join({name for run in runs for name in run.stderr.split() if name in HEAVY}) or "none"
    proof = "torch is installed" if find_spec("torch") else "torch is not installed, so this proves little"
    print(f"of {', '.join(HEAVY)}, convert loads: {loaded} ({proof})")


def measure_link(large: Path, settled: Path, out: Path, repeat: int) -> None:
    eaglectl(
        "-q", "convert", large, "-o", settled
    )  # in the layout that convert writes, nothing is renamed again
    runs = []
    for _ in range(repeat):
        runs.append(eaglectl("-q", "convert", settled, "-o", out, "--link").seconds)
        if not (out / WEIGHTS).samefile(settled / WEIGHTS):
            sys.exit("convert --link copied a file that it could have linked")
        remove(out)
    report("convert --link where nothing is renamed, s", runs, 0.5)


def convert(source: Path, out: Path) -> Child:
    """Convert SpecForge's spelling into vLLM's, look at the output, remove it."""
    child = eaglectl("-q", "convert", source, "-o", out)
    with (out / WEIGHTS).open("rb") as file:
        names = set(json.loads(file.read(int.from_bytes(file.read(8), "little"))))
    if "layers.0.mlp.up_proj.weight" not in names or (out / WEIGHTS).stat().st_size < 1e8:
        sys.exit(f"convert did not do its work: {sorted(names)}")
    remove(out)
    return child


def copy(source: Path, out: Path) -> Child:
    """The least that any conversion can do: the same bytes into a new file, and on to the disk."""
    out.mkdir()
    start, cpu = time.perf_counter(), time.process_time()
    with (source / WEIGHTS).open("rb") as reader, (out / WEIGHTS).open("wb") as writer:
        while os.copy_file_range(reader.fileno(), writer.fileno(), 1 << 30):
            pass
        os.fsync(writer.fileno())
    child = Child(time.perf_counter() - start, time.process_time() - cpu)
    remove(out)
    return child


def remove(folder: Path) -> None:
    shutil.rmtree(folder)
    os.sync()  # what the removal still has to write belongs to no measurement


def alternating(
    repeat: int, run_base: Callable[[], Child], run_other: Callable[[], Child]
) -> list[tuple[Child, Child]]:
    """Pairs of results; who goes first changes each time, so that a disk that slows down favours neither."""
    pairs = []
    for index in range(repeat):
        early = run_other() if index % 2 else None
        pairs.append((run_base(), early or run_other()))
    return pairs


def report(what: str, values: list[float], budget: float | None = None) -> None:
    median = statistics.median(values)
    verdict = "" if budget is None else f"{budget:g}, {'kept' if median <= budget else 'MISSED'}"
    print(f"{what:<48}{median:>9.3f}{min(values):>9.3f}{max(values):>9.3f}  {verdict}".rstrip(), flush=True)


def eaglectl(*arguments: str | Path, code: str = EAGLECTL) -> Child:
    """Run it in the checkout. This process must stay small: Linux counts it into the peak of the children it
    starts.
    """
    command = [sys.executable, "-c", code, *arguments]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    errors = process.stderr.read() if process.stderr else ""
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(map(str, arguments))}: exit code {process.returncode}\n{errors}")
    return Child(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6, errors)


def make_drafter(folder: Path, hidden: int, intermediate: int, head_dim: int, *, has_embedding: bool) -> Path:
    """A drafter for a Llama 3 as SpecForge saves it, of random numbers; tensors in safetensors' order."""
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
    noise, left = random.Random(hidden), end - len(d2t) - vocab
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / WEIGHTS).open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw + d2t)
        while left:
            left -= file.write(noise.randbytes(min(BLOCK, left)))
        file.write(bytes(token in drawn for token in range(vocab)))
    os.sync()
    return folder


if __name__ == "__main__":
    main()
