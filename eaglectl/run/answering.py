"""Which of several readings of its files a drafter was trained with, where the files leave that open.

Every reading drafts from every position of the texts that the target writes, on states of one run of it. The
answers to all questions are tried together, so that a wrong one hides no other. Layers that no file states
are searched with the best of the other answers (layers.py), on half of the prompts, and judged on the rest.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import ceil
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.drafter.drafter import Choice, Note
from eaglectl.errors import UnreadableError
from eaglectl.progress import Progress, TimedWork
from eaglectl.run.layers import Boundaries, climb, halves, starts
from eaglectl.run.measurement import (
    DEAD_LENGTH,
    Estimate,
    gain_effect,
    gain_p_value,
    holm,
    measure,
    prompts_needed,
    ratio,
)
from eaglectl.run.sensitivity import LEAST_PROMPTS, Drafts, FirstPass, Gains
from eaglectl.run.stage import Stage
from eaglectl.verdicts import AnswerOutcome

if TYPE_CHECKING:
    from eaglectl.reference.model import DraftModel

LAYERS = "--aux-layers"
MOST_RIVALS = 7  # the layers next to the chosen ones by the search, against which those are judged
MOST_ROUNDS = 3  # of choosing layers by the other answers, and these by the layers
MOST_READINGS = 64
ANSWER_LEVEL = 0.01  # of tests, two-sided: nobody looks at an answer again
LEAST_RATIO = 1.005  # acceptance lengths that are nearer are alike, whatever the number of prompts

Options = tuple[Choice, ...]  # one for each question


class LoadedReading(Struct, frozen=True):
    """A drafter as one choice for each question reads it; `load` gives its model."""

    boundaries: Boundaries
    load: "Callable[[], DraftModel]"


# None where the files do not fit the choices
Read = Callable[[Options], LoadedReading | None]


class TriedChoice(Struct, frozen=True):
    """A choice and the acceptance length with it, where the other questions are answered as is best."""

    choice: Choice
    length: Estimate


class MeasuredAnswer(Struct, frozen=True):
    """What came of measuring one question.

    `tried` are its choices, the best first, with the acceptance length of `k` tokens drafted from every
    position. `ratio` is the best's over that of `rival`, the choice that comes nearest, with its paired 95 %
    interval over `prompts`; `p_value` is the largest of all rivals, corrected for their number.
    `prompts_needed`: how many prompts like these would tell the two apart; None where no number is known to.
    `layers_searched` counts the sets of layers that the search tried.
    """

    question: Note
    tried: tuple[TriedChoice, ...]
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
        """The choice that the drafter was trained with; None where these prompts do not tell."""
        return self.tried[0].choice if self.outcome == AnswerOutcome.MEASURED else None

    @property
    def text(self) -> str:
        """The question, what was tried and by how much the best wins, or how many prompts would tell."""
        outcome = {
            AnswerOutcome.MEASURED: "",
            AnswerOutcome.NOTHING_DRAFTED: "nothing is drafted whichever is taken, ",
            AnswerOutcome.TIE: "a tie, ",
        }[self.outcome]
        more = ""
        if self.outcome == AnswerOutcome.TIE and self.prompts_needed is None:
            more = "; they draft alike on these"
        elif self.outcome == AnswerOutcome.TIE:
            more = f"; pass --prompts FILE with about {self.prompts_needed} prompts"
        return f"{self.question.about}, measured: {outcome}{self.evidence}{more}"

    @property
    def evidence(self) -> str:
        """The acceptance lengths of the best choice and its nearest rival, and what they rest on."""
        best, near = self.tried[0], next(one for one in self.tried if one.choice == self.rival)
        ratio = f"ratio {self.ratio.value:.2f} [{self.ratio.low:.2f}, {self.ratio.high:.2f}]"
        lengths = f"{best.length.value:.2f} with {best.choice} and {near.length.value:.2f} with {near.choice}"
        tried = (
            f"the best of {self.layers_searched} sets" if self.layers_searched else f"{len(self.tried)} tried"
        )
        return f"acceptance length {lengths} ({ratio}, {self.prompts} prompts, k={self.k}, {tried})"

    @property
    def record(self) -> dict[str, Any]:
        """What eaglectl.json keeps."""
        return {
            "about": self.question.about,
            "question": self.question.text,
            "outcome": self.outcome,
            "answer": None if self.choice is None else str(self.choice),
            "summary": self.text,
            "readings": [
                {
                    "option": str(one.choice),
                    "acceptance_length": one.length.value,
                    "interval": [one.length.low, one.length.high],
                }
                for one in self.tried
            ],
            "ratio": self.ratio.value,
            "interval": [self.ratio.low, self.ratio.high],
            "p_value": self.p_value,
            "judged_by": self.prompts,
            "k": self.k,
        }


def measure_answers(stage: Stage, questions: Sequence[Note], read: Read) -> tuple[MeasuredAnswer, ...]:
    """An answer to each question, by the drafts of all readings on the stage's prompts.

    A question of which fewer than two choices fit the files is left out. Raises UnreadableError for too few
    prompts, too many readings, and prompts past the drafter's positions.
    """
    place = next((at for at, note in enumerate(questions) if is_of_layers(note)), None)
    least = LEAST_PROMPTS * (1 if place is None else 2)
    if len(stage.texts) < least:
        raise UnreadableError(f"{len(stage.texts)} prompts are too few to tell by; {least} or more can")
    picks: Sequence[Options] = list(product(*(first_choices(note, stage.boundaries) for note in questions)))
    if len(picks) > MOST_READINGS:
        raise UnreadableError(f"{len(picks)} readings are too many to try; answer some of the questions")
    readings = _Readings(stage, read)
    layers = None
    if place is not None:
        layers = _LayerSearch(readings, place)
        picks = layers.run(picks)
    best = readings.best_early(picks)
    answers = []
    for at, note in enumerate(questions):
        if layers is not None and at == place:
            if (answer := layers.answer(note, best)) is not None:
                answers.append(answer)
        elif len({pick[at] for pick in readings.drafts}) > 1:
            answers.append(_judged(note, readings.by_choice(at, best), stage.job.k))
    return tuple(answers)


def is_measurable(note: Note) -> bool:
    """Whether drafting can answer the question: it is of layers, or has two choices that are whole."""
    return is_of_layers(note) or len(note.whole_choices) > 1


def is_of_layers(note: Note) -> bool:
    """Whether the question asks for the layers themselves, which are searched."""
    return any(choice.option == LAYERS for choice in note.choices)


def layers_choice(boundaries: Boundaries) -> Choice:
    """The choice of these boundaries."""
    return Choice(LAYERS, ",".join(map(str, boundaries)))


def first_choices(note: Note, boundaries: Boundaries) -> list[Choice]:
    """The whole choices of a question; `boundaries` are those that a search begins with where it has none."""
    plain = [Choice(choice.option, choice.value) for choice in note.whole_choices]
    return plain or [layers_choice(boundaries)]


class _Readings:
    """The readings that were tried, and their drafts on the same texts of the target."""

    def __init__(self, stage: Stage, read: Read) -> None:
        self.stage, self.read = stage, read
        work = TimedWork(stage.job.on_progress, "running the target", len(stage.texts))
        work.start()
        # what the target writes after each prompt, which no drafter changes
        self.results = stage.run(stage.drafter, stage.texts, on_done=work.add)
        self.loaded: dict[Options, LoadedReading | None] = {}
        self.drafts: dict[Options, Drafts] = {}
        self.first: FirstPass | None = None
        self.known: frozenset[int] = frozenset()

    def run(self, picks: Sequence[Options]) -> None:
        """Draft with each of these readings that the files fit."""
        wanted = [pick for pick in picks if self.at(pick) is not None and pick not in self.drafts]
        first = self._cover(wanted)
        for number, pick in enumerate(wanted, 1):
            reading = self.loaded_at(pick)
            self.drafts[pick] = first.run(reading.load(), reading.boundaries)
            self.report("measuring answers", number, len(wanted), "readings")

    def _cover(self, picks: Sequence[Options]) -> FirstPass:
        """The first pass, with the target's states at the boundaries of these readings too."""
        readings = [reading for pick in picks if (reading := self.at(pick)) is not None]
        boundaries = self.known.union(*(reading.boundaries for reading in readings))
        if self.first is None or boundaries != self.known:
            self.known, self.first = boundaries, FirstPass(self.stage, boundaries, self.results)
            if self.first.left_out == self.first.starts:
                raise UnreadableError(
                    f"all drafts would begin past the drafter's {self.first.limit} positions; give shorter"
                    " prompts"
                )
        return self.first

    def run_first(self, picks: Sequence[Options]) -> dict[Options, Drafts]:
        """Drafts of one token at every position with each of these readings that the files fit."""
        first, drafts = self._cover(picks), {}
        for pick in picks:
            if (reading := self.at(pick)) is not None:
                drafts[pick] = first.run_first(reading.load(), reading.boundaries)
                self.report("measuring answers", len(drafts), len(picks), "sets of layers")
        return drafts

    def by_choice(self, at: int, best: Options) -> dict[Choice, Drafts]:
        """The drafts of the best reading with each choice of one question, those of `best` first."""
        choices = dict.fromkeys((best[at], *(pick[at] for pick in self.drafts)))
        picks = {
            choice: self.best([pick for pick in self.drafts if pick[at] == choice]) for choice in choices
        }
        return {choice: self.drafts[pick] for choice, pick in (picks | {best[at]: best}).items()}

    def best_early(self, picks: Sequence[Options]) -> Options:
        """The best reading; all are run again on early positions alone where it is weaker at later ones.

        It was trained on shorter texts then, and past those another reading may draft better by chance.
        """
        self.run(picks)
        best, first = self.best(picks), self._cover(picks)
        reading = self.loaded_at(best)
        first.find_fall(reading.load(), reading.boundaries)
        if not first.early():
            return best
        again, self.drafts = list(self.drafts), {}
        self.run(again)
        return self.best(picks)

    def best(self, picks: Sequence[Options]) -> Options:
        """The reading of those that drafts most; the first of several."""
        return max((pick for pick in picks if pick in self.drafts), key=lambda pick: self.drafts[pick].length)

    def at(self, pick: Options) -> LoadedReading | None:
        """The reading with these choices."""
        if pick not in self.loaded:
            self.loaded[pick] = self.read(pick)
        return self.loaded[pick]

    def loaded_at(self, pick: Options) -> LoadedReading:
        """The reading with these choices, which the files fit."""
        reading = self.at(pick)
        assert reading is not None
        return reading

    def report(self, step: str, done: int, total: int | None, unit: str) -> None:
        """Report progress."""
        if self.stage.job.on_progress:
            self.stage.job.on_progress(Progress(step, done, total, unit))


