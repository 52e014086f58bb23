"""The gate of a conversion: acceptance of the drafter before and after, on the same prompts."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from eaglectl.acceptance.job import Job
from eaglectl.acceptance.measurement import Estimate, Measurement, PromptResult, measure, ratio

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
    from eaglectl.reference.speculation import Settings, Speculation

    device, dtype = targets.choose_device(before.device)
    placed = "cuda" if device == "auto" else device
    target = targets.load_target(before.target, before.drafter.aux.boundaries or (), dtype=dtype, device=device)
    models = [load_drafter(job.folder, job.drafter, dtype=dtype, device=placed) for job in (before, after)]
    texts = tokenise(replace(before, k=max(DEPTHS)), target.model.config)
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))  # batches of like lengths pad little
    rows, done = [], 0
    for k in DEPTHS:
        sides: list[list[PromptResult]] = []
        for model in models:
            found: dict[int, PromptResult] = {}
            for start in range(0, len(order), BATCH):
                indices = order[start : start + BATCH]
                made = Speculation(target, model, Settings(k, before.max_tokens)).run([texts[i] for i in indices])
                found |= {
                    i: PromptResult("gate", one.drafts, one.accepted, one.tokens)
                    for i, one in zip(indices, made, strict=True)
                }
                done += len(indices)
                told(done, len(texts) * len(models) * len(DEPTHS))
            sides.append([found[index] for index in range(len(texts))])
        seed = before.seed
        rows.append(Row(k, measure(sides[0], seed), measure(sides[1], seed), ratio(sides[1], sides[0], seed)))
    return Gate(tuple(rows), len(texts), tolerance, targets.versions(), device, dtype)
