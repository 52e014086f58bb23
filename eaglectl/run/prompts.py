"""Prompts: the built-in ones, or a file with one JSON object or one plain text on each line.

A prompt is a text, the token ids of a text, or the messages of a chat as OpenAI's API takes them. Named sets
come from their authors' repositories at fixed commits, are checked against a digest, and are cached.
"""

import gzip
import hashlib
import heapq
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from math import inf
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from eaglectl.errors import UnreadableError, UsageError, check
from eaglectl.files.files import MIB, decoded, errors_about, open_regular, read_small_file, write_cached
from eaglectl.files.hub import hub_calls, is_offline
from eaglectl.files.hub_requests import load_client
from eaglectl.text import listed

MAX_PROMPTS = 256 * MIB
# the most characters of a line, and of all prompts of a run, whose tokens are in memory at once
MAX_LINE, MAX_RUN = 4 * MIB, 32 * MIB
TEXT, MESSAGES, TOKEN_IDS = "prompt", "messages", "prompt_token_ids"
# the most texts of a batch, and tokens with padding, which limit the memory
BATCH, BATCH_TOKENS = 16, 4096
# tokens to leave free beside a built-in prompt, for its chat template and an answer
ROOM = 128
KINDS = (TEXT, MESSAGES, TOKEN_IDS)
# keys of a request that change the text of its messages, and that eaglectl does not support
UNREAD = (
    "chat_template",
    "continue_final_message",
    "documents",
    "functions",
    "reasoning_effort",
)

GENERATION_PROMPT = "add_generation_prompt"
# arguments of transformers' apply_chat_template that are not variables of a template
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
PROMPTS, MORE_PROMPTS, FURTHER_PROMPTS = (
    Path(__file__).with_name(f"{name}prompts.jsonl") for name in ("", "more_", "further_")
)
# seconds without an answer, or between two pieces of one
TIMEOUT = 30
# the most seconds for the download of a set
DEADLINE = 300.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's text, the set it belongs to, and whether it is a user message for the chat template.

    With `token_ids`, or `messages` and the `tools` of their request, the text is empty. `template_arguments`
    are the variables of the chat template: chat_template_kwargs and add_generation_prompt of the request, as
    in vLLM and SGLang. `place` is the file and line, for error messages.
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
    prompt: str | None = None
    chat: bool = False
    messages: Annotated[tuple[dict[str, Any], ...], Meta(min_length=1)] | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    prompt_token_ids: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    set: Annotated[str, Meta(pattern=r"\S")] = "prompts"


class PromptChoice(Struct, frozen=True):
    """Prompts and their origin: `file` and its SHA-256 (None for the built-in ones).

    `total` is the number of prompts in the file; `sample` is the size of a sample, drawn by `seed`.
    """

    prompts: tuple[Prompt, ...]
    file: str | None = None
    sha256: str | None = None
    total: int = 0
    sample: int | None = None
    seed: int = 0


def more_prompts() -> tuple[Prompt, ...]:
    """Return further built-in prompts of the same kinds, for measurements that end in a tie."""
    return tuple(_prompt("the built-in prompts", number, line) for number, line in _packaged(MORE_PROMPTS))


def built_in_prompts(context: float = inf, besides: Iterable[Prompt] = ()) -> tuple[Prompt, ...]:
    """Return every built-in prompt but those in `besides`; any first part has each set's share.

    Prompts that might leave no room for an answer in `context` tokens are left out: a text has at most as
    many tokens as bytes.
    """
    lines = [line for path in (PROMPTS, MORE_PROMPTS, FURTHER_PROMPTS) for line in _packaged(path)]
    prompts = [_prompt("the built-in prompts", number, line) for number, line in lines]
    excluded = set(map(prompt_digest, besides))
    prompts = [
        prompt
        for prompt in prompts
        if len(prompt.text.encode()) <= context - ROOM and prompt_digest(prompt) not in excluded
    ]
    totals, places = Counter(prompt.set for prompt in prompts), defaultdict[str, Iterator[int]](count)
    return tuple(sorted(prompts, key=lambda prompt: (next(places[prompt.set]) + 0.5) / totals[prompt.set]))


