"""Marks of an EAGLE-3 drafter: what tells it from the other models that share its file names."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.checkpoint.checkpoint import read_checkpoint, read_config
from eaglectl.checkpoint.layout import CONFIG, INDEX
from eaglectl.checkpoint.source import Source
from eaglectl.errors import EaglectlError
from eaglectl.formats.other_drafters import other_family, speculators_family

# keys that only a drafter's config has, at the top or in an object
_KEYS = ("draft_vocab_size", "speculators_model_type", "eagle_config", "norm_output")
_IDS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_states_layer_ids", "use_aux_hidden_state")
# tensors that only a drafter has, under any prefix
_TENSOR = re.compile(r"(.*\.)?(fc\.weight|d2t|t2d|midlayer\..*|hidden_norm\.weight)")
# the same in a file that is no JSON: better looked at once too often than skipped
_RAW = re.compile(
    "|".join((*_KEYS, *_IDS, "eagle", "midlayer", "hidden_norm", r'"[dt]2[dt]"')), re.IGNORECASE
)


def drafter_mark(config: Mapping[str, Any] | None) -> str:
    """What in a config shows that it is a drafter's; "" where nothing does."""
    if not config:
        return ""
    for key in _KEYS:
        if config.get(key) is not None:
            return key
    names = config.get("architectures")
    drafters = [str(name) for name in names if "Eagle" in str(name)] if isinstance(names, list) else []
    return f"the architecture {drafters[0]}" if drafters else ""


def why_other(source: Source) -> str:
    """Why a folder is no EAGLE-3 drafter's; "" where it may be one.

    A broken file with a mark of a drafter may be one. Raises UnreadableError where nothing can be read.
    """
    files = source.names()
    if CONFIG not in files and INDEX not in files:
        return ""
    raw = {name: source.read(name) for name in (CONFIG, INDEX) if name in files}
    try:
        config = read_config(source)
    except EaglectlError:
        is_marked = any(_RAW.search(data.decode("utf-8", "replace")) for data in raw.values())
        about = "no JSON object" if CONFIG in files else "not there"
        return "" if is_marked else f"{CONFIG} is {about}, and nothing beside it is a drafter's"
    if family := speculators_family(config):
        return f"it is {family}"
    if drafter_mark(config) or any(_keys(config)) or "eagle" in str(config.get("model_type")).lower():
        return ""
    return _why_no_tensors(source, config)


def _keys(config: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a config, at the top and one object below, that only a drafter's has."""
    parts = [config, *(value for value in config.values() if isinstance(value, Mapping))]
    return (key for part in parts for key in part if key in (*_KEYS, *_IDS) or "eagle" in key.lower())


def _why_no_tensors(source: Source, config: Mapping[str, Any]) -> str:
    """Why a folder whose config has no mark is no drafter's, by its tensors where they can be read."""
    names = config.get("architectures")
    kind = f" ({names[0]})" if isinstance(names, list) and names else ""
    try:
        tensors = read_checkpoint(source).tensors
    except EaglectlError:
        return f"{CONFIG}{kind} has no mark of a drafter; its weights were not read"
    if family := other_family(config, tensors):
        return f"it is {family}"
    is_marked = any(map(_TENSOR.fullmatch, tensors))
    return "" if is_marked else f"neither {CONFIG}{kind} nor a tensor has a mark of a drafter"
