"""The reference engine: the target in transformers, the drafter in plain torch.

A Stage has both loaded once, with the prompts of a job, for several runs, drafters or readings.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.readings import FixReading, Move, moves
from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.engines.engine import NetworkReading
from eaglectl.errors import RefusedError, UsageError
from eaglectl.progress import TimedWork
from eaglectl.run.job import EngineJob, EngineRun
from eaglectl.run.measurement import PromptResult
from eaglectl.run.process import require_torch
from eaglectl.run.prompts import batches_by_length

if TYPE_CHECKING:
    from pathlib import Path

    from eaglectl.reference.model import DraftModel, Weights
    from eaglectl.reference.speculation import DecodingSettings, OnDraftStep
    from eaglectl.reference.target import TargetModel

PROVES = "the drafter's maths and its fit to the target; not what an engine loads"
OnDone = Callable[[float], None]  # called with how many more prompts are done
# the targets that are loaded once, by folder, dtype, device and trust; None: each stage loads its own
LOADED: ContextVar["dict[object, TargetModel] | None"] = ContextVar("LOADED", default=None)


class Candidate(Struct, frozen=True):
    """A reading: the option of `convert` for it, the drafter as it then is, and its aux boundaries.

    `reading` is set where tensors move; the tensors of `drafter` are the stored ones. `tokens` are the target
    tokens of the draft tokens, where they are not those of d2t.
    """

    name: str
    option: str
    drafter: Drafter
    boundaries: tuple[int, ...]
    is_d2t_absolute: bool = False
    reading: FixReading | None = None
    tokens: tuple[int, ...] = ()


@contextmanager
def loading_once() -> Iterator[None]:
    """Let all stages within share a target that several of them load."""
    token = LOADED.set({} if LOADED.get() is None else LOADED.get())
    try:
        yield
    finally:
        LOADED.reset(token)


class Stage:
    """The target and the drafter, loaded once, with the prompts of a job as token ids."""

    def __init__(self, job: EngineJob) -> None:
        from eaglectl.reference import target as targets
        from eaglectl.run.tokens import stop_tokens, tokenise

        self.job = job
        self.boundaries = job.drafter.aux.boundaries or ()
        self.device, self.dtype = targets.choose_device(job.device)
        loaded = {} if (shared := LOADED.get()) is None else shared
        key = job.target, self.dtype, self.device, job.trust_remote_code
        if key not in loaded:
            loaded[key] = targets.load_target(
                job.target,
                self.boundaries,
                dtype=self.dtype,
                device=self.device,
                trust_remote_code=job.trust_remote_code,
                on_progress=job.on_progress,
            )
        self.target = loaded[key]
        self.target.record(self.boundaries)
        self.texts, self.stop = tokenise(job), stop_tokens(job)
        self.drafter = self.load(job.folder, job.drafter)

    def load(self, folder: "Path", drafter: Drafter) -> "DraftModel":
        """The model of a drafter in vLLM's layout, on the device of this one."""
        from eaglectl.reference.model import load_drafter

        return load_drafter(folder, drafter, dtype=self.dtype, device=self.device)

    def model(self, candidate: Candidate) -> "DraftModel | None":
        """The drafter read as `candidate` says; None for d2t as absolute ids past the vocabulary.

        Raises RefusedError for a rope that the reference does not have.
        """
        from eaglectl.reference.model import DraftModel

        weights, other, tokens = self.drafter.weights, candidate.drafter, candidate.tokens
        if candidate.reading is not None:
            weights = moved_weights(
                weights, moves(self.job.drafter, candidate.reading.key, candidate.reading.value)
            )
        d2t = weights.get("d2t")
        if candidate.is_d2t_absolute:
            if d2t is None or int(d2t.min()) < 0 or int(d2t.max()) >= len(self.target.embedding):
                return None
            tokens = d2t.tolist()
        if tokens and d2t is not None:
            offsets = [token - index for index, token in enumerate(tokens)]
            weights = {**weights, "d2t": d2t.new_tensor(offsets)}
        return DraftModel(weights, other.dims, other.norms, other.rope, self.drafter.eps, other.windows)

    def run(
        self,
        model: "DraftModel | None",
        texts: Sequence[Sequence[int]] | None = None,
        boundaries: tuple[int, ...] | None = None,
        on_draft_step: "OnDraftStep | None" = None,
        on_done: OnDone | None = None,
        k: int | None = None,
    ) -> list[PromptResult]:
        """Results of `model` on the job's prompts or other texts, with its aux boundaries and k or others.

        Without a model, those of plain decoding.
        """
        from eaglectl.reference.speculation import DecodingSettings

        job = self.job
        settings = DecodingSettings(k or job.k, job.max_tokens, job.temperature, job.seed, self.stop)
        self.target.record(self.boundaries if boundaries is None else boundaries)
        given = self.texts if texts is None else texts
        results = decode_prompts(self.target, model, given, settings, on_draft_step, on_done)
        if texts is not None:
            return results
        return [replace(result, set=prompt.set) for result, prompt in zip(results, job.prompts, strict=True)]


