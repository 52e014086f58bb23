"""The target loaded once, with the prompts of a job, for several drafters or readings of one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eaglectl.acceptance.candidates import Candidate
from eaglectl.acceptance.job import EngineJob
from eaglectl.acceptance.measurement import PromptResult
from eaglectl.conversion.readings import moves

if TYPE_CHECKING:
    from eaglectl.reference.model import DraftModel
    from eaglectl.reference.speculation import OnDraftStep


class Stage:
    """The target and the drafter, loaded once, with the prompts of a job as token ids."""

    def __init__(self, job: EngineJob) -> None:
        from eaglectl.acceptance.tokens import stop_tokens, tokenise
        from eaglectl.reference import target as targets
        from eaglectl.reference.loading import load_drafter

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
        self.drafter = load_drafter(job.folder, job.drafter, dtype=self.dtype, device=self.device)

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
        model = DraftModel(weights, other.dims, other.norms, other.rope, self.drafter.eps)
        if candidate.is_d2t_absolute and not model.read_d2t_as_absolute(self.target.embedding.shape[0]):
            return None
        return model

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