def _packaged(path: Path) -> Iterator[tuple[int, str]]:
    return enumerate(path.read_text(encoding="utf-8").splitlines(), 1)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Read prompts from a file: JSON lines, or plain text, one on each line.

    A JSON line has "prompt" (and "chat"), "messages" (and "tools") or "prompt_token_ids", and may name its
    "set".

    Raises UnreadableError for a file that cannot be read, UsageError for a wrong line or no prompts.
    """
    return choose_prompts(path).prompts


def choose_prompts(path: str | Path | None, sample: int | None = None, seed: int = 0) -> PromptChoice:
    """Return the prompts of a file or a named set, or the built-in ones; `sample` of them, by `seed`.

    The same file, number and seed select the same prompts everywhere, in the order of the file. Only the
    selected prompts are in memory. Raises as `read_prompts` does, and UsageError for a sample that is larger
    than the file.
    """
    place, file, sha256, lines = _opened(path)
    drawn, length, total = list[tuple[int, int, Prompt]](), 0, 0
    for number, line in lines:
        prompt = _prompt(place, number, line)
        draw = int.from_bytes(hashlib.sha256(f"{seed}:{total}".encode()).digest(), "big")
        total += 1
        length += _length(prompt)
        # the prompts with the lowest draws are the sample; the heap's first entry is the next to remove
        heapq.heappush(drawn, (-draw, number, prompt))
        if sample is not None and len(drawn) > max(sample, 0):
            length -= _length(heapq.heappop(drawn)[2])
        if length > MAX_RUN:
            raise UsageError(
                f"--prompts {path}: more than {MAX_RUN:,} characters to run; select fewer with --sample",
                options=("--prompts",),
            )
    check(
        (not total, f"--prompts {path} has no prompts", ("--prompts",)),
        (
            sample is not None and not 1 <= sample <= total,
            f"--sample {sample}: {path or 'the built-in file'} has {total} prompts; pass a number from 1 to"
            f" {total}",
            ("--sample",),
        ),
    )
    prompts = tuple(prompt for _, _, prompt in sorted(drawn, key=lambda entry: entry[1]))
    seed = 0 if sample is None else seed
    return PromptChoice(prompts, file, sha256 and sha256(), total, sample, seed)


def _opened(
    path: str | Path | None,
) -> tuple[str, str | None, Callable[[], str] | None, Iterable[tuple[int, str]]]:
    # the name and file of a prompt set, a function that returns its digest once it was read, and its lines
    # with numbers
    if path is None:
        return "the built-in prompts", None, None, _packaged(PROMPTS)
    read, name, catalogue = hashlib.sha256(), str(path), prompt_sets()
    if not os.path.lexists(path):
        if name in catalogue.unnamed:
            raise UsageError(f"--prompts {path}: {catalogue.unnamed[name]}", options=("--prompts",))
        if name in catalogue.sets:
            return name, name, lambda: catalogue.sets[name].sha256, enumerate(lines_of(name), 1)
    return name, Path(path).name, read.hexdigest, _read_lines(Path(path), read)


def _read_lines(path: Path, digest: "hashlib._Hash") -> Iterator[tuple[int, str]]:
    # the lines of a file of prompts with their numbers, within limits, while its digest is updated
    read = number = 0
    with open_regular(path, "--prompts") as file, errors_about(f"--prompts {path}"):
        # a character has up to four bytes
        while raw := file.readline(4 * MAX_LINE + 1):
            digest.update(raw)
            read += len(raw)
            if read > MAX_PROMPTS or len(raw) > 4 * MAX_LINE:
                raise UnreadableError(
                    f"--prompts {path}: at most {MAX_PROMPTS} bytes of a file, and {MAX_LINE:,} characters of"
                    " a line, are read",
                    options=("--prompts",),
                )
            number += 1
            line = decoded(path, raw, "--prompts", place=read - len(raw)).removesuffix("\n")
            if line.strip():
                yield number, line


def _length(prompt: Prompt) -> int:
    contents = (str(message.get("content")) for message in prompt.messages)
    return len(prompt.text) + len(prompt.token_ids) + sum(map(len, contents))


def batches_by_length(texts: Sequence[Sequence[int]], room: int = 0) -> list[list[int]]:
    """Return the indices of texts in batches of similar length, for little padding.

    A batch has at most BATCH texts and BATCH_TOKENS tokens (a longer text is alone), with padding and `room`
    further tokens for each text.
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
    """Return the SHA-256 over all prompts, which shows whether two reports have the same prompts."""
    value = json.dumps([[prompt.set, _content(prompt), prompt.is_chat] for prompt in prompts])
    return hashlib.sha256(value.encode()).hexdigest()


