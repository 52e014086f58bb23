"""Tests that run trainers' own code, of `make test-trainers`; elsewhere skipped, or failed if asked for."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def interpreter(trainer: str) -> Path:
    """The Python of a trainer's environment; the test is skipped, or fails, where there is none."""
    folder = Path(os.environ.get(f"EAGLECTL_{trainer.upper()}", ROOT / f".venv-trainers-{trainer}"))
    path = folder / "bin/python"
    if not path.exists():
        why = f"{folder} is missing: `make test-trainers` builds it"
        if os.environ.get("EAGLECTL_TRAINERS"):
            pytest.fail(why)
        pytest.skip(why)
    return path
