"""The gate of a conversion: acceptance of the drafter before and after, on the same prompts.

The drafter as it was runs by draft-and-verify, which writes the target's answers: greedy ones, which no
drafter changes. Then both draft from every position of these answers (teacher forcing): a ratio with a
narrower interval than that of the rounds that follow from these drafts, which begin at few of the positions,
and which have to confirm it. `smoke --against` judges likewise.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.progress import OnProgress, TimedWork, notify
from eaglectl.run.job import EngineJob
from eaglectl.run.measurement import (
    FEWEST_PROMPTS,
    Estimate,
    Measurement,
    PromptResult,
    measure,
    prompts_to_keep,
    prompts_to_tell,
    ratio,
)
from eaglectl.run.sensitivity import Drafts, FirstPass
from eaglectl.run.stage import Stage
from eaglectl.verdicts import GateEnding

if TYPE_CHECKING:
    from eaglectl.reference.model import DraftModel

# values of k (num_speculative_tokens) at which the gate measures
DEPTHS = (3, 7)
# a drafter with a smaller acceptance length before the conversion is at fault itself
MIN_BASELINE_LENGTH = 1.3


# prompts whose deviation says how many are needed, before the others are run
PILOT = 8


def judge_ratio(ratio: Estimate, rounds: Estimate, least: float) -> GateEnding:
    """Whether acceptance was kept: `ratio` is of drafts from every position, `rounds` of draft-and-verify.

    Either ratio's interval decides where the other one's value is on the same side of `least`; rounds, which
    are what is served, show a loss by themselves.
    """
    if rounds.high < least or (ratio.high < least and rounds.value < least):
        return GateEnding.LOST
    is_kept = ratio.low >= least and rounds.value >= least
    return GateEnding.KEPT if is_kept else GateEnding.TOO_FEW_PROMPTS


def worst(endings: Iterable[GateEnding]) -> GateEnding:
    """LOST where one is; KEPT where all are."""
    return max(endings, key=[GateEnding.KEPT, GateEnding.TOO_FEW_PROMPTS, GateEnding.LOST].index)


def needed_to_judge(ratio: Estimate, rounds: Estimate, least: float, prompts: int) -> int | None:
    """About how many prompts would tell kept from lost, if the ratios stay; None where none would."""
    are_apart = (ratio.value < least) != (rounds.value < least)
    return prompts_to_tell(rounds if are_apart else ratio, least, prompts)


def prompts_forecast(
    results: Sequence[PromptResult], baseline: Sequence[PromptResult], least: float
) -> int | None:
    """How many prompts tell whether `least` is kept, where nothing is lost; None where no number would.

    Only the deviation between the first PILOT prompts is taken, so that it can be said before others are run.
    """
    sides = results[:PILOT], baseline[:PILOT]
    if not all(any(result.drafts for result in side) for side in sides):
        return None  # answers that end before a draft show no deviation
    needed = prompts_to_keep(ratio(*sides), least, len(sides[0]))
    return None if needed is None else max(needed, FEWEST_PROMPTS)


class GateRow(Struct, frozen=True):
    """Acceptance before and after at one `k`; `ratio` is after over before, with its paired 95 % interval.

    `before` and `after` are of rounds, as an engine makes them, and `rounds` is their ratio. `ratio` is that
    of the tokens drafted from every position of the same answers. Drafts that go past an answer's end are
    left out.
    """

    k: int
    before: Measurement
    after: Measurement
    ratio: Estimate
    rounds: Estimate


class Gate(Struct, frozen=True):
    """Result of the gate: a row for each k, the number of prompts, the tolerance, and what ran.

    `forecast` is how many prompts the first ones said that the question needs.
    """

    rows: tuple[GateRow, ...]
    prompts: int
    tolerance: float
    engine: str
    device: str
    dtype: str
    forecast: int | None = None

    @property
    def ending(self) -> GateEnding:
        """LOST where one k is; KEPT where all are."""
        return worst(judge_ratio(row.ratio, row.rounds, self.tolerance) for row in self.rows)

    @property
    def is_passed(self) -> bool:
        """Whether acceptance was kept."""
        return self.ending == GateEnding.KEPT

    @property
    def prompts_needed(self) -> int | None:
        """About how many prompts would tell kept from lost, if the ratios stay; None where none would."""
        needed = [needed_to_judge(row.ratio, row.rounds, self.tolerance, self.prompts) for row in self.rows]
        return None if None in needed else max(count for count in needed if count is not None)


def run_gate(
    before: EngineJob, after: EngineJob, tolerance: float, on_progress: OnProgress | None = None
) -> Gate:
    """Run both drafters on the prompts of `before` at every k, greedily; the target is loaded once."""
    work = TimedWork(on_progress, "measuring", 2 * len(before.prompts))
    from eaglectl.reference.target import version_text

    stage = Stage(replace(before, k=max(DEPTHS), temperature=0.0))
    sides = [Side(stage.drafter, stage.boundaries), Side.of(stage, after)]
    work.start()

    def drafted(part: slice) -> list[Drafts]:
        texts = stage.texts[part]
        results = stage.run(stage.drafter, texts, on_done=work.add, k=DEPTHS[0])
        drafts = drafts_of(stage, sides, texts, results)
        work.add(len(texts))
        return drafts

    drafts = drafts_by_part(stage, drafted, tolerance)
    rows = [_row(k, *(run.cut(k) for run in drafts)) for k in DEPTHS]
    forecast = prompts_forecast(drafts[1].at_starts, drafts[0].at_starts, tolerance)
    count = len(stage.texts)
    return Gate(tuple(rows), count, tolerance, version_text(), stage.device, stage.dtype, forecast)


class Side(Struct, frozen=True):
    """A drafter as it is loaded, with the boundaries whose states it takes."""

    model: "DraftModel"
    boundaries: tuple[int, ...]

    @classmethod
    def of(cls, stage: Stage, job: EngineJob) -> "Side":
        """The drafter of another job, beside that of the stage."""
        return cls(stage.load(job.folder, job.drafter), job.drafter.aux.boundaries or stage.boundaries)


def compare_positions(
    job: EngineJob, baseline: EngineJob, results: Sequence[PromptResult], least: float
) -> tuple[list[PromptResult], list[PromptResult]]:
    """What two drafters draft from every position of the answers in `results`, a result for each prompt.

    Says first how many prompts the question needs.
    """
    stage = Stage(replace(job, temperature=0.0))
    sides = [Side(stage.drafter, stage.boundaries), Side.of(stage, baseline)]

    def drafted(part: slice) -> list[Drafts]:
        return drafts_of(stage, sides, stage.texts[part], results[part])

    drafts = drafts_by_part(stage, drafted, least)
    return drafts[0].at_starts, drafts[1].at_starts


def drafts_by_part(stage: Stage, drafted: Callable[[slice], list[Drafts]], least: float) -> list[Drafts]:
    """Each side's drafts on all texts; says after the first ones how many prompts the question needs."""
    drafts = drafted(slice(PILOT))
    if len(stage.texts) <= PILOT:
        return drafts
    needed = prompts_forecast(drafts[0].at_starts, drafts[1].at_starts, least)
    if needed is not None:
        notify(
            f"about {needed} prompts tell whether {least:g} of acceptance is kept, by"
            f" the deviation between the first {PILOT}; {len(stage.texts)} are given"
        )
    return [first.joined(rest) for first, rest in zip(drafts, drafted(slice(PILOT, None)), strict=True)]


def drafts_of(
    stage: Stage, sides: Sequence[Side], texts: Sequence[list[int]], results: Sequence[PromptResult]
) -> list[Drafts]:
    """What each side drafts from every position of the answers to `texts` in `results`."""
    first = FirstPass(stage, {place for side in sides for place in side.boundaries}, results, texts)
    return [first.run(side.model, side.boundaries) for side in sides]


def _row(k: int, before: Drafts, after: Drafts) -> GateRow:
    """What the drafts of both drafters and the rounds that follow from them show at `k`."""
    old, new = before.results, after.results
    starts = ratio(after.at_starts, before.at_starts)
    return GateRow(k, measure(old), measure(new), starts, ratio(new, old))