def prompt_digest(prompt: Prompt) -> str:
    """Return a short SHA-256 of one prompt, by which a gate leaves out the prompts of the calibration."""
    text = content if isinstance(content := _content(prompt), str) else json.dumps(content)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _content(prompt: Prompt) -> Any:
    content: Any = prompt.token_ids or prompt.text
    if prompt.messages:
        content = {MESSAGES: prompt.messages, "tools": prompt.tools}
    return [content, prompt.template_arguments] if prompt.template_arguments else content


def _prompt(file: str, number: int, line: str) -> Prompt:
    # a line of a file: JSON if it begins with a brace, else the text itself
    place = f"{file}, line {number}"
    if len(line) > MAX_LINE:
        raise UsageError(f"{place} has {len(line):,} characters; a prompt has at most {MAX_LINE:,}")
    if not line.lstrip().startswith("{"):
        return Prompt(line, place=place)
    try:
        value: dict[str, Any] = msgspec.json.decode(line)
        if not (value.get("tools") and value.get(MESSAGES)):  # no tools, in any form
            value.pop("tools", None)
        read = msgspec.convert(value, _Line)
    except msgspec.ValidationError as error:
        raise UsageError(f"{place}: {error}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{place} is not JSON: {error}") from None
    return _as_prompt(place, value, read)


def _as_prompt(place: str, value: Mapping[str, Any], line: _Line) -> Prompt:
    # a prompt of text, messages or token ids, of which a line may have one
    kinds = [key for key in KINDS if value.get(key) is not None]
    kinds += ["chat"] if line.chat and kinds != [TEXT] else []
    if len(kinds) > 1:
        raise UsageError(f"{place} has {listed(map(json.dumps, kinds))}; each is a whole prompt: keep one")
    arguments = line.chat_template_kwargs or {}
    if reserved := sorted(OF_TEMPLATE & set(arguments)):
        raise UsageError(
            f'{place}: "chat_template_kwargs" has "{reserved[0]}", which is not a variable of a template'
        )
    arguments |= {GENERATION_PROMPT: False} if line.add_generation_prompt is False else {}
    if line.prompt_token_ids:
        return Prompt("", line.set, token_ids=line.prompt_token_ids, place=place)
    if line.messages:
        messages, tools = _messages(place, value, line.messages), line.tools or ()
        return Prompt("", line.set, messages=messages, tools=tools, template_arguments=arguments, place=place)
    if line.prompt is None or not line.prompt.strip():
        raise UsageError(f'{place} needs a non-empty "{TEXT}", or "{MESSAGES}", or "{TOKEN_IDS}"')
    arguments = arguments if line.chat else {}
    return Prompt(line.prompt, line.set, line.chat, template_arguments=arguments, place=place)


def _messages(
    place: str, value: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]
) -> tuple[Mapping[str, Any], ...]:
    """Return the messages with the text of their parts joined by line breaks, as vLLM joins them."""
    if unread := [key for key in UNREAD if value.get(key) is not None]:
        raise UsageError(
            f'{place}: "{unread[0]}" changes the text of the messages, and is not supported; pass the tokens'
            f' as "{TOKEN_IDS}"'
        )
    read = tuple(_message(f'{place}: "{MESSAGES}"[{i}]', message) for i, message in enumerate(messages))
    if read[-1]["role"] == "assistant":
        raise UsageError(
            f'{place}: the last of "{MESSAGES}" is the assistant\'s answer; remove it: the target writes its'
            " own"
        )
    return read


