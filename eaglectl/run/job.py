"""What an engine is given to run, and what it returns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from eaglectl.base import Result
from eaglectl.drafter.drafter import Drafter
from eaglectl.progress import OnProgress
from eaglectl.run.measurement import PromptResult
from eaglectl.run.prompts import Prompt


class EngineJob(Struct, frozen=True):
    """A drafter (a folder in vLLM's layout) to run on its target, with prompts and settings.

    `k` is the number of draft tokens in a round (num_speculative_tokens), `max_tokens` the number of new
    tokens for each prompt; `ignores_eos` goes on past the end of a sequence. `timeout` is in seconds.
    `trust_remote_code` lets the target's own code run. `engine_arguments` are the engine's own, by name.
    `draft_tokens` is the target token of each draft token as the checkpoint means it, where that was read,
    and `marked_tokens` those of a t2d that says otherwise than d2t. `compares_plain`: the engine decodes
    the prompts without the drafter too.
    """

    folder: Path
    drafter: Drafter
    target: Path
    prompts: tuple[Prompt, ...]
    k: int = 3
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    device: str = "auto"
    timeout: float = 600.0
    trust_remote_code: bool = False
    ignores_eos: bool = False
    on_progress: OnProgress | None = None
    tensor_parallel_size: int = 1
    engine_arguments: Mapping[str, Any] = field(default_factory=dict)
    draft_tokens: tuple[int, ...] | None = None
    marked_tokens: tuple[int, ...] = ()
    compares_plain: bool = True

    @property
    def needs_tokenizer(self) -> bool:
        """Whether a prompt is a text, and not token ids."""
        return any(not prompt.token_ids for prompt in self.prompts)


class EngineRun(Struct, frozen=True):
    """What an engine did: a result for each prompt with the drafter, and the tokens of plain decoding.

    `seconds` and `plain_seconds` are the time of all prompts with and without the drafter. `resolved` holds
    the settings that the engine reports, `differences` where they are not those of the checkpoint. `proves`
    states what a run of this engine is evidence of. `arguments` are the engine's own that were given.
    """

    engine: str
    version: str
    device: str
    dtype: str
    proves: str
    results: tuple[PromptResult, ...]
    plain: tuple[tuple[int, ...], ...]
    seconds: float
    plain_seconds: float
    resolved: Mapping[str, Any] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def equal_outputs(self) -> int | None:
        """Number of prompts whose output with the drafter equals plain decoding; None if that was not run."""
        if not self.plain:
            return None
        return sum(result.tokens == plain for result, plain in zip(self.results, self.plain, strict=True))


class LoadResult(Result, frozen=True):
    """What vLLM's drafter class and loader make of a checkpoint.

    `version` is vLLM's release, `unfilled` the parameters that the files do not fill, `resolved` the settings
    that the class reads. `shared` are the parameters that vLLM takes from the target.
    `trust_remote_code`: the target's own code was allowed to run.
    """

    version: str
    unfilled: tuple[str, ...]
    resolved: Mapping[str, Any]
    trust_remote_code: bool = False
    shared: tuple[str, ...] = ()
