"""Prompts as token ids of the target's tokenizer."""

from pathlib import Path
from typing import Any

from eaglectl.acceptance.job import EngineJob
from eaglectl.acceptance.prompts import TOKEN_IDS, Prompt
from eaglectl.checkpoint.target_files import read_target_config, text_part
from eaglectl.errors import UnreadableError, UsageError


def tokenise(job: EngineJob, context_length: int | None) -> list[list[int]]:
    """Token ids of each prompt of `job`; the tokenizer is loaded if a prompt is a text.

    Raises UnreadableError where tokenizer or chat template fail, UsageError for a prompt that is empty, has
    ids beyond the target's vocabulary, or with its new and draft tokens is longer than the context.
    """
    check_token_ids(job)
    tokenizer = None
    if job.needs_tokenizer:
        from eaglectl.reference.target import load_tokenizer

        tokenizer = load_tokenizer(job.target, trust_remote_code=job.trust_remote_code)
    texts = []
    for number, prompt in enumerate(job.prompts, 1):
        ids = list(prompt.token_ids) or _tokenised(job, tokenizer, number, prompt)
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
            f"the target {job.target.name} states no vocab_size in its config.json, by which"
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


def _tokenised(job: EngineJob, tokenizer: Any, number: int, prompt: Prompt) -> list[int]:
    from eaglectl.reference.target import first_lines

    try:
        return token_ids(tokenizer, prompt)
    except Exception as error:  # a chat template is a program
        raise UnreadableError(
            f"the tokenizer or chat template of the target {job.target.name} fails on"
            f" {_name(number, prompt)}: {first_lines(error)}; take the target's own, or leave the prompt out"
        ) from None


def token_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Token ids of one prompt; a chat prompt goes through the chat template where the tokenizer has one."""
    if prompt.is_chat and getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": prompt.text}]
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
    return list(tokenizer(prompt.text)["input_ids"])


def read_context_length(target: Path) -> int | None:
    """max_position_embeddings from a target's config.json, without loading the model."""
    length = text_part(read_target_config(target)).get("max_position_embeddings")
    return length if type(length) is int else None
