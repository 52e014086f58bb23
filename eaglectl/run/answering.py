"""Measure which reading of its files a drafter was trained with, if the files leave that open.

Every reading drafts from every position of the texts that the target writes, on states of one run of it. The
answers to all questions are tried together, so that a wrong answer does not hide a right one.

Aux boundaries, which a file may leave open or state wrongly, are searched with the best of the other answers.
Their score is the share of first draft tokens that are the target's choice, over all positions of the texts.
Half of the prompts select boundaries, one after the other. The other half judges them, by draft-and-verify if
the file states some, so that the best of many by chance does not win. It also judges the sets with one
boundary one layer off, and trainers' default; the result lists those that draft as well.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, product
from math import ceil
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.drafter.drafter import TRAINING_DEFAULT, Choice, Note
from eaglectl.errors import UnreadableError, check
from eaglectl.progress import Progress, TimedWork
from eaglectl.run.job import EngineJob, Stage
from eaglectl.run.measurement import (
    DEAD_LENGTH,
    Estimate,
    PromptResult,
    gain_effect,
    gain_p_value,
    holm,
    measure,
    prompts_needed,
    ratio,
)
from eaglectl.run.probes import LEAST_GAIN, LEAST_PROMPTS, Drafts, FirstPass, Variant
from eaglectl.verdicts import AnswerOutcome, ReadingOutcome

if TYPE_CHECKING:
    from eaglectl.reference.model import DraftModel

Boundaries = tuple[int, ...]
# the most tokens of the texts that select, and bytes of their states at every boundary
MOST_TOKENS, MOST_BYTES = 8192, 1 << 29
# sets are first compared at one of COARSE positions; those with NEAR of the stated score at all positions
COARSE, NEAR = 4, 0.95
# the least ratio of right first tokens with which a gain of LEAST_GAIN is possible
LEAST_FIRST = 1.01
TRYING = "trying aux layers"


class LayerSearch(Struct, frozen=True):
    """The result of the search: `found` are other boundaries that draft better, or None.

    The figures of `found` are of the judging prompts; its outcome is "better", or "too few prompts" if its
    interval does not exclude 1. `alike` are boundaries one layer off, or trainers' default, that draft as
    well on those prompts. `tried` counts the sets of boundaries.
    """

    stated: Boundaries
    tried: int
    found: Variant | None
    alike: tuple[Boundaries, ...] = ()


def search_layers(job: EngineJob, results: Sequence[PromptResult]) -> LayerSearch:
    """Try other aux boundaries on the texts of `results`, which the reference made of the job's prompts.

    Raises UnreadableError for too few prompts.
    """
    if len(results) < 2 * LEAST_PROMPTS:
        raise UnreadableError(
            f"{len(results)} prompts are too few to try other aux layers; use {2 * LEAST_PROMPTS} or more"
        )
    if job.on_progress:
        job.on_progress(Progress(TRYING, 0, 1, "sets of layers"))
    stage = Stage(job)
    depth, file_boundaries = stage.target.depth, stage.boundaries
    room = MOST_BYTES // (4 * (depth + 1) * job.drafter.dims.target_hidden)
    choosing, judging = halves([len(text) + job.max_tokens for text in stage.texts], min(MOST_TOKENS, room))
    first, second = (
        FirstPass(stage, boundaries, _items_at(results, indices), _items_at(stage.texts, indices))
        for indices, boundaries in ((choosing, range(depth + 1)), (judging, file_boundaries))
    )
    best, counts = best_layers(first, stage.drafter, file_boundaries, screens=True)
    better, alike = None, list[Boundaries]()
    if best != file_boundaries and counts[best] >= LEAST_FIRST * counts[file_boundaries]:
        better, alike = _judged_layers(stage, second.stated, judging, best)
    return LayerSearch(file_boundaries, len(counts), better, tuple(alike))


def best_layers(
    first: FirstPass, model: "DraftModel", stated: Boundaries, *, screens: bool
) -> tuple[Boundaries, dict[Boundaries, int]]:
    """Return the boundaries with the most right first draft tokens, and the count of each set tried.

    With `screens`, the count is -1 for a set that is clearly worse than the stated one at a part of the
    positions.
    """
    depth, counts = first.stage.target.depth, dict[Boundaries, int]()
    least = NEAR * first.count_first(model, stated, COARSE) if screens else 0.0
    moves = chain(*(_with_boundary_moved(stated, place, depth) for place in range(len(stated))))
    expected = sum(1 for _ in moves) + 1 if screens else None

    def score(boundaries: Boundaries) -> int:
        if boundaries not in counts:
            is_near = not screens or first.count_first(model, boundaries, COARSE) >= least
            counts[boundaries] = first.count_first(model, boundaries) if is_near else -1
            if report := first.job.on_progress:
                tried = len(counts)
                report(Progress(TRYING, tried, expected and max(expected, tried + 1), "sets of layers"))
        return counts[boundaries]

    return climb(score, starts(stated, depth), depth), counts


def halves(lengths: Sequence[int], most: int = MOST_TOKENS) -> tuple[list[int], list[int]]:
    """Split the texts into those that select layers and those that judge them.

    Every second text selects, up to `most` tokens, but at least LEAST_PROMPTS texts.
    """
    choosing = list[int]()
    for index in range(0, len(lengths), 2):
        if len(choosing) >= LEAST_PROMPTS and sum(lengths[: index + 1 : 2]) > most:
            break
        choosing.append(index)
    return choosing, [index for index in range(len(lengths)) if index not in set(choosing)]


def starts(stated: Boundaries, depth: int) -> Iterator[Boundaries]:
    """Yield the stated boundaries, the default of trainers, and both one layer off."""
    default = TRAINING_DEFAULT.at(depth)
    for boundaries in (stated, default) if len(default) == len(stated) else (stated,):
        for step in (0, -1, 1):
            yield tuple(boundary + step for boundary in boundaries)


def _with_boundary_moved(boundaries: Boundaries, place: int, depth: int) -> Iterator[Boundaries]:
    for boundary in range(depth + 1):
        others = (*boundaries[:place], boundary, *boundaries[place + 1 :])
        if boundary != boundaries[place] and _is_possible(others, depth):
            yield others


def _items_at(values: Sequence[Any], indices: Sequence[int]) -> list[Any]:
    return [values[index] for index in indices]


def _is_possible(boundaries: Boundaries, depth: int) -> bool:
    return sorted({*boundaries} & {*range(depth + 1)}) == list(boundaries)


def climb(score: Callable[[Boundaries], int], starts: Iterable[Boundaries], depth: int) -> Boundaries:
    """Return the boundaries with a score that no move of one boundary improves, from the best start."""
    # the stated boundaries are first, and win ties
    best = max((boundaries for boundaries in starts if _is_possible(boundaries, depth)), key=score)
    while True:
        before = best
        for place in range(len(best)):
            best = max([best, *_with_boundary_moved(best, place, depth)], key=score)
        if best == before:
            return best


def _judged_layers(
    stage: Stage, stated_results: Sequence[PromptResult], judging: Sequence[int], boundaries: Boundaries
) -> tuple[Variant | None, list[Boundaries]]:
    """Return the boundaries as a reading, with the figures of draft-and-verify, and sets that draft as well.

    The reading is None if the gain is too small. Of sets that draft alike, the default of trainers wins.
    """

    def run(others: Boundaries) -> list[PromptResult]:
        return stage.run(stage.drafter, _items_at(stage.texts, judging), others)

    def variant(outcome: ReadingOutcome) -> Variant:
        text, measured = ",".join(map(str, boundaries)), measure(best_results)
        names = f"aux boundaries {text}", f"{LAYERS} {text}"
        return Variant(*names, measured, compared, outcome=outcome, is_verified=True)

    best_results = run(boundaries)
    compared = ratio(best_results, stated_results)
    if compared.value < LEAST_GAIN:
        return None, []
    if compared.low <= 1:
        return variant(ReadingOutcome.TOO_FEW_PROMPTS), []
    depth = stage.target.depth
    default = TRAINING_DEFAULT.at(depth)
    near = {default} if len(default) == len(boundaries) else set()
    for place, boundary in enumerate(boundaries):
        near.update(
            others
            for others in _with_boundary_moved(boundaries, place, depth)
            if abs(others[place] - boundary) == 1
        )
    runs = {others: run(others) for others in near - {boundaries, stage.boundaries}}
    alike = [others for others, results in sorted(runs.items()) if ratio(results, best_results).high >= 1]
    if default in alike and ratio(runs[default], stated_results).low > 1:
        alike[alike.index(default)] = boundaries
        boundaries, best_results = default, runs[default]
        compared = ratio(best_results, stated_results)
    return variant(ReadingOutcome.BETTER), alike


LAYERS = "--aux-layers"
MOST_RIVALS = 7  # the next best layers of the search, with which the best are compared
MOST_ROUNDS = 3  # of selecting layers with the best answers, and answers with the best layers
MOST_READINGS = 64
ANSWER_LEVEL = 0.01  # of two-sided tests: an answer is final
LEAST_RATIO = 1.005  # a smaller ratio of acceptance lengths is a tie, whatever the number of prompts

Options = tuple[Choice, ...]  # a choice for each question


# the drafter read with a choice for each question: its aux boundaries, and a function that loads its model
LoadedReading = tuple[Boundaries, "Callable[[], DraftModel]"]
# None if the files do not fit the choices
Read = Callable[[Options], LoadedReading | None]


class MeasuredAnswer(Struct, frozen=True):
    """The measured answer to one question.

    `tried` are its choices, the best first, with the acceptance length of `k` tokens drafted from every
    position. `ratio` is the best's length over that of `rival`, the nearest choice, with its paired 95 %
    interval over `prompts`. `p_value` is the largest of all rivals, corrected for their number.
    `prompts_needed` is the number of such prompts that would distinguish the two, None if unknown.
    `layers_searched` counts the sets of layers that the search tried.
    """

    question: Note
    tried: tuple[tuple[Choice, Estimate], ...]
    rival: Choice
    ratio: Estimate
    p_value: float
    prompts: int
    k: int
    outcome: AnswerOutcome
    prompts_needed: int | None = None
    layers_searched: int = 0

    @property
    def choice(self) -> Choice | None:
        """The choice that the drafter was trained with; None if these prompts do not show it."""
        return self.tried[0][0] if self.outcome == AnswerOutcome.MEASURED else None

    @property
    def text(self) -> str:
        """The question, the choices and the best one's gain, or the number of prompts that would decide."""
        outcome = {
            AnswerOutcome.MEASURED: "",
            AnswerOutcome.NOTHING_DRAFTED: "no draft token is accepted with any choice, ",
            AnswerOutcome.TIE: "a tie, ",
        }[self.outcome]
        more = "; they draft alike on these prompts" if self.outcome == AnswerOutcome.TIE else ""
        if more and self.prompts_needed is not None:
            more = f"; pass --prompts FILE with about {self.prompts_needed} prompts"
        return f"{self.question.about}, measured: {outcome}{self.evidence}{more}"

    @property
    def evidence(self) -> str:
        """The acceptance lengths of the best choice and its nearest rival, with prompts and choices."""
        (choice, length), near = self.tried[0], dict(self.tried)[self.rival]
        count = self.layers_searched
        tried = f"the best of {count} sets" if count else f"{len(self.tried)} tried"
        return (
            f"acceptance length {length.value:.2f} with {choice} and {near.value:.2f} with"
            f" {self.rival} (ratio {self.ratio.words}, {self.prompts} prompts, k={self.k}, {tried})"
        )

    @property
    def record(self) -> dict[str, Any]:
        """The entry of eaglectl.json."""
        return {
            "about": self.question.about,
            "question": self.question.text,
            "outcome": self.outcome,
            "answer": None if self.choice is None else str(self.choice),
            "summary": self.text,
            "readings": [
                {
                    "option": str(choice),
                    "acceptance_length": length.value,
                    "interval": [length.low, length.high],
                }
                for choice, length in self.tried
            ],
            "ratio": self.ratio.value,
            "interval": [self.ratio.low, self.ratio.high],
            "p_value": self.p_value,
            "judged_by": self.prompts,
            "k": self.k,
        }


