"""File systems of their own, which root alone may mount."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(place: Path, *arguments: str | Path, instead: str = "") -> Iterator[Path]:
    """A file system at the new folder `place`, by `mount` with these arguments.

    The test is skipped where that is refused; `instead` is what covers it there.
    """
    place.mkdir()
    run_or_skip(["mount", *map(str, arguments), str(place)], instead)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def run_or_skip(command: list[str], instead: str = "") -> None:
    """Run a command; the test is skipped, with the reason, on a machine that has it not or forbids it."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed{instead and '; ' + instead}")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{command[0]} is refused here ({done.stderr.strip()}){instead and '; ' + instead}")
