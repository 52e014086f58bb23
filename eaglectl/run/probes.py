"""The probes of `smoke`: does another reading of the file draft better, and how do drafts fare elsewhere?

Sensitivity: all readings draft from every position of the texts that the target wrote, on states of one run
of the target. Those that win are then run by draft-and-verify. Drift: other templates, a system prompt and
long context, to depth 7.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace as replace_prompt
from functools import partial
from itertools import product, takewhile
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike

from eaglectl.conversion.readings import readings, table_shift, with_sizes
from eaglectl.drafter.drafter import DOUBLE_NORM, HIDDEN_NORM, JOINED_NORMS, Drafter, Rope
from eaglectl.drafter.tensors import FROM_T2D, moved_back
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.tables import LATE, TABLE_ROWS, TABLE_TOKENS
from eaglectl.progress import Progress
from eaglectl.run.job import (
    Candidate,
    EngineJob,
    Stage,
    chat_messages,
    read_context_length,
    token_ids,
    tokenizer_of,
)
from eaglectl.run.measurement import (
    LEVEL,
    Estimate,
    Measurement,
    PromptResult,
    gain_effect,
    gain_p_value,
    holm,
    measure,
    prompts_needed,
    prompts_to_tell,
    ratio,
)
from eaglectl.run.prompts import Prompt, batches_by_length
from eaglectl.verdicts import ReadingOutcome

if TYPE_CHECKING:
    from eaglectl.reference.model import DraftModel
    from eaglectl.reference.speculation import ForcedBatch

    # the places of texts, and these texts
    Batches = Sequence[tuple[Sequence[int], ForcedBatch]]


Integers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Gains = np.ndarray[Any, np.dtype[np.float64]]

LEAST_GAIN = 1.03  # a smaller ratio does not matter
# by whether a gain that is beyond chance is as large
BETTER_BY = {True: ReadingOutcome.BETTER, False: ReadingOutcome.SLIGHTLY_BETTER}
SCREENED = 4  # of so many texts one is drafted on first
LEAST_PROMPTS = 8  # fewer have no spread that a test can rest on
# a gain that so many times the prompts would show is left open; one that needs more is taken for chance
MOST_TIMES = 4
# only these are run by draft-and-verify: the best, and one whose ratio is as large but for this factor
MOST_VERIFIED, CLOSE = 2, 0.95
# a fall of acceptance at a position: at most this share of what it was, and this many standard errors
FALL, FALL_ERRORS = 0.8, 6.0
FIRST_EDGE, LEAST_BELOW, LEAST_ABOVE = 16, 100, 100
DEFAULT_ROPE_THETA = 10000.0
MADE_OF_T2D = "d2t made of t2d"


class Variant(Struct, frozen=True):
    """Another way to read the file: the option for it, its acceptance, and the ratio to the stated way.

    `p_value` is that of drafting better by chance, corrected for the number of readings. `prompts_needed`:
    how many prompts like these would show a gain that these cannot show. `is_verified`: the figures are of
    draft-and-verify, and not of the first pass.
    """

    name: str
    option: str
    measured: Measurement
    ratio: Estimate
    p_value: float = 1.0
    outcome: ReadingOutcome = ReadingOutcome.NO_BETTER
    prompts_needed: int | None = None
    is_verified: bool = False

    @property
    def is_better(self) -> bool:
        """Whether it drafts better than the stated way, beyond chance and by what matters."""
        return self.outcome == ReadingOutcome.BETTER

    @property
    def stated_length(self) -> float:
        """The acceptance length of the stated way, on the same prompts."""
        return self.measured.length.value / self.ratio.value

    @property
    def is_of_tables(self) -> bool:
        """Whether it gives draft tokens other target tokens than the file states."""
        return " d2t" in self.option

    @property
    def is_of_layers(self) -> bool:
        """Whether it takes other layers than the file states."""
        return self.option.startswith("--aux-layers")


class Sensitivity(Struct, frozen=True):
    """Every reading that was tried, and what limits the result.

    `fall` is where acceptance falls; `left_out` of `starts` drafts begin past the drafter's positions.
    """

    variants: tuple[Variant, ...]
    notes: tuple[str, ...] = ()
    fall: "Fall | None" = None
    left_out: int = 0
    starts: int = 0

    @property
    def best(self) -> Variant | None:
        """The reading that drafts best, of those that draft better than the stated one."""
        better = [variant for variant in self.variants if variant.is_better]
        return max(better, key=lambda variant: (variant.is_verified, variant.ratio.value), default=None)


def probe_sensitivity(
    job: EngineJob, results: Sequence[PromptResult], *, screens: bool = False
) -> Sensitivity:
    """Other readings of the file, against the stated one on the texts of `results`, which it drafted.

    `screens`: what drafts worse beyond chance on a few of the texts is not run on the others.
    """
    from eaglectl.reference.target_model import rope_of

    stage, report = Stage(job), job.on_progress or (lambda progress: None)
    report(Progress("probing", 0, 1, "readings"))
    tried = list(candidates(job.drafter, stage.target.depth, rope_of(stage.target), job.marked_tokens))
    wanted = {boundary for candidate in tried for boundary in candidate.boundaries}
    first = FirstPass(stage, wanted | set(stage.boundaries), results)
    first.find_fall(stage.drafter, stage.boundaries)
    tried += shifted_table(first)
    if first.left_out == first.starts:
        notes = (*first.notes, "no reading was tried: give prompts that leave room for drafts")
        return Sensitivity((), notes, first.fall, first.left_out, first.starts)
    passes = [first]
    if screens and len(results) > LEAST_PROMPTS:  # a few of the texts, spread over all, before all
        step = max(1, min(SCREENED, len(results) // LEAST_PROMPTS))
        passes.insert(0, FirstPass(stage, stage.target.boundaries, results[::step], first.texts[::step]))
    stated = [each.run(stage.drafter, stage.boundaries) for each in passes]
    runs: list[tuple[Candidate, Drafts, Drafts]] = []
    for number, candidate in enumerate(tried, 1):
        with suppress(RefusedError):  # a rope that the reference does not have
            if (model := stage.model(candidate)) is None:
                continue
            runs.append((candidate, *_drafts(passes, stated, model, candidate.boundaries)))
        report(Progress("probing", number, len(tried), "readings"))
    gains = [run.gains(own) for _, run, own in runs]
    p_values, variants = holm([gain_p_value(gain) for gain in gains]), []
    for (candidate, run, own), gain, p_value in zip(runs, gains, p_values, strict=True):
        compared = ratio(run.results, own.results)
        variant = Variant(candidate.name, candidate.option, measure(run.results), compared, p_value)
        variants.append(judge_gain(variant, gain, run.length / own.length, len(runs)))
    verified = _verified(first, variants, {candidate.option: candidate for candidate in tried})
    return Sensitivity(verified, first.notes, first.fall, first.left_out, first.starts)


def _drafts(
    passes: Sequence["FirstPass"], stated: Sequence["Drafts"], model: "DraftModel", boundaries: Sequence[int]
) -> "tuple[Drafts, Drafts]":
    for each, own in zip(passes, stated, strict=True):
        run = each.run(model, boundaries)
        if each.starts > each.left_out and ratio(run.results, own.results).high < 1:
            break
    return run, own


def _verified(
    first: "FirstPass", variants: Sequence[Variant], tried: Mapping[str, Candidate]
) -> tuple[Variant, ...]:
    """The variants, of which those that win most are measured by draft-and-verify."""
    ratios = {variant.option: variant.ratio.value for variant in variants if variant.is_better}
    close = [option for option, value in ratios.items() if value >= CLOSE * max(ratios.values())]
    most = sorted(close, key=lambda option: -ratios[option])[:MOST_VERIFIED]
    return tuple(
        first.verify(variant, tried[variant.option]) if variant.option in most else variant
        for variant in variants
    )


def judge_gain(variant: Variant, gains: Gains, gain_at_starts: float, tries: int) -> Variant:
    """The variant with what its gain over prompts shows.

    `gain_at_starts` is the ratio of mean draft lengths over all starts, which are many more than the rounds.
    """
    is_sure = variant.p_value < LEVEL and len(gains) >= LEAST_PROMPTS
    is_large = variant.ratio.value >= LEAST_GAIN
    if is_sure and variant.ratio.low > 1:
        return replace(variant, outcome=BETTER_BY[is_large])
    # a gain in the rounds alone, or one that hides in the spread, is no reason to ask for more prompts
    if not is_large or (not is_sure and gain_at_starts < LEAST_GAIN):
        return variant
    effect, needed = gain_effect(gains), None
    if is_sure:  # at the starts, and not in the rounds that follow from them
        needed = prompts_to_tell(variant.ratio, 1.0, len(gains))
    elif effect is not None:
        needed = prompts_needed(effect, LEVEL / tries)
        if needed is None or needed > MOST_TIMES * len(gains):
            return variant
        needed = max(needed, LEAST_PROMPTS, len(gains) + 1)
    return replace(variant, outcome=ReadingOutcome.TOO_FEW_PROMPTS, prompts_needed=needed)


class Drafts(Struct, frozen=True):
    """What one reading drafted at every start of every text: leading matches, and results by rounds."""

    matches: tuple[Integers, ...]
    results: tuple[PromptResult, ...]

    @property
    def length(self) -> float:
        """Mean tokens of a draft that begins at any start, with the target's own."""
        return 1 + float(np.concatenate(self.matches).mean())

    @property
    def at_starts(self) -> list[PromptResult]:
        """Each text's starts as drafts."""
        k = len(self.results[0].accepted)
        return [
            PromptResult("starts", len(found), tuple(int((found > place).sum()) for place in range(k)), ())
            for found in self.matches
        ]

    def cut(self, k: int) -> "Drafts":
        """The drafts of the first `k` tokens alone, with the rounds that follow from them."""
        return in_rounds([np.minimum(found, k) for found in self.matches], k, self.results)

    def of(self, indices: Sequence[int]) -> "Drafts":
        """The drafts of some texts."""
        kept = tuple(self.matches[index] for index in indices)
        return Drafts(kept, tuple(self.results[index] for index in indices))

    def gains(self, stated: "Drafts") -> Gains:
        """Accepted tokens beyond those of the stated reading, summed for each text with a start."""
        pairs = zip(self.matches, stated.matches, strict=True)
        return np.array([own.sum() - theirs.sum() for own, theirs in pairs if len(own)], dtype=np.float64)


