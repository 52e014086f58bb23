"""Prompts: the built-in ones, or a file with one JSON object or one plain text on each line.

A prompt is a text, the token ids that an engine was given, or the messages of a chat as OpenAI's API takes
them. Sets that have a name come from their authors' repositories at fixed commits, are held to a digest, and
cached.
"""

import gzip
import hashlib
import heapq
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from eaglectl.errors import UnreadableError, UsageError
from eaglectl.files.files import MIB, decoded, keep_file, naming, open_regular
from eaglectl.files.hub import hub_calls, is_offline
from eaglectl.files.hub_requests import TransferError, load_client
from eaglectl.formats.published import Preset, published_file
from eaglectl.text import listed

MAX_PROMPTS = 256 * MIB
# characters of a line, and of all prompts that are run: tokens of them are in memory at once
MAX_LINE, MAX_RUN = 4 * MIB, 32 * MIB
TEXT, MESSAGES, TOKEN_IDS = "prompt", "messages", "prompt_token_ids"
# of texts that are run together: their number, and their tokens with padding, which bound the memory
BATCH, BATCH_TOKENS = 16, 4096
KINDS = (TEXT, MESSAGES, TOKEN_IDS)
# keys of a request that change what a server makes of its messages, and that no other engine here reads
UNREAD = (
    "chat_template",
    "continue_final_message",
    "documents",
    "functions",
    "reasoning_effort",
)

GENERATION_PROMPT = "add_generation_prompt"
# arguments of transformers' apply_chat_template that are no variables of a template
OF_TEMPLATE = frozenset(
    {
        *(
            MESSAGES,
            "conversation",
            "tools",
            "documents",
            "chat_template",
            "continue_final_message",
            "tokenize",
        ),
        *(
            "padding",
            "truncation",
            "max_length",
            "return_tensors",
            "return_dict",
            "return_assistant_tokens_mask",
        ),
        *("tokenizer_kwargs", GENERATION_PROMPT),
    }
)

