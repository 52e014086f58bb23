"""A running vLLM server as an engine, measured by its counters in /metrics before and after each prompt."""

from collections.abc import Mapping
from typing import Any

from eaglectl.acceptance.job import EngineJob, EngineRun
from eaglectl.acceptance.server.answers import get_optional
from eaglectl.acceptance.server.counting import measured
from eaglectl.acceptance.server.http import Server
from eaglectl.acceptance.server.metrics import VLLM, Counters, count_positions, read_counters
from eaglectl.acceptance.server.openai import other_drafter
from eaglectl.errors import RefusedError, UnreadableError


def run_vllm_server(job: EngineJob, server: Server, model: str) -> EngineRun:
    """Run `job` on `model`, one prompt after the other.

    Raises UnreadableError where the server runs no speculative decoding or does not count by position,
    RefusedError for other traffic and for synthetic acceptance.
    """
    positions = _positions(server, read_counters(server))
    config = _speculative_config(server)
    results, seconds = measured(job, server, model, VLLM, positions)
    drafter = str(config.get("model") or "not said")
    proves = "what the server at this URL does"
    if not config:
        proves += "; which drafter that is it says only with VLLM_SERVER_DEV_MODE=1"
    return EngineRun(
        engine="server",
        version=f"vLLM {_version(server)}",
        device="the server's",
        dtype="the server's",
        proves=proves,
        results=results,
        plain=(),
        seconds=seconds,
        plain_seconds=0.0,
        resolved={
            "model": server.shown(model),
            "drafter": server.shown(drafter),
            "draft_sample_method": _drafting(server, config),
        },
        differences=other_drafter(job.folder, drafter, server.shown(drafter)),
    )


def _drafting(server: Server, config: Mapping[str, Any]) -> str:
    """The server's draft_sample_method; releases without one draft greedily."""
    return server.shown(config.get("draft_sample_method") or "greedy") if config else "not known"


def _positions(server: Server, counters: Counters) -> int:
    """The number of positions that the server counts."""
    if VLLM.drafts not in counters:
        raise UnreadableError(
            f"{server}/metrics has no {VLLM.drafts}; the server runs no speculative decoding, or is neither"
            " vLLM, SGLang nor llama.cpp: start it with --speculative-config"
        )
    positions = count_positions(counters)
    if positions == 0:
        raise UnreadableError(
            f"{server}/metrics does not count by position ({VLLM.accepted}); a newer vLLM does"
        )
    return positions


def _version(server: Server) -> str:
    version = get_optional(server, "/version", "version").get("version")
    return server.shown(version or "of unknown version")


def _speculative_config(server: Server) -> Mapping[str, Any]:
    """The server's speculative_config, which it shows in development mode; empty elsewhere.

    Raises RefusedError where its acceptance is synthetic.
    """
    info = get_optional(server, "/server_info?config_format=json", "server_info").get("vllm_config")
    config = info.get("speculative_config") if isinstance(info, Mapping) else None
    if not isinstance(config, Mapping):
        return {}
    if (method := config.get("rejection_sample_method")) == "synthetic":
        raise RefusedError(
            f"{server} runs with rejection_sample_method: {method}, which invents acceptance; start it"
            " without"
        )
    return config
