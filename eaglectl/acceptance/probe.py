"""Probes on the reference engine: would another reading of the file predict the target better, and how does drafting drift?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eaglectl.acceptance.job import Job
from eaglectl.acceptance.measurement import Estimate, Measurement, PromptResult, measure, ratio
from eaglectl.acceptance.prompts import Prompt
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import Usage

DEPTH = 7
TEMPLATE = "<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
SYSTEM = (
    "You are the keeper of a lighthouse. Answer every question in the voice of an old sailor, and never mention"
    " ships.\n\n{text}"
)
FILLER = "The logbook of the station lists wind, cloud, pressure and the ships that passed, one line for each watch. "
LONGEST = 2048
ROPE_DEFAULT = 10000.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Another way to read the file: what is different, the option that says so, and the acceptance it gives."""

    name: str
    option: str
    measured: Measurement
    ratio: Estimate

    @property
    def is_better(self) -> bool:
        """Whether this reading drafts better than the stated one beyond doubt."""
        return self.ratio.low > 1.0


@dataclass(frozen=True, slots=True)
class Drift:
    """One condition: acceptance by depth, growth of the fed-back state's RMS, and attention on the first and on own tokens by depth."""

    name: str
    measured: Measurement
    state_growth: tuple[float, ...]
    on_first: tuple[float, ...]
    on_own: tuple[float, ...]


def probe_sensitivity(job: Job, results: Sequence[PromptResult]) -> tuple[Reading, ...]:
    """Every doubtful setting flipped, on the same prompts as `results`, which are those of the stated reading."""
    stage = _Stage(job)
    found = []
    for name, option, drafter, boundaries, is_absolute in _readings(job.drafter, stage.target.depth):
        other = stage.run(drafter, boundaries, is_absolute=is_absolute)
        if other is not None:
            found.append(Reading(name, option, measure(other, job.seed), ratio(other, results, job.seed)))
    return tuple(found)


def probe_drift(job: Job) -> tuple[Drift, ...]:
    """The prompts under another chat template, a foreign system prompt and long context, drafted to depth 7."""
    stage = _Stage(replace(job, k=DEPTH))
    found = []
    for name, prompts in _conditions(job, stage).items():
        watched = _Watched(stage.drafter)
        results = stage.run(job.drafter, stage.target.boundaries, prompts=prompts, watcher=watched)
        assert results is not None
        found.append(Drift(name, measure(results, job.seed), *watched.means()))
    return tuple(found)


def _readings(drafter: Drafter, depth: int) -> Iterator[tuple[str, str, Drafter, tuple[int, ...], bool]]:
    boundaries = drafter.aux.boundaries or ()
    for step in (-1, 1):
        shifted = tuple(b + step for b in boundaries)
        if shifted and min(shifted) >= 0 and max(shifted) <= depth:
            yield f"aux boundaries {step:+d}", f"--aux-layers {','.join(map(str, shifted))}", drafter, shifted, False
    norms = drafter.norms
    flipped = not norms.norm_output
    yield (
        f"norm_output {_word(flipped)}",
        f"--source-semantics norm_output={_word(flipped)}",
        replace(drafter, norms=replace(norms, norm_output=flipped)),
        boundaries,
        False,
    )
    flipped = not norms.norm_before_residual
    other = replace(drafter, norms=replace(norms, norm_before_residual=flipped))
    yield (
        f"norm_before_residual {_word(flipped)}",
        f"--source-semantics norm_before_residual={_word(flipped)}",
        other,
        boundaries,
        False,
    )
    if drafter.rope.theta != ROPE_DEFAULT:
        yield (
            "rope base 10000",
            "--source-semantics rope=10000",
            replace(drafter, rope=replace(drafter.rope, theta=ROPE_DEFAULT)),
            boundaries,
            False,
        )
    if drafter.has_reduced_vocabulary:
        yield "d2t as absolute ids", "--source-semantics d2t=absolute", drafter, boundaries, True


def _word(flag: bool) -> str:
    return str(flag).lower()


