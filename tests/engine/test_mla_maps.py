"""vLLM drafts with a converted drafter what the reference drafts with the one before: every token, and the
logits behind it.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import FIXTURES
from tests.engine import pairs

MAPS = ("scale", "query")
TOLERANCE = 1e-4  # of the largest logit


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("maps")
    pairs.llama_target(root / "llama")
    pairs.mla_target(root / "mla")
    command = [sys.executable, "-m", "tests.engine.mla_child", str(root)]
    process = subprocess.Popen(
        command,
        cwd=FIXTURES.parent,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=400.0)
    finally:
        pairs.end(process)
    found = {
        name: json.loads((root / f"{name}.json").read_text())
        for name in MAPS
        if (root / f"{name}.json").exists()
    }
    return found | {"said": said[-2000:]}


@pytest.mark.parametrize("name", MAPS)
def test_a_converted_drafter_drafts_the_same_tokens(name: str, answers: dict[str, Any]) -> None:
    found = answers.get(name, {"error": "the fork died, or ran out of time"})
    assert "error" not in found, f"{found['error']}\n{answers['said']}"
    print(f"{name}: {found}")
    assert found["difference"] < TOLERANCE
    assert found["is_draft_equal"] and found["is_output_equal"]
    assert 0 < found["accepted"] < found["rounds"]
