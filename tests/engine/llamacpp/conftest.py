"""Tests that need llama.cpp: `make test-llamacpp` builds it; elsewhere they are not collected."""

from tests.engine.llamacpp.engine import is_built

collect_ignore_glob = [] if is_built() else ["test_*.py"]
