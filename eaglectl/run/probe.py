"""The drift probe: other templates, a system prompt, long context, to depth 7."""

from collections.abc import Mapping, Sequence
from dataclasses import replace as replace_prompt
from statistics import fmean
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.errors import UsageError
from eaglectl.run.job import EngineJob
from eaglectl.run.measurement import Measurement, measure
from eaglectl.run.prompts import Prompt
from eaglectl.run.stage import Stage
from eaglectl.run.tokens import chat_messages, token_ids

DEPTH = 7
# a message's turn, and what opens the answer; the first whose mark the target's own template lacks is taken
TEMPLATES = (
    ("<|im_start|>{role}\n{text}<|im_end|>\n", "<|im_start|>assistant\n"),
    ("### {role}:\n{text}\n\n", "### assistant:\n"),
)
SYSTEM = (
    "You are the keeper of a lighthouse. Answer every question in the voice of an old sailor, and never"
    " mention ships.\n\n{text}"
)
FILLER = (
    "The logbook of the station lists wind, cloud, pressure and the ships that passed, one line for each"
    " watch. "
)
MAX_CONTEXT = 2048


class DriftCondition(Struct, frozen=True):
    """Acceptance and drift of one kind of prompts, by draft depth.

    `state_growth` is the RMS of the fed-back state over that at depth 0. `attention_on_first` and
    `attention_on_own` are the shares of attention on the first token and on the draft tokens of the same
    round.
    """

    name: str
    measured: Measurement
    state_growth: tuple[float, ...]
    attention_on_first: tuple[float, ...]
    attention_on_own: tuple[float, ...]


def probe_drift(job: EngineJob) -> tuple[DriftCondition, ...]:
    """The prompts as given, in another template, after a system prompt, and in long context, to depth 7."""
    if given := next((prompt for prompt in job.prompts if prompt.token_ids), None):
        raise UsageError(
            f"--probe drift writes the prompts' text into other templates, and {given.place or 'a prompt'} is"
            " token ids; give --prompts as text or messages, or --probe sensitivity"
        )
    stage = Stage(replace(job, k=DEPTH))
    return tuple(_measured(stage, name, texts) for name, texts in _texts_by_condition(job, stage).items())


def _measured(stage: Stage, name: str, texts: Sequence[Sequence[int]]) -> DriftCondition:
    attention: list[Any] = []
    stage.drafter.attention_log = attention
    steps: dict[int, list[tuple[float, float, float]]] = {}

    def record(depth: int, state: Any, valid: Any) -> None:
        """Keep the figures of one draft step (reference/speculation.py, OnDraftStep)."""
        rms, weights = state.float().pow(2).mean(-1).sqrt()[:, 0].mean(), attention[-1]
        first = weights.gather(1, valid.long().argmax(1)[:, None]).mean()
        own = weights[:, weights.shape[1] - depth :].sum(1).mean() if depth else 0.0
        steps.setdefault(depth, []).append((float(rms), float(first), float(own)))
        attention.clear()

    results = stage.run(stage.drafter, texts, on_draft_step=record)
    stage.drafter.attention_log = None
    means = [[fmean(values) for values in zip(*steps[depth], strict=True)] for depth in sorted(steps)]
    sizes, first, own = zip(*means, strict=True)
    growth = tuple(size / (sizes[0] or 1.0) for size in sizes)
    return DriftCondition(name, measure(results), growth, first, own)


def _texts_by_condition(job: EngineJob, stage: Stage) -> Mapping[str, list[list[int]]]:
    """Tokenised prompts that fit the context, by condition. Raises UsageError where none fits."""
    from eaglectl.reference.target import load_tokenizer

    tokenizer = load_tokenizer(job.target, trust_remote_code=job.trust_remote_code)
    context: int = stage.target.context_length or MAX_CONTEXT
    longest = min(context, MAX_CONTEXT) - job.max_tokens - DEPTH
    filler = token_ids(tokenizer, Prompt(FILLER))

    own = getattr(tokenizer, "chat_template", None)

    def lengthened(ids: list[int]) -> list[int]:
        missing = longest - len(ids)
        return (filler * (missing // len(filler) + 1))[: max(missing, 0)] + ids

    texts: dict[str, Any] = {
        "as given": stage.texts,
        "another template": [token_ids(tokenizer, _written(prompt, own)) for prompt in job.prompts],
        "foreign system prompt": [token_ids(tokenizer, _instructed(prompt)) for prompt in job.prompts],
        "long context": [lengthened(ids) for ids in stage.texts],
    }
    fitting = {name: [ids for ids in group if len(ids) <= longest] for name, group in texts.items()}
    if not all(fitting.values()):
        raise UsageError(
            f"--probe drift: the target's context of {context} leaves no room for these prompts under every"
            " condition; give shorter ones"
        )
    return fitting


def _written(prompt: Prompt, own: object) -> Prompt:
    """The prompt's messages as text in a template that is not the target's `own`."""
    foreign = (form for form in TEMPLATES if form[0].partition("{")[0] not in str(own))
    turn, opening = next(foreign, TEMPLATES[-1])
    messages = chat_messages(prompt)
    turns = [turn.format(role=message["role"], text=_content(message)) for message in messages]
    return Prompt("".join(turns) + opening)


def _instructed(prompt: Prompt) -> Prompt:
    """The prompt with the system prompt before the first text of the user, in the target's own template."""
    if not prompt.messages and not prompt.is_chat:
        return Prompt(SYSTEM.format(text=prompt.text))
    messages = list(chat_messages(prompt))
    first = next((at for at, message in enumerate(messages) if message["role"] == "user"), 0)
    messages[first] = {**messages[first], "content": SYSTEM.format(text=_content(messages[first]))}
    if prompt.messages:
        return replace_prompt(prompt, messages=tuple(messages))
    return replace_prompt(prompt, text=messages[0]["content"])


def _content(message: Mapping[str, Any]) -> str:
    """The text of a message; a call of a tool alone has none."""
    return message.get("content") or ""
