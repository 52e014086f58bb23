"""The part of a multimodal model's config that describes its language model, a drafter's too."""

from collections.abc import Mapping, Sequence
from typing import Any

# where multimodal targets keep their language model's config; in Omni ones it is inside another of these
TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
# those and vLLM's EAGLEConfig's, in a drafter's config
DRAFTER_PARTS = (*TEXT_PARTS, "model")
MAX_NESTING = 3


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a target's config that describes its text model, else the whole config."""
    return text_parts(config)[-1]


def text_parts(config: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the config and the nested parts that lead to its text model, the outermost first."""
    parts = [config]
    for _ in range(MAX_NESTING):
        inner = (parts[-1].get(key) for key in TEXT_PARTS)
        parts += [value for value in inner if isinstance(value, Mapping)][:1]
    return parts


def nested_parts(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of a drafter's config under which another config's keys are."""
    return tuple(key for key in DRAFTER_PARTS if isinstance(config.get(key), Mapping))


def quantisation_key(config: Mapping[str, Any]) -> str:
    """Return the key of a drafter's quantisation config: where the usual one is null, the first releases' of
    compressed-tensors, as engines do.
    """
    key, earlier = "quantization_config", "compression_config"
    return earlier if config.get(key) is None and earlier in config else key


def lifted(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a drafter's config without the objects of a multimodal one, and with keys by their usual names.

    Their keys come to the top where it has no decoder's; beside a decoder's keys they are another model's.
    """
    usual, key = "quantization_config", quantisation_key(config)
    others = {*DRAFTER_PARTS, usual} - {key}
    top = {usual if name == key else name: value for name, value in config.items() if name not in others}
    parts = [text_part(config[key]) for key in nested_parts(config)]
    return top if "num_attention_heads" in top or not parts else {**parts[0], **top}