class FirstPass:
    """Texts, those of the stage or others, run once by the target: any drafter drafts from every start.

    `results` has the target's answer to each.
    """

    def __init__(
        self,
        stage: Stage,
        boundaries: Iterable[int],
        results: Sequence[PromptResult],
        texts: Sequence[list[int]] | None = None,
    ) -> None:
        from eaglectl.reference.speculation import ForcedDrafter, run_target

        self.stage, self.job, self.stated = stage, stage.job, results
        self.texts = stage.texts if texts is None else texts
        self.limit: int = stage.job.drafter.settings["max_position_embeddings"] or sys.maxsize
        stage.target.record(sorted(set(boundaries)))
        self.batches: Batches = []
        for indices in batches_by_length(self.texts, stage.job.max_tokens):
            texts_and_answers = [self.texts[i] for i in indices], [results[i].tokens for i in indices]
            self.batches.append((indices, run_target(stage.target, *texts_and_answers, self.job.k)))
        self.left_out = self.starts = 0
        for _, batch in self.batches:
            self.starts += int(batch.is_start.sum())
            self.left_out += batch.drop_starts_from(self.limit - self.job.k)
        self.fall: Fall | None = None
        self._forced = partial(ForcedDrafter, target=stage.target)

    def run(self, model: "DraftModel", boundaries: Sequence[int]) -> Drafts:
        """Drafts of `model`, and the results of greedy rounds that follow from them."""
        return in_rounds(self._matches(model, boundaries, self.batches), self.job.k, self.stated)

    def run_first(self, model: "DraftModel", boundaries: Sequence[int]) -> Drafts:
        """Drafts of one token at every position of the texts, prompts too, each for the target's choice."""
        rows = tuple(
            right[positions < self.limit].astype(np.int64)
            for positions, right in self.first_tokens(model, boundaries)
        )
        return Drafts(rows, tuple(PromptResult("slots", len(row), (int(row.sum()),), ()) for row in rows))

    def first_tokens(self, model: "DraftModel", boundaries: Sequence[int]) -> list[tuple[Integers, Flags]]:
        """Each text's positions but the last, and whether the first draft token is the target's choice."""
        drafter = self._forced(model, boundaries=boundaries, k=1)
        rows = _by_text(
            (indices, (drafter.first_matches(batch), batch.positions[:, :-1], batch.valid[:, :-1]))
            for indices, batch in self.batches
        )
        return [(positions[is_text], right[is_text]) for right, positions, is_text in rows]

    def count_first(self, model: "DraftModel", boundaries: Sequence[int], every: int = 1) -> int:
        """How many first draft tokens are the target's choice, at all positions of the texts or at some."""
        drafter = self._forced(model, boundaries=boundaries, k=1)
        return sum(int(drafter.first_matches(batch, every).sum()) for _, batch in self.batches)

    def first_drafts(self, model: "DraftModel", boundaries: Sequence[int]) -> Sequence[Integers]:
        """The first draft tokens at some positions of all texts, and the target's choices there."""
        drafter = self._forced(model, boundaries=boundaries, k=1)
        parts = [drafter.first_drafts(batch, SCREENED) for _, batch in self.batches]
        return [np.concatenate([part[side][part[2]].cpu().numpy() for part in parts]) for side in (0, 1)]

    def _matches(self, model: "DraftModel", boundaries: Sequence[int], batches: "Batches") -> list[Integers]:
        drafter = self._forced(model, boundaries=boundaries, k=self.job.k)
        rows = _by_text((indices, (drafter.matches(batch), batch.is_start)) for indices, batch in batches)
        return [found[is_start] for found, is_start in rows]

    def early(self) -> "Batches":
        """The texts with drafts that end before the fall alone, where there is one, in prompts too."""
        if self.fall is None:
            return self.batches
        below = self.fall.position - self.job.k
        return [(indices, batch.with_starts_below(below)) for indices, batch in self.batches]

    def verify(self, variant: Variant, candidate: Candidate) -> Variant:
        """The variant with the figures of draft-and-verify, on the prompts that end within the limit."""
        if self.fall is not None and not self._is_better_early(candidate):
            return replace(variant, outcome=ReadingOutcome.LATE_POSITIONS_ONLY)
        job, texts, model = self.job, self.stage.texts, self.stage.model(candidate)
        kept = [i for i, text in enumerate(texts) if len(text) + job.max_tokens + job.k <= self.limit]
        if model is None or len(kept) < LEAST_PROMPTS:
            return variant
        results = self.stage.run(model, [texts[index] for index in kept], candidate.boundaries)
        compared = ratio(results, [self.stated[index] for index in kept])
        verified = replace(variant, measured=measure(results), ratio=compared, is_verified=True)
        if compared.low <= 1:  # whatever the first pass says
            needed = prompts_to_tell(compared, 1.0, len(kept))
            return replace(verified, outcome=ReadingOutcome.TOO_FEW_PROMPTS, prompts_needed=needed)
        return replace(verified, outcome=BETTER_BY[compared.value >= LEAST_GAIN])

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the texts the drafter was not made for."""
        notes = []
        if self.left_out:
            notes.append(
                f"{self.left_out} of {self.starts} drafts begin past position {self.limit}, the drafter's"
                " max_position_embeddings; the probe leaves them out"
            )
        if self.fall is not None:
            notes.append(
                f"first draft tokens are right in {self.fall.below:.0%} before position {self.fall.position}"
                f" and in {self.fall.above:.0%} from there on, as of a drafter that was trained on shorter"
                " texts; a reading is named only if it drafts better before that position too"
            )
        return tuple(notes)

    def _is_better_early(self, candidate: Candidate) -> bool:
        """Whether a reading drafts better at the texts' first positions too.

        One of positions need not, since no position there is far from another; it must not draft worse.
        """
        model, early = self.stage.model(candidate), self.early()
        assert model is not None
        own = np.concatenate(self._matches(model, candidate.boundaries, early))
        stated = np.concatenate(self._matches(self.stage.drafter, self.stage.boundaries, early))
        gain = (1 + own.mean()) / (1 + stated.mean()) if len(own) else 0.0
        ropes = [drafter.rope for drafter in (candidate.drafter, self.stage.job.drafter)]
        is_of_rope = len({(rope.theta, repr(rope.scaling)) for rope in ropes}) > 1
        return bool(gain >= (1.0 if is_of_rope else LEAST_GAIN))

    def find_fall(self, model: "DraftModel", boundaries: Sequence[int]) -> None:
        """Find where the share of right first draft tokens of `model` falls, in prompts or in answers.

        Apart, as other text is in prompts than in answers; and without the words that all prompts begin with.
        """
        alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*self.texts, strict=False))
        shared = sum(1 for _ in alike)
        prompts, answers = [], []
        for text, (positions, right) in zip(self.texts, self.first_tokens(model, boundaries), strict=True):
            is_answer = positions >= len(text) - 1
            is_prompt = ~is_answer & (positions >= shared)
            prompts.append((positions[is_prompt], right[is_prompt]))
            answers.append((positions[is_answer], right[is_answer]))
        falls = [find_fall(*map(np.concatenate, zip(*part, strict=True))) for part in (prompts, answers)]
        self.fall = min(filter(None, falls), key=lambda fall: fall.above / fall.below, default=None)


class Fall(Struct, frozen=True):
    """A position, and the shares of right first draft tokens before it and from it on."""

    position: int
    below: float
    above: float


def find_fall(positions: Integers, right: Flags) -> Fall | None:
    """The power of two at which `right` falls most beyond chance; None where it falls at none."""
    best, most = None, FALL_ERRORS
    edge = FIRST_EDGE
    while edge < positions.max(initial=0):
        before, after = right[positions < edge], right[positions >= edge]
        if len(before) >= LEAST_BELOW and len(after) >= LEAST_ABOVE:
            below, above, mean = before.mean(), after.mean(), right.mean()
            error = (mean * (1 - mean) * (1 / len(before) + 1 / len(after))) ** 0.5
            if above < FALL * below and below - above > most * error:
                best, most = Fall(edge, float(below), float(above)), (below - above) / error
        edge *= 2
    return best


def in_rounds(matches: Sequence[ArrayLike], k: int, stated: Sequence[PromptResult]) -> Drafts:
    """The drafts with these `matches` on the texts of `stated`, and the rounds that follow from them.

    Each round begins where the last one ended.
    """
    rows, results = [np.asarray(row, dtype=np.int64) for row in matches], []
    for row, result in zip(rows, stated, strict=True):
        lengths, place = list[int](), 0
        while place < len(row):
            lengths.append(int(row[place]))
            place += lengths[-1] + 1
        accepted = tuple(sum(length > position for length in lengths) for position in range(k))
        results.append(PromptResult("probe", len(lengths), accepted, result.tokens))
    return Drafts(tuple(rows), tuple(results))


def _by_text(batches: Iterable[tuple[Sequence[int], Sequence[Any]]]) -> list[tuple[Any, ...]]:
    rows: dict[int, tuple[Any, ...]] = {}
    for indices, tensors in batches:
        arrays = [tensor.cpu().numpy() for tensor in tensors]
        rows |= zip(indices, zip(*arrays, strict=True), strict=True)
    return [rows[index] for index in range(len(rows))]


def candidates(
    drafter: Drafter, depth: int, target_rope: Rope | None, marked_tokens: tuple[int, ...] = ()
) -> Iterator[Candidate]:
    """Other readings of `drafter` for a target of `depth` layers with `target_rope`.

    `marked_tokens` are those of a t2d that contradicts d2t.
    """
    boundaries, norms = drafter.aux.boundaries or (), drafter.norms

    def read(name: str, answer: str, **changed: Any) -> Candidate:
        return Candidate(name, f"--source-semantics {answer}", replace(drafter, **changed), boundaries)

    for step in (-1, 1):
        shifted = tuple(boundary + step for boundary in boundaries)
        if shifted and {*shifted} <= {*range(depth + 1)}:
            option = f"--aux-layers {','.join(map(str, shifted))}"
            yield Candidate(f"aux boundaries {step:+d}", option, drafter, shifted)
    for switch in ("norm_output", "norm_before_residual"):
        flipped = not getattr(norms, switch)
        value = str(flipped).lower()
        yield read(f"{switch} {value}", f"{switch}={value}", norms=replace(norms, **{switch: flipped}))
    if {DOUBLE_NORM, JOINED_NORMS} & {
        *(note.topic for note in drafter.notes),
        *(entry.topic for entry in drafter.settled),
    }:
        count, flipped = "once" if norms.hidden_twice else "twice", not norms.hidden_twice
        answer = f"{HIDDEN_NORM}={count}"
        yield read(f"state normed {count}", answer, norms=replace(norms, hidden_twice=flipped))
    for name, answer, rope in _ropes(drafter.rope, target_rope):
        yield read(name, f"rope={answer}", rope=rope)
    if drafter.has_reduced_vocabulary:
        yield replace(read("d2t as absolute ids", "d2t=absolute"), is_d2t_absolute=True)
    if marked_tokens:
        option = f"--fix-reading {FROM_T2D}"
        yield Candidate(MADE_OF_T2D, option, drafter, boundaries, tokens=marked_tokens)
    for reading in readings(drafter):
        resized, option = with_sizes(drafter, reading.key, reading.value), f"--fix-reading {reading.text}"
        yield Candidate(reading.title, option, resized, boundaries, reading=reading)


def shifted_table(first: FirstPass) -> Iterator[Candidate]:
    """The d2t with its numbers, or tokens, some rows back, by which most first draft tokens are right.

    None where that is the stored one, or where no table comes of it.
    """
    job, stage, stated = first.job, first.stage, np.array(first.job.draft_tokens or ())
    if not {"d2t", "lm_head.weight"} <= stage.drafter.weights.keys() or not len(stated):
        return
    drafted, choices = first.first_drafts(stage.drafter, stage.boundaries)
    rows = stated.argsort()[np.searchsorted(np.sort(stated), drafted)]
    right = {
        (key, late): int(
            (stated.take(rows + late, mode="clip") - late * (key == TABLE_ROWS) == choices).sum()
        )
        for key, late in product((TABLE_ROWS, TABLE_TOKENS), LATE.values())
    }
    key, late = max(right, key=lambda shift: right[shift])
    used = job.marked_tokens or ("t2d" in job.drafter.tensors and tuple(sorted(stated.tolist()))) or None
    is_of_rows, vocab = key == TABLE_ROWS, job.drafter.dims.vocab
    numbers = tuple((stated - is_of_rows * np.arange(len(stated))).tolist())
    tokens = moved_back(numbers, late, are_offsets=is_of_rows, used=used, vocab=vocab)
    if tokens and right[key, late] > int((drafted == choices).sum()):
        reading = table_shift(key, late)
        yield Candidate(
            reading.title, f"--fix-reading {reading.text}", job.drafter, stage.boundaries, tokens=tokens
        )


def _ropes(stated: Rope, target: Rope | None) -> Iterator[tuple[str, str, Rope]]:
    bases = [DEFAULT_ROPE_THETA]
    if target is not None and target.theta.is_integer():
        bases.append(target.theta)
    for base in dict.fromkeys(bases):
        if base != stated.theta:
            yield f"rope base {base:.0f}", f"{base:.0f}", replace(stated, theta=base)
    if stated.scaling is not None and "mrope_section" not in stated.scaling:
        yield "rope without scaling", "plain", replace(stated, scaling=None)
    if target is not None and target.scaling not in (None, stated.scaling):
        rope = replace(stated, theta=target.theta, scaling=target.scaling)
        yield "rope of the target, with its scaling", "target", rope


DEPTH = 7
# a message's turn, and what opens the answer, in a template of no target
TURN, OPENING = "### {role}:\n{text}\n\n", "### assistant:\n"
SYSTEM = (
    "You are the keeper of a lighthouse. Answer every question in the voice of an old sailor, and never"
    " mention ships.\n\n{text}"
)
FILLER = (
    "The logbook of the station lists wind, cloud, pressure and the ships that passed, one line for each"
    " watch. "
)
MAX_CONTEXT = 2048


class DriftCondition(Struct, frozen=True):
    """Acceptance and drift of one kind of prompts, by draft depth.

    `state_growth` is the RMS of the fed-back state over that at depth 0. `attention_on_first` and
    `attention_on_own` are the shares of attention on the first token and on the draft tokens of the same
    round.
    """

    name: str
    measured: Measurement
    state_growth: tuple[float, ...]
    attention_on_first: tuple[float, ...]
    attention_on_own: tuple[float, ...]


def probe_drift(job: EngineJob) -> tuple[DriftCondition, ...]:
    """The prompts as given, in another template, after a system prompt, and in long context, to depth 7."""
    if given := next((prompt for prompt in job.prompts if prompt.token_ids), None):
        raise UsageError(
            f"--probe drift writes the prompts' text into other templates, and {given.place or 'a prompt'} is"
            " token ids; give --prompts as text or messages, or --probe sensitivity",
            options=("--probe",),
        )
    stage = Stage(replace(job, k=DEPTH))
    return tuple(_measured(stage, name, texts) for name, texts in _texts_by_condition(job, stage).items())


def _measured(stage: Stage, name: str, texts: Sequence[Sequence[int]]) -> DriftCondition:
    attention: list[Any] = []
    stage.drafter.attention_log = attention
    steps: dict[int, list[tuple[float, float, float]]] = {}

    def record(depth: int, state: Any, valid: Any) -> None:
        rms, weights = state.float().pow(2).mean(-1).sqrt()[:, 0].mean(), attention[-1]
        first = weights.gather(1, valid.long().argmax(1)[:, None]).mean()
        own = weights[:, weights.shape[1] - depth :].sum(1).mean() if depth else 0.0
        steps.setdefault(depth, []).append((float(rms), float(first), float(own)))
        attention.clear()

    results = stage.run(stage.drafter, texts, on_draft_step=record)
    stage.drafter.attention_log = None
    means = [[fmean(values) for values in zip(*steps[depth], strict=True)] for depth in sorted(steps)]
    sizes, first, own = zip(*means, strict=True)
    growth = tuple(size / (sizes[0] or 1.0) for size in sizes)
    return DriftCondition(name, measure(results), growth, first, own)


def _texts_by_condition(job: EngineJob, stage: Stage) -> Mapping[str, list[list[int]]]:
    tokenizer = tokenizer_of(job.target, job.trust_remote_code)
    context: int = read_context_length(job.target) or MAX_CONTEXT
    longest = min(context, MAX_CONTEXT) - job.max_tokens - DEPTH
    filler = token_ids(tokenizer, Prompt(FILLER))

    def lengthened(ids: list[int]) -> list[int]:
        missing = longest - len(ids)
        return (filler * (missing // len(filler) + 1))[: max(missing, 0)] + ids

    texts: dict[str, Any] = {
        "as given": stage.texts,
        "another template": [token_ids(tokenizer, _written(prompt)) for prompt in job.prompts],
        "foreign system prompt": [token_ids(tokenizer, _instructed(prompt)) for prompt in job.prompts],
        "long context": [lengthened(ids) for ids in stage.texts],
    }
    fitting = {name: [ids for ids in group if len(ids) <= longest] for name, group in texts.items()}
    if not all(fitting.values()):
        raise UsageError(
            f"--probe drift: the target's context of {context} leaves no room for these prompts under every"
            " condition; give shorter ones",
            options=("--probe",),
        )
    return fitting


def _written(prompt: Prompt) -> Prompt:
    turns = (TURN.format(role=turn["role"], text=_content(turn)) for turn in chat_messages(prompt))
    return Prompt("".join(turns) + OPENING)


def _instructed(prompt: Prompt) -> Prompt:
    if not prompt.messages and not prompt.is_chat:
        return Prompt(SYSTEM.format(text=prompt.text))
    messages = list(chat_messages(prompt))
    first = next((at for at, message in enumerate(messages) if message["role"] == "user"), 0)
    messages[first] = {**messages[first], "content": SYSTEM.format(text=_content(messages[first]))}
    if prompt.messages:
        return replace_prompt(prompt, messages=tuple(messages))
    return replace_prompt(prompt, text=messages[0]["content"])


def _content(message: Mapping[str, Any]) -> str:
    return message.get("content") or ""  # a call of a tool alone has none
