"""The engine releases that a checkpoint is judged for where nobody names any."""

from contextlib import suppress
from importlib.util import find_spec

from eaglectl.engines.catalogue import ENGINES, EngineRequest
from eaglectl.engines.engine import Engine

NEWEST, INSTALLED = "newest known", "installed here"


def default_requests() -> tuple[EngineRequest, ...]:
    """The release of each engine that is installed here, and the newest known of the default engines."""
    requests = []
    for engine in ENGINES.values():
        newest = engine.releases[-1] if engine.is_default else None
        installed = installed_release(engine)
        if installed is not None and installed != newest:
            known = (installed,) if installed in engine.releases else ()
            requests.append(EngineRequest(engine.name, known, INSTALLED, "" if known else installed))
        if newest is not None:
            why = f"{NEWEST}, {INSTALLED}" if newest == installed else NEWEST
            requests.append(EngineRequest(engine.name, (newest,), why))
    return tuple(requests)


def installed_release(engine: Engine) -> str | None:
    """The release of an engine in this environment; None where there is none. The engine is not imported."""
    if find_spec(engine.package) is None:
        return None
    from importlib.metadata import PackageNotFoundError, version  # late: it takes long to load

    for name in engine.distributions:
        with suppress(PackageNotFoundError):
            return version(name).partition("+")[0]
    return None
