"""The gate of a conversion: a drafter before and after it, on the same prompts.

The first runs by draft-and-verify, which writes the target's greedy answers; no drafter changes these. Then
both draft from every position of these answers (teacher forcing). This ratio has a narrower interval than
that of the rounds, which begin at few positions; the rounds must confirm it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import quantiles

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.upgrade import GateResults, PromptMatches
from eaglectl.drafter.drafter import JOINED
from eaglectl.progress import OnProgress, TimedWork
from eaglectl.run.job import EngineJob, Stage
from eaglectl.run.measurement import (
    LEVEL,
    Estimate,
    Measurement,
    PromptResult,
    look_level,
    measure,
    prompts_to_tell,
    ratio,
)
from eaglectl.run.probes import Drafts, FirstPass, in_rounds
from eaglectl.run.prompts import prompt_digest
from eaglectl.verdicts import GateEnding

# values of k (num_speculative_tokens) at which the gate measures
DEPTHS = (3, 7)
# with a smaller acceptance length before the conversion, the drafter itself is at fault
MIN_BASELINE_LENGTH = 1.3


def judge_ratio(ratio: Estimate, rounds: Estimate, least: float) -> GateEnding:
    """Judge whether acceptance was kept, by the `ratio` of all positions and that of draft-and-verify.

    One ratio's interval decides if the other ratio's value is on the same side of `least`. The rounds alone
    suffice for a loss, as servers run rounds.
    """
    if rounds.high < least or (ratio.high < least and rounds.value < least):
        return GateEnding.LOST
    is_kept = ratio.low >= least and rounds.value >= least
    return GateEnding.KEPT if is_kept else GateEnding.TOO_FEW_PROMPTS


def worst(endings: Iterable[GateEnding]) -> GateEnding:
    """Return the worst ending: LOST if one is; KEPT only if all are."""
    return max(endings, key=[GateEnding.KEPT, GateEnding.TOO_FEW_PROMPTS, GateEnding.LOST].index)


def needed_to_judge(
    ratio: Estimate,
    rounds: Estimate,
    least: float,
    prompts: int,
    levels: tuple[float, float] = (LEVEL, LEVEL),
) -> int | None:
    """Return about how many prompts would decide kept or lost, if the ratios stay; None if none would.

    `levels` are those of this look and of the next one.
    """
    are_apart = (ratio.value < least) != (rounds.value < least)
    return prompts_to_tell(rounds if are_apart else ratio, least, prompts, *levels)


class GateRow(Struct, frozen=True):
    """Acceptance before and after at one `k`; `ratio` is after over before, with its paired interval.

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

    `looks` counts the looks at the ratios' intervals as prompts were added. The intervals are of 1 - `level`,
    so that those of all looks together are of 1 - LEVEL. `measured` has the matches of each prompt.
    """

    rows: tuple[GateRow, ...]
    prompts: int
    tolerance: float
    engine: str
    device: str
    dtype: str
    looks: int = 1
    level: float = LEVEL
    measured: tuple[PromptMatches, ...] = ()

    @property
    def confidence(self) -> float:
        """The confidence of the ratios' intervals."""
        return 1 - self.level

    @property
    def has_looks(self) -> bool:
        """Whether it was one of several looks, each with its own level."""
        return self.level < LEVEL

    @property
    def is_dead(self) -> bool:
        """Whether almost no draft token is accepted before the conversion."""
        return self.rows[0].before.length.value < MIN_BASELINE_LENGTH

    @property
    def ending(self) -> GateEnding:
        """LOST if any k is; KEPT if all are."""
        return worst(judge_ratio(row.ratio, row.rounds, self.tolerance) for row in self.rows)

    @property
    def is_passed(self) -> bool:
        """Whether acceptance was kept."""
        return self.ending == GateEnding.KEPT

    @property
    def prompts_needed(self) -> int | None:
        """About how many prompts would decide kept or lost, if the ratios stay; None if none would."""
        levels = self.level, look_level(self.looks + 1) if self.has_looks else LEVEL
        needed = [
            needed_to_judge(row.ratio, row.rounds, self.tolerance, self.prompts, levels) for row in self.rows
        ]
        return None if None in needed else max(count for count in needed if count is not None)


def run_gate(
    before: EngineJob,
    after: EngineJob,
    tolerance: float,
    on_progress: OnProgress | None = None,
    looks: Sequence[int] = (),
    earlier: GateResults | None = None,
) -> Gate:
    """Run both drafters on the prompts of `before` at every k, greedily; the target is loaded once.

    Without `looks`, all prompts are judged at once. `looks` are growing numbers of prompts, which are judged
    in turn until the intervals decide; each look has its own level (`look_level`). Results in `earlier` count
    with their prompts and looks.
    """
    from eaglectl.reference.target_model import version_text

    ends = looks or (len(before.prompts),)
    work = TimedWork(on_progress, "measuring", 2 * ends[0])
    stage = Stage(replace(before, k=max(DEPTHS), temperature=0.0))
    measured, count = ([*earlier.prompts], earlier.looks) if earlier else ([], 0)
    work.start()
    for start, end in pairwise((0, *ends)):
        work.total, count = 2 * end, count + 1
        measured += _match_prompts(stage, after, slice(start, end), work)
        level = look_level(count) if looks else LEVEL
        rows, what = gate_rows(measured, level), (version_text(), stage.device, stage.dtype)
        gate = Gate(rows, len(measured), tolerance, *what, count, level, tuple(measured))
        if gate.is_dead or gate.ending != GateEnding.TOO_FEW_PROMPTS:
            break
    return gate


