"""The reference engine: the target in transformers, the drafter in plain torch."""

import time

from eaglectl.drafter.drafter import Feature
from eaglectl.engines.engine import NetworkReading
from eaglectl.errors import RefusedError, UsageError
from eaglectl.progress import TimedWork
from eaglectl.run.candidates import Candidate
from eaglectl.run.job import EngineJob, EngineRun
from eaglectl.run.process import require_torch
from eaglectl.run.stage import Stage

PROVES = "the drafter's maths and its fit to the target; not what an engine loads"


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
            " (mask_hidden); use --engine vllm"
        )
    with_plain = job.compares_plain and reading is None
    parts = 2 if with_plain else 1
    work = TimedWork(job.on_progress, "measuring", parts * len(job.prompts))
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
    end = time.perf_counter()
    return EngineRun(
        engine="reference",
        version=version_text(),
        device=stage.device,
        dtype=stage.dtype,
        proves=f"the drafter {reading.words}; not the engine itself" if reading else PROVES,
        results=tuple(results),
        plain=tuple(result.tokens for result in plain),
        seconds=middle - begin,
        plain_seconds=end - middle,
        resolved={
            "boundaries": list(boundaries),
            "attention": job.drafter.dims.attention,
            "draft_sample_method": "greedy",
        },
    )
