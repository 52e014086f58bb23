"""The probes of `smoke`: other readings of the file (sensitivity), and other kinds of prompts (drift).

Sensitivity: all readings draft from every position of the texts that the target wrote, on states of one run
of the target. The best are then run by draft-and-verify. Drift: other templates, a system prompt and long
context, to depth 7.
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
from eaglectl.progress import OnProgress, Progress
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

    # the indices of texts, and the batch of these texts
    Batches = Sequence[tuple[Sequence[int], ForcedBatch]]


Integers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Gains = np.ndarray[Any, np.dtype[np.float64]]

LEAST_GAIN = 1.03  # a smaller ratio does not matter
# the outcome of a gain beyond chance, by whether it is at least LEAST_GAIN
BETTER_BY = {True: ReadingOutcome.BETTER, False: ReadingOutcome.SLIGHTLY_BETTER}
SCREENED = 4  # one of so many texts is drafted on first
LEAST_PROMPTS = 8  # fewer have no spread that a test can use
# a gain that would need more than so many times the prompts counts as chance
MOST_TIMES = 4
# run by draft-and-verify: the best reading, and a second one with at least this share of its ratio
MOST_VERIFIED, CLOSE = 2, 0.95
# a fall of acceptance at a position: at most this share of that before it, and this many standard errors
FALL, FALL_ERRORS = 0.8, 6.0
# the first position that may be such a fall, and the least starts before and after one
FIRST_EDGE, LEAST_BELOW, LEAST_ABOVE = 16, 100, 100
DEFAULT_ROPE_THETA = 10000.0
MADE_OF_T2D = "d2t made of t2d"


class Variant(Struct, frozen=True):
    """Another reading of the file: the option for it, its acceptance, and the ratio to the stated reading.

    `p_value` is that of drafting better by chance, corrected for the number of readings. `prompts_needed` is
    the number of such prompts that would show a gain these cannot show. With `is_verified`, the figures are
    of draft-and-verify, not of the first pass.
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
        """Whether it drafts better than the stated reading, beyond chance and by LEAST_GAIN."""
        return self.outcome == ReadingOutcome.BETTER

    @property
    def stated_length(self) -> float:
        """The acceptance length of the stated reading, on the same prompts."""
        return self.measured.length.value / self.ratio.value

    @property
    def is_of_tables(self) -> bool:
        """Whether it maps draft tokens to other target tokens than the file states."""
        return " d2t" in self.option

    @property
    def is_of_layers(self) -> bool:
        """Whether it takes other layers than the file states."""
        return self.option.startswith("--aux-layers")


class Sensitivity(Struct, frozen=True):
    """Every reading that was tried, with notes on the limits of the result.

    `fall` is where acceptance falls; `left_out` of `starts` drafts begin past the drafter's positions.
    `beside` is the reading that, with the best one applied, drafts better still.
    """

    variants: tuple[Variant, ...]
    notes: tuple[str, ...] = ()
    fall: "Fall | None" = None
    left_out: int = 0
    starts: int = 0
    beside: Variant | None = None

    @property
    def best(self) -> Variant | None:
        """The reading that drafts best, of those that draft better than the stated one."""
        better = [variant for variant in self.variants if variant.is_better]
        return max(better, key=lambda variant: (variant.is_verified, variant.ratio.value), default=None)