def measure_answers(stage: Stage, questions: Sequence[Note], read: Read) -> tuple[MeasuredAnswer, ...]:
    """Measure an answer to each question, from the drafts of all readings on the stage's prompts.

    A question with fewer than two fitting choices is left out. Raises UnreadableError for too few prompts,
    too many readings, and prompts past the drafter's positions.
    """
    place = next((at for at, note in enumerate(questions) if is_of_layers(note)), None)
    least = LEAST_PROMPTS * (1 if place is None else 2)
    picks: Sequence[Options] = list(product(*(first_choices(note, stage.boundaries) for note in questions)))
    check(
        (
            len(stage.texts) < least,
            f"{len(stage.texts)} prompts are too few to decide; use {least} or more",
        ),
        (
            len(picks) > MOST_READINGS,
            f"{len(picks)} readings are too many to try; answer some of the questions by options",
        ),
        error=UnreadableError,
    )
    readings = _Readings(stage, read)
    if place is not None:
        picks = readings.with_best_layers(picks, place)
    best = readings.best_early(picks)
    answers = [
        readings.layers_answer(note, best, at)
        if at == place
        else compare_choices(note, readings.by_choice(at, best), stage.job.k)
        for at, note in enumerate(questions)
    ]
    return tuple(answer for answer in answers if answer is not None)


