"""A checkpoint as an engine meets it: which keys its classes see, and what they take from them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.engines.engine import IDS, ids_at


@dataclass(frozen=True)
class View:
    """A checkpoint as an engine meets it: `flat` is the config after vLLM's speculators reader, if that applies.

    `target` is the target's config, empty where none was given.
    """

    drafter: Drafter
    config: Mapping[str, Any]
    flat: Mapping[str, Any]
    names: tuple[str, ...]
    target: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def features(self) -> frozenset[Feature]:
        """All that the drafter needs beyond plain EAGLE-3."""
        return self.drafter.features()

    @cached_property
    def family(self) -> Literal["llama", "mla", "qwen3"]:
        """The kind of class that the drafter needs."""
        if self.drafter.dims.attention == "MLA":
            return "mla"
        return "qwen3" if Feature.QK_NORM in self.features else "llama"

    @property
    def is_speculators(self) -> bool:
        """Whether the speculators reader handles this config (no model_type at the top)."""
        return "speculators_model_type" in self.config and "model_type" not in self.config

    @property
    def architecture(self) -> str:
        """The architecture that engines look up."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else "(none)"

    @property
    def target_text(self) -> Mapping[str, Any]:
        """The config of the target's language model."""
        inner = self.target.get("text_config")
        return inner if isinstance(inner, Mapping) else self.target

    def says(self, key: str) -> object:
        """A key at the top level of what the model class sees."""
        return self.flat.get(key)

    def number(self, key: str) -> int | None:
        """A whole number at the top level of what the model class sees."""
        value = self.says(key)
        return value if isinstance(value, int) else None

    def nested(self, key: str) -> object:
        """A key of eagle_config."""
        value = self.flat.get("eagle_config")
        return value.get(key) if isinstance(value, Mapping) else None


SPECULATORS_KEYS = (
    "architectures", "draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "fc_norm", "norm_before_fc", "norm_before_residual",
    "norm_output", "target_hidden_size", "tie_word_embeddings", "quantization_config", "mask_token_id",
)  # fmt: skip


def flat_as_read(config: Mapping[str, Any], flat: Mapping[str, Any]) -> Mapping[str, Any]:
    """The flattened config without the top-level keys that vLLM's speculators reader drops (algos.py, 0.25.0 on)."""
    layer = config.get("transformer_layer_config")
    if "speculators_model_type" not in config or not isinstance(layer, Mapping):
        return flat
    return {key: value for key, value in flat.items() if key not in config or key in layer or key in SPECULATORS_KEYS}


def stated_aux(view: View) -> int:
    """The number of aux states that vLLM's Llama and MLA classes build fc for (llama_eagle3.py:210-216)."""
    stated = view.number("num_aux_hidden_states")
    return stated if stated is not None else len(ids_at(view.flat, "eagle_config", IDS) or (0, 0, 0))


def dimensions(view: View) -> Iterator[tuple[str, int, int]]:
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


def assumed_head_dim(view: View) -> float:
    """head_dim as vLLM takes it: stated, or hidden_size/num_attention_heads."""
    stated = view.number("head_dim")
    return stated if stated is not None else view.drafter.dims.hidden / (view.drafter.dims.heads or 1)


def stated_theta(view: View) -> object:
    """The rope base that the config states, in either spelling; 10000 where it states none."""
    nested = view.says("rope_parameters")
    inner = nested.get("rope_theta") if isinstance(nested, Mapping) else None
    theta = view.says("rope_theta")
    return theta if theta is not None else 10000.0 if inner is None else inner
