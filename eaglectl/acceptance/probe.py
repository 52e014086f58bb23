"""Probes on the reference engine: doubtful settings of the file the other way, and drift by draft depth."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from eaglectl.acceptance.job import EngineJob
from eaglectl.acceptance.measurement import Estimate, Measurement, PromptResult, measure, ratio
from eaglectl.acceptance.prompts import Prompt
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import UsageError

if TYPE_CHECKING:
    from eaglectl.reference.model import DraftModel
    from eaglectl.reference.speculation import OnDraftStep

DEPTH = 7
TEMPLATE = "<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
SYSTEM = (
    "You are the keeper of a lighthouse. Answer every question in the voice of an old sailor, and never"
    " mention ships.\n\n{text}"
)
FILLER = (
    "The logbook of the station lists wind, cloud, pressure and the ships that passed, one line for each"
    " watch. "
)
MAX_CONTEXT = 2048
DEFAULT_ROPE_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class Variant:
    """Another way to read the file: the option for it, its acceptance, and the ratio to the stated way."""

    name: str
    option: str
    measured: Measurement
    ratio: Estimate

    @property
    def is_better(self) -> bool:
        """Whether it drafts better than the stated way: the whole interval of the ratio is above 1."""
        return self.ratio.low > 1.0


@dataclass(frozen=True, slots=True)
class DriftCondition:
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


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A variant before it is run: the drafter, and the aux boundaries that it gets."""

    name: str
    option: str
    drafter: Drafter
    boundaries: tuple[int, ...]
    is_d2t_absolute: bool = False


def probe_sensitivity(job: EngineJob, results: Sequence[PromptResult]) -> tuple[Variant, ...]:
    """Each doubtful setting the other way, against `results`, those of the stated settings."""
    stage = _Stage(job)
    variants = []
    for candidate in _candidates(job.drafter, stage.target.depth):
        other = stage.run_candidate(candidate)
        if other is not None:
            measured = measure(other)
            variants.append(Variant(candidate.name, candidate.option, measured, ratio(other, results)))
    return tuple(variants)


def probe_drift(job: EngineJob) -> tuple[DriftCondition, ...]:
    """The prompts as given, in another template, after a system prompt, and in long context, to depth 7."""
    if given := next((prompt for prompt in job.prompts if not prompt.text), None):
        kind = "messages" if given.messages else "token ids"
        raise UsageError(
            f"--probe drift writes the prompts' text into other templates, and {given.place or 'a prompt'} is"
            f" {kind}; give --prompts as text, or --probe sensitivity"
        )
    stage = _Stage(replace(job, k=DEPTH))
    conditions = []
    for name, texts in _texts_by_condition(job, stage).items():
        recorder = _DriftRecorder(stage.drafter)
        results = stage.run(stage.drafter, texts, on_draft_step=recorder)
        conditions.append(DriftCondition(name, measure(results), *recorder.means()))
    return tuple(conditions)


def _candidates(drafter: Drafter, depth: int) -> Iterator[_Candidate]:
    """Variants of `drafter` for a target of `depth` layers."""
    boundaries = drafter.aux.boundaries or ()
    for step in (-1, 1):
        shifted = tuple(boundary + step for boundary in boundaries)
        if shifted and min(shifted) >= 0 and max(shifted) <= depth:
            option = f"--aux-layers {','.join(map(str, shifted))}"
            yield _Candidate(f"aux boundaries {step:+d}", option, drafter, shifted)
    for switch in ("norm_output", "norm_before_residual"):
        flipped = not getattr(drafter.norms, switch)
        value = str(flipped).lower()
        norms = replace(drafter.norms, **{switch: flipped})
        option = f"--source-semantics {switch}={value}"
        yield _Candidate(f"{switch} {value}", option, replace(drafter, norms=norms), boundaries)
    if drafter.rope.theta != DEFAULT_ROPE_THETA:
        rope = replace(drafter.rope, theta=DEFAULT_ROPE_THETA)
        yield _Candidate(
            "rope base 10000", "--source-semantics rope=10000", replace(drafter, rope=rope), boundaries
        )
    if drafter.rope.scaling is not None and "mrope_section" not in drafter.rope.scaling:
        rope = replace(drafter.rope, scaling=None)
        yield _Candidate(
            "rope without scaling", "--source-semantics rope=plain", replace(drafter, rope=rope), boundaries
        )
    if drafter.has_reduced_vocabulary:
        yield _Candidate(
            "d2t as absolute ids",
            "--source-semantics d2t=absolute",
            drafter,
            boundaries,
            is_d2t_absolute=True,
        )


