"""vLLM: which runner a release takes, the aux layers it then captures, and the words of its facts."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from eaglectl.engines.conditions import CONDITIONS, RUNTIME_NAMES
from eaglectl.engines.engine import IDS, Reading, aux_readings
from eaglectl.engines.facts import Engine, is_within, load
from eaglectl.engines.view import View, assumed_head_dim, dimensions, flat_as_read, stated_aux, stated_theta

__all__ = ["ENGINE", "View", "aux_reading", "data", "extracts_states", "flat_as_read", "releases", "runners"]

RUNNERS = ("V1", "V2")


def data() -> Mapping[str, Any]:
    """vllm_releases.json."""
    return load("vllm")


def releases() -> tuple[str, ...]:
    """Known releases, oldest first."""
    return ENGINE.releases


@cache
def runners(release: str, target_type: str | None) -> tuple[str, ...]:
    """The runners that `release` may take by default for a target of this model type; two where that is not known."""
    known = data()["runners"]
    for runner in RUNNERS:
        if is_within(known[runner], release):
            return (runner,)
    row = next(row for row in known["by target"] if is_within(row["releases"], release))
    if target_type in row["V2"]:
        return ("V2",)
    return ("V1",) if target_type and target_type in row.get("V1", (target_type,)) else RUNNERS


def extracts_states(release: str) -> bool:
    """Whether `release` gives a target's hidden states as calibration asks for them; builds between releases count as the next one."""
    number = re.match(r"\d+(\.\d+)*", release)
    return number is None or is_within(data()["hidden_states"]["releases"], number[0])


def readings_of(view: View, release: str) -> tuple[Reading, ...]:
    """The aux layers that `release` may capture, one for each runner that it may take (nested ids: V1 since 0.22.0, V2 never)."""
    if is_within("<0.22.0", release):
        ids = view.flat.get(IDS)
        top = {IDS: ids} if ids is not None and is_within(">=0.11.1", release) else {}
        return aux_readings(top, view.drafter.target)[1:2]
    seen = {key: value for key, value in view.flat.items() if key in (IDS, "eagle_config")}
    by_runner = dict(zip(("V2", "V1"), aux_readings(seen, view.drafter.target)[:2], strict=True))
    is_parallel = view.drafter.kind == "peagle"  # parallel drafting runs on V1
    taken = ("V1",) if is_parallel else runners(release, view.drafter.target.model_type)
    return tuple(by_runner[runner] for runner in taken)


def aux_reading(view: View, release: str) -> Reading:
    """The aux layers that `release` captures; where its runner is not known, those of the newer one."""
    return readings_of(view, release)[-1]


def _words(view: View, readings: tuple[Reading, ...]) -> Mapping[str, Any]:
    drafter, dims = view.drafter, view.drafter.dims
    different = list(dimensions(view))
    layer = view.config.get("transformer_layer_config")
    return {
        "runtime": ", ".join(part for part in RUNTIME_NAMES if any(part in name for name in view.names)),
        "theta": f"{drafter.rope.theta:g}", "stated_theta": stated_theta(view), "stated_aux": stated_aux(view),
        "above": ", ".join(f"{key}: {stated}" for key, stated, size in different if stated > size),
        "below": ", ".join(f"{key}: {stated}" for key, stated, size in different if stated < size),
        "stated_draft_vocab": view.says("draft_vocab_size"), "draft_vocab": dims.draft_vocab,
        "architecture": view.architecture, "model_type": view.says("model_type"), "aux": dims.aux, "layers": dims.layers,
        "stated_layers": view.says("num_hidden_layers"), "head_dim": dims.head_dim, "assumed_head_dim": f"{assumed_head_dim(view):g}",
        "unknown": ", ".join(drafter.unknown[:2]), "target_type": drafter.target.model_type,
        "positions": view.says("max_position_embeddings"), "target_positions": view.target_text.get("max_position_embeddings"),
        "layer_model_type": layer.get("model_type") if isinstance(layer, Mapping) else None,
        "read": " or ".join(dict.fromkeys(_read(reading) for reading in readings)),
    }  # fmt: skip


def _read(reading: Reading) -> str:
    runner = reading.engine.removeprefix("vLLM, ")
    if reading.boundaries is None:
        return f"the default (2, n//2, n-3), {runner}"
    default = "the default, " if reading.is_default else ""
    return f"{default}boundaries {list(reading.boundaries)}, {runner}"


ENGINE = Engine("vllm", "vLLM", CONDITIONS, readings_of, _words)
