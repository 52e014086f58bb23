"""`smoke --probe drift` on the real pair: chats as messages, and a template that the target does not have."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import eaglectl
from eaglectl.run.probes import _written
from eaglectl.run.prompts import Prompt
from tests.real.conftest import REAL

CHATS = 1


@pytest.mark.slow
def test_the_drift_probe_takes_messages_and_a_template_that_is_not_the_targets(
    real_target: Path, tmp_path: Path
) -> None:
    own = (real_target / "chat_template.jinja").read_text()
    assert "<|im_start|>" in own and _written(Prompt("Hi"), own).text.startswith("### user:")
    path = tmp_path / "few.jsonl"
    path.write_text("".join((REAL / "test.jsonl").read_text().splitlines(keepends=True)[:CHATS]))
    options = eaglectl.SmokeOptions(
        run_in="reference", device="cpu", prompts=path, max_tokens=16, probe="drift"
    )
    report = eaglectl.smoke(str(REAL / "specforge"), str(real_target), options)
    lengths = {condition.name: condition.measured.length.value for condition in report.drift_conditions}
    assert set(lengths) == {"as given", "another template", "foreign system prompt", "long context"}
    assert all(1 <= length <= 8 for length in lengths.values())
    assert {condition.measured.prompts for condition in report.drift_conditions} == {CHATS}
