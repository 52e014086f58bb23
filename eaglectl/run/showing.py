"""One answer of a run, token by token: which tokens the drafter gave, and at which place of its drafts."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from eaglectl.base import Count
from eaglectl.run.job import EngineJob
from eaglectl.run.measurement import PromptResult
from eaglectl.run.prompts import Prompt

UNFINISHED = "\ufffd"  # what a tokenizer makes of a part of a character


class AnswerToken(Struct, frozen=True):
    """A token's text, and its position in the draft that it was accepted from; None: the target's own."""

    text: str
    position: Annotated[
        Count | None,
        Meta(description="In the draft that it was accepted from; null: the target's own token"),
    ]


class ShownAnswer(Struct, frozen=True):
    """A prompt and its answer; `accepted` counts the answer's tokens by their position in drafts."""

    prompt: str
    tokens: tuple[AnswerToken, ...]
    accepted: Annotated[
        tuple[Count, ...], Meta(description="Tokens of the answer by their position in drafts")
    ]


def show_answer(job: EngineJob, results: Sequence[PromptResult]) -> ShownAnswer:
    """The answer to the first prompt of `job`, from an engine that tells what each draft had accepted."""
    from eaglectl.reference.target import load_tokenizer

    prompt, result = job.prompts[0], results[0]
    tokenizer = load_tokenizer(job.target, trust_remote_code=job.trust_remote_code)
    positions = list(positions_of(result))
    texts = _texts(tokenizer, result.tokens)
    tokens = tuple(AnswerToken(text, place) for text, place in zip(texts, positions, strict=True))
    counts = tuple(positions.count(place) for place in range(len(result.accepted)))
    return ShownAnswer(_question(tokenizer, prompt), tokens, counts)


def positions_of(result: PromptResult) -> Iterator[int | None]:
    """The position in its draft of each token of an answer; None for the target's own."""
    places: list[int | None] = [None]
    for accepted in result.rounds:
        places += [*range(accepted), None]
    return iter(places[: len(result.tokens)])


def _question(tokenizer: Any, prompt: Prompt) -> str:
    """The text of a prompt, or its last message."""
    if prompt.messages:
        content = prompt.messages[-1].get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        return " ".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
    return prompt.text or str(tokenizer.decode(list(prompt.token_ids)))


def _texts(tokenizer: Any, tokens: Sequence[int]) -> Iterator[str]:
    """The text that each token adds; a character of several tokens is the last one's."""
    before = ""
    for end in range(1, len(tokens) + 1):
        text = str(tokenizer.decode(list(tokens[:end]), clean_up_tokenization_spaces=False))
        if text.endswith(UNFINISHED) and end < len(tokens):
            yield ""
            continue
        yield text[len(before) :]
        before = text
