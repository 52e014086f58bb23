"""What callers give besides a source: a target, and answers to what a file cannot say."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eaglectl.checkpoint.checkpoint import read_config
from eaglectl.checkpoint.source import FolderSource, open_source
from eaglectl.drafter.drafter import Target
from eaglectl.errors import Unreadable, Usage
from eaglectl.formats.format import Answers
from eaglectl.formats.reading import read_target


def open_target(text: str | None, name: str | None = None) -> Target:
    """What is known of the target named by `text`: a folder or its config.json; `name` is what published files call it."""
    if text is None:
        return Target(name)
    if text.endswith(".json") and os.path.isfile(text):  # noqa: PTH113  (Path raises on names that are too long)
        path = Path(text)
        if path.name != "config.json":
            raise Usage(f"--target {text}: give the target's folder, or its config.json")
        source = FolderSource(path.parent)
    else:
        source = open_source(text)
    config = read_config(source)
    found = read_target(config, name)
    if found.depth is None:
        raise Unreadable(f"--target {text}: its config.json has no num_hidden_layers")
    return found


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
