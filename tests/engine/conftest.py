"""Tests that need the real vLLM, of `make test-engine`; elsewhere they are not collected."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import marked

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]


@pytest.fixture
def no_process_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test of which a child, or what it started, is still there at the end."""
    monkeypatch.setenv("EAGLECTL_TEST", str(tmp_path))
    yield
    assert marked(f"EAGLECTL_TEST={tmp_path}", 5.0) == []
