"""Prompts as token ids of the target's tokenizer.

Its chat template is a program of others, and rendered within a time and a size.
"""

import ctypes
import json
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from eaglectl.errors import UnreadableError, UsageError, error_text
from eaglectl.files.target_files import (
    read_end_tokens,
    read_target_config,
    read_tokenizer_config,
    text_part,
)
from eaglectl.run.job import EngineJob
from eaglectl.run.prompts import TOKEN_IDS, Prompt

NO_TEMPLATE = (
    "the target's tokenizer has no chat template to write messages with; put its chat_template.jinja beside"
    " it, or give the prompts as text"
)

# a template takes milliseconds; a text of a million tokens has some MB
SECONDS = 10.0
MAX_TEXT = 16 << 20
# address space that rendering may take beyond what the process has
MAX_MEMORY = 2 << 30


def tokenise(job: EngineJob) -> list[list[int]]:
    """Token ids of each prompt of `job`; the tokenizer is loaded if a prompt is a text.

    Raises UnreadableError where tokenizer or chat template fail, UsageError for a prompt that is empty, has
    ids beyond the target's vocabulary, or with its new and draft tokens is longer than the context.
    """
    check_token_ids(job)
    context_length, tokenizer = read_context_length(job.target), _tokenizer(job)
    texts = []
    for number, prompt in enumerate(job.prompts, 1):
        try:
            ids = list(prompt.token_ids) or token_ids(tokenizer, prompt)
        except UsageError as error:
            raise UsageError(f"{_name(number, prompt)}: {error}") from None
        except Exception as error:  # a chat template is a program
            raise UnreadableError(
                f"the tokenizer or chat template of the target {job.target} fails on {_name(number, prompt)}:"
                f" {error_text(error)}; take the target's own, or leave the prompt out"
            ) from None
        if not ids:
            raise UsageError(f'a prompt of set "{prompt.set}" is empty once tokenised; leave it out')
        if context_length is not None and len(ids) + job.max_tokens + job.k > context_length:
            raise UsageError(
                f"{_name(number, prompt)} has {len(ids)} tokens, and the target's context of"
                f" {context_length} leaves no room for {job.max_tokens} new tokens and {job.k} draft tokens;"
                " shorten the prompt, or ask for fewer new tokens"
            )
        texts.append(ids)
    return texts


def _tokenizer(job: EngineJob) -> Any:
    if not job.needs_tokenizer:
        return None
    from eaglectl.reference.target import load_tokenizer

    return load_tokenizer(job.target, trust_remote_code=job.trust_remote_code)


def check_token_ids(job: EngineJob) -> None:
    """Raise UsageError for a prompt with ids beyond the target's vocabulary.

    Raises UnreadableError where the target's config does not state its vocabulary.
    """
    given = [(number, prompt) for number, prompt in enumerate(job.prompts, 1) if prompt.token_ids]
    if not given:
        return
    vocab = text_part(read_target_config(job.target)).get("vocab_size")
    if type(vocab) is not int:
        raise UnreadableError(
            f"the target {job.target} states no vocab_size in its config.json, by which"
            f" {TOKEN_IDS} are checked; take the target's own file"
        )
    for number, prompt in given:
        if (largest := max(prompt.token_ids)) >= vocab:
            raise UsageError(
                f"{_name(number, prompt)} has token id {largest}, and the target has {vocab} tokens; take"
                " prompts of this target's tokenizer"
            )


def _name(number: int, prompt: Prompt) -> str:
    return f"prompt {number}" + (f" ({prompt.place})" if prompt.place else "")


