"""The gate of a conversion: acceptance of the drafter before and after, on the same prompts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from eaglectl.acceptance.job import Job
from eaglectl.acceptance.measurement import Estimate, Measurement, PromptResult, measure, ratio
from eaglectl.acceptance.prompts import alike

if TYPE_CHECKING:
    from eaglectl.reference.model import DraftModel
    from eaglectl.reference.target import TargetModel

DEPTHS = (3, 7)
BATCH = 40
# a drafter that accepts less than this before the conversion is at fault itself (eagle3-to-3.1.md, 4.3)
LEAST_BEFORE = 1.3


@dataclass(frozen=True, slots=True)
class Row:
    """One depth: acceptance before and after, and after over before with its paired 95 % interval."""

    k: int
    before: Measurement
    after: Measurement
    ratio: Estimate


@dataclass(frozen=True, slots=True)
class Gate:
    """What the gate measured, on which prompts and with what, and what it asks for."""

    rows: tuple[Row, ...]
    prompts: int
    tolerance: float
    engine: str
    device: str
    dtype: str

    @property
    def is_passed(self) -> bool:
        """Whether the lower bound of every ratio reaches the tolerance."""
        return all(row.ratio.low >= self.tolerance for row in self.rows)

    @property
    def is_baseline_alive(self) -> bool:
        """Whether the drafter drafted before it was converted."""
        return self.rows[0].before.length.value >= LEAST_BEFORE


def hold(before: Job, after: Job, tolerance: float, told: Callable[[int, int], None]) -> Gate:
    """Run both drafters over the prompts of `before` at every depth, greedily, on one load of the target."""
    from eaglectl.acceptance.reference_engine import tokenise
    from eaglectl.reference import target as targets
    from eaglectl.reference.loading import load_drafter

    device, dtype = targets.choose_device(before.device)
    placed = "cuda" if device == "auto" else device
    target = targets.load_target(before.target, before.drafter.aux.boundaries or (), dtype=dtype, device=device)
    models = [load_drafter(job.folder, job.drafter, dtype=dtype, device=placed) for job in (before, after)]
    texts = tokenise(replace(before, k=max(DEPTHS)), target.model.config)
    done, seed, rows = count(1), before.seed, []
    total = len(texts) * len(models) * len(DEPTHS)
    for k in DEPTHS:
        sides = [
            drafted(target, model, texts, k, before.max_tokens, lambda: told(next(done), total)) for model in models
        ]
        rows.append(Row(k, measure(sides[0], seed), measure(sides[1], seed), ratio(sides[1], sides[0], seed)))
    return Gate(tuple(rows), len(texts), tolerance, targets.versions(), device, dtype)


def drafted(
    target: "TargetModel", drafter: "DraftModel", texts: Sequence[Sequence[int]], k: int, max_tokens: int, told: Callable[[], None] = lambda: None
) -> list[PromptResult]:  # fmt: skip
    """Greedy decoding of every text with `k` drafted tokens a pass, in the texts' order; `told` is called for each that is done."""
    from eaglectl.reference.speculation import Settings, Speculation

    found: dict[int, PromptResult] = {}
    for indices in alike(texts, BATCH):
        made = Speculation(target, drafter, Settings(k, max_tokens)).run([texts[index] for index in indices])
        for index, one in zip(indices, made, strict=True):
            found[index] = PromptResult("gate", one.drafts, one.accepted, one.tokens)
            told()
    return [found[index] for index in range(len(texts))]
