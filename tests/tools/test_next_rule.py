"""The free rule numbers that `python -m tools.next_rule` prints."""

import runpy
import sys

import pytest

from eaglectl.judge.rule import FAMILIES, rules
from tools.next_rule import next_ids


def test_each_family_has_its_next_free_number() -> None:
    taken = {rule.id for rule in rules()}
    ids = next_ids()
    assert {*ids} == {*FAMILIES.values()} and not taken & {*ids.values()}
    assert {f"EGL{int(id.removeprefix('EGL')) - 1:03}" for id in ids.values()} <= taken


def printed(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tools.next_rule", *arguments])
    runpy.run_module("tools.next_rule", run_name="__main__")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_one_family_is_printed_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed("weights", monkeypatch=monkeypatch)
    assert capsys.readouterr().out == f"{next_ids()['weights']}  weights\n"


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_an_unknown_family_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="no such family; the families are files, config, weights"):
        printed("colours", monkeypatch=monkeypatch)
