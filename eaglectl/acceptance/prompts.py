"""Prompts: the built-in ones, or a file with one JSON object or one plain text on each line.

A prompt is a text, the token ids that an engine was given, or the messages of a chat as OpenAI's API takes
them.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.acceptance.prompt_sets import lines_of, prompt_sets, unnamed_sets
from eaglectl.acceptance.published import presets
from eaglectl.checkpoint.files import MIB, decoded, read_small_file
from eaglectl.errors import UsageError
from eaglectl.text import listed

MAX_PROMPTS = 256 * MIB
TEXT, MESSAGES, TOKEN_IDS = "prompt", "messages", "prompt_token_ids"
# of texts that are run together: their number, and their tokens with padding, which bound the memory
BATCH, BATCH_TOKENS = 16, 4096
KINDS = (TEXT, MESSAGES, TOKEN_IDS)
# keys of a request that change what a server makes of its messages, and that no other engine here reads
UNREAD = (
    "add_generation_prompt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "functions",
    "reasoning_effort",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's text, the set it belongs to, and whether it is a user message for the chat template.

    `token_ids` or `messages`, with the `tools` of their request, stand in the place of a text that is empty.
    `place` is the file and line, for messages.
    """

    text: str
    set: str = "prompts"
    is_chat: bool = False
    token_ids: tuple[int, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    place: str = field(default="", compare=False)


class PromptChoice(Struct, frozen=True):
    """Prompts, and where they are from: `file` and its SHA-256 (None for the built-in ones).

    `total` is their number in the file, `sample` that of the sample that was asked for, made by `seed`.
    """

    prompts: tuple[Prompt, ...]
    file: str | None = None
    sha256: str | None = None
    total: int = 0
    sample: int | None = None
    seed: int = 0


def builtin_prompts() -> tuple[Prompt, ...]:
    """The prompts that come with eaglectl, written for it (Apache-2.0)."""
    return _packaged("prompts.jsonl")


def more_prompts() -> tuple[Prompt, ...]:
    """Further prompts of the same kinds, for measurements that the built-in ones leave a tie."""
    return _packaged("more_prompts.jsonl")


def _packaged(name: str) -> tuple[Prompt, ...]:
    lines = files("eaglectl.acceptance").joinpath(name).read_text(encoding="utf-8").splitlines()
    return tuple(_prompt("the built-in prompts", number, line) for number, line in enumerate(lines, 1))


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Prompts from a file: JSON lines, or plain text, one on each line.

    A JSON line has "prompt" (and "chat"), "messages" (and "tools") or "prompt_token_ids", and may name its
    "set".

    Raises UnreadableError for a file that cannot be read, UsageError for a wrong line or no prompts.
    """
    return choose_prompts(path).prompts


def choose_prompts(path: str | Path | None, sample: int | None = None, seed: int = 0) -> PromptChoice:
    """The prompts of a file, a named set or a preset, or the built-in ones; `sample` of them, by `seed`.

    The same file, number and seed give the same prompts everywhere, in the order of the file. Raises as
    `read_prompts` does, and UsageError for a sample that is larger than the file.
    """
    if path is None:
        choice = PromptChoice(builtin_prompts())
    elif not os.path.lexists(path) and (named := _named(str(path))) is not None:
        choice = named
    else:
        raw = read_small_file(Path(path), MAX_PROMPTS, "--prompts")
        # not splitlines: JSON strings may hold U+2028 and the like
        lines = tuple(decoded(Path(path), raw, "--prompts").split("\n"))
        prompts = tuple(
            _prompt(str(path), number, line) for number, line in enumerate(lines, 1) if line.strip()
        )
        choice = PromptChoice(prompts, Path(path).name, hashlib.sha256(raw).hexdigest())
    total = len(choice.prompts)
    if not total:
        raise UsageError(f"--prompts {path} holds no prompts")
    if sample is None:
        return replace(choice, total=total)
    if not 1 <= sample <= total:
        raise UsageError(
            f"--sample {sample}: {path or 'the built-in file'} holds {total} prompts; a number from 1 to"
            f" {total} was expected"
        )
    drawn = sorted(range(total), key=lambda index: hashlib.sha256(f"{seed}:{index}".encode()).digest())
    prompts = tuple(choice.prompts[index] for index in sorted(drawn[:sample]))
    return replace(choice, prompts=prompts, total=total, sample=sample, seed=seed)


def _named(name: str) -> PromptChoice | None:
    """The prompts of a named set, or of one as a preset puts them; None for another name."""
    if name in unnamed_sets():
        raise UsageError(f"--prompts {name}: {unnamed_sets()[name]}")
    preset = presets().get(name)
    set_name = preset.prompts if preset else name
    if set_name not in prompt_sets():
        return None
    lines = lines_of(set_name, preset)
    prompts = tuple(_prompt(name, number, line) for number, line in enumerate(lines, 1))
    return PromptChoice(prompts, name, prompt_sets()[set_name].sha256)


def batches_by_length(texts: Sequence[Sequence[int]], room: int = 0) -> list[list[int]]:
    """Indices of texts in batches, those of similar length together, for little padding.

    A batch has at most BATCH texts and BATCH_TOKENS tokens, but for a longer text alone; padding counts, and
    `room` tokens that are to follow each text.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(texts)), key=lambda index: len(texts[index])):
        last = batches[-1] if batches else []
        # the text is the longest of its batch
        if 0 < len(last) < BATCH and (len(last) + 1) * (len(texts[index]) + room) <= BATCH_TOKENS:
            last.append(index)
        else:
            batches.append([index])
    return batches