class _LayerSearch:
    """The layers that draft best with the best of the other answers, and those that come next.

    The first draft token at every position of prompts and answers shows layers best: it is of their states
    alone.
    """

    def __init__(self, readings: _Readings, place: int) -> None:
        self.readings, self.place, stage = readings, place, readings.stage
        choosing, self.judging = halves([len(text) + stage.job.max_tokens for text in stage.texts])
        self.depth = stage.target.depth
        results = [readings.results[index] for index in choosing]
        texts = [stage.texts[index] for index in choosing]
        self.choosing = FirstPass(stage, range(self.depth + 1), results, texts)
        self.ranked: list[Boundaries] = []
        self.stated: list[Choice] = []

    def run(self, picks: Sequence[Options]) -> list[Options]:
        """The readings with the best layers; they are run."""
        readings, best = self.readings, None
        self.stated = [pick[self.place] for pick in picks]
        for _ in range(MOST_ROUNDS):
            readings.run(picks)
            before, best = best, readings.best(picks)
            if best == before:
                break
            self.ranked = self._ranked(best)
            chosen = layers_choice(self.ranked[0])
            picks = list(dict.fromkeys(self._with(pick, chosen) for pick in picks))
            best = self._with(best, chosen)
        return list(picks)

    def answer(self, note: Note, best: Options) -> MeasuredAnswer | None:
        """The chosen layers against the others that come next, on the prompts that did not choose them.

        None where the target allows no others.
        """
        layers = [layers_choice(boundaries) for boundaries in self.ranked[: MOST_RIVALS + 1]]
        picks = [self._with(best, choice) for choice in dict.fromkeys((*layers, *self.stated))]
        first = self.readings.run_first(picks)
        drafts = {pick[self.place]: run.of(self.judging) for pick, run in first.items()}
        if len(drafts) < 2:
            return None
        answer = _judged(note, drafts, k=1)
        needed = answer.prompts_needed and 2 * answer.prompts_needed
        return replace(answer, prompts_needed=needed, layers_searched=len(self.ranked))

    def _ranked(self, pick: Options) -> list[Boundaries]:
        """Layers by how often the first draft token is right, the best first."""
        reading = self.readings.loaded_at(pick)
        model = reading.load()
        scores: dict[Boundaries, int] = {}

        def score(boundaries: Boundaries) -> int:
            if boundaries not in scores:
                scores[boundaries] = self.choosing.count_first(model, boundaries)
                self.readings.report("trying aux layers", len(scores), None, "sets of layers")
            return scores[boundaries]

        best = climb(score, starts(reading.boundaries, self.depth), self.depth)
        return [best, *sorted(scores.keys() - {best}, key=lambda other: -scores[other])]

    def _with(self, pick: Options, layers: Choice) -> Options:
        return (*pick[: self.place], layers, *pick[self.place + 1 :])