def probe_sensitivity(
    job: EngineJob, results: Sequence[PromptResult], *, screens: bool = False
) -> Sensitivity:
    """Compare other readings of the file with the stated one, on the texts of its `results`.

    With `screens`, a reading that drafts worse beyond chance on a few texts does not run on the others, and
    readings of tensors are compared once more, beside the best one.
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
        notes = (*first.notes, "no reading was tried: use prompts that leave room for drafts")
        return Sensitivity((), notes, first.fall, first.left_out, first.starts)
    passes = [first]
    if screens and len(results) > LEAST_PROMPTS:  # a few of the texts, spread over all, before all
        step = max(1, min(SCREENED, len(results) // LEAST_PROMPTS))
        passes.insert(0, FirstPass(stage, stage.target.boundaries, results[::step], first.texts[::step]))
    variants = _compared(stage, passes, tried, report)
    by_option = {candidate.option: candidate for candidate in tried}
    sensitivity = Sensitivity(
        _verified(first, variants, by_option), first.notes, first.fall, first.left_out, first.starts
    )
    best = by_option[sensitivity.best.option] if sensitivity.best else None
    if not screens or best is None or best.reading is None or (model := stage.model(best)) is None:
        return sensitivity
    stage.drafter, stage.boundaries = model, best.boundaries
    others = [candidate for candidate in tried if candidate.reading not in (None, best.reading)]
    return replace(sensitivity, beside=Sensitivity(tuple(_compared(stage, passes, others, report))).best)


def _compared(
    stage: Stage, passes: "Sequence[FirstPass]", tried: Sequence[Candidate], report: OnProgress
) -> list[Variant]:
    """Return the candidates that can be, each compared with the stage's drafter."""
    baselines = [first_pass.run(stage.drafter, stage.boundaries) for first_pass in passes]
    runs: list[tuple[Candidate, Drafts, Drafts]] = []
    for number, candidate in enumerate(tried, 1):
        with suppress(RefusedError):  # a rope that the reference does not have
            if (model := stage.model(candidate)) is None:
                continue
            runs.append((candidate, *_drafts(passes, baselines, model, candidate.boundaries)))
        report(Progress("probing", number, len(tried), "readings"))
    gains = [run.gains(baseline) for _, run, baseline in runs]
    p_values, variants = holm([gain_p_value(gain) for gain in gains]), []
    for (candidate, run, baseline), gain, p_value in zip(runs, gains, p_values, strict=True):
        compared = ratio(run.results, baseline.results)
        variant = Variant(candidate.name, candidate.option, measure(run.results), compared, p_value)
        variants.append(judge_gain(variant, gain, run.length / baseline.length, len(runs)))
    return variants


def _drafts(
    passes: Sequence["FirstPass"],
    baselines: Sequence["Drafts"],
    model: "DraftModel",
    boundaries: Sequence[int],
) -> "tuple[Drafts, Drafts]":
    # the drafts of the last pass that ran, and the stated reading's; a pass with a clear loss is the last
    for first_pass, baseline in zip(passes, baselines, strict=True):
        run = first_pass.run(model, boundaries)
        if first_pass.starts > first_pass.left_out and ratio(run.results, baseline.results).high < 1:
            break
    return run, baseline


def _verified(
    first: "FirstPass", variants: Sequence[Variant], tried: Mapping[str, Candidate]
) -> tuple[Variant, ...]:
    """Return the variants, with the figures of draft-and-verify for those with the largest gain."""
    ratios = {variant.option: variant.ratio.value for variant in variants if variant.is_better}
    close = [option for option, value in ratios.items() if value >= CLOSE * max(ratios.values())]
    most = sorted(close, key=lambda option: -ratios[option])[:MOST_VERIFIED]
    return tuple(
        first.verify(variant, tried[variant.option]) if variant.option in most else variant
        for variant in variants
    )


