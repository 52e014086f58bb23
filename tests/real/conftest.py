"""Tests of the real pair; its target is made on first use, and where no index is reached they are skipped."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FIXTURES

ROOT = FIXTURES.parent
REAL = FIXTURES / "real"
COULD_NOT_LOOK = 3

# `make test-engine` builds vLLM's environment
collect_ignore = [] if importlib.util.find_spec("vllm") else ["test_vllm.py"]


def make_target() -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, ROOT / "tools/real/target.py"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="session")
def real_target() -> Path:
    """The folder of the real target."""
    ended = make_target()
    if ended.returncode == COULD_NOT_LOOK:
        pytest.skip(f"the real target is not there: {ended.stderr.strip().splitlines()[-1]}")
    assert ended.returncode == 0, ended.stderr
    return Path(ended.stdout.splitlines()[-1])
