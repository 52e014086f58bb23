"""The gate of a conversion: acceptance of the drafter before and after, on the same prompts.

The drafter as it was runs by draft-and-verify, which writes the target's answers: greedy ones, which no
drafter changes. Then both draft from every position of these answers (teacher forcing): a ratio with a
narrower interval than that of the rounds that follow from these drafts, which begin at few of the positions,
and which have to confirm it. `smoke --against` judges likewise.
"""

from collections.abc import Callable, Iterable, Sequence

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
    work.start()

    def write(part: slice) -> list[PromptResult]:
        return stage.run(stage.drafter, stage.texts[part], on_done=work.add, k=DEPTHS[0])

    old, new = drafts_of_both(stage, after, write, tolerance, work.add)
    rows = []
    for k in DEPTHS:
        first, second = old.cut(k), new.cut(k)
        starts, rounds = ratio(second.at_starts, first.at_starts), ratio(second.results, first.results)
        rows.append(GateRow(k, measure(first.results), measure(second.results), starts, rounds))
    forecast, count = prompts_forecast(new.at_starts, old.at_starts, tolerance), len(stage.texts)
    return Gate(tuple(rows), count, tolerance, version_text(), stage.device, stage.dtype, forecast)


def compare_positions(
    job: EngineJob, baseline: EngineJob, results: Sequence[PromptResult], least: float
) -> tuple[list[PromptResult], list[PromptResult]]:
    """What two drafters draft from every position of the answers in `results`, a result for each prompt.

    Says first how many prompts the question needs.
    """
    stage = Stage(replace(job, temperature=0.0))
    first, second = drafts_of_both(stage, baseline, lambda part: results[part], least)
    return first.at_starts, second.at_starts


def drafts_of_both(
    stage: Stage,
    other: EngineJob,
    write: Callable[[slice], Sequence[PromptResult]],
    least: float,
    on_done: Callable[[float], None] | None = None,
) -> tuple[Drafts, Drafts]:
    """What the stage's drafter and another one draft from every position of the answers that `write` gives.

    Says after the first texts how many prompts the question needs.
    """
    sides = (
        (stage.drafter, stage.boundaries),
        (stage.load(other.folder, other.drafter), other.drafter.aux.boundaries or stage.boundaries),
    )

    def drafted(part: slice) -> tuple[Drafts, Drafts]:
        first = FirstPass(stage, {*sides[0][1], *sides[1][1]}, write(part), stage.texts[part])
        one, two = (first.run(model, boundaries) for model, boundaries in sides)
        if on_done:
            on_done(len(first.texts))
        return one, two

    one, two = drafted(slice(PILOT))
    if len(stage.texts) <= PILOT:
        return one, two
    if (needed := prompts_forecast(one.at_starts, two.at_starts, least)) is not None:
        notify(
            f"about {needed} prompts tell whether {least:g} of acceptance is kept, by"
            f" the deviation between the first {PILOT}; {len(stage.texts)} are given"
        )
    more_one, more_two = drafted(slice(PILOT, None))
    return one.joined(more_one), two.joined(more_two)
