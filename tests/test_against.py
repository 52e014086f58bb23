"""The verdict of smoke --against: not worse than the older drafter on each set of prompts."""

import json
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.errors import UsageError
from eaglectl.report.documents.document import render_json
from eaglectl.run.measurement import PromptResult
from eaglectl.run.report import DrafterComparison, compare_drafters
from tests.conftest import FIXTURES
from tests.measurements import EAGLE3, EAGLE31, report, worse

TINY = FIXTURES / "tiny"


def compared(
    results: Sequence[PromptResult], baseline: Sequence[PromptResult], least: float = 0.97
) -> DrafterComparison:
    return compare_drafters(report(results), report(baseline), least)


def of(name: str, results: Sequence[PromptResult]) -> list[PromptResult]:
    return [replace(result, set=name) for result in results]


def test_a_drafter_is_not_worse_than_itself() -> None:
    found = compared(EAGLE3[:20], EAGLE3[:20])
    assert [(part.name, part.prompts, part.outcome) for part in found.sets] == [("set", 20, "pass")]
    assert (found.failures, found.gaps) == ((), ())


def test_a_drafter_that_is_worse_beyond_doubt_fails() -> None:
    found = compared(worse(EAGLE3[:40], 0.5), EAGLE3[:40])
    (failure,) = found.failures
    assert failure.startswith('lost: set "set": ratio 0.')
    assert failure.endswith("is below --max-regression 0.97")


def test_an_interval_that_holds_the_bar_tells_nothing_and_says_what_would_tell() -> None:
    found = compared(EAGLE3[:24], EAGLE31[:24], 0.95)
    (gap,) = found.gaps
    assert found.ratio.low < 0.95 < found.ratio.value
    assert found.failures == ()
    assert "prompts: 24, cannot tell; give " in gap and " or more of this set" in gap
    assert compared(EAGLE3[:24], EAGLE31[:24], 0.92).gaps == ()


def test_drafts_from_every_position_decide_where_rounds_confirm() -> None:
    """The same prompts: rounds alone cannot tell at 0.95."""
    starts = EAGLE3[:24]
    rounds = (report(EAGLE3[:24]), report(EAGLE31[:24]))
    alone = compare_drafters(*rounds, 0.95)
    both = compare_drafters(*rounds, 0.95, (starts, starts))
    assert (alone.ending, alone.has_positions) == ("too few prompts", False)
    assert (both.ending, both.has_positions) == ("kept", True)
    assert both.rounds == alone.ratio and both.ratio.value == 1.0


def test_rounds_that_are_worse_are_a_loss_whatever_the_positions_say() -> None:
    rounds = (report(worse(EAGLE3[:40], 0.5)), report(EAGLE3[:40]))
    found = compare_drafters(*rounds, 0.97, (EAGLE3[:40], EAGLE3[:40]))
    assert (found.ending, found.sets[0].outcome) == ("lost", "fail")


@pytest.mark.parametrize("count", [1, 3, 15])
def test_too_few_prompts_are_no_verdict(count: int) -> None:
    found = compared(EAGLE3[:count], EAGLE31[:count], 1.0)
    assert found.failures == () and len(found.gaps) == 1
    assert f"prompts: {count}, cannot tell; give " in found.gaps[0]


def test_three_prompts_are_too_few_though_they_agree() -> None:
    assert compared(EAGLE3[:3], EAGLE3[:3]).gaps and not compared(EAGLE3[:4], EAGLE3[:4]).gaps


def test_each_set_is_judged_and_one_that_is_worse_decides() -> None:
    base = [*of("code", EAGLE3[:40]), *of("chat", EAGLE3[40:80]), *of("rare", EAGLE3[80:82])]
    new = [*of("code", EAGLE3[:40]), *of("chat", worse(EAGLE3[40:80], 0.5)), *of("rare", EAGLE3[80:82])]
    found = compared(new, base)
    outcomes = {part.name: part.outcome for part in found.sets}
    assert outcomes == {"code": "pass", "chat": "fail", "rare": "could-not-look"}
    whole = replace(report(new), against=found)
    assert whole.verdict == "fail"
    only = replace(found, sets=tuple(part for part in found.sets if part.name != "chat"))
    assert replace(whole, against=only).verdict == "could-not-look"
    assert replace(whole, against=replace(only, sets=only.sets[:1])).verdict == "pass"


def test_a_set_without_a_draft_is_no_verdict() -> None:
    empty = [PromptResult("set", 0, (0, 0, 0), (1,))] * 9
    base = [*of("code", EAGLE3[:20]), *empty]
    found = compared(base, base)
    assert [part.outcome for part in found.sets] == ["pass", "could-not-look"]
    assert "nothing was drafted" in found.gaps[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (eaglectl.SmokeOptions(max_regression=0.9), "name that with --against"),
        (eaglectl.SmokeOptions(max_regression=0.0, against="x"), "--max-regression 0: a ratio above 0"),
        (
            eaglectl.SmokeOptions(max_regression=float("nan"), against="x"),
            "--max-regression nan: a ratio above 0",
        ),
    ],
)
def test_a_bar_that_makes_no_sense_is_refused(options: eaglectl.SmokeOptions, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        eaglectl.smoke("nowhere", "nowhere", options)


@pytest.mark.slow
def test_the_reference_drafts_from_every_position_and_says_first_what_the_question_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    notices: list[str] = []
    monkeypatch.setattr("eaglectl.run.report.notify", notices.append)
    options = eaglectl.SmokeOptions(
        run_in="reference",
        device="cpu",
        prompts=str(TINY / "gate.jsonl"),
        sample=10,
        max_tokens=8,
        against=str(TINY / "eagle3"),
    )
    found = eaglectl.smoke(str(TINY / "eagle3.1"), str(TINY / "target"), options).against
    assert found is not None and found.has_positions
    assert found.ratio.high / found.ratio.low < found.rounds.high / found.rounds.low
    (notice,) = notices
    assert notice.endswith("by the deviation between the first 8; 10 are given")


def test_the_document_has_the_number_of_prompts_that_the_question_needs() -> None:
    """The deviation between the first eight prompts gives it, whatever the others show."""
    found = compared(EAGLE3[:24], EAGLE31[:24], 0.95)
    few = compared(EAGLE3[:8], EAGLE31[:8], 0.95)
    document = json.loads(render_json(replace(report(EAGLE3[:24]), against=found)))
    assert document["against"]["prompts_forecast"] == found.forecast == few.forecast
    needed = {bar: compared(EAGLE3[:24], EAGLE31[:24], bar).forecast for bar in (0.8, 0.95, 0.97, 1.0)}
    assert needed == {0.8: 4, 0.95: 20, 0.97: 51, 1.0: None}


def test_first_answers_without_a_draft_give_no_number_of_prompts() -> None:
    empty = [PromptResult("set", 0, (0, 0, 0), (1,))] * 8
    base = [*empty, *of("set", EAGLE3[:20])]
    assert compared(base, base).forecast is None
