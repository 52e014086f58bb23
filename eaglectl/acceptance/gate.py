"""The gate of a conversion: acceptance of the drafter before and after, on the same prompts.

Both drafters run by draft-and-verify at the smallest k, which writes the target's answers. Then both draft
from every position of these answers (teacher forcing): a ratio with a narrower interval than that of the
rounds, which begin at few of the positions.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.acceptance.job import EngineJob
from eaglectl.acceptance.measurement import (
    Estimate,
    Measurement,
    PromptResult,
    measure,
    prompts_to_tell,
    ratio,
)
from eaglectl.acceptance.sensitivity import Drafts, FirstPass
from eaglectl.acceptance.stage import Stage
from eaglectl.progress import OnProgress, TimedWork
from eaglectl.verdicts import GateEnding

# values of k (num_speculative_tokens) at which the gate measures; the first one by draft-and-verify too
DEPTHS = (3, 7)
# a drafter with a smaller acceptance length before the conversion is at fault itself
MIN_BASELINE_LENGTH = 1.3


class GateRow(Struct, frozen=True):
    """Acceptance before and after at one `k`; `ratio` is after over before, with its paired 95 % interval.

    `before` and `after` are of rounds, as an engine makes them, and `rounds` is their ratio. `ratio` is that
    of the tokens drafted from every position of the same answers.
    """

    k: int
    before: Measurement
    after: Measurement
    ratio: Estimate
    rounds: Estimate


class Gate(Struct, frozen=True):
    """Result of the gate: a row for each k, the number of prompts, the tolerance, and what ran."""

    rows: tuple[GateRow, ...]
    prompts: int
    tolerance: float
    engine: str
    device: str
    dtype: str

    @property
    def ending(self) -> GateEnding:
        """KEPT: every ratio's lower bound reaches the tolerance. LOST: an upper bound is below it."""
        if any(estimate.high < self.tolerance for row in self.rows for estimate in (row.ratio, row.rounds)):
            return GateEnding.LOST
        if all(row.ratio.low >= self.tolerance for row in self.rows):
            return GateEnding.KEPT
        return GateEnding.TOO_FEW_PROMPTS

    @property
    def is_passed(self) -> bool:
        """Whether acceptance was kept."""
        return self.ending == GateEnding.KEPT

    @property
    def prompts_needed(self) -> int | None:
        """About how many prompts would tell kept from lost, if the ratios stay; None where none would."""
        needed = [prompts_to_tell(row.ratio, self.tolerance, self.prompts) for row in self.rows]
        return None if None in needed else max(count for count in needed if count is not None)

    @property
    def is_baseline_alive(self) -> bool:
        """Whether the drafter was accepted often enough before it was converted."""
        return self.rows[0].before.length.value >= MIN_BASELINE_LENGTH


def run_gate(
    before: EngineJob, after: EngineJob, tolerance: float, on_progress: OnProgress | None = None
) -> Gate:
    """Run both drafters on the prompts of `before` at every k, greedily; the target is loaded once."""
    work = TimedWork(on_progress, "measuring", 2 * len(before.prompts))
    from eaglectl.reference.target import version_text

    stage = Stage(replace(before, k=max(DEPTHS), temperature=0.0))
    models = (stage.drafter, stage.load(after.folder, after.drafter))
    work.start()
    old, new = (stage.run(model, k=DEPTHS[0], on_done=work.add) for model in models)
    first = FirstPass(stage, stage.boundaries, old)
    drafts = [first.run(model, stage.boundaries) for model in models]
    rows = [_row(DEPTHS[0], drafts, (old, new))]
    rows += [_row(k, drafts, [run.cut(k).results for run in drafts]) for k in DEPTHS[1:]]
    return Gate(tuple(rows), len(stage.texts), tolerance, version_text(), stage.device, stage.dtype)


def _row(k: int, drafts: Sequence[Drafts], rounds: Sequence[Sequence[PromptResult]]) -> GateRow:
    """What `drafts` of both drafters and their rounds show at `k`."""
    starts = [run.cut(k).at_starts for run in drafts]
    old, new = rounds
    return GateRow(k, measure(old), measure(new), ratio(starts[1], starts[0]), ratio(new, old))