def _match_prompts(stage: Stage, after: EngineJob, part: slice, work: TimedWork) -> Iterator[PromptMatches]:
    texts = stage.texts[part]
    results = stage.run(stage.drafter, texts, on_done=work.add, k=DEPTHS[0])
    old, new = drafts_of_both(stage, after, results, texts)
    work.add(len(texts))
    for prompt, result, *rows in zip(stage.job.prompts[part], results, old.matches, new.matches, strict=True):
        yield PromptMatches(prompt_digest(prompt), result.tokens, *(tuple(row.tolist()) for row in rows))


def gate_rows(measured: Sequence[PromptMatches], level: float) -> tuple[GateRow, ...]:
    """Return the row of each k, from the drafts of each prompt; the ratios' intervals are of 1 - `level`."""
    answers = [PromptResult("gate", 0, (), prompt.tokens) for prompt in measured]
    before = in_rounds([prompt.before for prompt in measured], max(DEPTHS), answers)
    after, rows = in_rounds([prompt.after for prompt in measured], max(DEPTHS), answers), []
    for k in DEPTHS:
        first, second = before.cut(k), after.cut(k)
        starts = ratio(second.at_starts, first.at_starts, level)
        rounds = ratio(second.results, first.results, level)
        rows.append(GateRow(k, measure(first.results), measure(second.results), starts, rounds))
    return tuple(rows)


def compare_positions(
    job: EngineJob, baseline: EngineJob, results: Sequence[PromptResult]
) -> tuple[list[PromptResult], list[PromptResult]]:
    """Return what the drafters of `job` and `baseline` draft at every position of the answers, by prompt.

    `results` has the target's greedy answers, hence temperature 0.
    """
    first, second = drafts_of_both(Stage(replace(job, temperature=0.0)), baseline, results)
    return first.at_starts, second.at_starts


def drafts_of_both(
    stage: Stage, other: EngineJob, results: Sequence[PromptResult], texts: Sequence[list[int]] | None = None
) -> tuple[Drafts, Drafts]:
    """Return the drafts of the stage's drafter and another one from every position of `results`' answers.

    The answers are to `texts`, by default those of the stage.
    """
    boundaries = other.drafter.aux.boundaries or stage.boundaries
    first = FirstPass(stage, {*stage.boundaries, *boundaries}, results, texts)
    second = first.run(stage.load(other.folder, other.drafter), boundaries)
    return first.run(stage.drafter, stage.boundaries), second


# the part of the states whose change of size is reported
JOINED_SHARE = 0.95


class JoinedNorm(Struct, frozen=True):
    """The change of a state's size is between `low` and `high` for JOINED_SHARE of `states`, as parts of it.

    `row` has acceptance with both norms and with one, on the same answers of the target.
    """

    low: float
    high: float
    states: int
    row: GateRow

    @property
    def deviation(self) -> float | None:
        """The largest of these changes; None if it is not shown that acceptance is kept."""
        is_kept = self.row.before.length.value >= MIN_BASELINE_LENGTH and self.row.ratio.low >= MAX_REGRESSION
        return max(-self.low, self.high) if is_kept else None

    @property
    def words(self) -> str:
        """What the conversion changes, with these figures."""
        row, doubt = self.row, " is not shown to be kept" if self.deviation is None else ""
        return (
            f"{JOINED}, the size changes by {self.low:+.1%} to {self.high:+.1%} ({JOINED_SHARE:.0%} of"
            f" {self.states:,} states of the target); acceptance{doubt}: length"
            f" {row.before.length.value:.2f} with both norms and {row.after.length.value:.2f} with one,"
            f" ratio {row.ratio.words}, {row.before.prompts} prompts, k={row.k}"
        )


def measure_joined_norm(twice: EngineJob, once: EngineJob, scale: float) -> JoinedNorm:
    """Run the drafter as trained and with one norm, which was divided by `scale`, on the same answers."""
    stage = Stage(replace(twice, temperature=0.0))
    first = FirstPass(stage, stage.boundaries, stage.run(stage.drafter))
    models = stage.drafter, stage.load(once.folder, once.drafter)
    before, after = (first.run(model, stage.boundaries) for model in models)
    # one norm gives the state that two give, times its size between the two over `scale`
    sizes = [size / scale for size in first.sizes_between_norms(stage.drafter)]
    low, *_, high = quantiles(sizes, n=round(2 / (1 - JOINED_SHARE)))
    row = GateRow(
        twice.k,
        measure(before.results),
        measure(after.results),
        ratio(after.at_starts, before.at_starts),
        ratio(after.results, before.results),
    )
    return JoinedNorm(low - 1, high - 1, len(sizes), row)


# the least ratio to an older drafter that counts as not worse; the gate of an upgrade has the same
MAX_REGRESSION = 0.97
