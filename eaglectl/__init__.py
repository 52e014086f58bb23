"""Inspect, convert and check EAGLE-3 and EAGLE-3.1 drafters.

One function for each command, with its options and results; they print nothing and never exit. Their list is
__init__.pyi, which type checkers read; the module of a name is imported on first use.
"""

import re
from functools import cache
from importlib import import_module
from pathlib import Path

__version__ = "0.1.0"


@cache
def _modules():
    """The module of each public name."""
    text = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    return {name: module for module, name in re.findall(r"^from (\S+) import (\w+) as", text, re.MULTILINE)}


def __getattr__(name):
    if name == "__all__":
        return sorted(_modules())
    if name.startswith("_") or name not in _modules():
        raise AttributeError(f"module 'eaglectl' has no attribute {name!r}")
    return getattr(import_module(_modules()[name]), name)


def __dir__():
    return [*_modules(), "__version__"]
