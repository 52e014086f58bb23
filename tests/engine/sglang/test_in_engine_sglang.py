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

from tests.engine.agreement.bases import target
from tests.engine.agreement.cases import CASES
from tests.engine.sglang.settings import ARGUMENTS, PATIENCE
from tests.engine.starts_log import unlike
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
OTHERWISE = r"eaglectl: SGLang 0\.5\.23 runs it differently than it was trained"
LOADED_OTHERWISE = r"eaglectl: SGLang 0\.5\.23 has loaded the drafter differently than it was trained: "
# cases of agreement: what is logged, each a pattern of one line
MISREAD: Mapping[str, Sequence[str]] = {
    "llama3/none": [TRAINED, LOADED],
    "llama3/rope_scaling yarn": [TRAINED, LOADED],
    "llama3/aux ids unsorted": [
        r"eaglectl: SGLang 0\.5\.23 reads target layers 4, 5, 2; trained on 2, 4, 5",
        "next:  eaglectl convert .*--engine=sglang",
        LOADED_OTHERWISE + r"aux_layers: SGLang uses \[2, 4, 5\], the checkpoint means \[5, 2, 4\]",
    ],
    "llama3/norm_before_residual told": [
        OTHERWISE,
        r"SGLang 0\.5\.23: does not know norm_before_residual",
        LOADED_OTHERWISE + "norm_before_residual: SGLang uses False, the checkpoint means True",
    ],
    "llama31/norm_output nested": [
        OTHERWISE,
        r"SGLang 0\.5\.23: reads norm_output as false",
        "next:  eaglectl convert .*--engine=sglang",
        LOADED_OTHERWISE + "norm_output: SGLang uses False, the checkpoint means True",
    ],
    "llama3/without o_proj": [
        OTHERWISE,
        r"SGLang 0\.5\.23: layers.0.self_attn.o_proj.weight is missing",
        LOADED_OTHERWISE + "SGLang uses .*o_proj.weight, which neither the file nor the target fills",
    ],
}


def start(target: Path, drafter: Path, folder: Path, **variables: str) -> tuple[int, list[str], str]:
    """Exit code, what eaglectl logged, and the tokens, of a start of SGLang's engine."""
    (folder / "program.py").write_text(PROGRAM)
    settings = {**SETTINGS, "model_path": str(target), "speculative_draft_model_path": str(drafter)}
    done = subprocess.run(
        [sys.executable, str(folder / "program.py"), json.dumps(settings)],
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


@pytest.mark.parametrize("name", MISREAD)
def test_a_start_says_once_what_sglang_does_with_the_drafter(name: str, tmp_path: Path) -> None:
    target("llama").write(tmp_path / "target")
    CASES[name].files().write(tmp_path / "drafter")
    code, lines, tokens = start(tmp_path / "target", tmp_path / "drafter", tmp_path)
    assert (code, unlike(lines, MISREAD[name])) == (0, []) and tokens


def test_the_answers_are_those_without_the_plugin(tmp_path: Path) -> None:
    code, lines, tokens = start(TARGET, TINY / "eagle3", tmp_path)
    assert (code, unlike(lines, [TRAINED, LOADED])) == (0, []) and tokens
    assert start(TARGET, TINY / "eagle3", tmp_path, EAGLECTL_IN_ENGINE="off") == (0, [], tokens)


def test_a_refused_start_ends_before_the_weights(tmp_path: Path) -> None:
    target("llama").write(tmp_path / "target")
    CASES["llama31/norm_output nested"].files().write(tmp_path / "drafter")
    code, lines, tokens = start(
        tmp_path / "target", tmp_path / "drafter", tmp_path, EAGLECTL_IN_ENGINE="refuse"
    )
    # the log, then the same in the error
    assert code != 0 and tokens == "" and not unlike(lines[:3], MISREAD["llama31/norm_output nested"][:3])
    assert not any("loaded" in line for line in lines)
