"""The reference on a GPU against the CPU in float32: the same draft tokens, and acceptance in 16 bits.

Both read texts that the target wrote on the CPU. In float32 every draft token must be the CPU's, but where
the CPU's two largest logits are nearer than TIE of the largest. In 16 bits the mean number of accepted tokens
must be within the interval of the CPU's, over texts.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import FIXTURES
from tests.real.conftest import REAL

TIE = 1e-4
K, ANSWER = 3, 24
TEXTS = 24
PAIRS = ("tiny/eagle3", "tiny/eagle3.1", "second/eagle3", "second/mla")
REAL_NAMES = ("specforge", "speculators")
HALVES = ("bfloat16", "float16")


class Drafts(NamedTuple):
    """Draft tokens [texts, starts, k], the margin of each over the next, and the accepted of each text."""

    tokens: Any
    margins: Any
    is_start: Any
    accepted: list[float]


@cache
def written(target: Path, file: Path, count: int) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts, and what the target writes after each on the CPU."""
    from eaglectl.reference.speculation import DecodingSettings, SpeculativeDecoder
    from eaglectl.reference.target_model import load_target, load_tokenizer
    from eaglectl.run.job import token_ids
    from eaglectl.run.prompts import read_prompts

    tokenizer, read = load_tokenizer(target), read_prompts(file)[:count]
    prompts = [token_ids(tokenizer, replace(prompt, text=prompt.text.strip()[:160])) for prompt in read]
    decoder = SpeculativeDecoder(
        load_target(target, (0,), dtype="float32", device="cpu"), None, DecodingSettings(max_tokens=ANSWER)
    )
    return prompts, [list(text.tokens) for text in decoder.run(prompts)]


@cache
def drafts(drafter: Path, target: Path, file: Path, count: int, dtype: str, device: str) -> Drafts:
    import torch

    import eaglectl
    from eaglectl.reference.model import load_drafter
    from eaglectl.reference.speculation import ForcedDrafter, run_target
    from eaglectl.reference.target_model import load_target

    read = eaglectl.inspect(str(drafter), target=str(target)).drafter
    boundaries = read.aux.boundaries
    model = load_drafter(drafter, read, dtype=dtype, device=device)
    ours = load_target(target, boundaries, dtype=dtype, device=device)
    steps: list[Any] = []
    real = model.logits

    def logits(stream: Any, head: Any) -> Any:
        value = real(stream, head)
        best = value.float().topk(2, -1)
        margins = (best.values[..., 0] - best.values[..., 1]) / best.values[..., 0].abs().clamp(min=1)
        steps.append((best.indices[..., 0].cpu(), margins.cpu()))
        return value

    model.logits = logits  # type: ignore[method-assign]
    batch = run_target(ours, *written(target, file, count), K)
    counts = ForcedDrafter(model, ours, boundaries, K).matches(batch)
    is_start = batch.is_start.cpu()
    accepted = [float(row[kept].float().mean()) for row, kept in zip(counts.cpu(), is_start, strict=True)]
    tokens, margins = (torch.stack(values, -1) for values in zip(*steps, strict=True))
    return Drafts(tokens, margins, is_start, accepted)


def differing(cpu: Drafts, other: Drafts) -> tuple[int, int, int]:
    """Draft tokens, those that differ, and those of them that are no tie."""
    kept = cpu.is_start[..., None].expand_as(cpu.tokens)
    different = (cpu.tokens != other.tokens) & kept
    return int(kept.sum()), int(different.sum()), int((different & (cpu.margins > TIE)).sum())


def interval(values: list[float]) -> tuple[float, float]:
    """The mean of texts, two standard errors around it."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    error = 2 * (variance / len(values)) ** 0.5
    return mean - error, mean + error


def compare(
    drafter: Path, target: Path, file: Path, count: int, device: str, figures: Callable[..., None]
) -> None:
    cpu = drafts(drafter, target, file, count, "float32", "cpu")
    every, different, wrong = differing(cpu, drafts(drafter, target, file, count, "float32", device))
    low, high = interval(cpu.accepted)
    means = {}
    for dtype in HALVES:
        accepted = drafts(drafter, target, file, count, dtype, device).accepted
        means[dtype] = sum(accepted) / len(accepted)
    figures(
        drafter=drafter.name,
        tokens=every,
        different=different,
        beyond_ties=wrong,
        interval=(round(low, 3), round(high, 3)),
        **{name: round(mean, 3) for name, mean in means.items()},
    )
    assert every > 100 and low > 0.3  # a drafter that drafts
    assert wrong == 0
    assert {name: low <= mean <= high for name, mean in means.items()} == dict.fromkeys(HALVES, True)


@pytest.mark.parametrize("name", PAIRS)
def test_a_trained_pair_drafts_as_on_the_cpu(
    name: str, device: str, converted: Callable[[Path, Path], Path], figures: Callable[..., None]
) -> None:
    folder = FIXTURES / name
    target = folder.parent / "target"
    compare(converted(folder, target), target, folder.parent / "prompts.jsonl", TEXTS, device, figures)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_NAMES)
def test_the_real_pair_drafts_as_on_the_cpu(
    name: str,
    device: str,
    real_target: Path,
    converted: Callable[[Path, Path], Path],
    figures: Callable[..., None],
) -> None:
    drafter = converted(REAL / name, REAL / "target")
    compare(drafter, real_target, REAL / "test.jsonl", 12, device, figures)
