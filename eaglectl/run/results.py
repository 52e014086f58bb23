"""The report of `smoke`: acceptance, whether decoding is lossless, probes, other drafters, and a verdict.

Two drafters, or one before and after a conversion (the gate), are compared on the same prompts. The first
runs by draft-and-verify, which writes the target's greedy answers; no drafter changes these. Then both draft
from every position of these answers (teacher forcing). This ratio has a narrower interval than that of the
rounds, which begin at few positions; the rounds must confirm it.

A running server is compared with the files of a drafter by its rounds and those of the reference. On prompts
with equal answers, the same drafter has equal rounds, but for rounding. Another drafter has equal rounds on
few prompts, even if it is as good.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from statistics import quantiles
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.base import Result
from eaglectl.conversion.upgrade import GateResults, PromptMatches
from eaglectl.drafter.drafter import JOINED
from eaglectl.errors import EaglectlError
from eaglectl.files.checkpoint import open_folder, read_checkpoint
from eaglectl.formats.published import Figure, PublishedSource, last_part, published_file
from eaglectl.progress import OnProgress, TimedWork
from eaglectl.run.answering import MeasuredAnswer
from eaglectl.run.coverage import Coverage, TokenText, measure_coverage, pruned_from, script_of
from eaglectl.run.job import EngineJob, EngineRun, Stage, tokenizer_of
from eaglectl.run.measurement import (
    DEAD_LENGTH,
    ENOUGH_PROMPTS,
    FEWEST_PROMPTS,
    LEVEL,
    Estimate,
    Measurement,
    PromptResult,
    Speed,
    judge_gain,
    look_level,
    measure,
    p_words,
    prompts_to_tell,
    ratio,
    shortcomings,
    shortfalls,
)
from eaglectl.run.probes import LEAST_GAIN, Drafts, DriftCondition, FirstPass, Sensitivity, Variant, in_rounds
from eaglectl.run.prompts import PromptChoice, digest_prompts, prompt_digest
from eaglectl.run.windows import WindowResult
from eaglectl.verdicts import CheckVerdict, GateEnding, MatchEnding, ReadingOutcome

MOST_LINES = 4


class PublishedLength(Struct, frozen=True):
    """One published acceptance length, with its prompt set, its figure and the figure's source."""

    length: float
    prompt_set: str
    figure: Figure
    source: PublishedSource

    @property
    def is_dead(self) -> bool:
        """Whether the drafter does not work, though its length was published (TensorRT-LLM's gate: 1.01)."""
        return self.length < DEAD_LENGTH

    @property
    def run(self) -> tuple[str, int | None, float | None, int | None]:
        """The prompt set, k, temperature and new tokens of a comparable run; None matches no run."""
        figure, source = self.figure, self.source
        temperature = source.temperature if figure.temperature is None else figure.temperature
        return self.prompt_set, figure.k, temperature, source.comparable.get(self.prompt_set)

    @property
    def text(self) -> str:
        """The length, its drafter, and where and when it was measured."""
        dead = " (dead)" if self.is_dead else ""
        count = "" if self.source.prompts else ", number of prompts not stated"
        place = f"{self.source.title}, {self.figure.date or self.source.date}{count}"
        return f"{self.length:.2f}{dead}  {self.figure.drafter} ({place})"


