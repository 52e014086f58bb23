"""Run by test_parity: every case in a fork of its own, vLLM and the reference side by side; one JSON answer a
case.
"""

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", OMP_NUM_THREADS="1"
)

if os.environ.get("ENGINE_RUNNER") == "V2":
    import tests.engine.interpreted  # noqa: F401
else:
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"

import torch
from vllm import LLM, SamplingParams

from eaglectl.run.vllm.child import PROPOSERS, llm_arguments, speculative_config, start_engine
from tests.engine import pairs
from tests.engine.rounds import NEW_TOKENS, K, Rounds, difference, in_reference, prompts

RUNNER = "V2" if os.environ.get("ENGINE_RUNNER") == "V2" else "V1"
PATIENCE = 120.0 if RUNNER == "V1" else 400.0
SIDE_BY_SIDE = 2


def main() -> None:
    """Arguments: the folder with the targets, where answers go too, and the paths of fixtures."""
    root, waiting, running = Path(sys.argv[1]), sys.argv[2:], dict[int, float]()
    while waiting or running:
        while waiting and len(running) < SIDE_BY_SIDE:
            path = waiting.pop(0)
            child = os.fork()
            if child == 0:
                _answer(root, path)
            running[child] = time.monotonic() + PATIENCE
        for child, deadline in list(running.items()):
            if os.waitpid(child, os.WNOHANG) != (0, 0):
                del running[child]
            elif time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.05)


def _answer(root: Path, path: str) -> None:
    try:
        found = run(root, path)
    except BaseException:
        found = {"error": traceback.format_exc()}
    (root / pairs.answer_name(path)).write_text(json.dumps(found))
    os._exit(0)


def run(root: Path, path: str) -> dict[str, Any]:
    """Both sides on the same prompts, compared step by step."""
    torch.set_num_threads(1)
    target, folder = root / ("mla" if pairs.case(path).attention == "MLA" else "llama"), root / path
    folder.parent.mkdir(exist_ok=True)
    drafter = pairs.drafter(path, target, folder)
    theirs, their_output = in_vllm(target, folder, prompts(), is_mla=drafter.dims.attention == "MLA")
    ours, generated = in_reference(target, folder, drafter, prompts())
    pairs_of_rounds = [
        pair for one, other in zip(theirs, ours, strict=True) for pair in zip(one, other, strict=False)
    ]
    differences = [
        difference(one, other)
        for (_, one_logits), (_, other_logits) in pairs_of_rounds
        for one, other in zip(one_logits, other_logits, strict=True)
    ]
    return {
        "rounds": [len(one) for one in ours],
        "their_rounds": [len(one) for one in theirs],
        "difference": max(differences),
        "is_draft_equal": all(one == other for (one, _), (other, _) in pairs_of_rounds),
        "is_output_equal": their_output == [found.tokens for found in generated],
        "accepted": [sum(found.accepted[place] for found in generated) for place in range(K)],
    }


def in_vllm(
    target: Path, folder: Path, prompts: list[list[int]], *, is_mla: bool, **options: Any
) -> tuple[list[Rounds], list[tuple[int, ...]]]:
    """vLLM as smoke starts it, with what its proposer computes and returns recorded; `options` are more of
    LLM's.
    """
    request = {
        "target": str(target),
        "drafter": str(folder),
        "k": K,
        "seed": 0,
        "device": "cpu",
        "is_mla": is_mla,
        "is_mla_target": is_mla,
    }
    given = {**options, "speculative_config": speculative_config(request)}
    llm = start_engine(request, llm_arguments(request, 128) | given)
    drafter: Any = getattr(runner_of(llm), PROPOSERS[RUNNER])
    logits: list[torch.Tensor] = []
    rounds: Rounds = []
    compute, propose = drafter.model.compute_logits, drafter.propose

    def recorded_compute(states: torch.Tensor) -> torch.Tensor:
        found = compute(states)
        logits.append(found[0].clone())
        return found

    def recorded_propose(*arguments: Any, **named: Any) -> torch.Tensor:
        logits.clear()
        found = propose(*arguments, **named)
        rounds.append((found[0].tolist(), list(logits)))
        return found

    drafter.model.compute_logits, drafter.propose = recorded_compute, recorded_propose
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    every, outputs = [], []
    for ids in prompts:
        rounds.clear()
        found = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        outputs.append(tuple(found[0].outputs[0].token_ids))
        every.append(list(rounds))
    return every, outputs


def runner_of(llm: LLM) -> Any:
    """The model runner of vLLM's one worker, which is in this process."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


if __name__ == "__main__":
    main()
