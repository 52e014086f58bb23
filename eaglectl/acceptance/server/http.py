"""Requests to a server: its OpenAI-compatible API, and other pages."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eaglectl.acceptance.job import EngineJob
from eaglectl.acceptance.prompts import Prompt
from eaglectl.checkpoint.target_files import read_tokenizer_config
from eaglectl.errors import UnreadableError


def first_model(base: str) -> str:
    """The id of the first model of /v1/models. Raises UnreadableError for another kind of server."""
    models = get(f"{base}/v1/models").get("data")
    model = models[0] if isinstance(models, list) and models else None
    if not isinstance(model, dict) or "id" not in model:
        raise UnreadableError(f"{base}/v1/models lists no model; this is not an OpenAI-compatible server")
    return str(model["id"])


def complete(
    base: str, model: str, prompt: Prompt, job: EngineJob, extra: Mapping[str, Any] | None = None
) -> tuple[int, Mapping[str, Any]]:
    """The number of new tokens for `prompt`, and the answer; `extra` are more keys of the request.

    Raises UnreadableError where the answer has no usage.completion_tokens.
    """
    path = "completions"
    content: dict[str, Any] = {"prompt": prompt.text}
    if prompt.is_chat and has_chat_template(job.target):
        path, content = "chat/completions", {"messages": [{"role": "user", "content": prompt.text}]}
    url = f"{base}/v1/{path}"
    request = {
        "model": model,
        **content,
        "max_tokens": job.max_tokens,
        "temperature": job.temperature,
        "seed": job.seed,
        "ignore_eos": True,
        **(extra or {}),
    }
    answer = get(url, json.dumps(request).encode(), job.timeout)
    usage = answer.get("usage")
    if not isinstance(usage, dict) or type(usage.get("completion_tokens")) is not int:
        raise UnreadableError(f"{url} did not say how many tokens it made (usage.completion_tokens)")
    return usage["completion_tokens"], answer


def has_chat_template(target: Path) -> bool:
    """Whether the target's tokenizer has a chat template, as acceptance/tokens.py uses it."""
    return (target / "chat_template.jinja").is_file() or "chat_template" in read_tokenizer_config(target)


def get(url: str, body: bytes | None = None, timeout: float = 30.0) -> dict[str, Any]:
    """The JSON object at `url`; empty for other JSON. Raises UnreadableError."""
    try:
        value = json.loads(read(url, body, timeout))
    except ValueError:
        raise UnreadableError(
            f"{url} did not answer with JSON; this is not an OpenAI-compatible server"
        ) from None
    return value if isinstance(value, dict) else {}


def read(url: str, body: bytes | None = None, timeout: float = 30.0) -> bytes:
    """The bytes at `url`, by POST where there is a body. Raises UnreadableError with the server's message."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            content: bytes = response.read()
            return content
    except urllib.error.HTTPError as error:
        raise UnreadableError(
            f"{url} answered {error.code}: {error.read(300).decode('utf-8', 'replace')}"
        ) from None
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{url}: no answer ({error})") from None


def other_drafter(folder: Path, drafter: str) -> tuple[str, ...]:
    """A difference where the server's drafter is a folder of this machine and not the one under test."""
    served = Path(drafter)
    if not served.is_dir() or served.resolve() == folder.resolve():
        return ()
    return (f"the server drafts with {drafter}, and the drafter under test is {folder}",)
