"""The reference engine: the target in transformers, the drafter in plain torch."""

import time

from eaglectl.acceptance.job import EngineJob, EngineRun
from eaglectl.acceptance.stage import Stage
from eaglectl.errors import UnreadableError, UsageError
from eaglectl.progress import TimedWork


def run_reference(job: EngineJob) -> EngineRun:
    """Run `job` in torch, with the drafter and without.

    Raises UnreadableError without torch or the device, UsageError for unknown aux layers or prompts that do
    not fit.
    """
    try:
        import eaglectl.reference.loading  # noqa: F401
        from eaglectl.reference.target import version_text
    except ImportError:
        raise UnreadableError(
            "the reference engine needs torch and transformers; install eaglectl's torch extra: pip install"
            " '.[torch]' in a checkout"
        ) from None
    if job.drafter.aux.boundaries is None:
        raise UsageError("the trained aux layers are not known; pass --aux-layers")
    work = TimedWork(job.on_progress, "measuring", 2 * len(job.prompts))
    stage = Stage(job)
    work.start()
    begin = time.perf_counter()
    results = stage.run(stage.drafter, on_done=work.add)
    middle = time.perf_counter()
    plain = stage.run(None, on_done=work.add)
    end = time.perf_counter()
    return EngineRun(
        engine="reference",
        version=version_text(),
        device=stage.device,
        dtype=stage.dtype,
        proves="the drafter's maths and its fit to the target; not what an engine loads",
        results=tuple(results),
        plain=tuple(result.tokens for result in plain),
        seconds=middle - begin,
        plain_seconds=end - middle,
        resolved={
            "boundaries": list(stage.boundaries),
            "attention": job.drafter.dims.attention,
            "draft_sample_method": "greedy",
        },
    )
