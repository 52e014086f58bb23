"""The reference engine: the target in transformers, the drafter in plain torch."""

import time

from eaglectl.acceptance.job import EngineJob, EngineRun
from eaglectl.acceptance.measurement import PromptResult
from eaglectl.acceptance.tokens import stop_tokens, tokenise
from eaglectl.errors import UnreadableError, UsageError

BATCH = 8


def run_reference(job: EngineJob) -> EngineRun:
    """Run `job` in torch.

    Raises UnreadableError without torch or the device, UsageError for unknown aux layers or prompts that do
    not fit.
    """
    try:
        from eaglectl.reference.loading import load_drafter
        from eaglectl.reference.speculation import DecodingSettings, SpeculativeDecoder
        from eaglectl.reference.target import choose_device, drafter_device, load_target, version_text
    except ImportError:
        raise UnreadableError(
            "the reference engine needs torch and transformers; install eaglectl's torch extra: pip install"
            " '.[torch]' in a checkout"
        ) from None
    device, dtype = choose_device(job.device)
    boundaries = job.drafter.aux.boundaries
    if boundaries is None:
        raise UsageError("the trained aux layers are not known; pass --aux-layers")
    trust = job.trust_remote_code
    target = load_target(job.target, boundaries, dtype=dtype, device=device, trust_remote_code=trust)
    drafter = load_drafter(job.folder, job.drafter, dtype=dtype, device=drafter_device(device))
    texts = tokenise(job, target.context_length)
    settings = DecodingSettings(job.k, job.max_tokens, job.temperature, job.seed, stop_tokens(job))
    results: list[PromptResult] = []
    plain: list[tuple[int, ...]] = []
    seconds = plain_seconds = 0.0
    for start in range(0, len(texts), BATCH):
        batch, prompts = texts[start : start + BATCH], job.prompts[start : start + BATCH]
        begin = time.perf_counter()
        drafted = SpeculativeDecoder(target, drafter, settings).run(batch)
        middle = time.perf_counter()
        plain += [sequence.tokens for sequence in SpeculativeDecoder(target, None, settings).run(batch)]
        seconds += middle - begin
        plain_seconds += time.perf_counter() - middle
        results += [
            PromptResult(prompt.set, sequence.drafts, sequence.accepted, sequence.tokens)
            for prompt, sequence in zip(prompts, drafted, strict=True)
        ]
        job.report_progress(len(results))
    return EngineRun(
        engine="reference",
        version=version_text(),
        device=device,
        dtype=dtype,
        proves="the drafter's maths and its fit to the target; not what an engine loads",
        results=tuple(results),
        plain=tuple(plain),
        seconds=seconds,
        plain_seconds=plain_seconds,
        resolved={
            "boundaries": list(boundaries),
            "attention": job.drafter.dims.attention,
            "draft_sample_method": "greedy",
        },
    )
