"""The reference engine: transformers' target and our own drafter maths, for machines without a serving engine."""

import time
from pathlib import Path
from typing import Any

from eaglectl.acceptance.job import EngineRun, Job
from eaglectl.acceptance.measurement import PromptResult
from eaglectl.acceptance.prompts import Prompt
from eaglectl.errors import Unreadable, Usage

BATCH = 8


def run_reference(job: Job) -> EngineRun:
    """Run `job` in torch. Raises Unreadable without torch or the device asked for, Usage for prompts that do not fit."""
    try:
        import eaglectl.reference.target as targets
        from eaglectl.reference.loading import load_drafter
        from eaglectl.reference.speculation import Settings, Speculation
    except ImportError:
        raise Unreadable(
            "the reference engine needs torch and transformers; install eaglectl's torch extra: pip install '.[torch]'"
            " in a checkout"
        ) from None
    device, dtype = targets.choose_device(job.device)
    boundaries = job.drafter.aux.boundaries
    if boundaries is None:
        raise Usage("the trained aux layers are not known; pass --aux-layers")
    target = targets.load_target(job.target, boundaries, dtype=dtype, device=device)
    drafter = load_drafter(job.folder, job.drafter, dtype=dtype, device="cuda" if device == "auto" else device)
    prompts = tokenise(job, target.model.config)
    settings = Settings(job.k, job.max_tokens, job.temperature, job.seed)
    results: list[PromptResult] = []
    plain: list[tuple[int, ...]] = []
    spent = [0.0, 0.0]
    for start in range(0, len(prompts), BATCH):
        batch = prompts[start : start + BATCH]
        sets = [prompt.set for prompt in job.prompts[start : start + BATCH]]
        begin = time.perf_counter()
        drafted = Speculation(target, drafter, settings).run(batch)
        middle = time.perf_counter()
        plain += [found.tokens for found in Speculation(target, None, settings).run(batch)]
        spent[0] += middle - begin
        spent[1] += time.perf_counter() - middle
        results += [PromptResult(name, f.drafts, f.accepted, f.tokens) for name, f in zip(sets, drafted, strict=True)]
        job.told(len(results), len(prompts))
    return EngineRun(
        "reference", targets.versions(), device, dtype, "the drafter's maths and its fit to the target; not what an engine loads",
        tuple(results), tuple(plain), spent[0], spent[1], {"boundaries": list(boundaries), "attention": job.drafter.dims.attention},
    )  # fmt: skip


def tokenise(job: Job, config: Any) -> list[list[int]]:
    """Token ids of every prompt. Raises Usage for a prompt that is empty or does not leave room in the context."""
    tokenizer = load_tokenizer(job.target)
    context = getattr(config, "max_position_embeddings", None)
    found = []
    for number, prompt in enumerate(job.prompts, 1):
        ids = token_ids(tokenizer, prompt)
        if not ids:
            raise Usage(f'a prompt of set "{prompt.set}" is empty once tokenised; leave it out')
        if context is not None and len(ids) + job.max_tokens + job.k > context:
            raise Usage(
                f"prompt {number} has {len(ids)} tokens, and the target's context of {context} leaves no room for {job.max_tokens} new ones and"
                f" {job.k} drafted: shorten it, or ask for fewer new tokens"
            )
        found.append(ids)
    return found


def load_tokenizer(target: Path) -> Any:
    """The target's tokenizer. Raises Unreadable where there is none."""
    from eaglectl.reference.target import tokenizer_of

    return tokenizer_of(target)


def token_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    """One prompt's ids; a chat prompt goes through the chat template where the tokenizer has one."""
    if prompt.is_chat and getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": prompt.text}]
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
    return list(tokenizer(prompt.text)["input_ids"])