class Published(Struct, frozen=True):
    """Published lengths for a target, highest first; those of `alike` are comparable with our run.

    `target` is the published name of the target, `how` its source.
    """

    alike: tuple[PublishedLength, ...] = ()
    otherwise: tuple[PublishedLength, ...] = ()
    target: str = ""
    how: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The comparable lengths as lines; without any, the range of the others."""
        lines = [length.text for length in self.alike[:MOST_LINES]]
        if len(self.alike) > MOST_LINES:
            lines.append(f"and {len(self.alike) - MOST_LINES} more")
        if self.otherwise and not lines:
            lengths = [length.length for length in self.otherwise]
            lines = [
                f"measured differently: {len(lengths)} published lengths of this target, {min(lengths):.2f}"
                f" to {max(lengths):.2f}"
            ]
        return (*lines, f"the target is identified as {self.target} by {self.how}") if lines else ()


def published_for(
    names: Mapping[str, str], prompts: str | None, k: int, temperature: float, max_tokens: int
) -> Published:
    """Return the published lengths of a target's drafters, and which of them are comparable with our run.

    `names` maps possible names of the target (Hub repositories or folders) to their sources. Only the last
    part of a name counts, without case; the first name with figures is used. A length with other prompts,
    another k or temperature, or another end of answers is not comparable. `prompts` is the named set of the
    run; None for other prompts, for a sample of a set, and for answers past their end.
    """
    run = prompts, k, temperature, max_tokens
    for name, how in names.items():
        lengths = [
            length for length in published_lengths() if last_part(length.figure.target) == last_part(name)
        ]
        if lengths:
            lengths.sort(key=lambda length: (-length.length, length.figure.drafter))
            alike = tuple(length for length in lengths if length.run == run)
            otherwise = tuple(length for length in lengths if length not in alike)
            return Published(alike, otherwise, lengths[0].figure.target, how)
    return Published()


def published_lengths() -> tuple[PublishedLength, ...]:
    """Return every published length, one for each prompt set of a figure."""
    file = published_file()
    return tuple(
        PublishedLength(length, prompt_set, figure, file.sources[figure.source])
        for figure in file.figures
        for prompt_set, length in figure.lengths.items()
    )


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


SERVED_WITH = "vLLM does so only with that method in --speculative-config, and drafts greedily without it"
# by draft_sample_method (vLLM from 0.21.0 on)
DRAFTINGS: Mapping[str, str] = {
    "greedy": "drafts were greedy at this temperature (draft_sample_method); acceptance of sampled drafts may"
    " be higher or lower",
    "not known": "drafts are greedy at this temperature unless the server was started with"
    " draft_sample_method; it reports that only with VLLM_SERVER_DEV_MODE=1",
}


ReasonKind = Literal["failure", "gap", "note"]


class Reason(Struct, frozen=True):
    """A reason for the verdict FAIL or COULD_NOT_LOOK, or a note, with the commands to run next."""

    kind: ReasonKind
    words: str
    commands: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The words, with the commands at their end."""
        lines = " and ".join(f"`{line}`" for line in self.commands)
        return f"{self.words}: {lines}" if lines else self.words


def reasons_of(kind: ReasonKind, texts: Iterable[str]) -> tuple[Reason, ...]:
    """Return a reason for each text."""
    return tuple(Reason(kind, text) for text in texts)


