"""The sources of an installed engine."""

import importlib.util
from pathlib import Path

from tools.scan.interface import differences, has_names
from tools.scan.sources import Sources


def other_names(engine: str) -> list[str]:
    """Where the sources lack what the interface table says that their release has, or have what it lacks."""
    spec = importlib.util.find_spec(engine)
    assert spec is not None and spec.origin is not None
    sources = Sources(Path(spec.origin).parent)
    found = {"engine": engine, "interface": has_names(sources)}
    assert found["interface"]
    return list(differences(found, sources.release))
