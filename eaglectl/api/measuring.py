"""Two conversions of one drafter, run on the target with the same prompts."""

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from eaglectl.api.converting import plan_conversion, write_conversion
from eaglectl.api.copies import OpenedSource
from eaglectl.api.options import ConvertOptions
from eaglectl.checkpoint.scratch import scratch_folder
from eaglectl.drafter.drafter import Target
from eaglectl.progress import LOADING, OnProgress, report_step

if TYPE_CHECKING:
    from eaglectl.acceptance.gate import Gate
    from eaglectl.acceptance.prompts import Prompt

MAX_TOKENS = 64


class PairMeasurement(Struct, frozen=True):
    """A drafter, the target in `folder` that runs it, the prompts and the device; `max_tokens` per prompt."""

    files: OpenedSource
    target: Target
    folder: Path
    prompts: "tuple[Prompt, ...]"
    device: str = "auto"
    max_tokens: int = MAX_TOKENS
    trust_remote_code: bool = False
    ignore_eos: bool = False

    def measure(
        self,
        before: ConvertOptions,
        after: ConvertOptions,
        tolerance: float,
        on_progress: OnProgress | None = None,
    ) -> "Gate":
        """Convert the drafter both ways into a temporary folder and measure the acceptance of each."""
        report_step(on_progress, LOADING)
        from eaglectl.acceptance.gate import run_gate
        from eaglectl.acceptance.job import EngineJob

        with scratch_folder() as scratch:
            jobs = []
            for side, options in (("before", before), ("after", after)):
                plan = plan_conversion(self.files, self.target, options)
                write_conversion(self.files, plan, scratch / side, options)
                job = EngineJob(
                    scratch / side,
                    plan.drafter,
                    self.folder,
                    self.prompts,
                    max_tokens=self.max_tokens,
                    device=self.device,
                    trust_remote_code=self.trust_remote_code,
                    ignores_eos=self.ignore_eos,
                )
                jobs.append(job)
            return run_gate(jobs[0], jobs[1], tolerance, on_progress)
