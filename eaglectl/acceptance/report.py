"""The report of `smoke`: acceptance, whether decoding is lossless, probes, and a verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from eaglectl.acceptance.job import EngineJob, EngineRun
from eaglectl.acceptance.measurement import Estimate, Measurement, measure, ratio, shortfalls
from eaglectl.acceptance.probe import DriftCondition, Variant
from eaglectl.acceptance.prompts import digest_prompts


@dataclass(frozen=True, slots=True)
class SmokeReport:
    """What one drafter did on one engine.

    `is_lossless` is None where plain decoding was not run. `failures` are the reasons for the verdict "fail".
    `variants` and `drift_conditions` are the results of the probes. `files`: SHA-256 of the drafter's config
    and weights. `trust_remote_code`: the target's own code was allowed to run.
    """

    source: str
    run: EngineRun
    measured: Measurement
    by_set: Mapping[str, Measurement]
    is_lossless: bool | None
    failures: tuple[str, ...]
    notes: tuple[str, ...]
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

    @property
    def verdict(self) -> str:
        """ "pass" or "fail"; what could not be run raised an error before there was a report."""
        return "fail" if self.failures else "pass"


@dataclass(frozen=True, slots=True)
class DrafterComparison:
    """A second drafter on the same prompts; `ratio` is the first drafter's acceptance length over its own."""

    source: str
    measured: Measurement
    ratio: Estimate


def make_report(
    source: str, job: EngineJob, run: EngineRun, min_length: float | None, min_position_0: float | None
) -> SmokeReport:
    """The report on `run`; a dead drafter fails without any threshold."""
    measured = measure(run.results, job.seed)
    sets = dict.fromkeys(result.set for result in run.results)
    by_set = {
        name: measure([result for result in run.results if result.set == name], job.seed) for name in sets
    }
    failures = [
        *shortfalls(measured, min_length, min_position_0),
        *(f"not as the checkpoint means: {text}" for text in run.differences),
        # engines run a file with these problems all the same
        *(note.text for note in job.drafter.notes_at("problem")),
    ]
    notes = []
    equal = run.equal_outputs if job.temperature == 0 else None  # sampled tokens need not be equal
    is_lossless = None if equal is None else equal == len(run.results)
    if equal is not None and not is_lossless:
        different = f"{len(run.results) - equal} of {len(run.results)} outputs differ from plain decoding"
        if run.dtype == "float32":
            failures.append(f"{different}, in float32, where they must not")
        else:
            notes.append(f"{different}; in {run.dtype} rounding alone can do that")
    return SmokeReport(
        source=source,
        run=run,
        measured=measured,
        by_set=by_set,
        is_lossless=is_lossless,
        failures=tuple(failures),
        notes=tuple(notes),
        k=len(measured.per_position),
        max_tokens=job.max_tokens,
        seed=job.seed,
        prompts_digest=digest_prompts(job.prompts),
        temperature=job.temperature,
        trust_remote_code=job.trust_remote_code,
    )


def with_variants(report: SmokeReport, variants: tuple[Variant, ...]) -> SmokeReport:
    """The report with the results of the sensitivity probe; a variant that drafts better is a failure."""
    better = tuple(
        f"the file drafts better read with {variant.name}: acceptance length x{variant.ratio.value:.2f}"
        f" [{variant.ratio.low:.2f}, {variant.ratio.high:.2f}]; if that is what was trained, convert with"
        f" {variant.option}"
        for variant in variants
        if variant.is_better
    )
    return replace(report, variants=variants, failures=report.failures + better)


def compare_drafters(report: SmokeReport, other: SmokeReport) -> DrafterComparison:
    """The two drafters on the same prompts."""
    results, baseline = report.run.results, other.run.results
    return DrafterComparison(other.source, other.measured, ratio(results, baseline, report.seed))
