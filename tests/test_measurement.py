"""Acceptance: its definition, its intervals, how often they hold the truth, and gains beyond chance."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.errors import UnreadableError, UsageError
from eaglectl.run.measurement import (
    LEVEL,
    Estimate,
    Measurement,
    PromptResult,
    gain_effect,
    gain_p_value,
    measure,
    prompts_needed,
    ratio,
    shortcomings,
    shortfalls,
)
from eaglectl.run.probes import Variant, find_fall, judge_gain
from eaglectl.run.results import DrafterComparison, compare_drafters
from tests.conftest import FIXTURES
from tests.measurements import EAGLE3, EAGLE31, report, result, worse

SAMPLES = 600


def test_acceptance_length_is_one_plus_accepted_over_drafts() -> None:
    found = measure([result(10, 8, 4, 2), result(10, 6, 2, 0)])
    assert found.length.value == pytest.approx(1 + 22 / 20)
    assert [p.value for p in found.per_position] == pytest.approx([0.7, 0.3, 0.1])
    assert (found.drafts, found.tokens, found.prompts) == (20, 42, 2)


def samples(size: int, *sides: Sequence[PromptResult]) -> list[list[list[PromptResult]]]:
    """Prompts drawn from all of them, the same of each side."""
    random = np.random.default_rng(size)
    rows = random.integers(0, len(sides[0]), (SAMPLES, size))
    return [[[side[index] for index in row] for side in sides] for row in rows]


def covered(estimates: Sequence[Estimate], truth: float) -> float:
    return sum(estimate.low <= truth <= estimate.high for estimate in estimates) / len(estimates)


@pytest.mark.parametrize("size", [2, 4, 8, pytest.param(16, marks=pytest.mark.slow)])
def test_intervals_of_few_prompts_hold_the_truth(size: int) -> None:
    """93 % of 600 is two standard errors below 95 %; a bootstrap gives 50, 80 and 88 %."""
    truth = measure(EAGLE3)
    found = [measure(drawn) for (drawn,) in samples(size, EAGLE3)]
    assert covered([one.length for one in found], truth.length.value) >= 0.93
    for position, whole in enumerate(truth.per_position):
        assert covered([one.per_position[position] for one in found], whole.value) >= 0.93
    ratios = [ratio(one, other) for one, other in samples(size, EAGLE31, EAGLE3)]
    assert covered(ratios, ratio(EAGLE31, EAGLE3).value) >= 0.93


def test_what_never_happened_may_still_happen() -> None:
    found = measure([result(10, 10, 0)] * 4)
    assert found.per_position[1].value == 0.0 and found.per_position[1].high == pytest.approx(0.202, abs=1e-3)
    assert found.per_position[0].low == pytest.approx(0.798, abs=1e-3)


def test_nothing_drafted_is_no_measurement() -> None:
    with pytest.raises(UnreadableError, match="nothing to measure"):
        measure([result(0, 0, 0)])
    with pytest.raises(UnreadableError, match="nothing to measure"):
        ratio([result(1, 0, 0)], [result(0, 0, 0)])


@pytest.mark.parametrize(
    ("accepted", "minimum", "first", "said"),
    [
        ((0, 0), None, None, 2),  # dead by both rules, without any flag
        ((9, 0), None, None, 1),
        ((20, 10), None, None, 0),
        ((50, 20), 1.8, None, 1),
        ((50, 20), 1.7, 0.5, 0),
        ((50, 20), 1.7, 0.6, 1),
    ],
)
def test_a_dead_drafter_fails_and_thresholds_are_kept(
    accepted: tuple[int, int], minimum: float | None, first: float | None, said: int
) -> None:
    assert len(shortfalls(measure([result(100, *accepted)]), minimum, first)) == said


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([result(20, 10, 5)] * 4, None),
        ([result(14, 12, 9)], "prompts 1 of the 4 needed, drafts 14 of the 50 needed"),
        ([result(100, 90, 80)] * 3, "judge by: prompts 3 of the 4 needed; use more"),
        ([result(6, 5, 4)] * 8, "judge by: drafts 48 of the 50 needed; use more"),
        ([result(30, n, 0) for n in (0, 0, 0, 12)], "contains that of a dead drafter (<= 1.05)"),
        ([result(30, 4, 4)] * 4, "the interval of position 0, from 6."),
    ],
)
def test_what_was_measured_too_little_is_told(results: list[PromptResult], words: str | None) -> None:
    found = shortcomings(measure(results))
    assert found == () if words is None else words in found[0]


def test_a_paired_ratio_is_surer_than_its_parts() -> None:
    one, other = ([result(100, step * n, 0) for n in range(1, 10)] for step in (10, 11))
    found, single = ratio(other, one), measure(one).length
    assert found.low > 1.0 and found.high - found.low < (single.high - single.low) / single.value


def standard(size: int) -> np.ndarray:
    """Different gains of mean 0 and deviation 1."""
    ranks = np.arange(size, dtype=np.float64)
    return (ranks - ranks.mean()) / ranks.std(ddof=1)


@pytest.mark.parametrize(
    ("t", "freedom", "p_value"),
    # from printed tables of the t distribution
    [(6.314, 1, 0.05), (2.132, 4, 0.05), (4.785, 7, 0.001), (1.699, 29, 0.05), (3.174, 99, 0.001)],
)
def test_p_values_are_those_of_the_t_distribution(t: float, freedom: int, p_value: float) -> None:
    size = freedom + 1
    assert gain_p_value(standard(size) + t / np.sqrt(size)) == pytest.approx(p_value, rel=0.01)


def test_no_gain_and_one_prompt_show_nothing() -> None:
    assert gain_p_value(np.array([-1.0, -2.0, 0.5])) == 1
    assert gain_p_value(np.array([5.0])) == 1
    assert gain_p_value(np.array([])) == 1


def test_the_prompts_needed_are_the_fewest_that_show_the_gain() -> None:
    gains = np.array([1.0, -1.0, 2.0, 0.0, 1.5, -0.5])
    effect = gain_effect(gains)
    assert effect == pytest.approx(0.4226, abs=1e-4)
    count = prompts_needed(effect, LEVEL / 20)
    assert count == 49
    for size, is_shown in ((count, True), (count - 1, False)):
        assert (gain_p_value(standard(size) + effect) * 20 < LEVEL) is is_shown


READINGS = 20
NOISY = np.array([3.0, -1.0, 4.0, -2.0, 5.0, 0.0, 3.0, -1.0] * 2)  # an effect of 0.53


@pytest.mark.parametrize(
    ("gains", "ratio", "p_value", "low", "at_starts", "outcome", "needed"),
    [
        (NOISY, 1.06, 1.0, 0.9, 1.05, "too few prompts", 33),
        # [0.99, 1.09] at p 0.05, as the real pair had it: an interval that holds 1 is not beyond chance
        (NOISY, 1.04, 0.01, 0.99, 1.04, "too few prompts", 24),
        (NOISY, 1.02, 0.01, 0.99, 1.02, "no better", None),
        # a gain that hides in chance asks for no prompts where, over all starts, it is little or a loss
        (NOISY, 1.06, 1.0, 0.9, 1.02, "no better", None),
        (NOISY, 1.06, 1.0, 0.9, 0.98, "no better", None),
        # in the rounds it is less than matters
        (NOISY, 1.02, 1.0, 0.9, 1.05, "no better", None),
        # the prompts' mean is a loss, or it would take many times the prompts
        (-NOISY, 1.06, 1.0, 0.9, 1.05, "no better", None),
        (NOISY - 1.0, 1.06, 1.0, 0.9, 1.05, "no better", None),
        # a sure gain is named whatever the other starts say
        (NOISY, 1.06, 0.01, 1.005, 1.0, "better", None),
        (NOISY, 1.01, 0.01, 1.005, 1.0, "slightly better", None),
    ],
)
def test_a_gain_is_judged_by_chance_size_and_all_starts(
    gains: np.ndarray,
    ratio: float,
    p_value: float,
    low: float,
    at_starts: float,
    outcome: str,
    needed: int | None,
) -> None:
    measured = Measurement(Estimate(2.0, 1.9, 2.1), (), 100, 200, 16)
    reading = Variant("another", "--option", measured, Estimate(ratio, low, 1.3), p_value)
    judged = judge_gain(reading, gains, at_starts, READINGS)
    assert (judged.outcome, judged.prompts_needed) == (outcome, needed)
    assert judged.is_better == (outcome == "better")


def test_a_fall_of_acceptance_is_found_at_its_position() -> None:
    positions = np.tile(np.arange(200), 10)
    right = np.random.default_rng(0).random(2000) < np.where(positions < 64, 0.6, 0.3)
    fall = find_fall(positions, right)
    assert fall is not None
    assert fall.position == 64


TINY = FIXTURES / "tiny"


def compared(
    results: Sequence[PromptResult], baseline: Sequence[PromptResult], least: float = 0.97
) -> DrafterComparison:
    return compare_drafters(report(results), report(baseline), least)


def of(name: str, results: Sequence[PromptResult]) -> list[PromptResult]:
    return [replace(result, set=name) for result in results]


def test_a_drafter_is_not_worse_than_itself_and_one_that_is_beyond_doubt_fails() -> None:
    found = compared(EAGLE3[:20], EAGLE3[:20])
    assert [(part.name, part.prompts, part.outcome) for part in found.sets] == [("set", 20, "pass")]
    assert (found.failures, found.gaps) == ((), ())
    (failure,) = compared(worse(EAGLE3[:40], 0.5), EAGLE3[:40]).failures
    assert failure.startswith('lost: set "set": ratio 0.')
    assert failure.endswith("is below --max-regression 0.97")


@pytest.mark.parametrize(("count", "least"), [(1, 1.0), (3, 1.0), (15, 1.0), (24, 0.95)])
def test_an_interval_that_holds_the_bar_tells_nothing_and_says_what_would_tell(
    count: int, least: float
) -> None:
    found = compared(EAGLE3[:count], EAGLE31[:count], least)
    (gap,) = found.gaps
    assert found.ratio.low < least and found.failures == ()
    assert f"prompts: {count}; use " in gap and " or more of this set" in gap
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


def test_built_in_prompts_are_judged_together_and_a_kind_that_is_lost_still_fails() -> None:
    base, alike, lost = (
        [replace(result, set=f"kind {index // 10}") for index, result in enumerate(results[:40])]
        for results in (EAGLE31, EAGLE3, [*EAGLE3[:10], *worse(EAGLE3[10:20], 0.5), *EAGLE3[20:40]])
    )
    by_kind = compare_drafters(report(alike), report(base), 0.9)
    assert by_kind.ending == "too few prompts" and len(by_kind.sets) == 4
    together = compare_drafters(report(alike), report(base), 0.9, looks=1)
    assert [(part.name, part.prompts, part.ending) for part in together.sets] == [
        ("built-in prompts", 40, "kept")
    ]
    assert together.confidence == 0.975 and together.ratio.low < by_kind.ratio.low
    assert compare_drafters(report(alike), report(base), 0.9, looks=3).ratio.low < together.ratio.low
    worse_kind = compare_drafters(report(lost), report(base), 0.8, looks=1)
    assert [part.name for part in worse_kind.sets] == ["built-in prompts", "kind 1"]
    assert "lost" in worse_kind.failures[-1] and worse_kind.ending == "lost"


@pytest.mark.parametrize(
    ("bar", "against", "words"),
    [
        (0.9, None, "pass that drafter with --against"),
        (0.0, "x", "--max-regression 0: a ratio above 0"),
        (float("nan"), "x", "--max-regression nan: a ratio above 0"),
    ],
)
def test_a_bar_that_makes_no_sense_is_refused(bar: float, against: str | None, words: str) -> None:
    options = eaglectl.SmokeOptions(max_regression=bar, against=against)
    with pytest.raises(UsageError, match=words):
        eaglectl.smoke("nowhere", "nowhere", options)


@pytest.mark.slow
def test_the_reference_drafts_from_every_position() -> None:
    pytest.importorskip("torch")
    given = eaglectl.SmokeOptions(run_in="reference", device="cpu", prompts=TINY / "gate.jsonl", sample=10)
    options = replace(given, max_tokens=8, against=str(TINY / "eagle3"))
    found = eaglectl.smoke(str(TINY / "eagle3.1"), str(TINY / "target"), options).against
    assert found is not None and found.has_positions
    assert found.ratio.high / found.ratio.low < found.rounds.high / found.rounds.low