def judge_gain(variant: Variant, gains: Gains, gain_at_starts: float, tries: int) -> Variant:
    """Return the variant with the outcome of its gain over prompts.

    `gains` has each prompt's tokens beyond those of the stated reading, over drafts from all starts
    (`Drafts.gains`), `tries` is the number of readings. The variant's p value is over those starts, its ratio
    over the rounds, of which there are far fewer; `gain_at_starts` is the ratio of mean lengths over starts.

    A large gain that one of the two does not show is TOO_FEW_PROMPTS: always if it is certain at the starts
    or without a spread, else if at most MOST_TIMES the prompts would show it; `prompts_needed` may be None.
    """
    is_certain = variant.p_value < LEVEL and len(gains) >= LEAST_PROMPTS
    is_large = variant.ratio.value >= LEAST_GAIN
    if is_certain and variant.ratio.low > 1:
        return replace(variant, outcome=BETTER_BY[is_large])
    # more prompts could show a gain that is large in the rounds, and certain or large at the starts
    if not (is_large and (is_certain or gain_at_starts >= LEAST_GAIN)):
        return variant
    effect, needed = gain_effect(gains), None
    if is_certain:  # at the starts; the interval of the rounds contains 1
        needed = prompts_to_tell(variant.ratio, 1.0, len(gains))
    elif effect is not None:
        needed = prompts_needed(effect, LEVEL / tries)
        if needed is None or needed > MOST_TIMES * len(gains):
            return variant
        needed = max(needed, LEAST_PROMPTS, len(gains) + 1)
    return replace(variant, outcome=ReadingOutcome.TOO_FEW_PROMPTS, prompts_needed=needed)


class Drafts(Struct, frozen=True):
    """A reading's drafts at every start of every text: `matches` counts leading right tokens.

    `results` are those of the rounds that follow from these drafts.
    """

    matches: tuple[Integers, ...]
    results: tuple[PromptResult, ...]

    @classmethod
    def of_rounds(cls, results: Sequence[PromptResult]) -> "Drafts":
        """Return the rounds of draft-and-verify as drafts, those of a text in no order."""
        # accepted[place] counts the drafts with more than `place` right tokens
        rows = [
            (np.arange(result.drafts) < np.array(result.accepted, dtype=np.int64)[:, None]).sum(0)
            for result in results
        ]
        return cls(tuple(rows), tuple(results))

    @property
    def length(self) -> float:
        """The mean of tokens from a draft that begins at any start, with the target's own token."""
        return 1 + float(np.concatenate(self.matches).mean())

    @property
    def at_starts(self) -> list[PromptResult]:
        """The drafts from all starts of each text, as one result for each text."""
        k = len(self.results[0].accepted)
        return [
            PromptResult("starts", len(row), tuple(int((row > place).sum()) for place in range(k)), ())
            for row in self.matches
        ]

    def cut(self, k: int) -> "Drafts":
        """Return the drafts cut to `k` tokens, with the rounds that follow from them."""
        return in_rounds([np.minimum(row, k) for row in self.matches], k, self.results)

    def of_texts(self, indices: Sequence[int]) -> "Drafts":
        """Return the drafts of some texts."""
        matches = tuple(self.matches[index] for index in indices)
        return Drafts(matches, tuple(self.results[index] for index in indices))

    def gains(self, stated: "Drafts") -> Gains:
        """Return accepted tokens beyond those of the stated reading, summed for each text with a start."""
        pairs = zip(self.matches, stated.matches, strict=True)
        return np.array([ours.sum() - theirs.sum() for ours, theirs in pairs if len(ours)], dtype=np.float64)


