"""`eaglectl inspect vllm serve TARGET --speculative-config JSON`: what a command serves, inspected."""

import json
import shlex
import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from eaglectl.errors import UsageError
from eaglectl.terminal import say

LAUNCH = ("vllm", "serve")
SPECULATIVE = ("--speculative-config", "--speculative_config", "-sc")


def inspected(arguments: list[str]) -> list[str]:
    """The arguments of `inspect` for the drafter, the target and the engine of a command that they end in.

    They are as given where there is none. What stands in front of the command is kept; its own options are
    not looked at, which a line on stderr says. Raises UsageError for one that names no target or no drafter.
    """
    start = next((at for at, words in enumerate(pairwise(arguments)) if words == LAUNCH), None)
    if start is None:
        return arguments
    target, *options = arguments[start + len(LAUNCH) :] or ["-"]
    if target.startswith("-"):
        raise UsageError("vllm serve names no target: give it right behind, as `vllm serve TARGET`")
    config, ignored = _speculative(options)
    drafter, revision = config.get("model"), config.get("revision")
    if not isinstance(drafter, str) or not drafter:
        raise UsageError('--speculative-config names no drafter: it was expected as {"model": DRAFTER, ...}')
    if ignored:
        say(f"eaglectl: not looked at: {shlex.join(ignored)}", sys.stderr)
    source = f"{drafter}@{revision}" if isinstance(revision, str) else drafter
    return [*arguments[:start], source, "--target", target, "--engine", LAUNCH[0]]


def _speculative(options: list[str]) -> tuple[Mapping[str, Any], list[str]]:
    words = [word for option in options for word in _split(option)]
    at = next((at for at, word in enumerate(words[:-1]) if word in SPECULATIVE), None)
    if at is None:
        raise UsageError("the command drafts nothing: it has no --speculative-config")
    try:
        config = json.loads(words[at + 1])
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--speculative-config: no JSON: {error}; quote it as one word") from None
    if not isinstance(config, Mapping):
        raise UsageError("--speculative-config: a JSON object was expected")
    return config, [*words[:at], *words[at + 2 :]]


def _split(option: str) -> list[str]:
    name, joined, value = option.partition("=")
    return [name, value] if joined and name in SPECULATIVE else [option]