def is_measurable(note: Note) -> bool:
    """Whether drafting can answer the question: it asks for layers, or has two complete choices."""
    return is_of_layers(note) or len(note.whole_choices) > 1


def is_of_layers(note: Note) -> bool:
    """Whether the question asks for the aux layers, which are searched."""
    return any(choice.option == LAYERS for choice in note.choices)


def layers_choice(boundaries: Boundaries) -> Choice:
    """Return the choice of these boundaries."""
    return Choice(LAYERS, ",".join(map(str, boundaries)))


def first_choices(note: Note, boundaries: Boundaries) -> list[Choice]:
    """Return the complete choices of a question; without any, the choice of `boundaries`."""
    plain = [Choice(choice.option, choice.value) for choice in note.whole_choices]
    return plain or [layers_choice(boundaries)]


class _Readings:
    """The readings that were tried, and their drafts on the same texts of the target."""

    def __init__(self, stage: Stage, read: Read) -> None:
        self.stage, self.read = stage, cache(read)
        work = TimedWork(stage.job.on_progress, "running the target", len(stage.texts))
        work.start()
        # the target's answers, which no drafter changes
        self.results = stage.run(stage.drafter, stage.texts, on_done=work.add)
        self.drafts: dict[Options, Drafts] = {}
        self.first: FirstPass | None = None
        self.known: frozenset[int] = frozenset()
        # layers by the count of right first draft tokens, the best first; the choices before the search; and
        # the prompts that judge
        self.ranked: list[Boundaries] = []
        self.stated: list[Choice] = []
        self.judging: list[int] = []

    def fitting(self, picks: Sequence[Options]) -> dict[Options, LoadedReading]:
        return {pick: reading for pick in picks if (reading := self.read(pick)) is not None}

    def run(self, picks: Sequence[Options]) -> Options:
        """Draft with each of these readings that fits the files, and return the best."""
        self.drafts |= self._drafted([pick for pick in picks if pick not in self.drafts], FirstPass.run)
        return self._best(picks)

    def _drafted(
        self, picks: Sequence[Options], draft: Callable[[FirstPass, "DraftModel", Boundaries], Drafts]
    ) -> dict[Options, Drafts]:
        # the drafts of each reading, all from one pass of the target
        readings, drafts = self.fitting(picks), dict[Options, Drafts]()
        first = self._cover(readings)
        for pick, (boundaries, load) in readings.items():
            drafts[pick] = draft(first, load(), boundaries)
            if report := self.stage.job.on_progress:
                report(Progress("measuring answers", len(drafts), len(readings), "readings"))
        return drafts

    def _cover(self, readings: Mapping[Options, LoadedReading]) -> FirstPass:
        # the first pass with the states of all boundaries that the readings need
        boundaries = self.known.union(*(wanted for wanted, _ in readings.values()))
        if self.first is None or boundaries != self.known:
            self.known, self.first = boundaries, FirstPass(self.stage, boundaries, self.results)
            if self.first.left_out == self.first.starts:
                raise UnreadableError(
                    f"all drafts would begin past the drafter's {self.first.limit} positions; use shorter"
                    " prompts"
                )
        return self.first

    def by_choice(self, at: int, best: Options) -> dict[Choice, Drafts]:
        drafts = {best[at]: self.drafts[best]}
        for choice in dict.fromkeys(pick[at] for pick in self.drafts if pick[at] != best[at]):
            drafts[choice] = self.drafts[self._best([pick for pick in self.drafts if pick[at] == choice])]
        return drafts

    def best_early(self, picks: Sequence[Options]) -> Options:
        """Return the best reading; if its acceptance falls at later positions, judge by early ones only.

        It was then trained on shorter texts, and at later positions another reading may win by chance.
        """
        best = self.run(picks)
        readings = self.fitting([best])
        (boundaries, load), first = readings[best], self._cover(readings)
        first.find_fall(load(), boundaries)
        if first.fall is None:
            return best
        first.batches = first.early()
        again, self.drafts = list(self.drafts), {}
        self.run(again)
        return self._best(picks)

    def _best(self, picks: Sequence[Options]) -> Options:
        return max((pick for pick in picks if pick in self.drafts), key=lambda pick: self.drafts[pick].length)

    def with_best_layers(self, picks: Sequence[Options], place: int) -> Sequence[Options]:
        """Run the readings with the layers that draft best with the best other answers; return them.

        The score of layers is the first draft token at every position of prompts and answers, as it depends
        only on their states.
        """
        stage, chosen = self.stage, None
        choosing, self.judging = halves([len(text) + stage.job.max_tokens for text in stage.texts])
        first = FirstPass(
            stage,
            range(stage.target.depth + 1),
            _items_at(self.results, choosing),
            _items_at(stage.texts, choosing),
        )
        self.stated = [pick[place] for pick in picks]
        for _ in range(MOST_ROUNDS):
            best = self.run(picks)
            if best == chosen:
                break
            boundaries, load = self.fitting([best])[best]
            best_found, counts = best_layers(first, load(), boundaries, screens=False)
            self.ranked = [
                best_found,
                *sorted(counts.keys() - {best_found}, key=lambda other: -counts[other]),
            ]
            picks = list(
                dict.fromkeys(_with_choice(pick, place, layers_choice(best_found)) for pick in picks)
            )
            chosen = _with_choice(best, place, layers_choice(best_found))
        return picks

    def layers_answer(self, note: Note, best: Options, place: int) -> MeasuredAnswer | None:
        """Compare the best layers with the next best, on the judging prompts.

        Returns None if the target allows no others.
        """
        layers = [layers_choice(boundaries) for boundaries in self.ranked[: MOST_RIVALS + 1]]
        picks = [_with_choice(best, place, choice) for choice in dict.fromkeys((*layers, *self.stated))]
        drafts = {
            pick[place]: run.of_texts(self.judging)
            for pick, run in self._drafted(picks, FirstPass.run_first).items()
        }
        if (answer := compare_choices(note, drafts, k=1)) is None:
            return None
        needed = answer.prompts_needed and 2 * answer.prompts_needed
        return replace(answer, prompts_needed=needed, layers_searched=len(self.ranked))