def moved_weights(weights: "Weights", moved: Iterable[Move]) -> "Weights":
    """The weights with each moved tensor made of its source."""
    made = {}
    for move in moved:
        tensor = weights[move.source] + move.added if move.added else weights[move.source]
        if move.rows is not None:
            tensor = tensor[list(move.rows)]
        if move.blocks is not None:
            tensor = tensor.unflatten(-1, (len(move.blocks), -1))[..., list(move.blocks), :].flatten(-2)
        made[move.name] = tensor
    return {**weights, **made}


def decode_prompts(
    target: "TargetModel",
    drafter: "DraftModel | None",
    texts: Sequence[Sequence[int]],
    settings: "DecodingSettings",
    on_draft_step: "OnDraftStep | None" = None,
    on_done: OnDone | None = None,
) -> list[PromptResult]:
    """Decode every tokenised prompt, in batches by length; results in the order of `texts`."""
    from eaglectl.reference.speculation import SpeculativeDecoder

    decoder = SpeculativeDecoder(target, drafter, settings, on_draft_step)
    results: dict[int, PromptResult] = {}
    reported = 0.0

    def report(done: float) -> None:
        nonlocal reported
        if on_done:
            on_done(len(results) + done - reported)
        reported = len(results) + done

    for indices in batches_by_length(texts, settings.max_tokens):
        sequences = decoder.run([texts[index] for index in indices], report)
        for index, sequence in zip(indices, sequences, strict=True):
            results[index] = PromptResult(
                "probe", sequence.drafts, sequence.accepted, sequence.tokens, sequence.rounds
            )
        report(0.0)
    return [results[index] for index in range(len(texts))]


def run_reference(job: EngineJob, reading: NetworkReading | None = None) -> EngineRun:
    """Run `job` in torch, with the drafter and, where the job compares, without.

    With a `reading`, the network that an engine makes of the drafter, which is not run without it again.
    Raises UnreadableError without torch or the device, UsageError for unknown aux layers or prompts that do
    not fit, RefusedError for a drafter that drafts in parallel.
    """
    require_torch("the reference engine needs")
    from eaglectl.reference.target import version_text

    if job.drafter.aux.boundaries is None:
        raise UsageError("the trained aux layers are not known; pass --aux-layers")
    if Feature.PARALLEL in job.drafter.features():
        raise RefusedError(
            "the reference engine drafts one token after another, and this drafter drafts in parallel"
            " (mask_hidden); use --run-in vllm"
        )
    with_plain = job.compares_plain and reading is None
    work = TimedWork(job.on_progress, "measuring", (1 + with_plain) * len(job.prompts))
    stage = Stage(job)
    boundaries, model = stage.boundaries, stage.drafter
    if reading is not None:
        boundaries = reading.boundaries or boundaries
        as_read = stage.model(Candidate(reading.words, "", reading.of(job.drafter), boundaries))
        assert as_read is not None, "d2t is read as it was trained"
        model = as_read
    work.start()
    begin = time.perf_counter()
    results = stage.run(model, boundaries=boundaries, on_done=work.add)
    middle = time.perf_counter()
    plain = stage.run(None, on_done=work.add) if with_plain else []
    return EngineRun(
        engine="reference",
        version=version_text(),
        device=stage.device,
        dtype=stage.dtype,
        proves=f"the drafter {reading.words}; not the engine itself" if reading else PROVES,
        results=tuple(results),
        plain=tuple(result.tokens for result in plain),
        seconds=middle - begin,
        plain_seconds=time.perf_counter() - middle,
        resolved={
            "boundaries": list(boundaries),
            "attention": job.drafter.dims.attention,
            "draft_sample_method": "greedy",
        },
    )
