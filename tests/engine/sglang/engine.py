"""SGLang's own scheduler in this process, on a CPU. Import this before anything of SGLang."""

import os
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# it compiles small functions for seconds, which changes nothing of what they return
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

from tests.engine.sglang import kernels, stubs

stubs.install()
stubs.without_processors()
kernels.stand_in()

from sglang.srt import runtime_context
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import PortArgs, ServerArgs

OPTIONS: dict[str, Any] = {
    "device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch",
    "skip_tokenizer_init": True, "disable_cuda_graph": True, "max_total_tokens": 8192,
    "max_running_requests": 4, "disable_radix_cache": True, "mem_fraction_static": 0.3, "random_seed": 0,
    "disable_overlap_schedule": True, "log_level": "error", "page_size": 1,
}  # fmt: skip
RANKS = ("tp_rank", "moe_ep_rank", "pp_rank", "attn_cp_rank", "moe_dp_rank")


def start(
    target: Path,
    drafter: Path | None = None,
    k: int = 3,
    dtype: str = "float32",
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """A scheduler with its target worker, and with its draft worker where a drafter is given."""
    options = OPTIONS | {"model_path": str(target), "dtype": dtype} | more
    if drafter is not None:
        options |= {
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": str(drafter),
            "speculative_num_steps": k,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": k + 1,
        }
    arguments = ServerArgs(**options)
    if hasattr(arguments, "resolve"):
        arguments.resolve()
    ranks: dict[str, Any] = {}
    if hasattr(runtime_context, "SpawnRanks"):
        place = runtime_context.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0)
        runtime_context.publish(arguments, role="scheduler", ranks=place)
    else:  # before 0.5.21 the scheduler takes them
        ranks = {"gpu_id": 0, "dp_rank": None, **dict.fromkeys(RANKS, 0)}
        if hasattr(runtime_context, "publish"):  # since 0.5.17
            runtime_context.publish(arguments, role="scheduler")
    engine = Scheduler(arguments, PortArgs.init_new(arguments), **ranks)
    if hasattr(engine, "schedule_stream"):  # since 0.5.20
        engine.schedule_stream.synchronize = lambda: None
    return engine


def generate(engine: Any, prompts: Sequence[Sequence[int]], tokens: int = 32) -> list[list[list[int]]]:
    """Greedy answers, one prompt after the other: its rounds, in each the verified token and the drafted."""
    rounds = []
    for place, prompt in enumerate(prompts):
        kernels.CANDIDATES.clear()
        request = _request(engine, f"r{place}", prompt, tokens)
        while not request.finished():
            plan = engine.get_next_batch_to_run(
                running_batch=engine.running_batch, last_batch=engine.last_batch
            )
            engine.running_batch, batch = plan.running_batch, plan.batch_to_run
            if batch:
                engine.process_batch_result(batch, engine.run_batch(batch))
            engine.last_batch = batch
        rounds.append([list(row) for row in kernels.CANDIDATES])
    return rounds


def _request(engine: Any, name: str, prompt: Sequence[int], tokens: int) -> Any:
    params = SamplingParams(max_new_tokens=tokens, temperature=0.0, ignore_eos=True)
    params.normalize(None)
    absent = dict.fromkeys(("input_embeds", "mm_inputs", "token_type_ids", "token_ids_logprob"))
    logprob = {"return_logprob": False, "logprob_start_len": -1, "top_logprobs_num": 0}
    given = {"input_text": "", "input_ids": array("q", prompt), "sampling_params": params, "stream": False}
    engine.handle_generate_request(TokenizedGenerateReqInput(rid=name, **given, **logprob, **absent))
    return engine.waiting_queue[-1]
