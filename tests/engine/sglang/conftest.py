"""Tests that need SGLang: `make test-sglang` builds its environment; elsewhere they are not collected."""

import importlib.util

import pytest

from tests.engine.sglang.settings import HOOKED

collect_ignore_glob = [] if importlib.util.find_spec("sglang") else ["test_*.py"]


@pytest.fixture
def hooked(no_process_stays: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins in every process of SGLang, each of which has this test's mark and ends with it."""
    for name, value in HOOKED.items():
        monkeypatch.setenv(name, value)