class _Stage:
    """The target loaded once, with the prompts of a job; drafters are loaded for each variant."""

    def __init__(self, job: EngineJob) -> None:
        from eaglectl.acceptance.tokens import stop_tokens, tokenise
        from eaglectl.reference import target as targets

        self.job = job
        self.boundaries = job.drafter.aux.boundaries or ()
        device, self.dtype = targets.choose_device(job.device)
        self.device = targets.drafter_device(device)
        trust = job.trust_remote_code
        self.target = targets.load_target(
            job.target, self.boundaries, dtype=self.dtype, device=device, trust_remote_code=trust
        )
        self.texts = tokenise(job, self.target.context_length)
        self.stop = stop_tokens(job)
        self.drafter = self._load(job.drafter)

    def run_candidate(self, candidate: _Candidate) -> list[PromptResult] | None:
        """Results of a variant; None where it is impossible (d2t as absolute ids past the vocabulary)."""
        model = self._model(candidate)
        if candidate.is_d2t_absolute and not model.read_d2t_as_absolute(self.target.embedding.shape[0]):
            return None
        return self.run(model, self.texts, candidate.boundaries)

    def run(
        self,
        model: "DraftModel",
        texts: Sequence[Sequence[int]],
        boundaries: tuple[int, ...] | None = None,
        on_draft_step: "OnDraftStep | None" = None,
    ) -> list[PromptResult]:
        """Results of `model` on tokenised prompts, with the job's aux boundaries or others."""
        from eaglectl.acceptance.reference_engine import BATCH
        from eaglectl.reference.speculation import DecodingSettings, SpeculativeDecoder

        job = self.job
        self.target.record(self.boundaries if boundaries is None else boundaries)
        settings = DecodingSettings(job.k, job.max_tokens, job.temperature, job.seed, self.stop)
        results = []
        for start in range(0, len(texts), BATCH):
            decoder = SpeculativeDecoder(self.target, model, settings, on_draft_step)
            for sequence in decoder.run(texts[start : start + BATCH]):
                results.append(PromptResult("probe", sequence.drafts, sequence.accepted, sequence.tokens))
        return results

    def _model(self, candidate: _Candidate) -> "DraftModel":
        if candidate.drafter is self.job.drafter and not candidate.is_d2t_absolute:
            return self.drafter
        return self._load(candidate.drafter)

    def _load(self, drafter: Drafter) -> "DraftModel":
        from eaglectl.reference.loading import load_drafter

        return load_drafter(self.job.folder, drafter, dtype=self.dtype, device=self.device)


class _DriftRecorder:
    """Means by draft depth: RMS of the fed-back state, and attention on the first and on own tokens."""

    def __init__(self, drafter: "DraftModel") -> None:
        self.drafter = drafter
        self.attention: list[Any] = []
        self.drafter.attention_log = self.attention
        self.sums: dict[int, list[float]] = {}

    def __call__(self, depth: int, state: Any, valid: Any) -> None:
        """Add one draft step (reference/speculation.py, OnDraftStep)."""
        rms = state.float().pow(2).mean(-1).sqrt()[:, 0]
        weights = self.attention[-1]
        first = weights.gather(1, valid.long().argmax(1)[:, None]).mean()
        own = weights[:, weights.shape[1] - depth :].sum(1).mean() if depth else weights.new_zeros(())
        sums = self.sums.setdefault(depth, [0.0, 0.0, 0.0, 0.0])
        for index, value in enumerate((1.0, float(rms.mean()), float(first), float(own))):
            sums[index] += value
        self.attention.clear()

    def means(self) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        """Growth of the state, attention on the first token, attention on own tokens: each by depth."""
        self.drafter.attention_log = None
        means = [[value / sums[0] for value in sums[1:]] for _, sums in sorted(self.sums.items())]
        sizes, first, own = zip(*means, strict=True)
        return tuple(size / (sizes[0] or 1.0) for size in sizes), first, own


def _texts_by_condition(job: EngineJob, stage: _Stage) -> Mapping[str, list[list[int]]]:
    """Tokenised prompts that fit the context, by condition. Raises UsageError where none fits."""
    from eaglectl.acceptance.tokens import token_ids
    from eaglectl.reference.target import load_tokenizer

    tokenizer = load_tokenizer(job.target, trust_remote_code=job.trust_remote_code)
    context: int = stage.target.context_length or MAX_CONTEXT
    longest = min(context, MAX_CONTEXT) - job.max_tokens - DEPTH
    filler = token_ids(tokenizer, Prompt(FILLER))

    def formatted(form: str) -> list[list[int]]:
        return [token_ids(tokenizer, Prompt(form.format(text=prompt.text))) for prompt in job.prompts]

    def lengthened(ids: list[int]) -> list[int]:
        missing = longest - len(ids)
        return (filler * (missing // len(filler) + 1))[: max(missing, 0)] + ids

    texts: dict[str, Any] = {
        "as given": stage.texts,
        "another template": formatted(TEMPLATE),
        "foreign system prompt": formatted(SYSTEM),
        "long context": [lengthened(ids) for ids in stage.texts],
    }
    fitting = {name: [ids for ids in group if len(ids) <= longest] for name, group in texts.items()}
    if not all(fitting.values()):
        raise UsageError(
            f"--probe drift: the target's context of {context} leaves no room for these prompts under every"
            " condition; give shorter ones"
        )
    return fitting
