"""Inspect, convert and check EAGLE-3 and EAGLE-3.1 drafters.

One function for each command; they print nothing, and `print(result)` is what the command prints.

    inspect(source)           what a drafter is, and which engines run it as trained
    ready(source, target)     whether it can be served, with acceptance before and after
    validate(source)          rules, and what each engine release does with it
    convert(source, out)      the drafter in another layout
    upgrade(source, out)      EAGLE-3 as 3.1, with the statistics of calibrate(source, target, out)
    smoke(source, target)     acceptance, measured; load_only(source): loaded in vLLM alone
    diagnose(source, target)  why acceptance is low
    diff(a, b)                two drafters, whatever their layouts
    upload(folder, repo)      published in one commit; verify(folder) compares a download

A source is a folder, a weight file, "org/name@revision" or an earlier result. Options are keywords, as
--dry-run is dry_run=True: help(eaglectl.convert). What is wrong is raised as EaglectlError.
`dir(eaglectl)` has the classes of results and options, and __init__.pyi says where each is.
"""

import re as _re
from functools import cache as _cache
from importlib import import_module as _import_module
from pathlib import Path as _Path

__version__ = "0.1.0"


@_cache
def _modules():
    return {
        name: module
        for module, name in _re.findall(
            r"^from (\S+) import (\w+) as",
            _Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"),
            _re.MULTILINE,
        )
    }


def __getattr__(name):
    # no __all__: help() would print the documentation of every class
    if name.startswith("_") or name not in _modules():
        raise AttributeError(f"module 'eaglectl' has no attribute {name!r}")
    return getattr(_import_module(_modules()[name]), name)


def __dir__():
    return [*_modules(), "__version__"]