DATA = Path(__file__).with_name("prompt_sets.json")
# seconds without an answer, or between two pieces of one
TIMEOUT = 30
# seconds in which the file of a set is here, or the server is too slow
DEADLINE = 300.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's text, the set it belongs to, and whether it is a user message for the chat template.

    `token_ids` or `messages`, with the `tools` of their request, stand in the place of a text that is empty.
    `template_arguments` are those of the chat template: chat_template_kwargs and add_generation_prompt of the
    request, as vLLM and SGLang take them. `place` is the file and line, for messages.
    """

    text: str
    set: str = "prompts"
    is_chat: bool = False
    token_ids: tuple[int, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    place: str = field(default="", compare=False)


class _Line(Struct):
    """What is read of a line in JSON; requests have other keys too, of which UNREAD are refused."""

    prompt: str | None = None
    chat: bool = False
    messages: Annotated[tuple[dict[str, Any], ...], Meta(min_length=1)] | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    prompt_token_ids: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    set: Annotated[str, Meta(pattern=r"\S")] = "prompts"


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
    lines = files("eaglectl.run").joinpath(name).read_text(encoding="utf-8").splitlines()
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
        return _read_choice(Path(path), sample, seed)
    choice = _sampled(choice, path, sample, seed)
    _check_length(path, sum(map(_length, choice.prompts)))
    return choice


def _read_choice(path: Path, sample: int | None, seed: int) -> PromptChoice:
    """The prompts of a file, of which no more is in memory than what is run."""
    digest, kept, length, total = hashlib.sha256(), list[tuple[int, int, Prompt]](), 0, 0
    for number, line in _read_lines(path, digest):
        prompt = _prompt(str(path), number, line)
        # the largest number is the first that a smaller sample drops
        entry = (-_draw(seed, total), number, prompt)
        total += 1
        length += _length(prompt)
        if sample is None or len(kept) < sample:
            heapq.heappush(kept, entry)
        else:
            length -= _length(heapq.heappushpop(kept, entry)[2])
        _check_length(path, length)
    _check_sample(path, sample, total)
    prompts = tuple(prompt for _, _, prompt in sorted(kept, key=lambda entry: entry[1]))
    sampled = PromptChoice(prompts, path.name, digest.hexdigest(), total)
    return sampled if sample is None else replace(sampled, sample=sample, seed=seed)


def _read_lines(path: Path, digest: "hashlib._Hash") -> Iterator[tuple[int, str]]:
    """The lines of a file that are not empty, with their numbers; `digest` takes all bytes."""
    read = number = 0
    with open_regular(path, "--prompts") as file, naming(f"--prompts {path}"):
        # a character has up to four bytes
        while raw := file.readline(4 * MAX_LINE + 1):
            digest.update(raw)
            read += len(raw)
            if read > MAX_PROMPTS or len(raw) > 4 * MAX_LINE:
                most = f"{MAX_PROMPTS} bytes, and {MAX_LINE:,} characters in a line, are the most"
                raise UnreadableError(f"--prompts {path}: {most} that is read of it")
            text = decoded(path, raw, "--prompts", place=read - len(raw))
            # not splitlines: JSON strings may hold U+2028 and the like
            for line in text.removesuffix("\n").split("\n"):
                number += 1
                if line.strip():
                    yield number, line


def _check_length(path: str | Path | None, length: int) -> None:
    if length > MAX_RUN:
        raise UsageError(
            f"--prompts {path}: more than {MAX_RUN:,} characters to run; take fewer with --sample"
        )


def _length(prompt: Prompt) -> int:
    """Characters of a text or of messages; a token id counts as one."""
    contents = (str(message.get("content")) for message in prompt.messages)
    return len(prompt.text) + len(prompt.token_ids) + sum(map(len, contents))


def _sampled(choice: PromptChoice, path: str | Path | None, sample: int | None, seed: int) -> PromptChoice:
    total = len(choice.prompts)
    _check_sample(path, sample, total)
    if sample is None:
        return replace(choice, total=total)
    drawn = sorted(range(total), key=lambda index: _draw(seed, index))
    prompts = tuple(choice.prompts[index] for index in sorted(drawn[:sample]))
    return replace(choice, prompts=prompts, total=total, sample=sample, seed=seed)


def _check_sample(path: str | Path | None, sample: int | None, total: int) -> None:
    if not total:
        raise UsageError(f"--prompts {path} holds no prompts")
    if sample is not None and not 1 <= sample <= total:
        raise UsageError(
            f"--sample {sample}: {path or 'the built-in file'} holds {total} prompts; a number from 1 to"
            f" {total} was expected"
        )


def _draw(seed: int, index: int) -> int:
    """The number that a prompt draws; those of the least are the sample."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{index}".encode()).digest(), "big")


def _named(name: str) -> PromptChoice | None:
    """The prompts of a named set, or of one as a preset puts them; None for another name."""
    if name in prompt_sets().unnamed:
        raise UsageError(f"--prompts {name}: {prompt_sets().unnamed[name]}")
    preset = published_file().presets.get(name)
    set_name = preset.prompts if preset else name
    if set_name not in prompt_sets().sets:
        return None
    lines = lines_of(set_name, preset)
    prompts = tuple(_prompt(name, number, line) for number, line in enumerate(lines, 1))
    return PromptChoice(prompts, name, prompt_sets().sets[set_name].sha256)


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
    content: Any = prompt.token_ids or prompt.text
    if prompt.messages:
        content = {MESSAGES: prompt.messages, "tools": prompt.tools}
    return [content, prompt.template_arguments] if prompt.template_arguments else content


