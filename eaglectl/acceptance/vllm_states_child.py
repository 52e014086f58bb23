"""Run inside the child process: vLLM answers prompts and gives the target's hidden states, batch by batch, as it is asked.

It is told and tells through files, and a line says that one is there; states it leaves as a file a sequence, for the parent
to remove. Written against vLLM 0.32.0.
"""

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

from eaglectl.acceptance.vllm_child import settings, worded

ASKED, TOLD = "asked.json", "told.json"


def main() -> None:
    """Work for whoever wrote the folder named by the first argument, until nothing more is asked."""
    folder = Path(sys.argv[1])
    line = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is not an answer

    def tell(value: dict[str, Any]) -> None:
        (folder / TOLD).write_text(json.dumps(value))
        print(flush=True, file=line)

    try:
        import vllm

        tell({"version": vllm.__version__})
        llm: Any = None
        for _ in sys.stdin:
            asked = json.loads((folder / ASKED).read_text())
            if llm is None:
                llm = load(asked, folder)
                tell(described(llm))
            else:
                tell(done(llm, asked))
    except Exception as error:
        tell({"error": worded(error)})


def load(order: dict[str, Any], folder: Path) -> Any:
    """The target in vLLM, with the speculation that proposes nothing and keeps hidden states."""
    from vllm import LLM

    ids = {"eagle_aux_hidden_state_layer_ids": order["boundaries"]}
    given = settings(order, order["length"]) | {
        "max_num_seqs": order["batch"],
        "enable_prefix_caching": False,  # a pass over every token
        "tensor_parallel_size": order["tensor_parallel_size"],
        "speculative_config": {
            "method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": {"hf_config": ids},
        },
        "kv_transfer_config": {
            "kv_connector": "StatesConnector", "kv_connector_module_path": "eaglectl.acceptance.vllm_connector",
            "kv_role": "kv_producer", "kv_connector_extra_config": {"shared_storage_path": str(folder)},
        },
    }  # fmt: skip
    if "kv_cache_memory_bytes" in given:
        given["kv_cache_memory_bytes"] = max(given["kv_cache_memory_bytes"], order["cache_bytes"])
    return LLM(**given)


def described(llm: Any) -> dict[str, str]:
    """What runs the target, and how."""
    config = llm.llm_engine.vllm_config
    return {
        "device": str(config.device_config.device_type),
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
    }


def done(llm: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Greedy answers of so many tokens; without such a number, the files with the states of every sequence."""
    from vllm import SamplingParams

    wanted = asked["tokens"]
    params = SamplingParams(temperature=0.0, max_tokens=wanted or 1, ignore_eos=True, detokenize=False)
    found = llm.generate([{"prompt_token_ids": ids} for ids in asked["sequences"]], params, use_tqdm=False)
    files = written(llm, [str(one.kv_transfer_params["hidden_states_path"]) for one in found])
    if not wanted:
        return {"files": files}
    for file in files:
        Path(file).unlink(missing_ok=True)
    return {"answers": [list(one.outputs[0].token_ids) for one in found]}


def written(llm: Any, files: list[str]) -> list[str]:
    """`files`, once they lie whole on disk: an engine in this process steps only as long as answers are missing."""
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    while scheduler.has_requests():
        engine.step()
    for file in files:
        lock = Path(f"{file}.lock")
        if lock.exists():
            with lock.open() as held:
                fcntl.flock(held, fcntl.LOCK_SH)
            lock.unlink()
    return files


if __name__ == "__main__":
    main()