def _with_choice(pick: Options, place: int, choice: Choice) -> Options:
    return (*pick[:place], choice, *pick[place + 1 :])


def compare_choices(note: Note, drafts: Mapping[Choice, Drafts], k: int) -> MeasuredAnswer | None:
    """Compare the first of the choices, the best, with each rival; None without a rival."""
    best, *rivals = drafts
    if not rivals:
        return None
    gains = [drafts[best].gains(drafts[rival]) for rival in rivals]
    # twice, since either could have come first
    p_values = holm([min(1.0, 2 * gain_p_value(gain)) for gain in gains])
    ratios = [ratio(drafts[best].at_starts, drafts[rival].at_starts) for rival in rivals]
    nearest = min(range(len(rivals)), key=lambda index: ratios[index].value)
    lengths = {choice: measure(run.at_starts).length for choice, run in drafts.items()}
    by_length = sorted(rivals, key=lambda rival: -lengths[rival].value)
    is_beyond_chance = max(p_values) < ANSWER_LEVEL and min(estimate.low for estimate in ratios) > 1
    outcome, needed, prompts = AnswerOutcome.TIE, None, len(drafts[best].matches)
    if lengths[best].low <= DEAD_LENGTH:
        outcome = AnswerOutcome.NOTHING_DRAFTED
    elif ratios[nearest].value >= LEAST_RATIO:
        if is_beyond_chance and len(gains[0]) >= LEAST_PROMPTS:
            outcome = AnswerOutcome.MEASURED
        else:
            # gains are those of the prompts with a draft
            least_sure = gains[max(range(len(gains)), key=lambda index: p_values[index])]
            count = prompts_needed(gain_effect(least_sure) or 0.0, ANSWER_LEVEL / 2 / len(gains))
            needed = count and max(ceil(count * prompts / len(least_sure)), LEAST_PROMPTS, prompts + 1)
    return MeasuredAnswer(
        question=note,
        tried=tuple((choice, lengths[choice]) for choice in (best, *by_length)),
        rival=rivals[nearest],
        ratio=ratios[nearest],
        p_value=max(p_values),
        prompts=prompts,
        k=k,
        outcome=outcome,
        prompts_needed=needed,
    )
