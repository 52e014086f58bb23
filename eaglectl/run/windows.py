"""Attention windows for a drafter that was trained without them: acceptance by context length.

SGLang takes a window at its start (--speculative-draft-window-size, models/llama_eagle3.py 0.5.23:288-299),
vLLM from config.json (sliding_window and layer_types, models/llama.py 0.33.0:185-206).
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf

from msgspec import Struct

from eaglectl.run.job import EngineJob, Stage
from eaglectl.run.measurement import Estimate, Measurement, PromptResult, measure, ratio

# where the parts of the context begin, in windows
PARTS = (0, 1, 2, 4, inf)


class ContextPart(Struct, frozen=True):
    """Drafts with at least `start` tokens of context, and fewer than the next part.

    `length` and `whole` are the acceptance lengths with and without the window.
    """

    start: int
    drafts: int
    length: float
    whole: float


class WindowResult(Struct, frozen=True):
    """Acceptance with a window of so many tokens, and its ratio to that without; `parts` have drafts."""

    window: int
    measured: Measurement
    ratio: Estimate
    parts: tuple[ContextPart, ...]

    @property
    def words(self) -> str:
        """The acceptance by context length, in words."""
        parts = (
            f"from {part.start} tokens {part.length:.2f} (without: {part.whole:.2f}, {part.drafts} drafts)"
            for part in self.parts
        )
        return f"window {self.window}: x{self.ratio.words}; {', '.join(parts)}"


def measure_windows(job: EngineJob, windows: Sequence[int]) -> tuple[WindowResult, ...]:
    """Run the drafter in the reference without a window and with each of these.

    A window is the number of tokens that each layer attends to, its own included.
    """
    from eaglectl.reference.model import DraftModel  # late: it loads torch

    stage = Stage(job)
    loaded, dims, layers = stage.drafter, job.drafter.dims, job.drafter.dims.layers
    prompts = [len(text) for text in stage.texts]
    whole, results = stage.run(loaded), list[WindowResult]()
    for window in windows:
        model = DraftModel(
            loaded.weights, dims, loaded.norms, job.drafter.rope, loaded.eps, (window,) * layers
        )
        drafted = stage.run(model)
        parts = _parts(window, prompts, drafted, whole)
        results.append(WindowResult(window, measure(drafted), ratio(drafted, whole), parts))
    return tuple(results)


def _parts(
    window: int, prompts: Sequence[int], drafted: Sequence[PromptResult], whole: Sequence[PromptResult]
) -> tuple[ContextPart, ...]:
    # the parts of the context in which both runs drafted
    parts = list[ContextPart]()
    for first, last in pairwise(PARTS):
        start, stop = int(first * window), last * window
        accepted, without = (
            [count for place, count in _rounds(prompts, results) if start <= place < stop]
            for results in (drafted, whole)
        )
        if accepted and without:
            lengths = (1 + sum(counts) / len(counts) for counts in (accepted, without))
            parts.append(ContextPart(start, len(accepted), *lengths))
    return tuple(parts)


def _rounds(prompts: Sequence[int], results: Sequence[PromptResult]) -> list[tuple[int, int]]:
    # for each draft, the tokens of context before it, and how many of it were accepted
    rounds = list[tuple[int, int]]()
    for prompt, result in zip(prompts, results, strict=True):
        places = accumulate((count + 1 for count in result.rounds), initial=prompt + 1)
        rounds += zip(places, result.rounds, strict=False)
    return rounds