class SmokeReport(Result, frozen=True):
    """The result of running one drafter on one engine.

    `is_lossless` is None if plain decoding was not run. `reasons` are those of the verdict, and notes.
    `choice` is the origin of the prompts. `variants` (of `probed`) and `drift_conditions` are the results of
    the probes. `files` has the SHA-256 of the drafter's config and weights. `published` are published lengths
    of the target's drafters. With `trust_remote_code`, the target's own code was allowed to run. `coverage`
    is the share of the answers' tokens that a reduced draft vocabulary holds, if they are known. `speed` is
    the result of --speed; without one, `speed_gap` is the reason. `diagnose_command` looks for the cause.
    `match` states whether a server drafts as these files do. `windows` are the results of --window.
    `tried` is the result of --try-both.
    """

    source: str
    run: EngineRun
    measured: Measurement
    by_set: Mapping[str, Measurement]
    is_lossless: bool | None
    reasons: tuple[Reason, ...]
    k: int
    max_tokens: int
    seed: int
    prompts_digest: str
    temperature: float
    against: "DrafterComparison | None" = None
    variants: tuple[Variant, ...] = ()
    drift_conditions: tuple[DriftCondition, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    trust_remote_code: bool = False
    ignores_eos: bool = False
    choice: PromptChoice | None = None
    probed: Sensitivity | None = None
    published: Published | None = None
    speed: Speed | None = None
    speed_gap: str = ""
    coverage: Coverage | None = None
    diagnose_command: str = ""
    match: "ServerMatch | None" = None
    windows: tuple[WindowResult, ...] = ()
    tried: MeasuredAnswer | None = None

    @property
    def failures(self) -> tuple[str, ...]:
        """The reasons for the verdict FAIL."""
        return tuple(reason.text for reason in self.reasons if reason.kind == "failure")

    @property
    def gaps(self) -> tuple[str, ...]:
        """The reasons for the verdict COULD_NOT_LOOK."""
        return tuple(reason.text for reason in self.reasons if reason.kind == "gap")

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes."""
        return tuple(reason.text for reason in self.reasons if reason.kind == "note")

    @property
    def verdict(self) -> CheckVerdict:
        """FAIL, COULD_NOT_LOOK if too little was measured, or PASS."""
        if self.failures or (self.against and self.against.failures):
            return CheckVerdict.FAIL
        is_open = self.gaps or (self.against and self.against.gaps)
        return CheckVerdict.COULD_NOT_LOOK if is_open else CheckVerdict.PASS


OUTCOMES: Mapping[GateEnding, CheckVerdict] = {
    GateEnding.KEPT: CheckVerdict.PASS,
    GateEnding.LOST: CheckVerdict.FAIL,
    GateEnding.TOO_FEW_PROMPTS: CheckVerdict.COULD_NOT_LOOK,
}
# the drafts that a ratio is of
EVERY_POSITION = "drafts from every position of the target's answers, confirmed by draft-and-verify"
ROUNDS_ALONE = "only rounds of draft-and-verify: only greedy runs of the reference draft from every position"


class SetRatio(Struct, frozen=True):
    """The first drafter's acceptance length over the second's on one set of prompts.

    `ratio` is of drafts from every position of the answers if there are any, else of `rounds`, of
    draft-and-verify. `reason` is why the ending is not KEPT.
    """

    name: str
    prompts: int
    ratio: Estimate
    rounds: Estimate
    ending: GateEnding
    reason: str = ""
    needed: int | None = None

    @property
    def outcome(self) -> CheckVerdict:
        """PASS for KEPT, FAIL for LOST, else COULD_NOT_LOOK."""
        return OUTCOMES[self.ending]


class DrafterComparison(Struct, frozen=True):
    """A second drafter on the same prompts; `ratio` is the first drafter's acceptance length over its own.

    `sets` has the ratio on each set of prompts. Each must reach `max_regression` with its lower bound: their
    number needs no correction, as all of them must. An upper bound below it is a failure; an interval that
    contains it decides nothing (`judge_ratio`). With `has_positions`, the ratios are of drafts from every
    position, and `rounds` is that of draft-and-verify.

    Built-in prompts, a few of each kind, are judged as one set, by `looks` at a growing number of them
    (`look_level`). `sets` then also has each kind that is lost, at the level divided by the number of kinds.
    """

    source: str
    measured: Measurement
    ratio: Estimate
    rounds: Estimate
    sets: tuple[SetRatio, ...]
    max_regression: float
    has_positions: bool = False
    looks: int = 0
    level: float = LEVEL

    @property
    def confidence(self) -> float:
        """The confidence of the intervals."""
        return 1 - self.level

    @property
    def meaning(self) -> str:
        """The drafts that the ratios are of."""
        return EVERY_POSITION if self.has_positions else ROUNDS_ALONE

    @property
    def ending(self) -> GateEnding:
        """LOST if any set is; KEPT if all are."""
        return worst(part.ending for part in self.sets)

    @property
    def failures(self) -> tuple[str, ...]:
        """The sets on which the first drafter is worse, with reasons."""
        return tuple(part.reason for part in self.sets if part.outcome == CheckVerdict.FAIL)

    @property
    def gaps(self) -> tuple[str, ...]:
        """The sets with too few prompts to decide, with reasons."""
        return tuple(part.reason for part in self.sets if part.outcome == CheckVerdict.COULD_NOT_LOOK)


def make_report(
    source: str, job: EngineJob, run: EngineRun, min_length: float | None, min_position_0: float | None
) -> SmokeReport:
    """Report on `run`; a dead drafter fails without any threshold."""
    measured = measure(run.results)
    sets = _results_by_set(run.results)
    by_set = {name: measure(part) for name, part in sets.items() if any(result.drafts for result in part)}
    failures = [
        *shortfalls(measured, min_length, min_position_0),
        *(f"not as the checkpoint means: {text}" for text in run.differences),
        # engines run a file with these problems anyway
        *(note.text for note in job.drafter.notes_at("problem")),
    ]
    notes = [f'set "{name}": all answers end before the first draft' for name in sets if name not in by_set]
    notes += _drafting_notes(job, run)
    count = None
    if job.temperature == 0 and run.equal_outputs is not None:  # sampled tokens need not be equal
        count = len(run.results) - run.equal_outputs
    if count:
        different = f"{count} of {len(run.results)} outputs differ from plain decoding"
        if run.dtype == "float32":
            failures.append(f"{different}; in float32 they must be equal")
        else:
            notes.append(f"{different}; in {run.dtype}, rounding can be the cause")
    return SmokeReport(
        source=source,
        run=run,
        measured=measured,
        by_set=by_set,
        is_lossless=None if count is None else count == 0,
        reasons=(
            *(reasons_of("failure", failures) or reasons_of("gap", shortcomings(measured))),
            *reasons_of("note", notes),
        ),
        k=len(measured.per_position),
        max_tokens=job.max_tokens,
        seed=job.seed,
        prompts_digest=digest_prompts(job.prompts),
        temperature=job.temperature,
        ignores_eos=job.ignores_eos,
        trust_remote_code=job.trust_remote_code,
        coverage=_cover_answers(job, run.results, len(measured.per_position)),
    )


def _drafting_notes(job: EngineJob, run: EngineRun) -> Iterator[str]:
    """Yield a note on how drafts were sampled at a temperature above 0, which changes acceptance."""
    method = run.resolved.get("draft_sample_method")
    if job.temperature > 0 and method is not None:
        yield DRAFTINGS.get(method, f"drafts were sampled by draft_sample_method {method}; {SERVED_WITH}")


def _cover_answers(job: EngineJob, results: Sequence[PromptResult], k: int) -> Coverage | None:
    if not (job.drafter.has_reduced_vocabulary and job.draft_tokens):
        return None
    scripts = [""] * len(results)
    with suppress(EaglectlError):  # a target without a tokenizer, whose prompts are token ids
        tokenizer = tokenizer_of(job.target, job.trust_remote_code)
        scripts = [script_of(tokenizer.decode(result.tokens)) for result in results]
    pairs = zip(results, scripts, strict=True)
    texts = [TokenText(result.set, result.tokens, script) for result, script in pairs]
    record = read_checkpoint(open_folder(str(job.folder)), headers_only=True).record
    coverage = measure_coverage(texts, frozenset(job.draft_tokens), k)
    return coverage and replace(coverage, wider=pruned_from(record))


def with_variants(report: SmokeReport, probed: Sensitivity, repair: Callable[[Variant], str]) -> SmokeReport:
    """Return the report with the sensitivity probe's results; a reading that drafts better is a failure.

    `repair` returns the command that converts with a reading.
    """
    reasons = [*report.reasons, *reasons_of("note", probed.notes)]
    for variant in probed.variants:
        needed = f"use about {variant.prompts_needed}" if variant.prompts_needed else "use more"
        doubt = {
            ReadingOutcome.SLIGHTLY_BETTER: f", beyond chance, but by less than x{LEAST_GAIN:g}",
            ReadingOutcome.TOO_FEW_PROMPTS: (
                f", within chance on {variant.measured.prompts} prompts: {needed}"
            ),
            ReadingOutcome.LATE_POSITIONS_ONLY: ", but only at late positions",
        }.get(variant.outcome)
        if doubt:
            reasons += reasons_of(
                "note", [f"{variant.name} drafts better by x{variant.ratio.value:.3f}{doubt}"]
            )
    report = replace(report, variants=probed.variants, reasons=tuple(reasons), probed=probed)
    open_or_wrong = (ReadingOutcome.BETTER, ReadingOutcome.TOO_FEW_PROMPTS)
    if any(variant.is_of_tables and variant.outcome in open_or_wrong for variant in probed.variants):
        report = replace(report, coverage=None)  # counted with a d2t that may be wrong
    if (best := probed.best) is None:
        return report
    others = [
        f"{variant.name} (x{variant.ratio.value:.2f})"
        for variant in probed.variants
        if variant.is_better and variant is not best
    ]
    also = f"; other readings gain too: {', '.join(others)}" if others else ""
    failure = (
        f"the file drafts better read with {best.name}: acceptance length x{best.ratio.words}, p"
        f" {p_words(best.p_value)}, corrected for {len(probed.variants)} readings{also}; if it was trained"
        " so, convert it and measure again"
    )
    return replace(report, reasons=(*reasons, Reason("failure", failure, (repair(best),))))


# the name of all built-in prompts, if they are judged together
BUILT_IN = "built-in prompts"
Pair = tuple[Sequence[PromptResult], Sequence[PromptResult]]


def compare_drafters(
    report: SmokeReport,
    other: SmokeReport,
    max_regression: float,
    positions: Pair | None = None,
    looks: int = 0,
) -> DrafterComparison:
    """Compare two drafters on the same prompts: the first must be worse on no set of them.

    `positions`: the drafts of both from every position of the same answers, a result for each prompt.
    `looks`: the number of looks at built-in prompts.
    """
    rounds = (report.run.results, other.run.results)
    judged, sets = positions or rounds, list[SetRatio]()
    level, places_by_set = look_level(looks) if looks else LEVEL, _by_set(report.run.results)
    of_set = level / len(places_by_set) if looks else level
    for name, places in places_by_set.items():
        (first, second), (drafted, compared) = (
            ([side[place] for place in places] for side in pair) for pair in (judged, rounds)
        )
        sets.append(_set_ratio(name, (first, second), (drafted, compared), max_regression, of_set))
    if looks:
        # if all prompts give the same ratio, the interval has no width and says nothing about other prompts
        lost = [part for part in sets if part.ending == GateEnding.LOST and part.ratio.low < part.ratio.high]
        sets = [_set_ratio(BUILT_IN, judged, rounds, max_regression, level), *lost]
    return DrafterComparison(
        other.source,
        other.measured,
        ratio(*judged, level),
        ratio(*rounds, level),
        tuple(sets),
        max_regression,
        positions is not None,
        looks,
        level,
    )


class Gain(Struct, frozen=True):
    """Acceptance length of one run over that of another, on the same prompts in the same engine.

    `prompts_needed` is about how many prompts would distinguish it from 1; None if none would.
    """

    ratio: Estimate
    prompts_needed: int | None

    @property
    def is_shown(self) -> bool:
        """Whether the interval leaves 1 out."""
        return not self.ratio.low <= 1 <= self.ratio.high


def gain(after: SmokeReport, before: SmokeReport) -> Gain | None:
    """Return the change of acceptance by a conversion; None if the runs differ in prompts or engine."""
    runs = {
        (report.run.engine, report.run.version, report.prompts_digest, report.k) for report in (after, before)
    }
    if len(runs) > 1:
        return None
    change = ratio(after.run.results, before.run.results)
    return Gain(change, prompts_to_tell(change, 1.0, after.measured.prompts))


def _set_ratio(name: str, judged: Pair, rounds: Pair, least: float, level: float) -> SetRatio:
    """Return whether one set kept its acceptance; with too few prompts, how many would decide.

    Both intervals decide: that of `judged`, the drafts of both drafters from every position of the answers
    (else `rounds` again), and that of `rounds`, of draft-and-verify. If nothing was drafted, it is the widest
    that a ratio of acceptance lengths can have.
    """
    count, needed, reason = len(rounds[0]), None, ""
    if not all(any(result.drafts for result in side) for side in (*judged, *rounds)):
        whole = 1.0 + len(judged[0][0].accepted)
        reason = f'set "{name}": nothing was drafted, so there is nothing to compare; use longer prompts'
        nothing = Estimate(1.0, 1 / whole, whole)
        return SetRatio(name, count, nothing, nothing, GateEnding.TOO_FEW_PROMPTS, reason)
    estimate, of_rounds = ratio(*judged, level), ratio(*rounds, level)
    ending = judge_ratio(estimate, of_rounds, least)
    where = f'set "{name}": ratio {estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]'
    if judged != rounds:
        where += f", of rounds {of_rounds.value:.3f} [{of_rounds.low:.3f}, {of_rounds.high:.3f}]"
    if ending == GateEnding.LOST:
        reason = f"lost: {where} is below --max-regression {least:g}"
    elif ending != GateEnding.KEPT or count < FEWEST_PROMPTS:
        # the interval of one or two prompts does not show how many are needed
        enough = count >= FEWEST_PROMPTS
        enough_prompts = (
            needed_to_judge(estimate, of_rounds, least, count, (level, level)) if enough else ENOUGH_PROMPTS
        )
        needed = max(enough_prompts, ENOUGH_PROMPTS) if enough_prompts else None
        advice = f"use {needed} or more of this set" if needed else "no number of prompts would decide"
        ending = GateEnding.TOO_FEW_PROMPTS
        reason = f"too few prompts: {where}, prompts: {count}; {advice}"
    return SetRatio(name, count, estimate, of_rounds, ending, reason, needed)


def _results_by_set(results: Sequence[PromptResult]) -> Mapping[str, list[PromptResult]]:
    return {name: [results[index] for index in places] for name, places in _by_set(results).items()}


def _by_set(results: Sequence[PromptResult]) -> Mapping[str, list[int]]:
    places: dict[str, list[int]] = {}
    for index, result in enumerate(results):
        places.setdefault(result.set, []).append(index)
    return places


# the share of prompts with equal rounds that the same drafter exceeds, of those with equal answers and enough
# rounds. For fixtures/tiny on vLLM 0.32.0: 24 of 24 in float32 and 15 of 17 in bfloat16; with noise of 5 % on
# each weight, which does not change the acceptance length, 6 of 24 and 3 of 17; with 1 %, 15 of 24
LIKE_SHARE = 0.5
FEWEST_ROUNDS = 4
# without equal answers, a ratio of acceptance lengths below this or above its inverse is another drafter's
LIKE_RATIO = 0.97
# characters of an answer that must be equal for the same target; rounding may change the rest
BEGIN = 16
Z = 1.96  # of a two-sided interval of 95 %
OTHERS = "old, partly loaded, or with an embedding or head that is not tied"


class FilesMatch(Struct, frozen=True):
    """The rounds of a server compared with those of the reference for one drafter's files.

    `compared` are the prompts with equal answers and FEWEST_ROUNDS or more, `equal` those with equal rounds.
    `length` is the files' acceptance length, `ratio` the server's over it. `needed` is about how many prompts
    would decide; None if more would not.
    """

    source: str
    compared: int
    equal: int
    length: Estimate
    ratio: Estimate
    ending: MatchEnding
    needed: int | None = None

    @property
    def figures(self) -> str:
        """The figures that decide."""
        return (
            f"rounds are equal on {self.equal} of {self.compared} prompts with equal answers, and the"
            f" server's length is x{self.ratio.words} of the {self.length.value:.2f} of {self.source}"
        )


class ServerMatch(Struct, frozen=True):
    """Whether the server drafts as the first of `files`; `nearest` is the source that it drafts as, or "".

    On `alike` of `prompts` prompts, the server's answer begins like that of the target's files.
    """

    files: tuple[FilesMatch, ...]
    prompts: int
    alike: int
    ending: MatchEnding
    nearest: str
    words: str

    @property
    def is_of_another_target(self) -> bool:
        """Whether most answers begin differently than the target's."""
        return 2 * self.alike < self.prompts


def match_server(
    served: Sequence[PromptResult],
    files: Sequence[tuple[str, Sequence[PromptResult]]],
    texts: Sequence[str],
) -> ServerMatch:
    """Compare a server's results with those of each drafter's files; `texts` are the target's answers.

    Raises UnreadableError if one of them drafted nothing.
    """
    answers = [(result.text.strip(), text.strip()) for result, text in zip(served, texts, strict=True)]
    begin_alike = sum(theirs[:BEGIN] == ours[:BEGIN] for theirs, ours in answers)
    matches = tuple(
        _compare_rounds(source, served, results, [theirs == ours for theirs, ours in answers])
        for source, results in files
    )
    count = len(served)
    if 2 * begin_alike < count:
        ending, nearest, words = (
            MatchEnding.COULD_NOT_TELL,
            "",
            f"could not tell: the server answers only {begin_alike} of {count} prompts as the target's files"
            " do; pass the target that it serves",
        )
    else:
        ending, nearest, words = _judge_matches(matches, served, [results for _, results in files])
    return ServerMatch(matches, count, begin_alike, ending, nearest, words)


def _compare_rounds(
    source: str, served: Sequence[PromptResult], results: Sequence[PromptResult], same: Sequence[bool]
) -> FilesMatch:
    """Compare the server's rounds with those of the files, on the prompts with the `same` answer."""
    pairs = [
        (server_result, file_result)
        for server_result, file_result, is_same in zip(served, results, same, strict=True)
        if is_same and file_result.drafts >= FEWEST_ROUNDS
    ]
    equal = sum((on_server.drafts, on_server.accepted) in _counts(by_files) for on_server, by_files in pairs)
    lengths, change = (measure(served), measure(results)), ratio(served, results)
    ending, needed = _ending(lengths, len(pairs), equal, change)
    total = None if needed is None else math.ceil(needed * len(served) / max(len(pairs), 1))
    return FilesMatch(source, len(pairs), equal, lengths[1].length, change, ending, total)


def _counts(result: PromptResult) -> list[tuple[int, tuple[int, ...]]]:
    """Return drafts and accepted by position, whole and without the last round (llama-server omits it)."""
    last = result.rounds[-1] if result.rounds else 0
    accepted = tuple(count - (place < last) for place, count in enumerate(result.accepted))
    shorter = [(result.drafts - 1, accepted)] if result.rounds else []
    return [(result.drafts, result.accepted), *shorter]


def _ending(
    lengths: tuple[Measurement, Measurement], compared: int, equal: int, change: Estimate
) -> tuple[MatchEnding, int | None]:
    """Return whether both are of one drafter, and about how many compared prompts would decide."""
    if all(measured.length.value <= DEAD_LENGTH for measured in lengths):
        return MatchEnding.COULD_NOT_TELL, None  # dead drafters are all alike
    if compared < FEWEST_PROMPTS:
        is_other = change.high < LIKE_RATIO or change.low > 1 / LIKE_RATIO
        return (MatchEnding.NO, None) if is_other else (MatchEnding.COULD_NOT_TELL, 2 * FEWEST_PROMPTS)
    share, spread = equal / compared, Z**2 / compared
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    if middle - half > LIKE_SHARE:
        return MatchEnding.YES, compared
    if middle + half < LIKE_SHARE:
        return MatchEnding.NO, compared
    smooth = (equal + 1) / (compared + 2)
    distance = abs(smooth - LIKE_SHARE)
    needed = math.ceil(smooth * (1 - smooth) * (Z / distance) ** 2) if distance else None
    return MatchEnding.COULD_NOT_TELL, needed


def _judge_matches(
    matches: Sequence[FilesMatch], served: Sequence[PromptResult], files: Sequence[Sequence[PromptResult]]
) -> tuple[MatchEnding, str, str]:
    # whether the server drafts as these files: the one reading that fits, or the nearest of several; returns
    # the ending, the source that the server drafts as ("" if unknown), and both in words
    first, prompts = matches[0], len(served)
    fitting = [place for place, match in enumerate(matches) if match.ending == MatchEnding.YES]
    if len(fitting) > 1:
        return _nearest_match(
            matches, {place: _distances(served, files[place]) for place in fitting}, prompts
        )
    if fitting:
        other = matches[fitting[0]]
        if other is first:
            return MatchEnding.YES, first.source, f"yes: {first.figures}"
        words = f"no, it drafts as {other.source}: {other.figures}; {first.figures}"
        return MatchEnding.NO, other.source, words
    if first.ending == MatchEnding.NO:
        words = f"no: {first.figures}; it reads the file differently (see inspect), or has other weights"
        words += f" ({OTHERS}): load {first.source} into the server again"
        return MatchEnding.NO, "", words
    would = f"about {first.needed} would decide" if first.needed else "more would not decide"
    if first.compared < prompts // 2:
        would += "; fewer --max-tokens leave more answers equal"
    words = f"could not tell with {prompts} prompts ({first.figures}); {would}"
    return MatchEnding.COULD_NOT_TELL, "", words


def _distances(served: Sequence[PromptResult], results: Sequence[PromptResult]) -> list[int]:
    sides = [[(result.drafts, *result.accepted) for result in side] for side in (served, results)]
    pairs = zip(*sides, strict=True)
    return [
        sum(abs(served_count - other_count) for served_count, other_count in zip(*counts, strict=False))
        for counts in pairs
    ]


def _nearest_match(
    matches: Sequence[FilesMatch], distances: Mapping[int, Sequence[int]], prompts: int
) -> tuple[MatchEnding, str, str]:
    # of two readings that fit, the one with the nearer drafts, if the difference is significant; returns as
    # `_judge_matches` does
    near, far = sorted(distances, key=lambda place: sum(distances[place]))[:2]
    gains = [
        far_distance - near_distance
        for near_distance, far_distance in zip(distances[near], distances[far], strict=True)
    ]
    is_shown, needed = judge_gain(gains)
    nearest, other = matches[near], matches[far]
    if is_shown:
        yes = "yes" if near == 0 else f"no, it drafts as {nearest.source}"
        words = f"{yes}: {nearest.figures}, nearer than {other.source} ({other.equal})"
        return (MatchEnding.NO if near else MatchEnding.YES), nearest.source, words
    would = f"about {needed} would decide" if needed else "these prompts do not distinguish them"
    words = (
        f"could not tell with {prompts} prompts whether it drafts as {nearest.source} or as {other.source},"
        f" which draft alike; {would}"
    )
    return MatchEnding.COULD_NOT_TELL, "", words
