"""What callers give besides a source: a target, and answers to what a file cannot say."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eaglectl.checkpoint.checkpoint import read_config
from eaglectl.checkpoint.source import FolderSource, Source, open_source
from eaglectl.drafter.drafter import Target
from eaglectl.errors import Unreadable, Usage
from eaglectl.formats.format import Answers
from eaglectl.formats.reading import read_target

GENERATION = "generation_config.json"


def open_target(text: str | None, name: str | None = None) -> Target:
    """What is known of the target named by `text`, by its config.json alone; `name` is what published files call it (a repository's
    own where none is given and the drafter names none).

    `text` is a folder, its config.json, or a Hub repository.
    """
    return Target(name) if text is None else known_target(text, target_source(text), name)


def known_target(text: str, source: Source, name: str | None = None) -> Target:
    """What the config.json of a target's files says. Raises Unreadable."""
    found = read_target(read_config(source), name)
    if found.depth is None:
        raise Unreadable(f"--target {text}: its config.json has no num_hidden_layers")
    # a folder's label is its name; a repository's, and that of its snapshot in the cache, is org/name
    return replace(found, repo=source.label if "/" in source.label else None)


def special_tokens(text: str | None) -> tuple[int, ...] | None:
    """The tokens with which the target begins and ends, as its config.json and generation_config.json name them; None without a target."""
    if text is None:
        return None
    source = target_source(text)
    config = read_config(source)
    inner = config.get("text_config")
    places = [config, inner if isinstance(inner, Mapping) else {}, _generation_config(source)]
    found = [place.get(key) for place in places for key in ("bos_token_id", "eos_token_id")]
    ids = [token for value in found for token in (value if isinstance(value, list) else [value])]
    return tuple(sorted({token for token in ids if type(token) is int}))


def _generation_config(source: Source) -> Mapping[str, Any]:
    if GENERATION not in source.names():
        return {}
    try:
        value = json.loads(source.read(GENERATION))
    except ValueError as error:
        raise Unreadable(f"{source.label}/{GENERATION}: {error}") from None
    return value if isinstance(value, Mapping) else {}


def target_source(text: str) -> Source:
    """Where the target named by `text` lies; from the Hub, nothing but a list of its files is read yet."""
    if text.endswith(".json") and os.path.isfile(text):  # noqa: PTH113  (Path raises on names that are too long)
        path = Path(text)
        if path.name != "config.json":
            raise Usage(f"--target {text}: give the target's folder, or its config.json")
        return FolderSource(path.parent)
    return open_source(text, is_config_enough=True)


def parse_answers(aux_layers: str | None, aux_convention: str | None, semantics: Sequence[str]) -> Answers:
    """Answers from the command line's texts. Raises Usage."""
    layers = None
    if aux_layers is not None:
        try:
            layers = tuple(int(item) for item in aux_layers.split(","))
        except ValueError:
            raise Usage(f"--aux-layers {aux_layers}: whole numbers with commas were expected, like 2,16,29") from None
        if any(layer < 0 for layer in layers):
            raise Usage(f"--aux-layers {aux_layers}: layers count from 0")
    pairs: dict[str, str] = {}
    for item in semantics:
        key, equals, value = item.partition("=")
        if not equals:
            raise Usage(f"--source-semantics {item}: KEY=VALUE was expected")
        if pairs.setdefault(key, value) != value:
            raise Usage(f"--source-semantics {key} is given as {pairs[key]} and as {value}; give it once")
    if aux_convention not in (None, "boundary", "output"):
        raise Usage(f"--aux-convention {aux_convention}: boundary or output was expected")
    convention: Any = aux_convention
    return Answers(layers, convention, pairs)
