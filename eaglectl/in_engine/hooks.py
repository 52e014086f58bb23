"""Hooks on functions of an engine, and what all of them keep to.

What goes wrong in a hook is one warning, and the engine starts as it does without the plugin.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce, wraps
from typing import Any, NamedTuple

MODE, MODES = "EAGLECTL_IN_ENGINE", ("warn", "refuse", "off")
# of this process: a plugin may be loaded several times, and another one may wrap what is wrapped
WRAPPED = set[str]()


class RefusedStart(RuntimeError):
    """EAGLECTL_IN_ENGINE=refuse ends the start of an engine."""


class Start(NamedTuple):
    """The start of an engine with an EAGLE-3 drafter: folders or Hub repositories, and their revisions.

    `runner` is vLLM's model runner, "" if it is not known. `arguments` have the options as attributes.
    """

    engine: str
    drafter: str
    target: str
    drafter_revision: str | None = None
    target_revision: str | None = None
    runner: str = ""
    arguments: Any = None


class Hook(NamedTuple):
    """A function of an engine, `Class.name` in a module, that `around` calls in its place.

    `around` gets the original and its arguments. A module that is not loaded is left alone: importing it may
    take seconds.
    """

    module: str
    function: str
    around: Callable[..., Any]


def register(engine: str, hooks: Sequence[Hook]) -> None:
    """Put the hooks around their functions, each once, unless EAGLECTL_IN_ENGINE is off."""
    for hook in hooks if mode() != "off" else ():
        with guarded(engine):
            _wrap(hook)


def mode() -> str:
    """Return what EAGLECTL_IN_ENGINE says; "warn" for an unknown value, which `look` reports."""
    value = stated_mode()
    return value if value in MODES else MODES[0]


def stated_mode() -> str:
    """Return the value of EAGLECTL_IN_ENGINE; "warn" if it is not set."""
    return os.environ.get(MODE, "").strip().lower() or MODES[0]


def _wrap(hook: Hook) -> None:
    # put `around` in the place of the engine's function, once, if its module is loaded
    place = f"{hook.module}.{hook.function}"
    if (module := sys.modules.get(hook.module)) is None or place in WRAPPED:
        return
    *owners, name = hook.function.split(".")
    owner = reduce(getattr, owners, module)
    original = getattr(owner, name)

    @wraps(original)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return hook.around(original, *arguments, **named)

    setattr(owner, name, wrapper)
    WRAPPED.add(place)


def logger(engine: str) -> logging.Logger:
    """Return a logger below the engine's own, which writes as the engine does."""
    return logging.getLogger(f"{engine}.eaglectl")


@contextmanager
def guarded(engine: str) -> Iterator[None]:
    """Report any error of ours as one warning; only RefusedStart passes."""
    try:
        yield
    except RefusedStart:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        logger(engine).warning(
            "eaglectl could not look at the drafter (%s: %s); the engine starts as it does without eaglectl",
            type(error).__name__,
            text,
        )


def replace_method(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Give one object its own method `name`, which calls `around` with the original."""
    setattr(owner, name, partial(around, getattr(owner, name)))
