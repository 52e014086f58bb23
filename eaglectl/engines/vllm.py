"""What each vLLM release does with a checkpoint as it lies: the data in vllm_releases.json, and when each fact applies."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from packaging.specifiers import SpecifierSet

from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.drafter.tensors import NORM
from eaglectl.engines.engine import IDS, Outcome, Reading, Verdict, aux_readings, ids_at


@dataclass(frozen=True, slots=True)
class View:
    """A checkpoint as vLLM meets it: `flat` is the config after vLLM's speculators reader, if that applies."""

    drafter: Drafter
    config: Mapping[str, Any]
    flat: Mapping[str, Any]
    names: tuple[str, ...]

    @property
    def is_speculators(self) -> bool:
        """Whether the speculators reader handles this config (no model_type at the top)."""
        return "speculators_model_type" in self.config and "model_type" not in self.config

    @property
    def architecture(self) -> str:
        """The architecture that vLLM looks up."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else "(none)"

    def says(self, key: str) -> object:
        """A key at the top level of what the model class sees."""
        return self.flat.get(key)

    def nested(self, key: str) -> object:
        """A key of eagle_config."""
        value = self.flat.get("eagle_config")
        return value.get(key) if isinstance(value, Mapping) else None


@cache
def data() -> Mapping[str, Any]:
    """vllm_releases.json."""
    value: Mapping[str, Any] = json.loads(files("eaglectl.engines").joinpath("vllm_releases.json").read_text())
    return value


def releases() -> tuple[str, ...]:
    """Known releases, oldest first."""
    return tuple(data()["releases"])


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
        yield "fails", note.text
    for note in drafter.told("question"):
        yield "unknown", note.text
    words = _words(view, reading)
    for fact in data()["facts"]:
        applies = CONDITIONS[fact["id"]]
        if family in fact["classes"] and _within(fact["releases"], release) and applies(view, release, reading):
            yield fact["outcome"], fact["says"].format(**words)


def aux_reading(view: View, release: str) -> Reading:
    """The aux layers that the default runner of `release` takes (nested ids: V1 since 0.22.0, V2 never)."""
    seen = {key: value for key, value in view.flat.items() if key in (IDS, "eagle_config")}
    readings = {reading.engine: reading for reading in aux_readings(seen, view.drafter.target)}
    if _within(data()["runners"]["V2"], release):
        return readings["vLLM, V2 runner"]
    if _within(">=0.22.0", release):
        return readings["vLLM, V1 runner"]
    top = {IDS: seen[IDS]} if IDS in seen and _within(">=0.11.1", release) else {}
    return next(iter(aux_readings(top, view.drafter.target)))


@cache
def _specifier(text: str) -> SpecifierSet:
    return SpecifierSet(text)


@cache
def _within(specifier: str, release: str) -> bool:
    return not specifier or release in _specifier(specifier)


def _words(view: View, reading: Reading) -> Mapping[str, Any]:
    dims = view.drafter.dims
    heads = dims.heads or 1
    return {
        "architecture": view.architecture, "model_type": view.says("model_type"), "aux": dims.aux, "layers": dims.layers,
        "stated_layers": view.says("num_hidden_layers"), "head_dim": dims.head_dim, "assumed_head_dim": view.says("head_dim") or dims.hidden // heads,
        "unknown": ", ".join(view.drafter.unknown[:2]),
        "read": f"boundaries {list(reading.boundaries)}" if reading.boundaries else "the default (2, n//2, n-3)",
    }  # fmt: skip


Condition = Callable[[View, str, Reading], bool]


def _has(feature: Feature) -> Condition:
    return lambda view, release, reading: feature in view.drafter.features()


def _unknown_architecture(view: View, release: str, reading: Reading) -> bool:
    if view.is_speculators:
        return False
    specifier = data()["architectures"].get(view.architecture)
    return specifier is None or not _within(specifier, release)


def _states_aux_count(view: View) -> bool:
    stated = view.says("num_aux_hidden_states")
    return stated == view.drafter.dims.aux or (
        stated is None and len(ids_at(view.flat, "eagle_config", IDS) or ()) == view.drafter.dims.aux
    )


def _spells_norm_before_fc(view: View) -> tuple[object, object]:
    return view.says("norm_before_fc"), view.nested("norm_before_fc")


def _bias(view: View) -> bool:
    return any(name.endswith(".bias") for name in view.drafter.tensors)


def _layers(view: View) -> bool:
    stated = view.says("num_hidden_layers")
    return isinstance(stated, int) and stated > view.drafter.dims.layers


def _head_dim(view: View) -> bool:
    dims = view.drafter.dims
    return (view.says("head_dim") or dims.hidden / dims.heads) != dims.head_dim


def _plain_rope(view: View) -> bool:
    return view.drafter.rope.scaling is None


def _residual(view: View) -> bool:
    seen = view.says("norm_before_residual")
    default = view.is_speculators and view.config.get("speculators_model_type") == "eagle3"
    return bool(default if seen is None else seen) != view.drafter.norms.norm_before_residual


def _unstated(flag: str, trained: Callable[[View], bool | None]) -> Condition:
    return lambda view, release, reading: (
        bool(trained(view)) and not view.says(flag) and not (view.is_speculators and not _within(">=0.25.0", release))
    )


CONDITIONS: Mapping[str, Condition] = {
    "no-class-mla": lambda v, r, a: True,
    "no-class-qwen3": lambda v, r, a: True,
    "architecture": _unknown_architecture,
    "mla-model-type": lambda v, r, a: v.says("model_type") in ("deepseek_v3", "deepseek_v32", "glm_moe_dsa"),
    "prefix": lambda v, r, a: any(name.startswith("model.") for name in v.names),
    "unknown-tensor": lambda v, r, a: bool(v.drafter.unknown),
    "null-target-hidden": lambda v, r, a: not v.is_speculators and "target_hidden_size" in v.config and v.config["target_hidden_size"] is None,
    "identity-d2t": lambda v, r, a: not v.drafter.has_reduced_vocabulary and any("d2t" in name for name in v.names),
    "d2t-missing": lambda v, r, a: v.drafter.has_reduced_vocabulary and "d2t" not in v.drafter.tensors,
    "no-draft-vocab-size": lambda v, r, a: v.drafter.has_reduced_vocabulary and v.says("draft_vocab_size") is None,
    "mla-plain-rope": lambda v, r, a: _plain_rope(v),
    "multi-layer": _has(Feature.MULTI_LAYER),
    "aux-count": _has(Feature.AUX_COUNT),
    "aux-count-unstated": lambda v, r, a: v.drafter.dims.aux != 3 and not _states_aux_count(v),
    "fc-norm-absent": _has(Feature.FC_NORM),
    "fc-norm-dropped": _has(Feature.FC_NORM),
    "fc-norm-not-applied": _has(Feature.FC_NORM),
    "fc-norm-unstated": _unstated("fc_norm", lambda v: v.drafter.norms.fc_norm),
    "norm-output-absent": _has(Feature.NORM_OUTPUT),
    "norm-output-unstated": _unstated("norm_output", lambda v: v.drafter.norms.norm_output),
    "norm-output-overstated": lambda v, r, a: v.drafter.norms.norm_output is False and v.says("norm_output") is True,
    "norm-before-fc-absent": _has(Feature.NORM_BEFORE_FC),
    "norm-before-fc-nested": lambda v, r, a: v.drafter.norms.norm_before_fc and not _spells_norm_before_fc(v)[0] and bool(_spells_norm_before_fc(v)[1]),
    "norm-before-fc-unstated": lambda v, r, a: v.drafter.norms.norm_before_fc and not any(_spells_norm_before_fc(v)),
    "norm-before-fc-mla": _has(Feature.NORM_BEFORE_FC),
    "residual-absent": _has(Feature.NORM_BEFORE_RESIDUAL),
    "residual-unstated": lambda v, r, a: _residual(v),
    "attention-bias-absent": _has(Feature.ATTENTION_BIAS),
    "bias-unstated": lambda v, r, a: _bias(v) and not v.says("attention_bias"),
    "bias-overstated": lambda v, r, a: v.says("attention_bias") is True and Feature.ATTENTION_BIAS not in v.drafter.features(),
    "layers-overstated": lambda v, r, a: _layers(v),
    "head-dim-unstated": lambda v, r, a: _head_dim(v),
    "parallel-absent": _has(Feature.PARALLEL),
    "sliding-window-qwen3": _has(Feature.SLIDING_WINDOW),
    "quantised-absent": _has(Feature.QUANTISED),
    "aux-layers": lambda v, r, a: a.same_as(v.drafter.aux) is False,
    "aux-unknown": lambda v, r, a: a.same_as(v.drafter.aux) is None and v.drafter.aux.convention is not None,
    "speculators-unknown": lambda v, r, a: v.is_speculators,
    "speculators-norm-before-fc": lambda v, r, a: v.is_speculators and v.drafter.norms.norm_before_fc,
    "speculators-norm-output": lambda v, r, a: v.is_speculators and bool(v.drafter.norms.norm_output),
    "speculators-fc-norm": lambda v, r, a: v.is_speculators and v.drafter.norms.fc_norm,
    "speculators-peagle": lambda v, r, a: v.config.get("speculators_model_type") == "peagle" and any(NORM.fullmatch(n) for n in v.drafter.tensors),
}  # fmt: skip
