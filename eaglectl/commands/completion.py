"""What a shell is offered as values of options; each function takes what was typed so far."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from eaglectl.options import Option

# an engine with the sign after which a release follows, like `vllm>=` and `vllm>=0.22,<`
RANGE = re.compile(r"([a-z.]+).*[=<>!~]")


def choices(option: Option) -> Iterable[str]:
    """The values of a closed set."""
    shown = option.value.split("|") if "|" in option.value else ()
    return option.choices or shown


def rules(typed: str) -> Iterator[str]:
    """Ids and names of rules."""
    from eaglectl.judge.rules import rules as every

    for rule in every():
        yield from (rule.id, rule.name)


def engines(typed: str) -> Iterator[str]:
    """The engines, and each with every release that is known; in a range, what stands after its last sign."""
    from eaglectl.engines.registry import ENGINES

    before = RANGE.match(typed)
    for name, engine in ENGINES.items():
        if before and before[1] == name:
            yield from (f"{before[0]}{release}" for release in reversed(engine.releases))
        elif not before:
            yield name
            yield from (f"{name}=={release}" for release in reversed(engine.releases))


def every_engine(typed: str) -> Iterator[str]:
    """The engines, and those whose releases are not followed."""
    from eaglectl.engines.behaviour import unversioned
    from eaglectl.engines.registry import ENGINES

    yield from (*ENGINES, *unversioned()["engines"])


def runners(typed: str) -> Iterable[str]:
    """What runs a drafter."""
    return ("vllm", "sglang", "reference", "http://")


def layouts(typed: str) -> Iterator[str]:
    """The layouts that `convert` writes."""
    from eaglectl.formats.catalogue import FORMATS

    return (format.name for format in FORMATS if format.layout)


def semantics(typed: str) -> Iterator[str]:
    """The facts about trainers that a file cannot state, with their values."""
    from eaglectl.formats.reader import known_semantics

    for key, values in known_semantics().items():
        yield from (f"{key}={value}" for value in values or ("",))


def readings(typed: str) -> Iterable[str]:
    """The keys of readings that can be repaired."""
    from eaglectl.conversion.readings import READINGS

    return (f"{key}=" for key in READINGS)


def folders(typed: str) -> Iterator[str]:
    """Folders that begin as what was typed."""
    return (f"{path}/" for path in _paths(typed) if path.expanduser().is_dir())


def files(typed: str) -> Iterator[str]:
    """Files and folders that begin as what was typed."""
    return (f"{path}/" if path.expanduser().is_dir() else str(path) for path in _paths(typed))


def checkpoints(typed: str) -> Iterator[str]:
    """Folders that are checkpoints, else folders on the way to some; cached repositories of the Hub."""
    from eaglectl.files.layout import is_checkpoint

    for path in _paths(typed):
        if (folder := path.expanduser()).is_dir():
            yield str(path) if is_checkpoint(folder) else f"{path}/"
    if "/" not in typed.removeprefix("./") or not Path(typed).parent.expanduser().is_dir():
        yield from _cached()


def _paths(typed: str) -> list[Path]:
    folder = Path(typed) if typed.endswith("/") else Path(typed).parent
    try:
        names = sorted(path.name for path in folder.expanduser().iterdir())
    except (OSError, RuntimeError):  # nobody's home folder
        return []
    return [folder / name for name in names if name.isprintable() and not name.startswith(".")]


def _cached() -> Iterator[str]:
    """The repositories in the Hub client's cache."""
    from eaglectl.files.hub_requests import load_client

    for path in _paths(f"{load_client().constants.HF_HUB_CACHE}/"):
        if path.name.startswith("models--"):
            yield path.name.removeprefix("models--").replace("--", "/")


def formats(typed: str) -> Iterable[str]:
    """Formats of reports."""
    from eaglectl.report.ci.outputs import FORMATS

    return FORMATS


def outputs(typed: str) -> Iterable[str]:
    """Formats of --output, before their file."""
    return (f"{name}=" for name in formats(typed))
