"""A running server as an engine: vLLM, SGLang or llama.cpp, whichever answers."""

from eaglectl.acceptance.job import EngineJob, EngineRun
from eaglectl.acceptance.server.http import open_server
from eaglectl.acceptance.server.llamacpp import llamacpp_props, run_llamacpp_server
from eaglectl.acceptance.server.openai import first_model
from eaglectl.acceptance.server.sglang import run_sglang_server, sglang_info
from eaglectl.acceptance.server.vllm import run_vllm_server
from eaglectl.acceptance.tokens import check_token_ids


def run_server(job: EngineJob, url: str) -> EngineRun:
    """Run `job` on the server at `url`, one prompt after the other.

    Raises UsageError for no URL, UnreadableError where it does not answer, answers nonsense or runs no
    speculative decoding, RefusedError where its counts would not be those of this drafter.
    """
    check_token_ids(job)
    server = open_server(url, job.timeout)
    model = first_model(server)
    info = sglang_info(server)
    if info is not None:
        return run_sglang_server(job, server, model, info)
    props = llamacpp_props(server)
    if props is not None:
        return run_llamacpp_server(job, server, model, props)
    return run_vllm_server(job, server, model)
