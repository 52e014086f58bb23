"""Diagnoses of the trained pairs, and what stands in for runs of engines."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import eaglectl
from eaglectl.run.diagnosis import Diagnosis
from eaglectl.run.job import EngineRun
from eaglectl.run.measurement import measure
from tests.pairs import TINY, Trained, write_prompts
from tests.tiny import FAULTS, TARGET

TOKENS = 20
# how each fault of tests/tiny.py that is not seen by a rule ends here, on prompts that may be too few
RUN = {
    "aux layers one early": {"other-reading"},
    "aux layers one late": {"other-layers"},
    "norm_output on": {"other-reading"},
    "norm_before_residual on": {"other-reading"},
    "norm_output off": {"other-reading"},
    "rope base lost": {"other-reading", "too-few"},
}
LAYERS, FAST = "aux layers elsewhere", "norm_output on"
READ = [fault for fault in FAULTS if fault.name not in (*RUN, LAYERS)]


def prompts_file(
    folder: Path, name: str = "prompts", start: int = 0, count: int = TINY.prompts, trained: Trained = TINY
) -> Path:
    """Prompts of the pair, cut, as a file."""
    return write_prompts(folder / "prompts.jsonl", trained.texts(name)[start : start + count])


def diagnose(drafter: Path, prompts: Path, target: Path = TARGET, **given: Any) -> Diagnosis:
    options = eaglectl.DiagnoseOptions(**{"prompts": prompts, "max_tokens": TOKENS, "device": "cpu", **given})
    return eaglectl.diagnose(str(drafter), str(target), options)


def dead(run: EngineRun) -> EngineRun:
    return replace(run, results=tuple(replace(r, accepted=(0,) * len(r.accepted)) for r in run.results))


SETTING = ("norm_output: vLLM uses False, the checkpoint means True",)
# what an engine did, and the cause that it ends in
ENGINE: dict[str, tuple[Callable[[EngineRun], EngineRun], str]] = {
    "another setting": (lambda run: replace(run, differences=SETTING), "engine-setting"),
    "unfilled": (lambda run: replace(run, resolved={"unfilled": ["fc.weight"]}), "engine-unfilled"),
    "dead alone": (lambda run: replace(dead(run), resolved={"unfilled": []}), "engine-lower"),
    "level": (lambda run: replace(run, resolved={"unfilled": []}), "healthy"),
}


def reference(diagnosis: Diagnosis) -> Any:
    """The report of the reference's run."""
    assert diagnosis.evidence.reference is not None
    return diagnosis.evidence.reference


def scaled(diagnosis: Diagnosis, share: float, every: int = 1) -> Any:
    """The reference's report with this share of its accepted tokens, of each prompt or of every so many."""
    report = reference(diagnosis)
    results = tuple(
        replace(r, accepted=tuple(round(share * count) for count in r.accepted)) if not place % every else r
        for place, r in enumerate(report.run.results)
    )
    return replace(report, run=replace(report.run, results=results), measured=measure(results))