class _Stage:
    """The target loaded once; drafters on it are cheap."""

    def __init__(self, job: Job) -> None:
        from eaglectl.acceptance.reference_engine import load_tokenizer, tokenise
        from eaglectl.reference import target as targets

        self.job = job
        device, self.dtype = targets.choose_device(job.device)
        self.device = "cuda" if device == "auto" else device
        self.target = targets.load_target(job.target, job.drafter.aux.boundaries or (), dtype=self.dtype, device=device)
        self.context = getattr(self.target.model.config, "max_position_embeddings", None) or LONGEST
        self.tokenizer = load_tokenizer(job.target)
        self.prompts = tokenise(job, self.target.model.config)
        self.drafter = self._load(job.drafter)

    def run(
        self, drafter: Drafter, boundaries: tuple[int, ...], *, is_absolute: bool = False, prompts: list[list[int]] | None = None, watcher: Any = None
    ) -> list[PromptResult] | None:  # fmt: skip
        """Acceptance under a reading; None where the reading is impossible (ids past the vocabulary)."""
        from eaglectl.acceptance.reference_engine import BATCH
        from eaglectl.reference.speculation import Settings, Speculation

        model = self.drafter if drafter is self.job.drafter else self._load(drafter)
        if is_absolute:
            model = self._load(drafter)
            if not model.read_d2t_as_absolute(self.target.embedding.shape[0]):
                return None
        self.target.watch(boundaries)
        settings = Settings(self.job.k, self.job.max_tokens, self.job.temperature, self.job.seed)
        chosen, results = prompts or self.prompts, []
        for start in range(0, len(chosen), BATCH):
            found = Speculation(self.target, model, settings, watcher).run(chosen[start : start + BATCH])
            results += [PromptResult("probe", f.drafts, f.accepted, f.tokens) for f in found]
        return results

    def _load(self, drafter: Drafter) -> Any:
        from eaglectl.reference.loading import load_drafter

        return load_drafter(self.job.folder, drafter, dtype=self.dtype, device=self.device)


class _Watched:
    """Sums by depth over a run: RMS of the fed-back state against that of depth 0, and where the last query looked."""

    def __init__(self, drafter: Any) -> None:
        self.drafter = drafter
        self.drafter.looked = []
        self.sums: dict[int, list[float]] = {}

    def __call__(self, depth: int, state: Any, known: Any) -> None:
        rms = state.float().pow(2).mean(-1).sqrt()[:, 0]
        looked = self.drafter.looked[-1]
        first = looked.gather(1, known.long().argmax(1)[:, None]).mean()
        own = looked[:, looked.shape[1] - depth :].sum(1).mean() if depth else looked.new_zeros(())
        sums = self.sums.setdefault(depth, [0.0, 0.0, 0.0, 0.0])
        for place, value in enumerate((1.0, float(rms.mean()), float(first), float(own))):
            sums[place] += value
        self.drafter.looked.clear()

    def means(self) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        self.drafter.looked = None
        rows = [[value / sums[0] for value in sums[1:]] for _, sums in sorted(self.sums.items())]
        base = rows[0][0] or 1.0
        return tuple(row[0] / base for row in rows), tuple(row[1] for row in rows), tuple(row[2] for row in rows)


def _conditions(job: Job, stage: _Stage) -> Mapping[str, list[list[int]]]:
    from eaglectl.acceptance.reference_engine import token_ids

    room = min(stage.context, LONGEST) - job.max_tokens - DEPTH
    filler = token_ids(stage.tokenizer, Prompt(FILLER))

    def written(form: str) -> list[list[int]]:
        return [token_ids(stage.tokenizer, Prompt(form.format(text=prompt.text))) for prompt in job.prompts]

    def lengthened(ids: list[int]) -> list[int]:
        short = room - len(ids)
        return (filler * (short // len(filler) + 1))[: max(short, 0)] + ids

    found = {
        "as given": stage.prompts,
        "another template": written(TEMPLATE),
        "foreign system prompt": written(SYSTEM),
        "long context": [lengthened(ids) for ids in stage.prompts],
    }
    fitting = {name: [ids for ids in prompts if len(ids) <= room] for name, prompts in found.items()}
    if not all(fitting.values()):
        raise Usage(
            f"--probe drift: the target's context of {stage.context} leaves no room for these prompts under every"
            " condition; give shorter ones"
        )
    return fitting