def _prompt(file: str, number: int, line: str) -> Prompt:
    place = f"{file}, line {number}"
    if len(line) > MAX_LINE:
        raise UsageError(f"{place} has {len(line):,} characters; a prompt takes {MAX_LINE:,} at most")
    if not line.lstrip().startswith("{"):
        return Prompt(line, place=place)
    value = _parse_line(place, line)
    if not (value.get("tools") and value.get(MESSAGES)):  # nothing, in whatever form it is written
        value.pop("tools", None)
    try:
        read = msgspec.convert(value, _Line)
    except msgspec.ValidationError as error:
        raise UsageError(f"{place}: {error}") from None
    kind, arguments = _kind(place, value), _template_arguments(place, read)
    if kind == TOKEN_IDS and read.prompt_token_ids:
        return Prompt("", read.set, token_ids=read.prompt_token_ids, place=place)
    if kind == MESSAGES and read.messages:
        messages, tools = _messages(place, value, read.messages), read.tools or ()
        return Prompt("", read.set, messages=messages, tools=tools, template_arguments=arguments, place=place)
    if not (read.prompt or "").strip():
        raise UsageError(f'{place} needs a non-empty "{TEXT}", or "{MESSAGES}", or "{TOKEN_IDS}"')
    arguments = arguments if read.chat else {}
    return Prompt(read.prompt or "", read.set, read.chat, template_arguments=arguments, place=place)


def _parse_line(place: str, line: str) -> dict[str, Any]:
    """The object that a line has as JSON. Raises UsageError for other text."""
    try:
        value: dict[str, Any] = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{place} has an escape of a lone surrogate, which is no character") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place} is not JSON: {error}") from None
    return value


def _kind(place: str, value: Mapping[str, Any]) -> str:
    """The key of the one prompt in a line; "prompt" where it has none. Raises UsageError for several."""
    kinds = [key for key in KINDS if value.get(key) is not None]
    chat = ["chat"] if value.get("chat") and kinds != [TEXT] else []
    if len(kinds + chat) > 1:
        names = listed(map(json.dumps, kinds + chat))
        raise UsageError(f"{place} has {names}; each is a whole prompt: leave one")
    return kinds[0] if kinds else TEXT


def _messages(
    place: str, value: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]
) -> tuple[Mapping[str, Any], ...]:
    """The messages with the text of their content parts joined by line breaks, as vLLM joins them."""
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


