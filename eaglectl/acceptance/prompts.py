"""Prompts: the built-in ones, or a file with one JSON object or one plain text on each line.

A prompt is a text, or the token ids that an engine was given.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from eaglectl.checkpoint.files import MIB, read_small_text
from eaglectl.errors import UsageError

MAX_PROMPTS = 256 * MIB
TOKEN_IDS = "prompt_token_ids"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's text, the set it belongs to, and whether it is a user message for the chat template.

    `token_ids` stand in the place of a text that is empty. `place` is the file and line, for messages.
    """

    text: str
    set: str = "prompts"
    is_chat: bool = False
    token_ids: tuple[int, ...] = ()
    place: str = field(default="", compare=False)


def builtin_prompts() -> tuple[Prompt, ...]:
    """The prompts that come with eaglectl, written for it (Apache-2.0)."""
    lines = files("eaglectl.acceptance").joinpath("prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(_prompt("the built-in prompts", number, line) for number, line in enumerate(lines, 1))


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Prompts from a file: JSON lines with "prompt" (and "set", "chat"), or plain text, one on each line.

    A JSON line may have "prompt_token_ids" in the place of "prompt".

    Raises UnreadableError for a file that cannot be read, UsageError for a wrong line or no prompts.
    """
    text = read_small_text(path, MAX_PROMPTS, "--prompts")
    lines = text.split("\n")  # not splitlines: JSON strings may hold U+2028 and the like
    prompts = tuple(_prompt(str(path), number, line) for number, line in enumerate(lines, 1) if line.strip())
    if not prompts:
        raise UsageError(f"--prompts {path} holds no prompts")
    return prompts


def prompts_or_builtin(path: str | Path | None) -> tuple[Prompt, ...]:
    """The prompts of a file, or the built-in ones where there is none."""
    return builtin_prompts() if path is None else read_prompts(Path(path))


def batches_by_length(texts: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Indices of texts in batches of at most `size`; texts of similar length together, for little padding."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    return [order[start : start + size] for start in range(0, len(order), size)]


def digest_prompts(prompts: Sequence[Prompt]) -> str:
    """SHA-256 over all prompts, which shows whether two reports are of the same prompts."""
    value = json.dumps([[prompt.set, prompt.token_ids or prompt.text, prompt.is_chat] for prompt in prompts])
    return hashlib.sha256(value.encode()).hexdigest()


def prompt_digest(prompt: Prompt) -> str:
    """Short SHA-256 of one prompt; a gate leaves out the prompts that were calibrated on."""
    content = json.dumps(prompt.token_ids) if prompt.token_ids else prompt.text
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _prompt(file: str, number: int, line: str) -> Prompt:
    place = f"{file}, line {number}"
    if not line.lstrip().startswith("{"):
        return Prompt(line, place=place)
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{place} has an escape of a lone surrogate, which is no character") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place} is not JSON: {error}") from None
    text, is_chat, name = value.get("prompt"), value.get("chat", False), str(value.get("set", "prompts"))
    if TOKEN_IDS in value:
        if text is not None or is_chat is not False:
            raise UsageError(f'{place}: "{TOKEN_IDS}" are taken as they are; leave "prompt" and "chat" out')
        return Prompt("", name, token_ids=_token_ids(place, value[TOKEN_IDS]), place=place)
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f'{place} needs a non-empty "prompt", or "{TOKEN_IDS}"')
    if not isinstance(is_chat, bool):
        raise UsageError(f'{place}: "chat" must be true or false')
    return Prompt(text, name, is_chat, place=place)


def _token_ids(place: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise UsageError(f'{place}: "{TOKEN_IDS}" must be a list of one or more token ids')
    for position, token in enumerate(value):
        if type(token) is not int or token < 0:
            shown = json.dumps(token)[:40]
            raise UsageError(
                f'{place}: "{TOKEN_IDS}"[{position}] is {shown}; a whole number from 0 was expected'
            )
    return tuple(value)
