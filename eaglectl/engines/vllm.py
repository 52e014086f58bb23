"""What each vLLM release does with a checkpoint as it lies: the data in vllm_releases.json, and when each fact applies."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from packaging.specifiers import SpecifierSet

from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.drafter.tensors import LAYER
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
        yield "differs", note.text  # it may load all the same; facts say where it does not
    for note in drafter.told("question"):
        yield "unknown", note.text
    words = _words(view, reading)
    for fact in data()["facts"]:
        applies = CONDITIONS[fact["id"]]
        if family in fact["classes"] and _within(fact["releases"], release) and applies(view, release, reading):
            yield fact["outcome"], fact["says"].format(**words)


# what vLLM's speculators reader keeps of the top level (algos.py, 0.25.0 on); the rest comes from transformer_layer_config
SPECULATORS_KEYS = (
    "architectures", "draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "fc_norm", "norm_before_fc", "norm_before_residual",
    "norm_output", "target_hidden_size", "tie_word_embeddings", "quantization_config", "mask_token_id",
)  # fmt: skip


def flat_as_read(config: Mapping[str, Any], flat: Mapping[str, Any]) -> Mapping[str, Any]:
    """The flattened config without the top-level keys that vLLM's speculators reader drops."""
    layer = config.get("transformer_layer_config")
    if "speculators_model_type" not in config or not isinstance(layer, Mapping):
        return flat
    return {key: value for key, value in flat.items() if key not in config or key in layer or key in SPECULATORS_KEYS}


def aux_reading(view: View, release: str) -> Reading:
    """The aux layers that the default runner of `release` takes (nested ids: V1 since 0.22.0, V2 never)."""
    seen = {key: value for key, value in view.flat.items() if key in (IDS, "eagle_config")}
    readings = {reading.engine: reading for reading in aux_readings(seen, view.drafter.target)}
    if _within(data()["runners"]["V2"], release) and view.drafter.kind != "peagle":  # parallel drafting runs on V1
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
    different = list(_dimensions(view))
    return {
        "runtime": ", ".join(part for part in RUNTIME_NAMES if any(part in name for name in view.names)),
        "theta": f"{view.drafter.rope.theta:g}", "stated_theta": _stated_theta(view), "stated_aux": _stated_aux(view),
        "above": ", ".join(f"{key}: {stated}" for key, stated, size in different if stated > size),
        "below": ", ".join(f"{key}: {stated}" for key, stated, size in different if stated < size),
        "stated_draft_vocab": view.says("draft_vocab_size"), "draft_vocab": dims.draft_vocab,
        "architecture": view.architecture, "model_type": view.says("model_type"), "aux": dims.aux, "layers": dims.layers,
        "stated_layers": view.says("num_hidden_layers"), "head_dim": dims.head_dim, "assumed_head_dim": f"{_assumed_head_dim(view):g}",
        "unknown": ", ".join(view.drafter.unknown[:2]),
        "read": f"boundaries {list(reading.boundaries)}" if reading.boundaries else "the default (2, n//2, n-3)",
    }  # fmt: skip


RUNTIME_NAMES = ("w_kc", "w_vc", "fused_qkv_a_proj_with_mqa")
MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id", "dflash_config")

Condition = Callable[[View, str, Reading], bool]


def _has(feature: Feature) -> Condition:
    return lambda view, release, reading: feature in view.drafter.features()


def _unknown_architecture(view: View, release: str, reading: Reading) -> bool:
    if view.is_speculators:
        return False
    specifier = data()["architectures"].get(view.architecture)
    return specifier is None or not _within(specifier, release)


def _stated_aux(view: View) -> int:
    """The number of aux states that vLLM's Llama and MLA classes build fc for (llama_eagle3.py:210-216)."""
    stated = view.says("num_aux_hidden_states")
    return stated if isinstance(stated, int) else len(ids_at(view.flat, "eagle_config", IDS) or (0, 0, 0))


def _dimensions(view: View) -> Iterator[tuple[str, int, int]]:
    """Dimensions that the config states otherwise than the tensors have them: (key, stated, measured)."""
    dims = view.drafter.dims
    measured = {"hidden_size": dims.hidden, "intermediate_size": dims.intermediate}
    if dims.attention != "MLA":
        measured["num_key_value_heads"] = dims.kv_heads
    for key, size in measured.items():
        stated = view.says(key)
        stated = dims.heads if key == "num_key_value_heads" and stated is None else stated
        if isinstance(stated, int) and stated != size:
            yield key, stated, size


def _class_mismatch(view: View, release: str, reading: Reading) -> bool:
    if view.is_speculators:
        return False
    built = "mla" if "Deepseek" in view.architecture else "qwen3" if "Qwen3For" in view.architecture else "llama"
    family = (
        "mla"
        if view.drafter.dims.attention == "MLA"
        else "qwen3"
        if Feature.QK_NORM in view.drafter.features()
        else "llama"
    )
    return built != family


def _later_hidden_norm(view: View) -> bool:
    later = [name for name in view.names if (m := LAYER.search(name)) and int(m[1]) > 0]
    return any(n.endswith("hidden_norm.weight") for n in later) and not any(
        n.endswith("input_layernorm.weight") for n in later
    )


