"""Inputs beside a source: a target, and answers to what the files do not state."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from eaglectl.api.keywords import StrPath, with_keywords
from eaglectl.checkpoint.checkpoint import read_config
from eaglectl.checkpoint.opening import open_source
from eaglectl.checkpoint.source import FolderSource, Source
from eaglectl.checkpoint.target_files import text_part
from eaglectl.drafter.drafter import Target
from eaglectl.errors import UnreadableError, UsageError
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_target
from eaglectl.options import options_of

GENERATION = "generation_config.json"
# seconds; the system's clocks take no more than 24 days at once
LONGEST = 1_000_000
ADAPTED = (
    "the target has a LoRA adapter beside it (adapter_config.json): engines run the drafter unadapted; in"
    " sglang 34337 (NEXTN, DFLASH, DSPARK) acceptance stayed within 9 % for adapters that change little, and"
    " fell far for those that shift what is said; measure with the adapter"
)


@with_keywords
def open_target(target: StrPath | None, name: str | None = None) -> Target:
    """What the config.json of a target states: of a folder, a config.json, or a Hub repository.

    `name` is what published files call it; a repository's own where none is given and the drafter names none.
    """
    if target is None:
        return Target(name)
    text = os.fspath(target)
    source = target_source(text)
    return known_target(text, source, read_config(source, is_target=True), name)


def known_target(text: str, source: Source, config: Mapping[str, Any], name: str | None = None) -> Target:
    """What the config of a target's files states. Raises UnreadableError."""
    target = read_target(config, name)
    if target.depth is None:
        raise UnreadableError(f"--target {text}: its config.json has no num_hidden_layers and no num_layers")
    changes = (*target.changes, *([ADAPTED] if "adapter_config.json" in source.names() else []))
    # a folder's label is its name; a repository's, and that of its snapshot in the cache, is org/name
    return replace(target, repo=source.label if "/" in source.label else None, changes=changes)


def special_tokens(text: str | None) -> tuple[int, ...] | None:
    """The target's bos and eos token ids in config.json and generation_config.json; None without a target."""
    if text is None:
        return None
    source = target_source(text)
    config = read_config(source, is_target=True)
    places = [config, text_part(config), _generation_config(source)]
    values = [place.get(key) for place in places for key in ("bos_token_id", "eos_token_id")]
    ids = [token for value in values for token in (value if isinstance(value, list) else [value])]
    return tuple(sorted({token for token in ids if type(token) is int}))


def _generation_config(source: Source) -> Mapping[str, Any]:
    if GENERATION not in source.names():
        return {}
    try:
        value = json.loads(source.read(GENERATION))
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{source.place}/{GENERATION}: {error}") from None
    return value if isinstance(value, Mapping) else {}


def target_source(text: str) -> Source:
    """The files of the target named by `text`; from the Hub, only their list is read."""
    # Path raises on names that are too long
    if text.endswith(".json") and os.path.isfile(text):  # noqa: PTH113
        path = Path(text)
        if path.name != "config.json":
            raise UsageError(f"--target {text}: give the target's folder, or its config.json")
        return FolderSource(path.parent)
    return open_source(text, is_config_enough=True)


def parse_answers(
    aux_layers: str | None, aux_convention: str | None, semantics: Sequence[str], *, assume: bool = False
) -> Answers:
    """Answers from the texts of command-line options. Raises UsageError."""
    given = {"aux_layers": aux_layers, "aux_convention": aux_convention, "semantics": semantics}
    options = options_of(Answers)
    values = {name: options[name].of_text(text) for name, text in given.items() if text}
    return Answers(**values, assume=assume)


def check_timeout(seconds: float) -> None:
    """Raise UsageError for a --timeout that nothing can wait for; NaN is one."""
    if not 0 < seconds <= LONGEST:
        raise UsageError(f"--timeout {seconds:g}: more than 0 seconds was expected, and at most {LONGEST}")