class FirstPass:
    """Texts that the target has run once, so that any drafter can draft from every start.

    `texts` are by default those of the stage; `results` has the target's answer to each.
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
        """Return the drafts of `model`, and the results of greedy rounds that follow from them."""
        return in_rounds(self._matches(model, boundaries, self.batches), self.job.k, self.stated)

    def sizes_between_norms(self, model: "DraftModel") -> list[float]:
        """Return the RMS of the target's states, as the model combines them, between its first two norms."""
        sizes = self._forced(model, boundaries=self.stage.boundaries, k=1).sizes_between_norms
        return [size for _, batch in self.batches for size in sizes(batch)]

    def run_first(self, model: "DraftModel", boundaries: Sequence[int]) -> Drafts:
        """Run drafts of one token from every position of prompts and answers."""
        rows = tuple(
            is_match[positions < self.limit].astype(np.int64)
            for positions, is_match in self.first_matches(model, boundaries)
        )
        return Drafts(rows, tuple(PromptResult("slots", len(row), (int(row.sum()),), ()) for row in rows))

    def first_matches(self, model: "DraftModel", boundaries: Sequence[int]) -> list[tuple[Integers, Flags]]:
        """Return each text's positions but the last, and whether the first token drafted there is the
        target's choice.
        """
        drafter = self._forced(model, boundaries=boundaries, k=1)
        rows = _by_text(
            (indices, (batch.positions[:, :-1], drafter.first_matches(batch), batch.valid[:, :-1]))
            for indices, batch in self.batches
        )
        return [(positions[is_text], is_match[is_text]) for positions, is_match, is_text in rows]

    def count_first(self, model: "DraftModel", boundaries: Sequence[int], every: int = 1) -> int:
        """Count right first draft tokens, at all positions of the texts or at one of `every`."""
        drafter = self._forced(model, boundaries=boundaries, k=1)
        return sum(int(drafter.first_matches(batch, every).sum()) for _, batch in self.batches)

    def first_drafts(self, model: "DraftModel", boundaries: Sequence[int]) -> Sequence[Integers]:
        """Return the first draft tokens at some positions of all texts, and the target's choices there."""
        drafter = self._forced(model, boundaries=boundaries, k=1)
        parts = [drafter.first_drafts(batch, SCREENED) for _, batch in self.batches]
        return [np.concatenate([part[side][part[2]].cpu().numpy() for part in parts]) for side in (0, 1)]

    def _matches(self, model: "DraftModel", boundaries: Sequence[int], batches: "Batches") -> list[Integers]:
        drafter = self._forced(model, boundaries=boundaries, k=self.job.k)
        rows = _by_text((indices, (drafter.matches(batch), batch.is_start)) for indices, batch in batches)
        return [row[is_start] for row, is_start in rows]

    def early(self) -> "Batches":
        """Return the texts with only those drafts that end before the fall; all drafts without a fall."""
        if self.fall is None:
            return self.batches
        below = self.fall.position - self.job.k
        return [(indices, batch.with_starts_below(below)) for indices, batch in self.batches]

    def verify(self, variant: Variant, candidate: Candidate) -> Variant:
        """Measure the variant by draft-and-verify, on the prompts that end within the limit."""
        if self.fall is not None and not self._is_better_early(candidate):
            return replace(variant, outcome=ReadingOutcome.LATE_POSITIONS_ONLY)
        job, texts, model = self.job, self.stage.texts, self.stage.model(candidate)
        indices = [i for i, text in enumerate(texts) if len(text) + job.max_tokens + job.k <= self.limit]
        if model is None or len(indices) < LEAST_PROMPTS:
            return variant
        results = self.stage.run(model, [texts[index] for index in indices], candidate.boundaries)
        compared = ratio(results, [self.stated[index] for index in indices])
        verified = replace(variant, measured=measure(results), ratio=compared, is_verified=True)
        if compared.low <= 1:  # whatever the first pass shows
            needed = prompts_to_tell(compared, 1.0, len(indices))
            return replace(verified, outcome=ReadingOutcome.TOO_FEW_PROMPTS, prompts_needed=needed)
        return replace(verified, outcome=BETTER_BY[compared.value >= LEAST_GAIN])

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on texts that are longer than the drafter was trained for."""
        notes = []
        if self.left_out:
            notes.append(
                f"{self.left_out} of {self.starts} drafts begin past position {self.limit}, the drafter's"
                " max_position_embeddings; the probe leaves them out"
            )
        if self.fall is not None:
            notes.append(
                f"{self.fall.below:.0%} of first draft tokens are right before position {self.fall.position}"
                f" and {self.fall.above:.0%} from there on, as with a drafter that was trained on shorter"
                " texts; a reading counts as better only if it is better before that position too"
            )
        return tuple(notes)

    def _is_better_early(self, candidate: Candidate) -> bool:
        """Whether a reading drafts better at the texts' first positions too.

        A reading with another rope must only not draft worse, as all distances between positions are small.
        """
        model, early = self.stage.model(candidate), self.early()
        assert model is not None
        ours = np.concatenate(self._matches(model, candidate.boundaries, early))
        baseline = np.concatenate(self._matches(self.stage.drafter, self.stage.boundaries, early))
        gain = (1 + ours.mean()) / (1 + baseline.mean()) if len(ours) else 0.0
        ropes = [drafter.rope for drafter in (candidate.drafter, self.stage.job.drafter)]
        is_of_rope = len({(rope.theta, repr(rope.scaling)) for rope in ropes}) > 1
        return bool(gain >= (1.0 if is_of_rope else LEAST_GAIN))

    def find_fall(self, model: "DraftModel", boundaries: Sequence[int]) -> None:
        """Find where the share of right first draft tokens of `model` falls, in prompts or in answers.

        Prompts and answers are judged apart, as their texts differ; the tokens that all prompts begin with
        are left out.
        """
        alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*self.texts, strict=False))
        shared = sum(1 for _ in alike)
        prompts, answers = [], []
        for text, (positions, right) in zip(self.texts, self.first_matches(model, boundaries), strict=True):
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
    """Find the power of two from which `right` falls most beyond chance; None if it does not fall."""
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
    """Return drafts with these `matches` on the texts of `stated`, and the rounds that follow from them.

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
    # the rows of all batches' tensors, in the order of the texts
    rows: dict[int, tuple[Any, ...]] = {}
    for indices, tensors in batches:
        arrays = [tensor.cpu().numpy() for tensor in tensors]
        rows |= zip(indices, zip(*arrays, strict=True), strict=True)
    return [rows[index] for index in range(len(rows))]


