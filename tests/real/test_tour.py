"""The tour begins with the real pair."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tools.tour import main


@pytest.mark.slow
def test_the_tour_begins_with_the_real_pair(
    real_target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path.cwd())  # where the test ends
    assert main() == 0
    out = capsys.readouterr().out
    assert out.startswith(f"smollm2 is {real_target}") and out.count("exit code") == 14
    assert out.index("acceptance length") > out.index("smoke out/real")
