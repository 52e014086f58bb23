"""Tokens a second with and without a drafter: the ratio at each concurrency, and up to which it pays."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Literal

from msgspec import Struct, convert
from msgspec.structs import replace

from eaglectl.progress import report_step
from eaglectl.run.installed import ask
from eaglectl.run.job import EngineJob
from eaglectl.run.process import VLLM
from eaglectl.run.timing import LEAST_REPEATS, Timing
from eaglectl.run.tokens import tokenise

ON_CPU = "measured on a CPU: no measure of serving"
GRAPHS = "CUDA graphs as `vllm serve` has them"
EAGER = "no CUDA graphs, as enforce_eager was given"
HOW = (
    "vLLM {} with {}, warm, without HTTP and prefix caching: so many requests in flight, each of {} new"
    " tokens whatever ends its answer, with the drafter after without; "
    f"{LEAST_REPEATS} or more repeats, each with its own prompts"
)
NO_RATIO = (
    "a server has one configuration, so there is no ratio: --run-in vllm on such a card times vLLM with the"
    " drafter and without"
)
# vLLM with its engine in a process of its own, as `vllm serve` runs it
SERVED = replace(
    VLLM,
    environment={
        name: value for name, value in VLLM.environment.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"
    },
)


class Spread(Struct, frozen=True):
    """The median of the repeats, the least and the most."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """That of `values`, of which there is at least one."""
        return cls(median(values), min(values), max(values))

    def divided(self, number: int) -> "Spread":
        """That of the values over `number`."""
        return Spread(self.median / number, self.low / number, self.high / number)


class SpeedRow(Struct, frozen=True):
    """A drafter at one k and one concurrency: tokens a second of all requests together.

    `plain` is without the drafter, `ratio` that of each repeat with and without it on the same prompts;
    None where only the drafter ran. `length` is the acceptance length of these repeats, None where vLLM does
    not count.
    """

    k: int
    concurrency: int
    drafted: Spread
    plain: Spread | None
    ratio: Spread | None
    length: float | None


class Place(Struct, frozen=True):
    """A concurrency between those that were measured, or beyond the last or the first of them."""

    concurrency: float
    side: Literal["at", "above", "below"]

    def __str__(self) -> str:
        word = "about" if self.side == "at" else self.side
        return f"{word} {self.concurrency:.3g}"


class BreakEven(Struct, frozen=True):
    """Where a drafter begins to cost time: by the median ratio, and by the least and the most."""

    k: int
    place: Place
    earliest: Place
    latest: Place

    @property
    def text(self) -> str:
        """It in words."""
        if self.earliest == self.latest:
            return str(self.place)
        return f"{self.place} ({self.earliest} to {self.latest} by the repeats)"


class FastestK(Struct, frozen=True):
    """The k with the most tokens a second at a concurrency; `others` are within its spread.

    `pays`: whether it is faster than no drafter; None where that was not timed.
    """

    concurrency: int
    k: int
    others: tuple[int, ...]
    pays: bool | None

    @property
    def text(self) -> str:
        """It in words."""
        within = f" (k={', '.join(map(str, self.others))} within its spread)" if self.others else ""
        name = "no drafter" if self.pays is False else f"k={self.k}"
        return f"{name} at {self.concurrency}{within if self.pays is not False else ''}"


class Speed(Struct, frozen=True):
    """What was timed: rows by k and concurrency, the device and its name, new tokens of each request.

    `repeats` is their least number, `how` what was timed.
    """

    rows: tuple[SpeedRow, ...]
    device: str
    card: str
    max_tokens: int
    repeats: int
    how: str

    @property
    def by_k(self) -> Mapping[int, tuple[SpeedRow, ...]]:
        """The rows of each k."""
        ks = dict.fromkeys(row.k for row in self.rows)
        return {k: tuple(row for row in self.rows if row.k == k) for k in ks}

    @property
    def text(self) -> str:
        """The ratios in one line; "" without any."""
        lines = {
            k: ", ".join(f"{row.ratio.median:.2f}x at {row.concurrency}" for row in rows if row.ratio)
            for k, rows in self.by_k.items()
        }
        if len(lines) == 1:
            return next(iter(lines.values()))
        return "; ".join(f"k={k}: {line}" for k, line in lines.items() if line)

    @property
    def break_even(self) -> tuple[BreakEven, ...]:
        """That of each k; none where only the drafter was timed."""
        found = []
        for k, rows in self.by_k.items():
            points = [(row.concurrency, row.ratio) for row in rows if row.ratio]
            if len(points) == len(rows):
                places = [
                    find_break_even([(number, getattr(ratio, name)) for number, ratio in points])
                    for name in ("median", "low", "high")
                ]
                found.append(BreakEven(k, *places))
        return tuple(found)

    @property
    def fastest(self) -> tuple[FastestK, ...]:
        """The fastest k at each concurrency; none where one k was timed."""
        concurrencies = dict.fromkeys(row.concurrency for row in self.rows)
        groups = [[row for row in self.rows if row.concurrency == number] for number in concurrencies]
        return tuple(map(choose_k, groups)) if len(self.by_k) > 1 else ()


def find_break_even(points: Sequence[tuple[int, float]]) -> Place:
    """The first place where the ratio falls below 1, of (concurrency, ratio) in rising order.

    Between two that were measured the ratio is taken to fall evenly over the logarithm of the concurrency.
    """
    first, ratio = points[0]
    if ratio < 1:
        return Place(first, "below")
    for (before, faster), (after, slower) in pairwise(points):
        if slower < 1:
            share = (faster - 1) / (faster - slower)
            return Place(before * (after / before) ** share, "at")
    return Place(points[-1][0], "above")


def choose_k(rows: Sequence[SpeedRow]) -> FastestK:
    """The fastest of rows of one concurrency, by its median; others whose repeats reach it are named."""
    best = max(rows, key=lambda row: row.drafted.median)
    others = tuple(row.k for row in rows if row is not best and row.drafted.high >= best.drafted.low)
    pays = None if best.ratio is None else best.ratio.median > 1
    return FastestK(best.concurrency, best.k, others, pays)


def compare_timings(
    k: int, drafted: Sequence[Timing], plain: Sequence[Timing] | None
) -> tuple[SpeedRow, ...]:
    """A row for each concurrency; both runs timed the same ones, and a repeat of both the same prompts."""
    rows = []
    for timing, other in zip(drafted, [None] * len(drafted) if plain is None else plain, strict=True):
        without = ratio = None
        if other is not None:
            without = Spread.of(other.rates)
            # one of the runs may have had time for more repeats
            ratio = Spread.of([fast / slow for fast, slow in zip(timing.rates, other.rates, strict=False)])
        spread = Spread.of(timing.rates)
        rows.append(SpeedRow(k, timing.concurrency, spread, without, ratio, timing.length))
    return tuple(rows)


def measure_speed(job: EngineJob, ks: Sequence[int], concurrencies: Sequence[int]) -> Speed:
    """Time vLLM on the prompts of `job` without the drafter, and with it at each k.

    Raises as `run_installed` does.
    """
    texts = tokenise(job)
    request = {"concurrencies": list(concurrencies)}
    report_step(job.on_progress, "timing without the drafter")
    plain = ask(SERVED, job, "plain", texts, request)
    answers = [plain]
    for k in ks:
        report_step(job.on_progress, f"timing with the drafter, k={k}")
        answers.append(ask(SERVED, replace(job, k=k), "generate", texts, request))
    runs = [convert(answer["timings"], tuple[Timing, ...]) for answer in answers]
    rows = [row for k, run in zip(ks, runs[1:], strict=True) for row in compare_timings(k, run, runs[0])]
    repeats = min(len(timing.batches) for timings in runs for timing in timings)
    how = ON_CPU
    if plain["device"] != "cpu":
        graphs = EAGER if plain["is_eager"] else GRAPHS
        how = HOW.format(plain["version"], graphs, job.max_tokens)
    return Speed(tuple(rows), plain["device"], plain["card"], job.max_tokens, repeats, how)