def token_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Token ids of one prompt.

    Messages go through the tokenizer's chat template, which transformers runs in jinja's sandbox, here within
    a time and a size; a text marked as chat does where the tokenizer has one.
    """
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if prompt.messages and not has_template:
        raise UsageError(NO_TEMPLATE)
    if prompt.messages or (prompt.is_chat and has_template):
        apply = partial(
            tokenizer.apply_chat_template,
            [_with_arguments(message) for message in chat_messages(prompt)],
            tools=list(prompt.tools) or None,
            **{"add_generation_prompt": True, **prompt.template_arguments},
        )
        rendered(partial(apply, tokenize=False))  # first, as the tokenizer takes whatever a template writes
        with within_time():
            return list(apply(return_dict=False))
    return list(tokenizer(prompt.text)["input_ids"])


def stop_tokens(job: EngineJob) -> frozenset[int]:
    """The tokens that end an answer: those of the target's generation config, and its tokenizer's own.

    None where `job` ignores them. vLLM 0.32.0 stops at the same
    (SamplingParams.update_from_generation_config).
    """
    if job.ignores_eos:
        return frozenset()
    token = getattr(_tokenizer(job), "eos_token_id", None)
    return frozenset([*read_end_tokens(job.target), *([token] if isinstance(token, int) else ())])


def chat_messages(prompt: Prompt) -> tuple[Mapping[str, Any], ...]:
    """The messages of a chat prompt; a text is one user message."""
    return prompt.messages or ({"role": "user", "content": prompt.text},)


def has_chat_template(target: Path) -> bool:
    """Whether the target's tokenizer has a chat template."""
    return (target / "chat_template.jinja").is_file() or "chat_template" in read_tokenizer_config(target)


def _with_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its tool calls as objects: requests have them as JSON texts.

    vLLM 0.32.0 parses them too before the template (entrypoints/chat_utils.py).
    """
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [*map(_parsed, calls)]} if isinstance(calls, list) else dict(message)


def _parsed(call: Any) -> Any:
    match call:
        case {"function": {"arguments": str() as text, **function}}:
            return {**call, "function": {**function, "arguments": json.loads(text or "{}")}}
    return call


def read_context_length(target: Path) -> int | None:
    """max_position_embeddings from a target's config.json, without loading the model."""
    length = text_part(read_target_config(target)).get("max_position_embeddings")
    return length if type(length) is int else None


class TemplateLimitError(Exception):
    """A template that takes longer, or writes more, than any template needs."""

    def __init__(self, text: str = f"it takes more than {SECONDS:g} s") -> None:
        super().__init__(text)


def rendered(render: Callable[[], str]) -> str:
    """What a template writes.

    Raises TemplateLimitError, MemoryError where it needs more than MAX_MEMORY, and whatever `render` raises.
    """
    with within_time(), _within_memory():
        text = render()
    if len(text) > MAX_TEXT:
        raise TemplateLimitError(f"it writes {len(text)} characters, and at most {MAX_TEXT} are taken")
    return text


def within_time() -> AbstractContextManager[None]:
    """Raise TemplateLimitError in this thread once the time is over: the sandbox of jinja bounds no loops."""
    is_main = threading.current_thread() is threading.main_thread()
    is_free = signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and not any(
        signal.getitimer(signal.ITIMER_REAL)
    )
    return _within_alarm() if is_main and is_free else _within_timer()


@contextmanager
def _within_alarm() -> Iterator[None]:
    """By a signal, which ends long arithmetic (9 ** 99999999) and regular expressions too."""

    def end(*_: object) -> None:
        raise TemplateLimitError

    signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        yield
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)


@contextmanager
def _within_timer() -> Iterator[None]:
    """By a thread, where the signal is not ours: between two steps of Python alone.

    An exception that was set and is not raised yet comes up at the call of `cancel`. It is not taken back:
    CPython 3.11 would look for one at every call from then on, and hang where it traces.
    """
    thread, lock, is_over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False

    def end() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TemplateLimitError))

    timer = threading.Timer(SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            is_over = True
        timer.cancel()
        timer.join()


@contextmanager
def _within_memory() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        yield
        return
    most = pages * resource.getpagesize() + MAX_MEMORY
    if limits[0] == resource.RLIM_INFINITY or most < limits[0]:
        resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
