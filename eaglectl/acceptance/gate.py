"""The gate of a conversion: acceptance of the drafter before and after, on the same prompts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.acceptance.job import EngineJob
from eaglectl.acceptance.measurement import Estimate, Measurement, PromptResult, measure, ratio
from eaglectl.acceptance.prompts import batches_by_length
from eaglectl.progress import OnProgress, TimedWork

if TYPE_CHECKING:
    from eaglectl.reference.model import DraftModel
    from eaglectl.reference.speculation import DecodingSettings
    from eaglectl.reference.target import TargetModel

# values of k (num_speculative_tokens) at which the gate measures
DEPTHS = (3, 7)
BATCH = 40
# a drafter with a smaller acceptance length before the conversion is at fault itself
MIN_BASELINE_LENGTH = 1.3


class GateRow(Struct, frozen=True):
    """Acceptance before and after at one `k`; `ratio` is after over before, with its paired 95 % interval."""

    k: int
    before: Measurement
    after: Measurement
    ratio: Estimate


class Gate(Struct, frozen=True):
    """Result of the gate: a row for each k, the number of prompts, the tolerance, and what ran."""

    rows: tuple[GateRow, ...]
    prompts: int
    tolerance: float
    engine: str
    device: str
    dtype: str

    @property
    def is_passed(self) -> bool:
        """Whether the lower bound of every ratio reaches the tolerance."""
        return all(row.ratio.low >= self.tolerance for row in self.rows)

    @property
    def is_baseline_alive(self) -> bool:
        """Whether the drafter was accepted often enough before it was converted."""
        return self.rows[0].before.length.value >= MIN_BASELINE_LENGTH


def run_gate(
    before: EngineJob, after: EngineJob, tolerance: float, on_progress: OnProgress | None = None
) -> Gate:
    """Run both drafters on the prompts of `before` at every k, greedily; the target is loaded once."""
    work = TimedWork(on_progress, "measuring", len(before.prompts) * 2 * len(DEPTHS))
    from eaglectl.acceptance.tokens import stop_tokens, tokenise
    from eaglectl.reference.loading import load_drafter
    from eaglectl.reference.speculation import DecodingSettings
    from eaglectl.reference.target import choose_device, drafter_device, load_target, version_text

    device, dtype = choose_device(before.device)
    boundaries, trust = before.drafter.aux.boundaries or (), before.trust_remote_code
    target = load_target(before.target, boundaries, dtype=dtype, device=device, trust_remote_code=trust)
    models = [
        load_drafter(job.folder, job.drafter, dtype=dtype, device=drafter_device(device))
        for job in (before, after)
    ]
    texts, stop = tokenise(replace(before, k=max(DEPTHS)), target.context_length), stop_tokens(before)
    work.start()
    rows = []
    for k in DEPTHS:
        settings = DecodingSettings(k, before.max_tokens, stop=stop)
        old, new = (decode_prompts(target, model, texts, settings, work) for model in models)
        rows.append(GateRow(k, measure(old), measure(new), ratio(new, old)))
    return Gate(tuple(rows), len(texts), tolerance, version_text(), device, dtype)


def decode_prompts(
    target: "TargetModel",
    drafter: "DraftModel",
    texts: Sequence[Sequence[int]],
    settings: "DecodingSettings",
    work: TimedWork | None = None,
) -> list[PromptResult]:
    """Decode every tokenised prompt; results in the order of `texts`. `work` counts them."""
    from eaglectl.reference.speculation import SpeculativeDecoder

    decoder = SpeculativeDecoder(target, drafter, settings)
    results: dict[int, PromptResult] = {}
    for indices in batches_by_length(texts, BATCH):
        sequences = decoder.run([texts[index] for index in indices])
        for index, sequence in zip(indices, sequences, strict=True):
            results[index] = PromptResult("gate", sequence.drafts, sequence.accepted, sequence.tokens)
        if work:
            work.add(len(indices))
    return [results[index] for index in range(len(texts))]
