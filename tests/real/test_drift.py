"""`smoke --probe drift` on the real pair: chats as messages, and a template that the target does not have."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.real.conftest import REAL
from tests.real.counting import few_prompts, smoke


@pytest.mark.slow
def test_the_drift_probe_takes_messages_and_a_template_that_is_not_the_targets(
    real_target: Path, tmp_path: Path
) -> None:
    assert "###" not in (real_target / "chat_template.jinja").read_text()
    prompts = few_prompts(tmp_path, (0,))
    settings = {"max_tokens": 16, "probe": "drift"}
    report = smoke(REAL / "specforge", real_target, prompts, "reference", **settings)
    lengths = {condition.name: condition.measured.length.value for condition in report.drift_conditions}
    assert set(lengths) == {"as given", "another template", "foreign system prompt", "long context"}
    assert all(1 <= length <= 8 for length in lengths.values())
    assert {condition.measured.prompts for condition in report.drift_conditions} == {1}