def digest_prompts(prompts: Sequence[Prompt]) -> str:
    """SHA-256 over all prompts, which shows whether two reports are of the same prompts."""
    value = json.dumps([[prompt.set, _content(prompt), prompt.is_chat] for prompt in prompts])
    return hashlib.sha256(value.encode()).hexdigest()


def prompt_digest(prompt: Prompt) -> str:
    """Short SHA-256 of one prompt; a gate leaves out the prompts that were calibrated on."""
    content = _content(prompt)
    text = content if isinstance(content, str) else json.dumps(content)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _content(prompt: Prompt) -> Any:
    if prompt.messages:
        return {MESSAGES: prompt.messages, "tools": prompt.tools}
    return prompt.token_ids or prompt.text


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
    name, kind = _set_name(place, value), _kind(place, value)
    if kind == TOKEN_IDS:
        return Prompt("", name, token_ids=_token_ids(place, value[TOKEN_IDS]), place=place)
    if kind == MESSAGES:
        return Prompt("", name, messages=_messages(place, value), tools=_tools(place, value), place=place)
    text, is_chat = value.get(TEXT), value.get("chat", False)
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f'{place} needs a non-empty "{TEXT}", or "{MESSAGES}", or "{TOKEN_IDS}"')
    if not isinstance(is_chat, bool):
        raise UsageError(f'{place}: "chat" must be true or false')
    return Prompt(text, name, is_chat, place=place)


def _kind(place: str, value: Mapping[str, Any]) -> str:
    """The key of the one prompt in a line; "prompt" where it has none. Raises UsageError for several."""
    kinds = [key for key in KINDS if value.get(key) is not None]
    if not kinds and TOKEN_IDS in value:
        return TOKEN_IDS
    kind = kinds[0] if kinds else TEXT
    has_chat = kind != TEXT and value.get("chat", False) is not False
    if len(kinds) > 1 or has_chat:
        names = [*map(json.dumps, kinds), *['"chat"'] * has_chat]
        raise UsageError(f"{place} has {listed(names)}; each is a whole prompt: leave one")
    return kind


def _set_name(place: str, value: Mapping[str, Any]) -> str:
    name = value.get("set", "prompts")
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f'{place}: "set" must be the name of a set, a text')
    return name


def _messages(place: str, value: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The messages with the text of their content parts joined by line breaks, as vLLM joins them."""
    messages = value[MESSAGES]
    if not isinstance(messages, list) or not messages:
        raise UsageError(f'{place}: "{MESSAGES}" must be a list of one or more messages')
    if unread := [key for key in UNREAD if value.get(key) is not None]:
        raise UsageError(
            f'{place}: "{unread[0]}" changes what the chat template makes of the messages, and is not read'
            f' here; give the tokens as "{TOKEN_IDS}"'
        )
    read = tuple(_message(f'{place}: "{MESSAGES}"[{i}]', message) for i, message in enumerate(messages))
    if read[-1]["role"] == "assistant":
        raise UsageError(
            f'{place}: the last of "{MESSAGES}" is the assistant\'s answer; leave it out: the target writes'
            " its own"
        )
    return read


def _message(place: str, message: Any) -> Mapping[str, Any]:
    """One message, with its content as text. Raises UsageError."""
    if not isinstance(message, dict) or not isinstance(role := message.get("role"), str) or not role:
        raise UsageError(f'{place} must be an object with a "role"')
    match message.get("content"):
        case str():
            return message
        case None if role == "assistant" and message.get("tool_calls"):
            return message
        case [_, *_] as parts:
            return {**message, "content": "\n".join(_part(place, part) for part in parts)}
    raise UsageError(f'{place} needs a "content": a text, or a list of parts of type text')


def _part(place: str, part: Any) -> str:
    match part:
        case {"type": "text", "text": str() as text}:
            return text
        case {"type": str() as kind}:
            raise UsageError(f"{place} has a content part of type {json.dumps(kind)[:40]}; only text is run")
    raise UsageError(f'{place} has a content part that is no {{"type": "text", "text": ...}}')


def _tools(place: str, value: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    tools = value.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UsageError(f'{place}: "tools" must be a list of objects, as in the request')
    return tuple(tools)


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
