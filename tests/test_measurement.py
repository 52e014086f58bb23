"""Acceptance: its definition, its intervals, the dead, and the paired ratio."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglectl.acceptance.measurement import PromptResult, measure, ratio, shortfalls
from eaglectl.errors import UnreadableError


def result(drafts: int, *accepted: int) -> PromptResult:
    return PromptResult("set", drafts, accepted, (0,) * (drafts + sum(accepted)))


def test_acceptance_length_is_one_plus_accepted_over_drafts() -> None:
    found = measure([result(10, 8, 4, 2), result(10, 6, 2, 0)])
    assert found.length.value == pytest.approx(1 + 22 / 20)
    assert [p.value for p in found.per_position] == pytest.approx([0.7, 0.3, 0.1])
    assert (found.drafts, found.tokens, found.prompts) == (20, 42, 2)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=2, max_size=20))
def test_an_interval_holds_its_value_within_the_prompts_extremes(counts: list[tuple[int, int]]) -> None:
    results = [result(drafts, min(accepted, drafts)) for drafts, accepted in counts]
    found = measure(results)
    singles = [1 + r.accepted[0] / r.drafts for r in results]
    assert min(singles) - 1e-9 <= found.length.low <= found.length.high <= max(singles) + 1e-9


def test_the_same_seed_gives_the_same_interval() -> None:
    results = [result(10, n, 0) for n in range(10)]
    assert measure(results, 3) == measure(results, 3)
    assert measure(results, 3).length != measure(results, 4).length


def test_nothing_drafted_is_no_measurement() -> None:
    with pytest.raises(UnreadableError, match="nothing to measure"):
        measure([result(0, 0, 0)])


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