def _message(place: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """One message, with its content as text. Raises UsageError."""
    if not isinstance(role := message.get("role"), str) or not role:
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


def _template_arguments(place: str, line: _Line) -> Mapping[str, Any]:
    """What a request gives the chat template beyond its messages; its own keys are not among them."""
    arguments = line.chat_template_kwargs or {}
    if own := sorted(OF_TEMPLATE & set(arguments)):
        raise UsageError(
            f'{place}: "chat_template_kwargs" has "{own[0]}", which is no variable of a template'
        )
    return arguments | ({GENERATION_PROMPT: False} if line.add_generation_prompt is False else {})


class PromptSet(Struct, frozen=True, forbid_unknown_fields=True):
    """A published set: the address and the digest of its file, its licence, and where a line has its prompt.

    `size` in bytes; `prompts` is their number. `field` holds the text of a user message, or a list whose
    first text is one, `answer_field` its worked answer; `set_field` the name under which results are counted.
    `package` is one that brings the file, at `path` beside it.
    """

    title: str
    url: str
    sha256: str
    size: int
    licence: str
    prompts: int
    field: str
    set_field: str | None = None
    answer_field: str | None = None
    package: str | None = None
    path: str = ""

    @property
    def cached(self) -> Path:
        """Where the file is kept, below the Hub client's home."""
        home = Path(load_client().constants.HF_HOME)
        return home / "eaglectl" / "prompts" / f"{self.sha256}{''.join(Path(self.url).suffixes)}"


class PromptSets(Struct, frozen=True, forbid_unknown_fields=True):
    """Every set by its name; and those that others measure on and that have no name here, with the reason."""

    sets: Mapping[str, PromptSet]
    unnamed: Mapping[str, str]


@cache
def prompt_sets() -> PromptSets:
    """The file of the sets."""
    return msgspec.json.decode(DATA.read_bytes(), type=PromptSets)


def lines_of(name: str, preset: Preset | None = None) -> tuple[str, ...]:
    """The prompts of a set as the JSON lines of a file of prompts: each a user message, or as a preset says.

    The file comes from a package that is installed, the cache, or the network. Raises UnreadableError where
    it is in none, or where its bytes are not those of the set.
    """
    chosen = prompt_sets().sets[name]
    data = _installed(chosen) or _set_bytes(chosen, chosen.cached)
    if data is None:
        data = _download(name, chosen)
        with suppress(OSError):  # a cache that cannot be written
            keep_file(chosen.cached, data)
    return tuple(_lines(name, chosen, data, preset))


def _installed(chosen: PromptSet) -> bytes | None:
    """The file of the package that brings it; None where it is not installed, or has another one."""
    spec = find_spec(chosen.package) if chosen.package else None
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next(
        filter(None, (_set_bytes(chosen, Path(folder).parent / chosen.path) for folder in folders)), None
    )


def _set_bytes(chosen: PromptSet, path: Path) -> bytes | None:
    """The bytes of a file; None where it cannot be read, or is not the set's."""
    try:
        with open_regular(path) as file:
            data = file.read(chosen.size + 1)
    except (OSError, UnreadableError):
        return None
    return data if hashlib.sha256(data).hexdigest() == chosen.sha256 else None


def _download(name: str, chosen: PromptSet) -> bytes:
    if is_offline():
        raise UnreadableError(
            f"--prompts {name}: its file is not in {chosen.cached.parent}, and this call is offline; fetch"
            f" {chosen.url} where there is a network, and name the file"
        )
    data, end = b"", time.monotonic() + DEADLINE
    try:
        with (
            hub_calls() as session,
            session.stream("GET", chosen.url, follow_redirects=True, timeout=TIMEOUT) as response,
        ):
            response.raise_for_status()
            for piece in response.iter_bytes():
                data += piece
                if len(data) > chosen.size or time.monotonic() > end:
                    break
    except TransferError as error:
        reason = f"answered {error.status}" if error.status else error.how
        raise UnreadableError(f"--prompts {name}: {chosen.url} {reason}") from None
    except Exception as error:  # of the client and its transport
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason = f"answered {status}" if status else f"did not answer ({type(error).__name__})"
        raise UnreadableError(f"--prompts {name}: {chosen.url} {reason}") from None
    if len(data) < chosen.size and time.monotonic() > end:
        raise UnreadableError(
            f"--prompts {name}: {chosen.url} sent {len(data):,} of {chosen.size:,} bytes in {DEADLINE:g} s;"
            " try again, or fetch it and name the file"
        )
    digest = hashlib.sha256(data).hexdigest()
    if digest != chosen.sha256:
        raise UnreadableError(
            f"--prompts {name}: {chosen.url} sent {len(data):,} bytes with SHA-256 {digest[:16]}..., and the"
            f" set has {chosen.size:,} with {chosen.sha256[:16]}...; nothing was kept"
        )
    return data


def _lines(name: str, chosen: PromptSet, data: bytes, preset: Preset | None) -> Iterator[str]:
    if chosen.url.endswith(".gz"):
        data = gzip.decompress(data)  # of known bytes, so of a known size
    rows: list[Mapping[str, Any]] = [json.loads(line) for line in data.decode().splitlines()]
    form, shots, is_chat = (preset.form, preset.shots, preset.is_chat) if preset else ("{}", 0, True)

    def question(row: Mapping[str, Any]) -> str:
        content = row[chosen.field]
        return form.replace("{}", content if isinstance(content, str) else content[0])

    start = "".join(f"{question(row)} {row[str(chosen.answer_field)]}\n\n" for row in rows[:shots])
    for row in rows:
        label = f"{name} {row[chosen.set_field]}" if chosen.set_field else name
        yield json.dumps({"prompt": start + question(row), "chat": is_chat, "set": label})
