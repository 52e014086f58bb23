"""Which of vLLM's model runners the children of a test take."""

import pytest

from tests.conftest import FIXTURES

RUNNERS = ("V1", "V2")
ROOT = FIXTURES.parent


def use_runner(patch: pytest.MonkeyPatch, runner: str) -> None:
    """Have vLLM in children of this process take the runner; V2 by Triton's interpreter (interpreted.py)."""
    patch.setenv("EAGLECTL_TEST_RUNNER", runner)
    patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1" if runner == "V2" else "0")
    patch.setenv("PYTHONPATH", f"{ROOT / 'tests/engine/v2'}:{ROOT}")
