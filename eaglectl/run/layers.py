"""From which aux boundaries of its target a drafter drafts best, where the file may state wrong ones.

The target runs once over the texts that it wrote. How often a drafter's first draft token is the target's
choice, over all slots of them, tells how well boundaries fit. Half of the prompts choose, one boundary after
the other; the other half judges by draft-and-verify, so that the best of many by chance is not named. So are
the sets with one boundary one off, and trainers' default: those that draft as well are told.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from eaglectl.drafter.boundaries import TRAINING_DEFAULT
from eaglectl.errors import UnreadableError
from eaglectl.progress import Progress
from eaglectl.run.job import EngineJob
from eaglectl.run.measurement import Estimate, PromptResult, measure, ratio
from eaglectl.run.sensitivity import (
    LEAST_GAIN,
    LEAST_PROMPTS,
    FirstPass,
    Flags,
    Integers,
    Variant,
    shared_start,
)
from eaglectl.run.stage import Stage
from eaglectl.verdicts import ReadingOutcome

Boundaries = tuple[int, ...]
# of the texts that choose, as the states of every boundary are kept: their tokens, and bytes of the states
MOST_TOKENS, MOST_BYTES = 8192, 1 << 29
# sets are compared at one of so many positions first, and those that draft nearly as well at all of them
COARSE, NEAR = 4, 0.95
# more right first tokens than this make a gain of LEAST_GAIN possible
LEAST_FIRST = 1.01
TRYING = "trying aux layers"
FIRST_EDGE = 16  # the first bin of positions, the next one as wide, and each after them twice as wide


class PositionShare(Struct, frozen=True):
    """The share of right first draft tokens at the positions from `start` up to and without `end`."""

    start: int
    end: int
    share: Estimate


class LayerSearch(Struct, frozen=True):
    """What came of the search: `found` are other boundaries that draft better, or None.

    The figures of `found` are of the prompts that judge; its outcome is "better", or "too few prompts" where
    its interval holds no gain. `alike` are boundaries one off, or trainers' default, that draft as well on
    them, as far as they tell. `tried` counts the sets of boundaries, `by_position` is of the stated ones.
    """

    stated: Boundaries
    tried: int
    found: Variant | None
    by_position: tuple[PositionShare, ...]
    alike: tuple[Boundaries, ...] = ()


def search_layers(job: EngineJob, results: Sequence[PromptResult]) -> LayerSearch:
    """Try other aux boundaries on the texts of `results`, which the reference made of the job's prompts.

    Raises UnreadableError for too few prompts.
    """
    if len(results) < 2 * LEAST_PROMPTS:
        raise UnreadableError(
            f"{len(results)} prompts are too few to try other aux layers; {2 * LEAST_PROMPTS} or more can"
        )
    if job.on_progress:
        job.on_progress(Progress(TRYING, 0, 1, "sets of layers"))
    stage = Stage(job)
    depth = stage.target.depth
    room = MOST_BYTES // (4 * (depth + 1) * job.drafter.dims.target_hidden)
    choosing, judging = halves([len(text) + job.max_tokens for text in stage.texts], min(MOST_TOKENS, room))
    first, second = (
        FirstPass(
            stage,
            boundaries,
            [results[index] for index in indices],
            [stage.texts[index] for index in indices],
        )
        for indices, boundaries in ((choosing, range(depth + 1)), (judging, stage.boundaries))
    )
    scores = _Scores(first, stage.boundaries, depth)
    best = climb(scores, starts(stage.boundaries, depth), depth)
    if scores(best) < LEAST_FIRST * scores(stage.boundaries):
        best = stage.boundaries
    found: Variant | None = None
    alike: list[Boundaries] = []
    if best != stage.boundaries:
        found, alike = _judged(stage, [results[index] for index in judging], judging, best)
    tokens = [
        token for part in (first, second) for token in part.first_tokens(stage.drafter, stage.boundaries)
    ]
    shares = _by_position(tokens, shared_start(stage.texts))
    return LayerSearch(stage.boundaries, len(scores.counts), found, tuple(shares), tuple(alike))


class _Scores:
    """How many first draft tokens are right from each set of boundaries.

    -1 from those that draft clearly worse than the stated ones, by a part of the positions.
    """

    def __init__(self, first: FirstPass, stated: Boundaries, depth: int) -> None:
        self.first, self.drafter = first, first.stage.drafter
        self.counts: dict[Boundaries, int] = {}
        self.expected = len(list(moves(stated, depth))) + 1
        self.least = NEAR * first.count_first(self.drafter, stated, COARSE)

    def __call__(self, boundaries: Boundaries) -> int:
        """The score of these boundaries, counted once."""
        if boundaries not in self.counts:
            is_near = self.first.count_first(self.drafter, boundaries, COARSE) >= self.least
            self.counts[boundaries] = self.first.count_first(self.drafter, boundaries) if is_near else -1
            if report := self.first.job.on_progress:
                tried = len(self.counts)
                report(Progress(TRYING, tried, max(self.expected, tried + 1), "sets of layers"))
        return self.counts[boundaries]


def halves(lengths: Sequence[int], most: int = MOST_TOKENS) -> tuple[list[int], list[int]]:
    """The texts that choose layers, every second one up to `most` tokens, and those that judge: the rest.

    LEAST_PROMPTS choose, however long they are.
    """
    choosing: list[int] = []
    tokens = 0
    for index in range(0, len(lengths), 2):
        tokens += lengths[index]
        if tokens > most and len(choosing) >= LEAST_PROMPTS:
            break
        choosing.append(index)
    return choosing, [index for index in range(len(lengths)) if index not in set(choosing)]


def starts(stated: Boundaries, depth: int) -> Iterator[Boundaries]:
    """The stated boundaries, those that trainers take by default, and both one layer off."""
    default = TRAINING_DEFAULT.at(depth)
    for boundaries in (stated, default) if len(default) == len(stated) else (stated,):
        for step in (0, -1, 1):
            yield tuple(boundary + step for boundary in boundaries)


def is_possible(boundaries: Boundaries, depth: int) -> bool:
    """Whether a target of this depth has these boundaries, in their order."""
    ascending = sorted(set(boundaries)) == list(boundaries)
    return ascending and boundaries[0] >= 0 and boundaries[-1] <= depth


def moves(boundaries: Boundaries, depth: int) -> Iterator[Boundaries]:
    """The possible sets with one boundary moved."""
    for place in range(len(boundaries)):
        yield from _moved(boundaries, place, depth)


def _moved(boundaries: Boundaries, place: int, depth: int) -> Iterator[Boundaries]:
    for boundary in range(depth + 1):
        others = (*boundaries[:place], boundary, *boundaries[place + 1 :])
        if boundary != boundaries[place] and is_possible(others, depth):
            yield others


def climb(score: Callable[[Boundaries], int], starts: Iterable[Boundaries], depth: int) -> Boundaries:
    """The boundaries of the highest score that moves of one boundary at a time lead to."""
    # the stated ones are first, and stay where others only equal them
    best = max((boundaries for boundaries in starts if is_possible(boundaries, depth)), key=score)
    while True:
        before = best
        for place in range(len(best)):
            best = max([best, *_moved(best, place, depth)], key=score)
        if best == before:
            return best


def _judged(
    stage: Stage, stated: Sequence[PromptResult], judging: Sequence[int], boundaries: Boundaries
) -> tuple[Variant | None, list[Boundaries]]:
    """The boundaries as a reading, with the figures of draft-and-verify, and those that draft as well.

    None where they gain too little. Of sets that draft alike, the default of trainers is the reading.
    """

    def run(others: Boundaries) -> list[PromptResult]:
        return stage.run(stage.drafter, [stage.texts[index] for index in judging], others)

    own = run(boundaries)
    compared = ratio(own, stated)
    if compared.value < LEAST_GAIN:
        return None, []
    if compared.low <= 1:
        return _variant(boundaries, own, compared, ReadingOutcome.TOO_FEW_PROMPTS), []
    depth = stage.target.depth
    default = TRAINING_DEFAULT.at(depth)
    near = {*one_off(boundaries, depth)}
    if len(default) == len(boundaries):
        near.add(default)
    runs = {others: run(others) for others in near - {boundaries, stage.boundaries}}
    alike = [others for others, results in sorted(runs.items()) if ratio(results, own).high >= 1]
    if default in alike and ratio(runs[default], stated).low > 1:
        alike[alike.index(default)] = boundaries
        boundaries, own = default, runs[default]
        compared = ratio(own, stated)
    return _variant(boundaries, own, compared, ReadingOutcome.BETTER), alike


def _variant(
    boundaries: Boundaries, own: Sequence[PromptResult], compared: Estimate, outcome: ReadingOutcome
) -> Variant:
    text = ",".join(map(str, boundaries))
    name, option = f"aux boundaries {text}", f"--aux-layers {text}"
    return Variant(name, option, measure(own), compared, outcome=outcome, is_verified=True)


def one_off(boundaries: Boundaries, depth: int) -> Iterator[Boundaries]:
    """The sets with one boundary one lower or one higher."""
    for place, boundary in enumerate(boundaries):
        for moved in (boundary - 1, boundary + 1):
            others = (*boundaries[:place], moved, *boundaries[place + 1 :])
            if is_possible(others, depth):
                yield others


def _by_position(tokens: Sequence[tuple[Integers, Flags]], shared: int) -> Iterator[PositionShare]:
    """Shares by bins of positions, as far as two texts reach.

    Without the `shared` positions that all texts begin with, and without bins in which nothing is right: they
    hold the text of a template, which nobody drafts.
    """
    start, end = 0, FIRST_EDGE
    while True:
        results = []
        for positions, right in tokens:
            inside = right[(positions >= max(start, shared)) & (positions < end)]
            results.append(PromptResult("slots", len(inside), (int(inside.sum()),), ()))
        if end > shared and sum(result.drafts > 0 for result in results) < 2:
            return
        if any(sum(result.accepted) for result in results):
            yield PositionShare(start, end, measure(results).per_position[0])
        start, end = end, 2 * end
