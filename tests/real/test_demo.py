"""The demo begins with the real pair."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tools.demo import main


@pytest.mark.slow
def test_the_demo_begins_with_the_real_pair(
    real_target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path.cwd())  # where the test ends
    assert main() == 0
    out = capsys.readouterr().out
    assert out.startswith(f"TARGET is {real_target}") and out.count("exit code") == 15
    asked, repaired = out.index("--aux-layers 1,14,26"), out.index("smoke OUT/real")
    lengths = [float(out[out.index("acceptance length", start) :].split()[2]) for start in (asked, repaired)]
    assert lengths[0] < lengths[1]
    assert out.index("tokens are accepted draft tokens") > repaired
