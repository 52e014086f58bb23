"""The plugin in the real SGLang: what it logs at a start, in the processes that SGLang starts."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from tests.engine.pairs import changed
from tests.engine.sglang.settings import ARGUMENTS, PATIENCE
from tests.tiny import TARGET, TINY

pytestmark = pytest.mark.usefixtures("hooked")

# started as a program: SGLang's processes import it again
PROGRAM = """
import json, sys

if __name__ == "__main__":
    from sglang.srt.entrypoints.engine import Engine

    given = json.loads(sys.argv[1])
    engine = Engine(**given)
    params = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    outputs = [engine.generate(input_ids=[5 + n, 6, 7, 8], sampling_params=params) for n in range(3)]
    print("TOKENS", json.dumps([output["output_ids"] for output in outputs]))
    engine.shutdown()
"""
SETTINGS: Mapping[str, Any] = {
    "model_path": str(TARGET),
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "skip_tokenizer_init": True,
    "max_running_requests": 4,
    "disable_cuda_graph": True,
    "disable_radix_cache": True,
    "log_level": "info",
    "dtype": "float32",
    "device": "cpu",
    "max_total_tokens": 8192,
    "random_seed": 0,
    **ARGUMENTS,
}
TRAINED = r"eaglectl: SGLang 0\.5\.23 runs it as trained"
LOADED = r"eaglectl: SGLang 0\.5\.23 resolved what was trained: layers 2, 4, 5, .*no parameter unfilled"
OTHER_LAYERS = [
    r"eaglectl: SGLang 0\.5\.23 reads target layers 3, 5, 6; trained on 2, 4, 5",
    "next:  eaglectl convert ",
    r"eaglectl: SGLang 0\.5\.23 has loaded the drafter otherwise than it was trained: aux_layers: SGLang uses",
]


def start(folder: Path, drafter: Path, tmp_path: Path, **variables: str) -> tuple[int, list[str], str]:
    """Exit code, what eaglectl logged, and the tokens, of a start of SGLang's engine."""
    (tmp_path / "program.py").write_text(PROGRAM)
    settings = {**SETTINGS, "speculative_draft_model_path": str(drafter)}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), json.dumps(settings)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=folder,
    )
    output = done.stdout + done.stderr
    lines = re.findall(r"^(?:\[[^\]]*\] )?((?:eaglectl|next: |SGLang 0).*)", output, re.M)
    tokens = re.search(r"TOKENS (.*)", output)
    return done.returncode, lines, tokens[1] if tokens else ""


def unlike(lines: Sequence[str], patterns: Sequence[str]) -> list[Any]:
    """Lines and patterns that do not go together."""
    if len(lines) != len(patterns):
        return [lines, patterns]
    return [pair for pair in zip(lines, patterns, strict=True) if not re.match(pair[1], pair[0])]


def test_a_drafter_that_runs_as_trained_is_said_to_once(tmp_path: Path) -> None:
    code, lines, tokens = start(tmp_path, TINY / "eagle3", tmp_path)
    assert (code, unlike(lines, [TRAINED, LOADED])) == (0, []) and tokens
    assert start(tmp_path, TINY / "eagle3", tmp_path, EAGLECTL_IN_ENGINE="off") == (0, [], tokens)
