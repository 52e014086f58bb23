"""The OpenAI-compatible API of a server: its model, and completions."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eaglectl.errors import UnreadableError
from eaglectl.run.job import EngineJob
from eaglectl.run.prompts import Prompt
from eaglectl.run.server.answers import get
from eaglectl.run.server.http import Server
from eaglectl.run.tokens import chat_messages, has_chat_template

# draft tokens in a round; no EAGLE drafter makes as many
MAX_STEPS = 64


def first_model(server: Server) -> str:
    """The id of the first model of /v1/models. Raises UnreadableError for another kind of server."""
    model: str = get(server, "/v1/models", "models")["data"][0]["id"]
    return model


def complete(
    server: Server, model: str, prompt: Prompt, job: EngineJob, extra: Mapping[str, Any] | None = None
) -> tuple[int, str, Mapping[str, Any]]:
    """The number of new tokens for `prompt`, the path, and the answer; `extra` are more keys of the request.

    Raises UnreadableError where the answer does not say how many, or says more than were requested.
    """
    path = "/v1/completions"
    content: dict[str, Any] = {"prompt": list(prompt.token_ids) or prompt.text}
    if prompt.messages or (prompt.is_chat and has_chat_template(job.target)):
        path, content = "/v1/chat/completions", {"messages": list(chat_messages(prompt))}
        if prompt.tools:
            content["tools"] = list(prompt.tools)
    request = {
        "model": model,
        **content,
        "max_tokens": job.max_tokens,
        "temperature": job.temperature,
        "seed": job.seed,
        "ignore_eos": job.ignores_eos,
        **(extra or {}),
    }
    answer = get(server, path, "completion", json.dumps(request).encode())
    tokens: int = answer["usage"]["completion_tokens"]
    if tokens > most_tokens(job):
        raise UnreadableError(
            f"{server}{path} says that it made {tokens} tokens (usage.completion_tokens), of"
            f" {job.max_tokens} that were requested; its figures are not this request's: see the server's log"
        )
    return tokens, path, answer


def most_tokens(job: EngineJob) -> int:
    """The most new tokens of a request, and the most rounds: a server may finish the last round."""
    return job.max_tokens + MAX_STEPS


def other_drafter(folder: Path, drafter: str, shown: str) -> tuple[str, ...]:
    """A difference where the server's drafter is a folder of this machine and not the one under test."""
    served = Path(drafter)
    try:
        if not served.is_dir() or served.resolve() == folder.resolve():
            return ()
    except (OSError, ValueError):  # a name that no folder of this machine can have
        return ()
    return (f"the server drafts with {shown}, and the drafter under test is {folder}",)
