"""What a shell is offered as values of options and arguments."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

# an engine with the sign after which a release follows, like `vllm>=` and `vllm>=0.22,<`
RANGE = re.compile(r"([a-z.]+).*[=<>!~]")


def offering(kind: str) -> Callable[[str], list[str]]:
    """What typer asks for the values of a kind, or of a text like "on|off".

    It leaves out what begins otherwise than was typed.
    """

    def complete(incomplete: str) -> list[str]:
        return list(_values(kind, incomplete))

    return complete


def _values(kind: str, typed: str) -> Iterable[str]:
    match kind:
        case "engines" | "every engine":
            return _engines(typed, has_releases=kind == "engines")
        case "runners":
            return ("vllm", "sglang", "reference", "http://")
        case "rules":
            from eaglectl.judge.rules import rules

            return (name for rule in rules() for name in (rule.id, rule.name))
        case "layouts" | "semantics" | "readings":
            return _of_formats(kind)
        case "formats" | "outputs":
            from eaglectl.report.ci.outputs import FORMATS

            return FORMATS if kind == "formats" else (f"{name}=" for name in FORMATS)
        case "files" | "folders" | "checkpoints":
            return _files(kind, typed)
    return kind.split("|") if "|" in kind else ()


def _of_formats(kind: str) -> Iterable[str]:
    from eaglectl.conversion.readings import READINGS
    from eaglectl.formats.catalogue import FORMATS
    from eaglectl.formats.reader import known_semantics

    match kind:
        case "layouts":
            return (format.name for format in FORMATS if format.layout)
        case "readings":
            return (f"{key}=" for key in READINGS)
    known = known_semantics().items()
    return (f"{key}={value}" for key, values in known for value in values or ("",))


def _engines(typed: str, *, has_releases: bool) -> Iterator[str]:
    """The engines, and each with every release that is known; in a range, what stands after its last sign."""
    from eaglectl.engines.behaviour import unversioned
    from eaglectl.engines.registry import ENGINES

    before = RANGE.match(typed)
    for name, engine in ENGINES.items():
        if before is None:
            yield name
        if has_releases and (before is None or before[1] == name):
            start = before[0] if before else f"{name}=="
            yield from (f"{start}{release}" for release in reversed(engine.releases))
    if not has_releases:
        yield from unversioned()["engines"]


def _files(kind: str, typed: str) -> Iterator[str]:
    """Files or folders that begin as what was typed; checkpoints, and repositories of the Hub's cache."""
    from eaglectl.files.hub_requests import load_client
    from eaglectl.files.layout import is_checkpoint

    for path in _paths(typed):
        folder = path.expanduser()
        if folder.is_dir():
            yield str(path) if kind == "checkpoints" and is_checkpoint(folder) else f"{path}/"
        elif kind == "files":
            yield str(path)
    has_folder = "/" in typed.removeprefix("./") and Path(typed).parent.expanduser().is_dir()
    if kind == "checkpoints" and not has_folder:
        for path in _paths(f"{load_client().constants.HF_HUB_CACHE}/"):
            if path.name.startswith("models--"):
                yield path.name.removeprefix("models--").replace("--", "/")


def _paths(typed: str) -> list[Path]:
    folder = Path(typed) if typed.endswith("/") else Path(typed).parent
    try:
        names = sorted(path.name for path in folder.expanduser().iterdir())
    except (OSError, RuntimeError):  # nobody's home folder
        return []
    return [folder / name for name in names if name.isprintable() and not name.startswith(".")]