def _partial_biases(view: View) -> bool:
    has = {Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS} & view.drafter.features()
    return view.says("attention_bias") is True and len(has) == 1


def _assumed_head_dim(view: View) -> float:
    stated = view.says("head_dim")
    return stated if isinstance(stated, int) else view.drafter.dims.hidden / (view.drafter.dims.heads or 1)


def _stated_theta(view: View) -> object:
    nested = view.says("rope_parameters")
    inner = nested.get("rope_theta") if isinstance(nested, Mapping) else None
    theta = view.says("rope_theta")
    return theta if theta is not None else 10000.0 if inner is None else inner


def _spells_norm_before_fc(view: View) -> tuple[object, object]:
    return view.says("norm_before_fc"), view.nested("norm_before_fc")


def _unstated_biases(view: View) -> bool:
    features = view.drafter.features()
    attention = bool({Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS} & features) and not view.says("attention_bias")
    return attention or (Feature.MLP_BIAS in features and not view.says("mlp_bias")) or Feature.FC_BIAS in features


def _number(view: View, key: str) -> int | None:
    value = view.says(key)
    return value if isinstance(value, int) else None


def _layers(view: View) -> bool:
    stated = view.says("num_hidden_layers")
    return isinstance(stated, int) and stated > view.drafter.dims.layers


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
    "aux-count-unstated": lambda v, r, a: _stated_aux(v) != v.drafter.dims.aux,
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
    "bias-unstated": lambda v, r, a: _unstated_biases(v),
    "bias-overstated": lambda v, r, a: v.says("attention_bias") is True and Feature.ATTENTION_BIAS not in v.drafter.features(),
    "layers-overstated": lambda v, r, a: _layers(v),
    "head-dim-unstated": lambda v, r, a: _assumed_head_dim(v) > v.drafter.dims.head_dim,
    "head-dim-smaller": lambda v, r, a: _assumed_head_dim(v) < v.drafter.dims.head_dim,
    "parallel-absent": _has(Feature.PARALLEL),
    "sliding-window-qwen3": _has(Feature.SLIDING_WINDOW),
    "quantised-absent": _has(Feature.QUANTISED),
    "aux-layers": lambda v, r, a: a.same_as(v.drafter.aux) is False,
    "aux-unknown": lambda v, r, a: a.same_as(v.drafter.aux) is None and v.drafter.aux.convention is not None,
    "speculators-unknown": lambda v, r, a: v.is_speculators,
    "speculators-norm-before-fc": lambda v, r, a: v.is_speculators and v.drafter.norms.norm_before_fc,
    "speculators-norm-output": lambda v, r, a: v.is_speculators and bool(v.drafter.norms.norm_output),
    "speculators-fc-norm": lambda v, r, a: v.is_speculators and v.drafter.norms.fc_norm,
    "speculators-peagle": lambda v, r, a: v.config.get("speculators_model_type") == "peagle" and bool(v.drafter.norms.norm_output),
    "speculators-peagle-fc-norm": lambda v, r, a: v.config.get("speculators_model_type") == "peagle" and v.drafter.norms.fc_norm,
    "absorbed-names": lambda v, r, a: any(part in name for name in v.names for part in RUNTIME_NAMES),
    "class-mismatch": _class_mismatch,
    "later-hidden-norm": lambda v, r, a: _later_hidden_norm(v),
    "mask-token": lambda v, r, a: Feature.PARALLEL in v.drafter.features() and not any(key in v.config for key in MASK_KEYS),
    "verifier-tensors": lambda v, r, a: any(name.startswith("verifier_") for name in v.names),
    "rope-base": lambda v, r, a: _stated_theta(v) != v.drafter.rope.theta,
    "dimension-above": lambda v, r, a: any(stated > size for _, stated, size in _dimensions(v)),
    "dimension-below": lambda v, r, a: any(stated < size for _, stated, size in _dimensions(v)),
    "layers-understated": lambda v, r, a: 0 < (_number(v, "num_hidden_layers") or 0) < v.drafter.dims.layers,
    "layers-unstated": lambda v, r, a: v.says("num_hidden_layers") is None,
    "ids-unsorted": lambda v, r, a: v.drafter.aux.order is not None,
    "draft-vocab-mismatch": lambda v, r, a: _number(v, "draft_vocab_size") not in (None, v.drafter.dims.draft_vocab),
    "hidden-act": lambda v, r, a: v.says("hidden_act") not in (None, "silu"),
    "tied-head": lambda v, r, a: v.says("tie_word_embeddings") is True and not any(name.endswith("lm_head.weight") for name in v.names),
    "mlp-bias-overstated": lambda v, r, a: v.says("mlp_bias") is True and Feature.MLP_BIAS not in v.drafter.features(),
    "biases-partial": lambda v, r, a: _partial_biases(v),
    "biases-without-place": lambda v, r, a: bool({Feature.OUTPUT_BIAS, Feature.MLP_BIAS} & v.drafter.features()),
}  # fmt: skip
