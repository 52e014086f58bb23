"""Whether the engines of this environment load the plugin."""

import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from eaglectl.engines.engine import Engine
from eaglectl.engines.registry import installed_release
from eaglectl.in_engine.hooks import MODE, mode


class Group(Struct, frozen=True):
    """The plugin group of an engine: its name, the module that loads it, and the variable that chooses."""

    name: str
    module: str
    variable: str


GROUPS: Mapping[str, Group] = {
    "vllm": Group("vllm.general_plugins", "plugins/__init__.py", "VLLM_PLUGINS"),
    "sglang": Group("sglang.srt.plugins", "srt/plugins/__init__.py", "SGLANG_PLUGINS"),
}


class Plugin(Struct, frozen=True):
    """Whether the installed `release` of an engine loads eaglectl at its start; `why` says what decides."""

    release: str
    is_loaded: bool
    why: str


def find_plugin(engine: Engine) -> Plugin | None:
    """Return whether the installed engine loads the plugin; None if it is not installed or not in GROUPS."""
    release, group = installed_release(engine), GROUPS.get(engine.name)
    if release is None or group is None:
        return None
    chosen, reason = os.environ.get(group.variable), ""
    if not _has_group(engine, group):
        reason = f"it has no plugin group {group.name}"
    elif not any(entry.name == "eaglectl" for entry in entry_points(group=group.name)):
        reason = f"eaglectl is not registered in {group.name}; install it with pip in this environment"
    elif chosen is not None and "eaglectl" not in (name.strip() for name in chosen.split(",")):
        reason = f"{group.variable}={chosen} leaves eaglectl out"
    elif mode() == "off":
        reason = f"{MODE} is off"
    return Plugin(release, not reason, reason or f"{MODE} is {mode()}")


def _has_group(engine: Engine, group: Group) -> bool:
    spec = find_spec(engine.package)
    folders = spec.submodule_search_locations if spec else None
    files = [Path(folder) / group.module for folder in folders or ()]
    return any(file.is_file() and group.name in file.read_text(encoding="utf-8") for file in files)
