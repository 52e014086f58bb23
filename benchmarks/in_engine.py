"""What the plugin adds to a start of vLLM (`.venv-engine/bin/python -m benchmarks.in_engine [REPEATS]`).

Starts of one tiny pair, alternately without the plugin and with it, each in a process of its own: the seconds
from LLM() to its return. Then the parts of the plugin, in a process that has loaded vLLM's arguments.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures/tiny"
START = """
import sys, time
from vllm import LLM
target, drafter = sys.argv[1:]
speculation = {"method": "eagle3", "model": drafter, "num_speculative_tokens": 3}
begin = time.perf_counter()
LLM(model=target, dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=4,
    max_num_batched_tokens=256, kv_cache_memory_bytes=64 << 20, speculative_config=speculation)
print("SECONDS", time.perf_counter() - begin)
"""
PARTS = """
import sys, time
import vllm.engine.arg_utils
target, drafter = sys.argv[1:]
begin = time.perf_counter()
from eaglectl.in_engine.plugin import register_vllm
register_vllm()
print("SECONDS", time.perf_counter() - begin)
from eaglectl.in_engine.hooks import Start
begin = time.perf_counter()
from eaglectl.in_engine.look import before
before(Start("vllm", drafter, target, runner="V1"))
print("SECONDS", time.perf_counter() - begin)
begin = time.perf_counter()
before(Start("vllm", drafter, target, runner="V1"))
print("SECONDS", time.perf_counter() - begin)
"""


def seconds(program: str, mode: str) -> list[float]:
    """The times that a program prints, which runs with the plugin in this mode."""
    settings = {
        "EAGLECTL_IN_ENGINE": mode,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
    }
    # with bytecode, as an installation has it
    environment = {**os.environ, **settings, "PYTHONDONTWRITEBYTECODE": ""}
    pair = [str(FIXTURES / "target"), str(FIXTURES / "eagle3")]
    command = [sys.executable, "-c", program, *pair]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return [float(line.split()[1]) for line in output.splitlines() if line.startswith("SECONDS")]


def main() -> None:
    """Print the table."""
    repeats = int(sys.argv[1]) if sys.argv[1:] else 5
    starts: dict[str, list[float]] = {"off": [], "warn": []}
    for _ in range(repeats):
        for mode, found in starts.items():
            found += seconds(START, mode)
    ratio = [warn / off for off, warn in zip(starts["off"], starts["warn"], strict=True)]
    rows = {
        "start without the plugin, s": starts["off"],
        "start with it, s": starts["warn"],
        "with / without": ratio,
    }
    parts = list(zip(*(seconds(PARTS, "warn") for _ in range(repeats)), strict=True))
    names = ("without a drafter: hooks registered, s", "look before the weights, s", "the same again, s")
    rows |= {name: list(part) for name, part in zip(names, parts, strict=True)}
    print("| | median | min | max |\n|---|---|---|---|")
    for name, found in rows.items():
        print(f"| {name} | {statistics.median(found):.3f} | {min(found):.3f} | {max(found):.3f} |")


if __name__ == "__main__":
    main()
