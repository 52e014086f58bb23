"""The real pair and nothing else: `convert --to 3.1` writes it, and smoke holds it to its source."""

import json
from pathlib import Path

import pytest

from tests.builders import call
from tests.real.conftest import REAL

pytestmark = [pytest.mark.slow, pytest.mark.minutes]


def test_the_real_pair_is_written_and_held_to_its_source_by_the_defaults(
    real_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("convert", REAL / "specforge", "--to", "3.1", "--target", real_target)
    assert done.code == 0 and "kept: every lower bound is at least 0.97" in done.out, done.out + done.err
    record = json.loads(Path("specforge-eagle3.1/eaglectl.json").read_text())
    assert record["upgrade"]["fc_norm"] == "refit"
    assert record["upgrade"]["calibration"]["tokens"] >= 4 * 3 * 576
    assert [row["interval"][0] >= 0.97 for row in record["gate"]["rows"]] == [True, True]
    more = ("--target", real_target, "--against", REAL / "specforge", "--run-in", "reference")
    held = call("smoke", "specforge-eagle3.1", *more)
    assert held.code == 0, held.out + held.err
