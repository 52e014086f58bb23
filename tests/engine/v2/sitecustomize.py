"""On PYTHONPATH: vLLM takes its V2 runner, by Triton's interpreter; lines are counted where asked."""

import os

if os.environ.get("EAGLECTL_TEST_RUNNER") == "V2":
    import tests.engine.interpreted  # noqa: F401

if "COVERAGE_PROCESS_START" in os.environ:
    import coverage

    coverage.process_startup()
