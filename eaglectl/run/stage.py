"""The target and a drafter loaded once, with the prompts of a job, for several runs, drafters or readings."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from eaglectl.conversion.readings import moves
from eaglectl.drafter.drafter import Drafter
from eaglectl.run.candidates import Candidate
from eaglectl.run.job import EngineJob
from eaglectl.run.measurement import PromptResult
from eaglectl.run.prompts import batches_by_length

if TYPE_CHECKING:
    from pathlib import Path

    from eaglectl.reference.model import DraftModel
    from eaglectl.reference.speculation import DecodingSettings, OnDraftStep
    from eaglectl.reference.target import TargetModel

OnDone = Callable[[int], None]  # called with how many more prompts are done


class Stage:
    """The target and the drafter, loaded once, with the prompts of a job as token ids."""

    def __init__(self, job: EngineJob) -> None:
        from eaglectl.reference import target as targets
        from eaglectl.run.tokens import stop_tokens, tokenise

        self.job = job
        self.boundaries = job.drafter.aux.boundaries or ()
        self.device, self.dtype = targets.choose_device(job.device)
        trust = job.trust_remote_code
        self.target = targets.load_target(
            job.target,
            self.boundaries,
            dtype=self.dtype,
            device=self.device,
            trust_remote_code=trust,
            on_progress=job.on_progress,
        )
        self.texts = tokenise(job, self.target.context_length)
        self.stop = stop_tokens(job)
        self.drafter = self.load(job.folder, job.drafter)

    def load(self, folder: "Path", drafter: Drafter) -> "DraftModel":
        """The model of a drafter in vLLM's layout, on the device of this one."""
        from eaglectl.reference.loading import load_drafter
        from eaglectl.reference.target import drafter_device

        return load_drafter(folder, drafter, dtype=self.dtype, device=drafter_device(self.device))

    def model(self, candidate: Candidate) -> "DraftModel | None":
        """The drafter read as `candidate` says; None for d2t as absolute ids past the vocabulary.

        Raises RefusedError for a rope that the reference does not have.
        """
        from eaglectl.reference.model import DraftModel
        from eaglectl.reference.teacher_forcing import moved_weights, with_draft_tokens

        weights, other, reading = self.drafter.weights, candidate.drafter, candidate.reading
        if reading is not None:
            asked = moves(other, reading.key, reading.value)
            weights = moved_weights(
                weights, {move.name: (move.source, move.rows, move.blocks) for move in asked}
            )
        if candidate.tokens:
            weights = with_draft_tokens(weights, candidate.tokens)
        model = DraftModel(weights, other.dims, other.norms, other.rope, self.drafter.eps, other.windows)
        if candidate.is_d2t_absolute and not model.read_d2t_as_absolute(self.target.embedding.shape[0]):
            return None
        return model

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
        names = [prompt.set for prompt in job.prompts]
        return [replace(result, set=name) for result, name in zip(results, names, strict=True)]


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
    for indices in batches_by_length(texts, settings.max_tokens):
        sequences = decoder.run([texts[index] for index in indices])
        for index, sequence in zip(indices, sequences, strict=True):
            results[index] = PromptResult(
                "probe", sequence.drafts, sequence.accepted, sequence.tokens, sequence.rounds
            )
        if on_done:
            on_done(len(indices))
    return [results[index] for index in range(len(texts))]
