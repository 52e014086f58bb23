"""The report of `smoke`: acceptance, whether decoding is lossless, probes, other drafters, and a verdict."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.base import Result
from eaglectl.errors import EaglectlError
from eaglectl.files.checkpoint import open_folder, read_checkpoint
from eaglectl.run.answering import MeasuredAnswer
from eaglectl.run.coverage import Coverage, TokenText, measure_coverage, pruned_from, script_of
from eaglectl.run.gate import judge_ratio, needed_to_judge, worst
from eaglectl.run.job import EngineJob, EngineRun, tokenizer_of
from eaglectl.run.measurement import (
    ENOUGH_PROMPTS,
    FEWEST_PROMPTS,
    LEVEL,
    Estimate,
    Measurement,
    PromptResult,
    Speed,
    look_level,
    measure,
    p_words,
    prompts_to_tell,
    ratio,
    shortcomings,
    shortfalls,
)
from eaglectl.run.probes import LEAST_GAIN, DriftCondition, Sensitivity, Variant
from eaglectl.run.prompts import PromptChoice, digest_prompts
from eaglectl.run.published_lengths import Published
from eaglectl.run.server_match import ServerMatch
from eaglectl.run.windows import WindowResult
from eaglectl.verdicts import CheckVerdict, GateEnding, ReadingOutcome

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
