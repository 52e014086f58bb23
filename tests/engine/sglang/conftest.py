"""Tests that need SGLang: `make test-sglang` builds its environment; elsewhere they are not collected."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("sglang") else ["test_*.py"]
