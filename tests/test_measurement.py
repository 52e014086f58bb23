"""Acceptance: its definition, its intervals and how often they hold the truth, the dead, the paired ratio."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglectl.errors import UnreadableError
from eaglectl.run.measurement import (
    Estimate,
    PromptResult,
    measure,
    prompts_to_keep,
    prompts_to_tell,
    ratio,
    shortcomings,
    shortfalls,
)
from tests.measurements import EAGLE3, EAGLE31, result

SAMPLES = 600


def test_acceptance_length_is_one_plus_accepted_over_drafts() -> None:
    found = measure([result(10, 8, 4, 2), result(10, 6, 2, 0)])
    assert found.length.value == pytest.approx(1 + 22 / 20)
    assert [p.value for p in found.per_position] == pytest.approx([0.7, 0.3, 0.1])
    assert (found.drafts, found.tokens, found.prompts) == (20, 42, 2)


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=20
    ).filter(lambda counts: any(drafts for drafts, _, _ in counts))
)
def test_an_interval_holds_its_value_within_what_is_possible(counts: list[tuple[int, int, int]]) -> None:
    results = [result(d, min(a, d), min(a, b, d)) for d, a, b in counts]
    found = measure(results)
    assert 1 <= found.length.low <= found.length.value <= found.length.high <= 3
    for position in found.per_position:
        assert 0 <= position.low <= position.value <= position.high <= 1
    other = ratio(results, results[::-1])
    assert 1 / 3 <= other.low <= other.value <= other.high <= 3


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


@pytest.mark.parametrize("size", [2, 4, 8, pytest.param(16, marks=pytest.mark.slow)])
def test_ratios_of_few_prompts_hold_the_truth(size: int) -> None:
    truth = ratio(EAGLE31, EAGLE3).value
    found = [ratio(one, other) for one, other in samples(size, EAGLE31, EAGLE3)]
    assert covered(found, truth) >= 0.93


def test_one_prompt_has_no_interval_but_what_is_possible() -> None:
    found = measure([result(100, 50, 20)])
    assert (found.length.low, found.length.high) == (1.0, 3.0)
    assert (ratio([result(9, 9)], [result(9, 9)]).low, found.per_position[0].low) == (0.5, 0.0)


def test_prompts_without_a_draft_are_no_prompts_to_an_interval() -> None:
    empty = [result(0, 0, 0)] * 9
    assert measure([result(100, 50, 20), *empty]).length.low == 1.0
    pair = [result(100, 50, 20), result(90, 50, 20)]
    assert measure([*pair, *empty]).length == measure(pair).length


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
        ([result(100, 90, 80)] * 3, "judge by: prompts 3 of the 4 needed; give more"),
        ([result(6, 5, 4)] * 8, "judge by: drafts 48 of the 50 needed; give more"),
        ([result(30, n, 0) for n in (0, 0, 0, 12)], "holds that of a dead drafter (<= 1.05)"),
        ([result(30, 4, 4)] * 4, "the interval of position 0, from 6."),
    ],
)
def test_what_was_measured_too_little_is_told(results: list[PromptResult], words: str | None) -> None:
    found = shortcomings(measure(results))
    assert found == () if words is None else words in found[0]


def test_the_ratio_of_a_drafter_to_itself_is_one_without_doubt() -> None:
    results = [result(10, n, n // 2) for n in range(1, 11)]
    found = ratio(results, results)
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_a_paired_ratio_is_surer_than_its_parts() -> None:
    one, other = (
        [result(100, 10 * n, 0) for n in range(1, 10)],
        [result(100, 11 * n, 0) for n in range(1, 10)],
    )
    found, single = ratio(other, one), measure(one).length
    assert found.low > 1.0 and found.high - found.low < (single.high - single.low) / single.value


def test_the_prompts_that_a_bound_needs_grow_with_the_square_of_the_width() -> None:
    assert prompts_to_tell(Estimate(1.0, 0.9409, 1.1), 0.97, 20) == 73
    assert prompts_to_tell(Estimate(1.0, 0.98, 1.1), 0.97, 20) == 20
    assert prompts_to_tell(Estimate(1.0, 1.0, 1.0), 0.97, 20) == 20
    assert prompts_to_tell(Estimate(0.9409, 0.8853, 1.0), 0.97, 20) == 73
    assert prompts_to_tell(Estimate(0.97, 0.9, 1.1), 0.97, 20) is None


def test_the_prompts_that_show_that_nothing_is_lost_grow_with_the_deviation_between_them() -> None:
    narrow, wide = (Estimate(1.0, 1 / spread, spread) for spread in (1.05, 1.2))
    assert prompts_to_keep(narrow, 0.97, 8) == 17
    assert prompts_to_keep(wide, 0.97, 8) == 200
    assert prompts_to_keep(narrow, 1.0, 8) is None
