"""Prompts: the built-in ones, or a file of one JSON object (or one plain text) a line."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from eaglectl.errors import Unreadable, Usage


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's text, the set it belongs to, and whether it is a user's turn to be put in the chat template."""

    text: str
    set: str = "prompts"
    is_chat: bool = False


def builtin_prompts() -> tuple[Prompt, ...]:
    """The prompts that come with eaglectl, written for it (Apache-2.0)."""
    lines = files("eaglectl.acceptance").joinpath("prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(_prompt("the built-in prompts", number, line) for number, line in enumerate(lines, 1))


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Prompts from a file: JSON lines with "prompt" (and "set", "chat"), or plain text, one a line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"--prompts {path}: {error}") from None
    lines = text.split("\n")  # JSON may hold the other characters that end a line elsewhere
    found = tuple(_prompt(str(path), number, line) for number, line in enumerate(lines, 1) if line.strip())
    if not found:
        raise Usage(f"--prompts {path} holds no prompts")
    return found


def alike(texts: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Indices of tokenised texts in batches of at most `size`, those of like lengths together: they pad little."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    return [order[start : start + size] for start in range(0, len(order), size)]


def digest(prompts: Sequence[Prompt]) -> str:
    """SHA-256 over the prompts, so that two reports can be known to be of the same ones."""
    value = json.dumps([[prompt.set, prompt.text, prompt.is_chat] for prompt in prompts])
    return hashlib.sha256(value.encode()).hexdigest()


def _prompt(where: str, number: int, line: str) -> Prompt:
    if not line.lstrip().startswith("{"):
        return Prompt(line)
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Usage(f"{where}, line {number} has an escape of a lone surrogate, which is no character") from None
    except (ValueError, RecursionError) as error:
        raise Usage(f"{where}, line {number} is not JSON: {error}") from None
    text, is_chat = value.get("prompt"), value.get("chat", False)
    if not isinstance(text, str) or not text.strip():
        raise Usage(f'{where}, line {number} needs a non-empty "prompt"')
    if not isinstance(is_chat, bool):
        raise Usage(f'{where}, line {number}: "chat" is true or false, and no other value')
    return Prompt(text, str(value.get("set", "prompts")), is_chat)
