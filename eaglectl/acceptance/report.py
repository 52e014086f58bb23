"""From an engine's run to what smoke says: measurements, losslessness, and a verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from eaglectl.acceptance.job import EngineRun, Job
from eaglectl.acceptance.measurement import Estimate, Measurement, measure, ratio, shortfalls
from eaglectl.acceptance.probe import Drift, Reading
from eaglectl.acceptance.prompts import digest


@dataclass(frozen=True, slots=True)
class SmokeReport:
    """What one drafter did on one engine. `is_lossless` is None where plain decoding was not run; `files`: SHA-256 of its config and weights."""

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
    against: "Against | None" = None
    readings: tuple[Reading, ...] = ()
    drifts: tuple[Drift, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """pass or fail; what could not be looked at raised before this was made."""
        return "fail" if self.failures else "pass"


@dataclass(frozen=True, slots=True)
class Against:
    """A second drafter on the same prompts: its measurement, and the first one's acceptance length over its."""

    source: str
    measured: Measurement
    ratio: Estimate


def judge(source: str, job: Job, run: EngineRun, min_length: float | None, min_position_0: float | None) -> SmokeReport:
    """The report on `run`; a dead drafter fails without any threshold."""
    measured = measure(run.results, job.seed)
    sets = dict.fromkeys(result.set for result in run.results)
    by_set = {name: measure([r for r in run.results if r.set == name], job.seed) for name in sets}
    failures = list(shortfalls(measured, min_length, min_position_0)) + [
        f"not as the checkpoint means: {text}" for text in run.differences
    ]
    failures += [note.text for note in job.drafter.told("problem")]  # engines run such a file all the same
    notes = []
    is_lossless = run.equal == len(run.results) if run.plain and job.temperature == 0 else None
    if is_lossless is False:
        said = f"{len(run.results) - run.equal} of {len(run.results)} outputs differ from plain decoding"
        if run.dtype == "float32":
            failures.append(f"{said}, in float32, where they must not")
        else:
            notes.append(f"{said}; in {run.dtype} rounding alone can do that")
    return SmokeReport(
        source, run, measured, by_set, is_lossless, tuple(failures), tuple(notes), len(measured.per_position), job.max_tokens, job.seed, digest(job.prompts),
        job.temperature,
    )  # fmt: skip


def with_readings(report: SmokeReport, readings: tuple[Reading, ...]) -> SmokeReport:
    """The report with the sensitivity probe's readings; one that is better than the stated reading is a failure."""
    better = tuple(
        f"the file drafts better read with {one.name}: acceptance length x{one.ratio.value:.2f}"
        f" [{one.ratio.low:.2f}, {one.ratio.high:.2f}]; if that is what was trained, convert with {one.option}"
        for one in readings
        if one.is_better
    )
    return replace(report, readings=readings, failures=report.failures + better)


def compare(report: SmokeReport, other: SmokeReport) -> Against:
    """The two drafters on the same prompts."""
    return Against(other.source, other.measured, ratio(report.run.results, other.run.results, report.seed))
