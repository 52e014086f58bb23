"""The reference drafts what vLLM drafts: every drafted token and the logits behind it, on the same
prompts.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FIXTURES
from tests.engine import pairs

PATHS = (
    "speculators/plain",
    "speculators/eagle3.1",
    "speculators/default",
    "speculators/residual",
    "speculators/qwen3",
    "speculators/two-layers",
    "speculators/four-aux",
    "speculators/full-vocab",
    "modelopt/hf",
    "specforge/gqa-llama3-rope",
    "vllm/bias",
    "vllm/mla",
    "lightseekorg/mla-eagle3.1",
)
TOLERANCE = 1e-4  # of the largest logit; a rope base that is 1 % off gives 3e-4
PATIENCE = 400.0


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("parity")
    pairs.llama_target(root / "llama")
    pairs.mla_target(root / "mla")
    command = [sys.executable, "-m", "tests.engine.parity_child", str(root), *PATHS]
    process = subprocess.Popen(
        command,
        cwd=FIXTURES.parent,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        pairs.end(process)
    found = {path: _answer(root / pairs.answer_name(path)) for path in PATHS}
    return found | {"said": said[-2000:]}


def _answer(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else {"error": "the fork died, or ran out of time"}


@pytest.mark.parametrize("path", PATHS)
def test_the_reference_drafts_what_vllm_drafts(path: str, answers: dict[str, Any]) -> None:
    found = answers[path]
    assert "error" not in found, f"{found['error']}\n{answers['said']}"
    print(f"{path}: {found}")
    assert found["difference"] < TOLERANCE
    assert found["is_draft_equal"]
    assert found["is_output_equal"]


@pytest.mark.parametrize("path", PATHS)
def test_drafts_were_both_accepted_and_rejected(path: str, answers: dict[str, Any]) -> None:
    found = answers[path]
    assert 0 < found["accepted"][0] < sum(found["rounds"])
