"""The reference drafts what vLLM drafts: every token, and the logits behind it."""

import json
from typing import Any

import pytest

from tests.engine import pairs
from tests.engine.children import run_child

# fixtures, and maps of MLA: vLLM on what was converted, the reference on what was not
PATHS = (
    "speculators/plain", "speculators/eagle3.1", "speculators/default", "speculators/residual",
    "speculators/qwen3", "speculators/two-layers", "speculators/four-aux", "speculators/full-vocab",
    "modelopt/hf", "specforge/gqa-llama3-rope", "vllm/bias", "vllm/mla", "lightseekorg/mla-eagle3.1",
    "scale", "query",
)  # fmt: skip
TOLERANCE = 1e-4  # of the largest logit; a rope base that is 1 % off gives 3e-4


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("parity")
    pairs.llama_target(root / "llama")
    pairs.mla_target(root / "mla")
    places = (root, root / "answers.json", *PATHS)
    run_child("tests.engine.parity_child", *places, patience=600.0, log=root / "log")
    return dict(json.loads((root / "answers.json").read_text()))


@pytest.mark.parametrize("path", PATHS)
def test_the_reference_drafts_what_vllm_drafts(path: str, answers: dict[str, Any]) -> None:
    found = answers[path]
    assert "error" not in found, found["error"]
    assert found["difference"] < TOLERANCE
    assert found["is_draft_equal"] and found["is_output_equal"]
    # drafts were both accepted and rejected
    assert 0 < found["accepted"] < found["rounds"]
