"""The keys in docs/targets.md: where each release looks for a fact, and what a layout leaves out."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tables import table

import eaglectl
from eaglectl.engines.behaviour import ranges, unversioned
from eaglectl.engines.registry import ENGINES
from tools import key_readers as keys
from tools.key_readers import FOLLOWED, UNVERSIONED

HEAD = """## Which keys of config.json a release reads

From `eaglectl/engines/*_releases.json`, which tests compare with scans of the releases' sources. If an engine
looks in several places, the first that states the fact decides; no key changes a *fixed* value. Classes are
those of the drafter: Llama, Qwen3 or MLA. `tests/test_keys.py` checks `convert` against this table: for every
release and runner of its engine, a layout has a key that is read, with the trained value. Ids are boundaries,
but layer outputs in vLLM's `target_layer_ids`, in TensorRT-LLM's serving config and, for most targets, in
SGLang's `eagle_config`. ATOM takes boundaries there, so that one file cannot serve both.
"""
LEFT_HEAD = """
For each layout, the values that an engine looks for and does not find as they were trained (with the drafter
`fixtures/producers/specforge/gqa-ids`):
"""
FIXTURES = Path(__file__).parent.parent / "fixtures"
DRAFTER, TARGET = FIXTURES / "producers/specforge/gqa-ids", FIXTURES / "target"
LAYOUTS = ("vllm", "sglang", "llama.cpp")


def section() -> str:
    """The section with its heading."""
    rows = [row for engine in (*FOLLOWED, *UNVERSIONED) for row in _rows(engine)]
    head = ("engine", "fact", "runner", "class", "keys in their order", "releases")
    left = table(("layout", "engine", "fact", "releases"), _left())
    return f"{HEAD}\n{table(head, rows)}{LEFT_HEAD}\n{left}"


def _rows(engine: str) -> Iterator[tuple[str, ...]]:
    for row in keys.key_readers(engine):
        read = ", ".join(f"`{key}`" for key in row.keys) or "*fixed*"
        known = _releases(engine, row.releases)
        yield _title(engine), row.fact, row.runner, row.model_class, read, known


def _left() -> Iterator[tuple[str, ...]]:
    answers = eaglectl.Answers(aux_convention="output")
    for layout in LAYOUTS:
        plan = eaglectl.convert(DRAFTER, target=TARGET, layout=layout, answers=answers, dry_run=True).plan
        for engine in (*FOLLOWED, *UNVERSIONED):
            for (fact, runner), missing in keys.left_out(plan.config, plan.drafter, engine).items():
                yield layout, f"{_title(engine)} {runner}".strip(), fact, _releases(engine, missing)


def _title(engine: str) -> str:
    return ENGINES[engine].title if engine in ENGINES else str(unversioned()["engines"][engine]["title"])


def _releases(engine: str, listed: Sequence[str]) -> str:
    return "" if engine in UNVERSIONED else ranges(listed, ENGINES[engine].releases)
