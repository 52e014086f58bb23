"""`--like`: runs as a source made them, and what others reach, of `smoke`, `diagnose` and `ready`."""

import os
from typing import Any, TypeVar

from msgspec.structs import replace

from eaglectl.errors import EaglectlError, UsageError
from eaglectl.files.opening import open_folder
from eaglectl.operations.options import DiagnoseOptions, ReadyOptions, SmokeOptions
from eaglectl.options import options_of
from eaglectl.run.published import Published, Settings, preset, published_for
from eaglectl.target import target_names

RunOptions = TypeVar("RunOptions", SmokeOptions, DiagnoseOptions, ReadyOptions)


def as_preset(options: RunOptions) -> RunOptions:
    """The options with those of their preset; the same without one, or where they have them already.

    Raises UsageError for a preset that cannot be run, and for an option that was given with another value; a
    chain of other length (-k) and a sample are allowed.
    """
    if options.like is None:
        return options

    wanted = preset(options.like)
    if options.prompts not in (None, options.like):
        raise UsageError(f"--like {options.like} has prompts of its own; leave --prompts out")
    values: dict[str, Any] = {"temperature": wanted.temperature, "max_tokens": wanted.max_new_tokens}
    if wanted.seed is not None:
        values["seed"] = wanted.seed
    declared = options_of(type(options))
    for name, value in values.items():
        given = getattr(options, name)
        if given not in (value, declared[name].default):
            raise UsageError(
                f"{declared[name].flag} {given:g}: --like {options.like} has {value:g}; leave one of them out"
            )
    k = options.k if options.k != declared["k"].default else wanted.steps
    return replace(options, prompts=options.like, k=k, **values)


def published_beside(source: str, target: str | None, options: RunOptions, k: int | None = None) -> Published:
    """What others reached with drafters of the target; with no known target, nothing.

    `k`: the length of the chain that ran, where that is not the one that was asked for.
    """
    settings = Settings(
        k or (options.chains[-1] if isinstance(options, SmokeOptions) else options.k),
        options.temperature,
        options.max_tokens,
        options.like,
        options.sample,
        getattr(options, "ignore_eos", False),
    )
    if target is None:
        return Published(settings=settings)
    try:
        names = target_names(target, open_folder(os.fspath(source)))
    except EaglectlError:  # what cannot be read is reported by who runs it
        names = {}
    return published_for(names, settings)