def _message(place: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
    # a message with its content as one text; raises UsageError for content that is no text
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
            raise UsageError(
                f"{place} has a content part of type {json.dumps(kind)[:40]}; only text is supported"
            )
    raise UsageError(f'{place} has a content part that is not {{"type": "text", "text": ...}}')


class PromptSet(Struct, frozen=True, forbid_unknown_fields=True):
    """A published set: the URL and the digest of its file, its licence, and the fields of a line.

    `size` is in bytes, `prompts` the number of prompts. `field` has the text of a user message, or a list
    whose first item is one; `set_field` has the name under which results are counted.
    """

    title: str
    url: str
    sha256: str
    size: int
    licence: str
    prompts: int
    field: str
    set_field: str | None = None

    @property
    def cached(self) -> Path:
        """The path of the cached file, below the Hub client's home."""
        home = Path(load_client().constants.HF_HOME)
        return home / "eaglectl" / "prompts" / f"{self.sha256}{''.join(Path(self.url).suffixes)}"


class PromptSets(Struct, frozen=True, forbid_unknown_fields=True):
    """Every set by its name, and sets that others use but eaglectl does not name, with the reason."""

    sets: Mapping[str, PromptSet]
    unnamed: Mapping[str, str]


@cache
def prompt_sets() -> PromptSets:
    """Read the file of named sets."""
    return msgspec.json.decode(DATA.read_bytes(), type=PromptSets)


def lines_of(name: str) -> tuple[str, ...]:
    """Return the prompts of a set as JSON lines of a prompt file, each with one user message.

    The file comes from the cache or the network. Raises UnreadableError if it is in neither, or if its digest
    differs from that of the set.
    """
    chosen, data = prompt_sets().sets[name], b""
    with suppress(UnreadableError):
        data = read_small_file(chosen.cached, chosen.size)
    if hashlib.sha256(data).hexdigest() != chosen.sha256:
        data = _download(f"--prompts {name}:", chosen)
        with suppress(OSError):  # a cache that cannot be written
            write_cached(chosen.cached, data)
    if chosen.url.endswith(".gz"):
        data = gzip.decompress(data)  # of known bytes, so of a known size
    lines = []
    for line in data.decode().splitlines():
        row: Mapping[str, Any] = json.loads(line)
        content, label = row[chosen.field], f" {row[chosen.set_field]}" if chosen.set_field else ""
        text = content if isinstance(content, str) else content[0]
        lines.append(json.dumps({"prompt": text, "chat": True, "set": name + label}))
    return tuple(lines)


def _download(option: str, chosen: PromptSet) -> bytes:
    # the bytes of a known prompt set, checked against its SHA-256
    if is_offline():
        raise UnreadableError(
            f"{option} its file is not in {chosen.cached.parent}, and this call is offline; download"
            f" {chosen.url} on a machine with a network, and pass the file",
            options=(option,),
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
    except Exception as error:  # TransferError, or of the client
        status = getattr(error, "status", None) or getattr(
            getattr(error, "response", None), "status_code", None
        )
        how = getattr(error, "how", f"did not answer ({type(error).__name__})")
        raise UnreadableError(
            f"{option} {chosen.url} {f'answered {status}' if status else how}", options=(option,)
        ) from None
    if (digest := hashlib.sha256(data).hexdigest()) == chosen.sha256:
        return data
    if len(data) < chosen.size and time.monotonic() > end:
        raise UnreadableError(
            f"{option} {chosen.url} sent {len(data):,} of {chosen.size:,} bytes in {DEADLINE:g} s;"
            " try again, or download it and pass the file",
            options=(option,),
        )
    raise UnreadableError(
        f"{option} {chosen.url} sent {len(data):,} bytes with SHA-256 {digest[:16]}..., but the"
        f" set has {chosen.size:,} with {chosen.sha256[:16]}...; nothing was stored",
        options=(option,),
    )
