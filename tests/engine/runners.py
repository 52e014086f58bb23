"""Which of vLLM's model runners the children of a test take."""

import json

import pytest
import torch

from tests.builders import Outcome
from tests.conftest import FIXTURES

RUNNERS = ("V1", "V2")
ROOT = FIXTURES.parent


def use_runner(patch: pytest.MonkeyPatch, runner: str) -> None:
    """Have vLLM in children of this process take the runner; V2 by Triton's interpreter (interpreted.py)."""
    patch.setenv("EAGLECTL_TEST_RUNNER", runner)
    patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1" if runner == "V2" else "0")
    patch.setenv("PYTHONPATH", f"{ROOT / 'tests/engine/v2'}:{ROOT}")


def assert_drafts_in_four_bits(done: Outcome) -> None:
    """Hold that `smoke --json` measured a packed drafter.

    vLLM's build for CPUs without AVX-512 loads it, and has no kernel for weights of four bits.
    """
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert json.loads(done.out)["acceptance_length"] > 1.5, done.out
    else:
        assert "no attribute 'cpu_gemm_wna16'" in done.out + done.err, done.out + done.err
