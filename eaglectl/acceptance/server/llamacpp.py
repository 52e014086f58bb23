"""A running llama-server as an engine, measured by its counters in /metrics before and after each prompt.

Of llama-cpp-python 0.3.36, run by tests/engine/llamacpp: tools/server/server-context.cpp (a round is counted
when its drafts are verified; one that drafted nothing is not), server-task.cpp (/metrics).
"""

from collections.abc import Mapping
from typing import Any

from eaglectl.acceptance.job import EngineJob, EngineRun
from eaglectl.acceptance.server.answers import get_optional
from eaglectl.acceptance.server.counting import measured
from eaglectl.acceptance.server.http import Server
from eaglectl.acceptance.server.metrics import LLAMACPP, read_counters
from eaglectl.errors import UnreadableError

START = "start it with --model-draft DRAFTER.gguf --spec-type draft-eagle3 --metrics"


def llamacpp_props(server: Server) -> Mapping[str, Any] | None:
    """/props of a llama-server; None where the server is another. Raises UnreadableError."""
    props = get_optional(server, "/props", "props")
    return props if "build_info" in props and "default_generation_settings" in props else None


def run_llamacpp_server(job: EngineJob, server: Server, model: str, props: Mapping[str, Any]) -> EngineRun:
    """Run `job` on `model`, one prompt after the other.

    Raises UnreadableError where the server does not count or never drafted, RefusedError for other traffic.
    """
    if props.get("endpoint_metrics") is False:
        raise UnreadableError(
            f"{server} is a llama-server without /metrics, which counts the drafts; {START}"
        )
    if LLAMACPP.drafts not in read_counters(server, LLAMACPP):
        raise UnreadableError(
            f"{server}/metrics has no {LLAMACPP.drafts}; llama.cpp of llama-cpp-python 0.3.36 counts drafts:"
            " run that or a later one"
        )
    # a cached prompt would be neither evaluated nor drafted behind anew
    results, seconds = measured(job, server, model, LLAMACPP, extra={"cache_prompt": False})
    if not any(result.drafts for result in results):
        raise UnreadableError(f"{server} drafted nothing; {START}")
    return EngineRun(
        engine="server",
        version=f"llama.cpp {server.shown(props['build_info'])}",
        device="the server's",
        dtype="the server's",
        proves=(
            "what the server at this URL does, in the rounds that drafted (with --spec-draft-p-min some do"
            " not); which drafter that is, and whether acceptance is made up (--spec-synth-len), it does not"
            " say"
        ),
        results=results,
        plain=(),
        seconds=seconds,
        plain_seconds=0.0,
        resolved={"model": server.shown(props.get("model_path") or model), "drafter": "not said"},
        differences=(),
    )