def candidates(
    drafter: Drafter, depth: int, target_rope: Rope | None, marked_tokens: tuple[int, ...] = ()
) -> Iterator[Candidate]:
    """Yield other readings of `drafter` for a target of `depth` layers with `target_rope`.

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
    """Yield the d2t, shifted by some rows, with which most first draft tokens are right.

    Yields nothing if that is the stored one, or if the shift gives no valid table.
    """
    job, stage, table = first.job, first.stage, np.array(first.job.draft_tokens or ())
    if not {"d2t", "lm_head.weight"} <= stage.drafter.weights.keys() or not len(table):
        return
    drafted, choices = first.first_drafts(stage.drafter, stage.boundaries)
    rows = table.argsort()[np.searchsorted(np.sort(table), drafted)]
    # right first tokens by shift: the token of a later row; offsets count from their own row, so that as many
    # are subtracted
    right = {
        (key, late): int((table.take(rows + late, mode="clip") - late * (key == TABLE_ROWS) == choices).sum())
        for key, late in product((TABLE_ROWS, TABLE_TOKENS), LATE.values())
    }
    key, late = max(right, key=lambda shift: right[shift])
    used = job.marked_tokens or ("t2d" in job.drafter.tensors and tuple(sorted(table.tolist()))) or None
    is_of_rows, vocab = key == TABLE_ROWS, job.drafter.dims.vocab
    numbers = tuple((table - is_of_rows * np.arange(len(table))).tolist())
    tokens = moved_back(numbers, late, are_offsets=is_of_rows, marked_tokens=used, vocab=vocab)
    if tokens and right[key, late] > int((drafted == choices).sum()):
        reading = table_shift(key, late)
        yield Candidate(
            reading.title, f"--fix-reading {reading.text}", job.drafter, stage.boundaries, tokens=tokens
        )


def _ropes(file_rope: Rope, target: Rope | None) -> Iterator[tuple[str, str, Rope]]:
    # other ropes that the drafter may have been trained with: name, answer and rope
    bases = [DEFAULT_ROPE_THETA]
    if target is not None and target.theta.is_integer():
        bases.append(target.theta)
    for base in dict.fromkeys(bases):
        if base != file_rope.theta:
            yield f"rope base {base:.0f}", f"{base:.0f}", replace(file_rope, theta=base)
    if file_rope.scaling is not None and "mrope_section" not in file_rope.scaling:
        yield "rope without scaling", "plain", replace(file_rope, scaling=None)
    if target is not None and target.scaling not in (None, file_rope.scaling):
        rope = replace(file_rope, theta=target.theta, scaling=target.scaling)
        yield "rope of the target, with its scaling", "target", rope


DEPTH = 7
# a message's turn, and the opening of the answer, in a template that no target has
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
    """Acceptance and drift on one kind of prompts, by draft depth.

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
    """Measure the prompts as given, in another template, after a system prompt, and in long context."""
    if with_ids := next((prompt for prompt in job.prompts if prompt.token_ids), None):
        raise UsageError(
            f"--probe drift writes the prompts' text into other templates, but {with_ids.place or 'a prompt'}"
            " is token ids; pass --prompts with texts or messages, or --probe sensitivity",
            options=("--probe",),
        )
    stage = Stage(replace(job, k=DEPTH))
    return tuple(_measured(stage, name, texts) for name, texts in _texts_by_condition(job, stage).items())


