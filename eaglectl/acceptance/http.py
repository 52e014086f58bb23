"""Talking to a server: its OpenAI API, and whatever else it answers over HTTP."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eaglectl.acceptance.job import Job
from eaglectl.acceptance.prompts import Prompt
from eaglectl.errors import Unreadable


def first_model(base: str) -> str:
    """The id of the model that the server lists first. Raises Unreadable where this is no OpenAI-compatible server."""
    found = get(f"{base}/v1/models").get("data")
    if not isinstance(found, list) or not found or not isinstance(found[0], dict) or "id" not in found[0]:
        raise Unreadable(f"{base}/v1/models lists no model; this is not an OpenAI-compatible server")
    return str(found[0]["id"])


def complete(
    base: str, model: str, prompt: Prompt, job: Job, extra: Mapping[str, Any] = {}
) -> tuple[int, Mapping[str, Any]]:
    """New tokens that the server made for `prompt`, and its whole answer. `extra` goes into the request."""
    is_chat = prompt.is_chat and has_template(job.target)
    body = {
        "model": model,
        **({"messages": [{"role": "user", "content": prompt.text}]} if is_chat else {"prompt": prompt.text}),
        "max_tokens": job.max_tokens,
        "temperature": job.temperature,
        "seed": job.seed,
        "ignore_eos": True,
        **extra,
    }
    url = f"{base}/v1/chat/completions" if is_chat else f"{base}/v1/completions"
    answer = get(url, json.dumps(body).encode(), job.timeout)
    usage = answer.get("usage")
    if not isinstance(usage, dict) or type(usage.get("completion_tokens")) is not int:
        raise Unreadable(f"{url} did not say how many tokens it made (usage.completion_tokens)")
    return usage["completion_tokens"], answer


def has_template(target: Path) -> bool:
    """Whether the target's tokenizer has a chat template; the other engines then use it (reference_engine.token_ids)."""
    config = target / "tokenizer_config.json"
    return (target / "chat_template.jinja").is_file() or (
        config.is_file() and "chat_template" in json.loads(config.read_text())
    )


def get(url: str, body: bytes | None = None, timeout: float = 30.0) -> dict[str, Any]:
    """The JSON object that `url` answers with. Raises Unreadable."""
    try:
        value = json.loads(read(url, body, timeout))
    except ValueError:
        raise Unreadable(f"{url} did not answer with JSON; this is not an OpenAI-compatible server") from None
    return value if isinstance(value, dict) else {}


def read(url: str, body: bytes | None = None, timeout: float = 30.0) -> bytes:
    """What `url` answers with; a POST where there is a body. Raises Unreadable with the server's own words."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            found: bytes = answer.read()
            return found
    except urllib.error.HTTPError as error:
        raise Unreadable(f"{url} answered {error.code}: {error.read(300).decode('utf-8', 'replace')}") from None
    except (OSError, ValueError) as error:
        raise Unreadable(f"{url}: no answer ({error})") from None


def other_drafter(folder: Path, drafter: str) -> tuple[str, ...]:
    """A difference, where the server's drafter is a folder of this machine and not the one under test."""
    theirs = Path(drafter)
    if not theirs.is_dir() or theirs.resolve() == folder.resolve():
        return ()
    return (f"the server drafts with {drafter}, and the drafter under test is {folder}",)
