"""A running server as an engine: vLLM or SGLang, whichever answers."""

from eaglectl.acceptance.job import EngineJob, EngineRun
from eaglectl.acceptance.server.http import first_model
from eaglectl.acceptance.server.sglang import run_sglang_server, sglang_info
from eaglectl.acceptance.server.vllm import run_vllm_server


def run_server(job: EngineJob, url: str) -> EngineRun:
    """Run `job` on the server at `url`, one prompt after the other.

    Raises UnreadableError where it does not answer or runs no speculative decoding, RefusedError where its
    counts would not be those of this drafter.
    """
    base = url.rstrip("/")
    model = first_model(base)
    info = sglang_info(base)
    if info is not None:
        return run_sglang_server(job, base, model, info)
    return run_vllm_server(job, base, model)
