"""In the child process: vLLM generates, or returns the target's hidden states, for one batch a request.

Hidden states are left as one file for each sequence, which the parent removes.
"""

import fcntl
from pathlib import Path
from typing import Any

from eaglectl.run.child import report_phase
from eaglectl.run.vllm.starting import describe, start_engine


class _Target:
    """The target that was opened."""

    llm: Any = None


def open_target(request: dict[str, Any]) -> dict[str, Any]:
    """Load the target with the speculation method that proposes nothing and keeps hidden states."""
    arguments = {
        "enable_prefix_caching": False,  # else tokens of a cached prefix have no states
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": request["boundaries"]}},
        },
        "kv_transfer_config": {
            "kv_connector": "StatesConnector",
            "kv_connector_module_path": "eaglectl.run.vllm.connector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": request["folder"]},
        },
    }
    _Target.llm = start_engine(request, request["length"], arguments)
    return describe(_Target.llm)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Greedy answers of `tokens` tokens; where that is 0, the files with the states of each sequence."""
    from vllm import SamplingParams

    report_phase("running a batch")
    tokens = request["tokens"]
    params = SamplingParams(temperature=0.0, max_tokens=tokens or 1, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in request["sequences"]]
    outputs = _Target.llm.generate(prompts, params, use_tqdm=False)
    files = wait_until_written(
        _Target.llm, [str(output.kv_transfer_params["hidden_states_path"]) for output in outputs]
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
