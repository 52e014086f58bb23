"""Run in the child process: vLLM generates, or returns the target's hidden states, for one batch a request.

Requests and answers are JSON files; a line on a pipe says that one was written. Hidden states are left as one
file for each sequence, which the parent removes. Written against vLLM 0.32.0.
"""

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

from eaglectl.acceptance.child import error_answer
from eaglectl.acceptance.process import ANSWER, REQUEST
from eaglectl.acceptance.vllm.child import argument_names, llm_arguments


def main() -> None:
    """Answer the requests in the folder of the first argument until stdin ends."""
    folder = Path(sys.argv[1])
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM prints to stdout too

    def answer(document: dict[str, Any]) -> None:
        (folder / ANSWER).write_text(json.dumps(document), encoding="utf-8")
        print(flush=True, file=pipe)

    given: dict[str, Any] = {}
    try:
        import vllm

        answer({"version": vllm.__version__})
        llm: Any = None
        for _ in sys.stdin:
            request = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
            if llm is None:
                given = request["engine_arguments"]
                llm = load(request, folder)
                answer(describe(llm))
            else:
                answer(run(llm, request))
    except Exception as error:
        answer(error_answer(error, given, argument_names))


def load(request: dict[str, Any], folder: Path) -> Any:
    """The target in vLLM, with the speculation method that proposes nothing and keeps hidden states."""
    from vllm import LLM

    ids = {"eagle_aux_hidden_state_layer_ids": request["boundaries"]}
    arguments = llm_arguments(request, request["length"]) | {
        "max_num_seqs": request["batch"],
        "enable_prefix_caching": False,  # else tokens of a cached prefix have no states
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": ids},
        },
        "kv_transfer_config": {
            "kv_connector": "StatesConnector",
            "kv_connector_module_path": "eaglectl.acceptance.vllm.connector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(folder)},
        },
    }
    if "kv_cache_memory_bytes" in arguments.keys() - request["engine_arguments"].keys():
        arguments["kv_cache_memory_bytes"] = max(arguments["kv_cache_memory_bytes"], request["cache_bytes"])
    return LLM(**arguments)


def describe(llm: Any) -> dict[str, str]:
    """The device and dtype of the target."""
    config = llm.llm_engine.vllm_config
    return {
        "device": str(config.device_config.device_type),
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
    }


def run(llm: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Greedy answers of `tokens` tokens; where that is 0, the files with the states of each sequence."""
    from vllm import SamplingParams

    tokens = request["tokens"]
    params = SamplingParams(temperature=0.0, max_tokens=tokens or 1, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in request["sequences"]]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    files = wait_until_written(
        llm, [str(output.kv_transfer_params["hidden_states_path"]) for output in outputs]
    )
    if not tokens:
        return {"files": files}
    for file in files:
        Path(file).unlink(missing_ok=True)
    return {"answers": [list(output.outputs[0].token_ids) for output in outputs]}


def wait_until_written(llm: Any, files: list[str]) -> list[str]:
    """`files`, once they are complete: vLLM writes them in steps that follow the last answer."""
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    while scheduler.has_requests():
        engine.step()
    for file in files:
        lock = Path(f"{file}.lock")
        if lock.exists():
            with lock.open("rb") as locked:
                fcntl.flock(locked, fcntl.LOCK_SH)
            lock.unlink()
    return files


if __name__ == "__main__":
    main()