def _measured(stage: Stage, name: str, texts: Sequence[Sequence[int]]) -> DriftCondition:
    # acceptance under a condition, with the growth of the state and the attention at each depth
    attention: list[Any] = []
    stage.drafter.attention_log = attention
    steps: dict[int, list[tuple[float, float, float]]] = {}

    def record(depth: int, state: Any, valid: Any) -> None:
        rms, weights = state.float().pow(2).mean(-1).sqrt()[:, 0].mean(), attention[-1]
        first = weights.gather(1, valid.long().argmax(1)[:, None]).mean()
        drafted = weights[:, weights.shape[1] - depth :].sum(1).mean() if depth else 0.0
        steps.setdefault(depth, []).append((float(rms), float(first), float(drafted)))
        attention.clear()

    results = stage.run(stage.drafter, texts, on_draft_step=record)
    stage.drafter.attention_log = None
    means = [[fmean(values) for values in zip(*steps[depth], strict=True)] for depth in sorted(steps)]
    sizes, on_first, on_own = zip(*means, strict=True)
    growth = tuple(size / (sizes[0] or 1.0) for size in sizes)
    return DriftCondition(name, measure(results), growth, on_first, on_own)


def _texts_by_condition(job: EngineJob, stage: Stage) -> Mapping[str, list[list[int]]]:
    # the prompts under each condition that drafters are known to be sensitive to; prompts that do not fit are
    # left out
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
            f"--probe drift: the target's context of {context} is too short for these prompts under every"
            " condition; use shorter prompts",
            options=("--probe",),
        )
    return fitting


def _written(prompt: Prompt) -> Prompt:
    turns = (TURN.format(role=turn["role"], text=_content(turn)) for turn in chat_messages(prompt))
    return Prompt("".join(turns) + OPENING)


def _instructed(prompt: Prompt) -> Prompt:
    # the prompt with a system prompt that the drafter was not trained with, inside the user's text
    if not prompt.messages and not prompt.is_chat:
        return Prompt(SYSTEM.format(text=prompt.text))
    messages = list(chat_messages(prompt))
    first = next((at for at, message in enumerate(messages) if message["role"] == "user"), 0)
    messages[first] = {**messages[first], "content": SYSTEM.format(text=_content(messages[first]))}
    if prompt.messages:
        return replace_prompt(prompt, messages=tuple(messages))
    return replace_prompt(prompt, text=messages[0]["content"])


def _content(message: Mapping[str, Any]) -> str:
    return message.get("content") or ""  # a message with only tool calls has none
