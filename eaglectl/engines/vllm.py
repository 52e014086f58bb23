"""What each vLLM release does with a checkpoint as it lies: the facts of vllm_releases.json that apply to it."""

from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.drafter.drafter import Feature
from eaglectl.engines.conditions import CONDITIONS, RUNTIME_NAMES
from eaglectl.engines.engine import IDS, Outcome, Reading, Verdict, aux_readings
from eaglectl.engines.view import (
    View,
    assumed_head_dim,
    data,
    dimensions,
    flat_as_read,
    is_within,
    releases,
    stated_aux,
    stated_theta,
)

__all__ = ["View", "aux_reading", "data", "flat_as_read", "releases", "verdict"]


def verdict(view: View, release: str) -> Verdict:
    """What `release` does with the checkpoint."""
    reasons: list[tuple[Outcome, str]] = list(_reasons(view, release))
    for outcome in ("fails", "differs", "unknown"):
        if any(kind == outcome for kind, _ in reasons):
            return Verdict(
                "vllm", release, outcome, tuple(dict.fromkeys(text for kind, text in reasons if kind == outcome))
            )
    return Verdict("vllm", release, "as trained", ())


def _reasons(view: View, release: str) -> Iterator[tuple[Outcome, str]]:
    drafter = view.drafter
    family = "mla" if drafter.dims.attention == "MLA" else "qwen3" if Feature.QK_NORM in drafter.features() else "llama"
    reading = aux_reading(view, release)
    for note in drafter.told("problem"):
        yield "differs", note.text  # it may load all the same; facts say where it does not
    for note in drafter.told("question"):
        yield "unknown", note.text
    words = _words(view, reading)
    for fact in data()["facts"]:
        applies = CONDITIONS[fact["id"]]
        if family in fact["classes"] and is_within(fact["releases"], release) and applies(view, release, reading):
            yield fact["outcome"], fact["says"].format(**words)


# what vLLM's speculators reader keeps of the top level (algos.py, 0.25.0 on); the rest comes from transformer_layer_config


def aux_reading(view: View, release: str) -> Reading:
    """The aux layers that the default runner of `release` takes (nested ids: V1 since 0.22.0, V2 never)."""
    seen = {key: value for key, value in view.flat.items() if key in (IDS, "eagle_config")}
    readings = {reading.engine: reading for reading in aux_readings(seen, view.drafter.target)}
    if is_within(data()["runners"]["V2"], release) and view.drafter.kind != "peagle":  # parallel drafting runs on V1
        return readings["vLLM, V2 runner"]
    if is_within(">=0.22.0", release):
        return readings["vLLM, V1 runner"]
    top = {IDS: seen[IDS]} if IDS in seen and is_within(">=0.11.1", release) else {}
    return next(iter(aux_readings(top, view.drafter.target)))


def _words(view: View, reading: Reading) -> Mapping[str, Any]:
    dims = view.drafter.dims
    different = list(dimensions(view))
    return {
        "runtime": ", ".join(part for part in RUNTIME_NAMES if any(part in name for name in view.names)),
        "theta": f"{view.drafter.rope.theta:g}", "stated_theta": stated_theta(view), "stated_aux": stated_aux(view),
        "above": ", ".join(f"{key}: {stated}" for key, stated, size in different if stated > size),
        "below": ", ".join(f"{key}: {stated}" for key, stated, size in different if stated < size),
        "stated_draft_vocab": view.says("draft_vocab_size"), "draft_vocab": dims.draft_vocab,
        "architecture": view.architecture, "model_type": view.says("model_type"), "aux": dims.aux, "layers": dims.layers,
        "stated_layers": view.says("num_hidden_layers"), "head_dim": dims.head_dim, "assumed_head_dim": f"{assumed_head_dim(view):g}",
        "unknown": ", ".join(view.drafter.unknown[:2]),
        "read": f"boundaries {list(reading.boundaries)}" if reading.boundaries else "the default (2, n//2, n-3)",
    }  # fmt: skip
