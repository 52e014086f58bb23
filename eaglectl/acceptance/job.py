"""What an engine is given to run, and what it gives back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eaglectl.acceptance.measurement import PromptResult
from eaglectl.acceptance.prompts import Prompt
from eaglectl.drafter.drafter import Drafter


@dataclass(frozen=True, slots=True)
class Job:
    """A drafter (a folder in vLLM's layout), its target, prompts and settings. `told` gets (done, total) prompts."""

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
    told: Callable[[int, int], None] = lambda done, total: None


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What an engine did: per prompt with the drafter, the plain tokens, seconds of both, and what it resolved.

    `resolved` holds what the engine says it used; `differences` say where that is not what the checkpoint means.
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

    @property
    def equal(self) -> int:
        """Prompts whose output with the drafter is the plain one."""
        return sum(result.tokens == plain for result, plain in zip(self.results, self.plain, strict=True))
