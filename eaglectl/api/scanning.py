"""What the sources of an engine release show that eaglectl's data does not state."""

from pathlib import Path

from eaglectl.engines.scanner import Scan, scan


def scan_engine(wheel: Path, *, against: str | None = None) -> Scan:
    """Compare a wheel of vLLM or SGLang, or a folder with its files, with the data or with a scan's JSON.

    Raises UnreadableError, UsageError.
    """
    return scan(wheel, against)
