"""Run by test_in_engine: starts of the real vLLM with the plugin of this environment, each in a fork.

Arguments: a folder, and a file of requests. A request names a target and a drafter (none for null), and may
have an `environment`, arguments of LLM, and code to run `before` the start. An answer has the lines that
eaglectl logged, the error that ended the start, and the tokens of the prompts.
"""

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", OMP_NUM_THREADS="1"
)
if os.environ.get("ENGINE_RUNNER") == "V2":
    import tests.engine.interpreted  # noqa: F401
else:
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"

import vllm.v1.worker.cpu_worker  # noqa: F401
from vllm import LLM, SamplingParams

from tests.engine.agreement.forks import Death, forked
from tests.engine.starts_log import LINE

ARGUMENTS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "kv_cache_memory_bytes": 64 << 20,
    "seed": 0,
    "skip_tokenizer_init": True,
}
PATIENCE = 240.0


def main() -> None:
    """Write the answer of each request, by its name."""
    root, requests = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    answers = forked(root, list(requests), partial(_start, requests), PATIENCE, 2)
    logs = {name: (root / "logs" / name.replace("/", "--")).read_text() for name in requests}
    dead = {name: {"error": answer.reason} for name, answer in answers.items() if isinstance(answer, Death)}
    lines = {
        name: [" ".join((level or "WARNING", text)) for level, text in LINE.findall(log)]
        for name, log in logs.items()
    }
    found = {name: {**answer, "lines": lines[name]} for name, answer in (answers | dead).items()}
    Path(sys.argv[3]).write_text(json.dumps(found))


def _start(requests: dict[str, Any], name: str) -> dict[str, Any]:
    request = requests[name]
    os.environ |= request.get("environment", {})
    os.chdir(request.get("folder", "."))
    exec(request.get("before", ""), {})
    arguments = {**ARGUMENTS, **request.get("arguments", {})}
    if request["drafter"]:
        arguments["speculative_config"] = {
            "method": "eagle3",
            "model": request["drafter"],
            "num_speculative_tokens": 3,
        }
    begin = time.perf_counter()
    try:
        llm = LLM(model=request["target"], **arguments)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "tokens": []}
    seconds = time.perf_counter() - begin
    prompts = [{"prompt_token_ids": [5 + prompt, 6, 7, 8]} for prompt in range(request.get("prompts", 0))]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    outputs = llm.generate(prompts, params, use_tqdm=False) if prompts else []
    exec(request.get("after", ""), {"llm": llm})
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    return {"error": "", "tokens": tokens, "seconds": seconds}


if __name__ == "__main__":
    main()
