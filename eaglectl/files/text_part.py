"""The part of a multimodal model's config that describes its language model, a drafter's too."""

from collections.abc import Mapping, Sequence
from typing import Any

# where multimodal targets keep their language model's config; in Omni ones it is inside another of these
TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
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


def lifted(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a drafter's config without the objects of a multimodal one.

    Their keys come to the top where it has no decoder's; beside a decoder's keys they are another model's.
    """
    top = {key: value for key, value in config.items() if key not in TEXT_PARTS}
    return top if "num_attention_heads" in top else {**text_part(config), **top}