def _judged(note: Note, drafts: Mapping[Choice, Drafts], k: int) -> MeasuredAnswer:
    """Whether the first choice drafts better than every other."""
    (best, own), *others = drafts.items()
    gains = [own.gains(other) for _, other in others]
    # twice, since either could have come first
    p_values = holm([min(1.0, 2 * gain_p_value(gain)) for gain in gains])
    ratios = [ratio(own.at_starts, other.at_starts) for _, other in others]
    nearest = min(range(len(others)), key=lambda index: ratios[index].value)
    lengths = {choice: measure(run.at_starts).length for choice, run in drafts.items()}
    tried = [TriedChoice(choice, length) for choice, length in lengths.items()]
    tried[1:] = sorted(tried[1:], key=lambda option: -option.length.value)
    is_beyond_chance = max(p_values) < ANSWER_LEVEL and min(estimate.low for estimate in ratios) > 1
    outcome, needed = AnswerOutcome.TIE, None
    if lengths[best].low <= DEAD_LENGTH:
        outcome = AnswerOutcome.NOTHING_DRAFTED
    elif ratios[nearest].value >= LEAST_RATIO:
        if is_beyond_chance and len(gains[0]) >= LEAST_PROMPTS:
            outcome = AnswerOutcome.MEASURED
        else:
            least_sure = max(range(len(gains)), key=lambda index: p_values[index])
            needed = _prompts_needed(gains[least_sure], len(gains), len(own.matches))
    return MeasuredAnswer(
        note,
        tuple(tried),
        others[nearest][0],
        ratios[nearest],
        max(p_values),
        len(own.matches),
        k,
        outcome,
        needed,
    )


def _prompts_needed(gains: Gains, rivals: int, prompts: int) -> int | None:
    """How many prompts like these would show this gain over one of so many rivals.

    `gains` are of those of the `prompts` on which anything was drafted.
    """
    effect = gain_effect(gains)
    count = None if effect is None else prompts_needed(effect, ANSWER_LEVEL / 2 / rivals)
    return None if count is None else max(ceil(count * prompts / len(gains)), LEAST_PROMPTS, prompts + 1)
