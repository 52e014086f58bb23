"""The installed SGLang as an engine, in a child process: a wrong drafter can make it hang or abort."""

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from eaglectl.acceptance.installed import run_installed
from eaglectl.acceptance.job import EngineJob, EngineRun
from eaglectl.acceptance.process import InstalledEngine
from eaglectl.text import listed

SGLANG = InstalledEngine(
    name="sglang",
    title="SGLang",
    package="sglang",
    install="sglang",
    child="eaglectl.acceptance.sglang.child",
    environment={"HF_HUB_OFFLINE": "1"},
)
# made for every layer, and used by the first one alone (SGLang 0.5.23, llama_eagle3.py:95-103)
UNUSED = re.compile(r"layers\.[1-9]\d*\.input_layernorm\.weight")


def run_sglang(job: EngineJob) -> EngineRun:
    """Run `job` in SGLang. Raises as `run_installed` does."""
    run = run_installed(SGLANG, job)
    resolved = dict(run.resolved)
    used = resolved.pop("draft_tokens", None)
    more = (*_other_tokens(used, job.draft_tokens), *_unfilled(resolved.get("unfilled") or []))
    return replace(run, resolved=resolved, differences=(*run.differences, *more))


def _other_tokens(used: Sequence[int] | None, meant: Sequence[int] | None) -> Iterator[str]:
    """Where SGLang takes draft tokens for other tokens of the target than the checkpoint means."""
    if used is None or meant is None or list(used) == list(meant):
        return
    if len(used) != len(meant):
        yield f"d2t: SGLang uses {len(used)} draft tokens, the checkpoint has {len(meant)}"
        return
    number = sum(mine != theirs for mine, theirs in zip(used, meant, strict=True))
    place = next(place for place, pair in enumerate(zip(used, meant, strict=True)) if pair[0] != pair[1])
    yield (
        f"d2t: SGLang takes {number} of {len(meant)} draft tokens for others, the first is {place}: it uses"
        f" token {used[place]}, the checkpoint means {meant[place]}"
    )


def _unfilled(names: Sequence[str]) -> Iterator[str]:
    """Parameters that SGLang uses and nothing fills."""
    if used := [name for name in names if not UNUSED.search(name)]:
        yield f"SGLang uses {listed(used)}, which neither the file nor the target fills"
