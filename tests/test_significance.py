"""Whether a gain over prompts is beyond chance: Student's t, Holm's correction, and prompts needed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglectl.run.measurement import (
    LEVEL,
    Estimate,
    Measurement,
    gain_effect,
    gain_p_value,
    holm,
    p_words,
    prompts_needed,
    t_quantile,
)
from eaglectl.run.probes import MOST_TIMES, Variant, find_fall, judge_gain


@pytest.mark.parametrize(
    ("t", "freedom", "p_value"),
    # from printed tables of the t distribution
    [(6.314, 1, 0.05), (2.132, 4, 0.05), (4.785, 7, 0.001), (1.699, 29, 0.05), (3.174, 99, 0.001)],
)
def test_p_values_are_those_of_the_t_distribution(t: float, freedom: int, p_value: float) -> None:
    size = freedom + 1
    ranks = np.arange(size, dtype=np.float64)
    standard = (ranks - ranks.mean()) / ranks.std(ddof=1)
    assert gain_p_value(standard + t / np.sqrt(size)) == pytest.approx(p_value, rel=0.01)


def test_no_gain_and_one_prompt_show_nothing() -> None:
    assert gain_p_value(np.array([-1.0, -2.0, 0.5])) == 1
    assert gain_p_value(np.array([5.0])) == 1
    assert gain_p_value(np.array([])) == 1


def test_the_same_gain_everywhere_counts_as_signs() -> None:
    assert gain_p_value(np.array([2.0] * 8)) == 1 / 256


def test_holm_multiplies_by_the_readings_that_are_left() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_corrects_upwards_and_keeps_the_order(p_values: list[float]) -> None:
    corrected = holm(p_values)
    assert all(after >= before for before, after in zip(p_values, corrected, strict=True))
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    assert [corrected[index] for index in order] == sorted(corrected)
    assert max(corrected) <= 1


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.70620), (2, 4.30265), (3, 3.18245), (4, 2.77645), (7, 2.36462), (15, 2.13145), (119, 1.98010)],
)
def test_the_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, rel=1e-5)


def test_the_quantile_of_very_many_is_the_normal_one() -> None:
    assert t_quantile(100_000) == pytest.approx(1.95998, abs=5e-5)


def test_the_prompts_needed_are_the_fewest_that_show_the_gain() -> None:
    gains = np.array([1.0, -1.0, 2.0, 0.0, 1.5, -0.5])
    effect = gain_effect(gains)
    assert effect == pytest.approx(0.4226, abs=1e-4)
    count = prompts_needed(effect, LEVEL / 20)
    assert count == 49
    for size, is_shown in ((count, True), (count - 1, False)):
        ranks = np.arange(size, dtype=np.float64)
        standard = (ranks - ranks.mean()) / ranks.std(ddof=1)
        assert (gain_p_value(standard + effect) * 20 < LEVEL) is is_shown


def test_no_number_of_prompts_shows_what_is_no_gain() -> None:
    assert prompts_needed(0.0, LEVEL) is None
    assert prompts_needed(-1.0, LEVEL) is None
    assert prompts_needed(1e-4, LEVEL) is None


def test_a_gain_without_a_spread_has_no_effect_size() -> None:
    assert gain_effect(np.array([1.0, 1.0])) is None
    assert gain_effect(np.array([1.0])) is None


READINGS = 20
NOISY = np.array([3.0, -1.0, 4.0, -2.0, 5.0, 0.0, 3.0, -1.0] * 2)  # an effect of 0.53


def reading(ratio: float, p_value: float = 1.0, low: float = 0.9) -> Variant:
    """A variant that accepts `ratio` times as much in its rounds."""
    measured = Measurement(Estimate(2.0, 1.9, 2.1), (), 100, 200, 16)
    return Variant("another", "--option", measured, Estimate(ratio, low, 1.3), p_value)


def test_a_gain_that_more_prompts_could_show_says_how_many() -> None:
    judged = judge_gain(reading(1.06), NOISY, 1.05, READINGS)
    assert (judged.outcome, judged.prompts_needed) == ("too few prompts", 33)


@pytest.mark.parametrize(
    ("gains", "ratio", "gain_at_starts", "why"),
    [
        (NOISY, 1.06, 1.02, "over all starts it is less than matters"),
        (NOISY, 1.06, 0.98, "over all starts it is a loss"),
        (NOISY, 1.02, 1.05, "in the rounds it is less than matters"),
        (-NOISY, 1.06, 1.05, "the prompts' mean is a loss"),
        (NOISY - 1.0, 1.06, 1.05, "it would take many times the prompts"),
    ],
)
def test_a_gain_that_hides_in_chance_asks_for_no_prompts(
    gains: np.ndarray, ratio: float, gain_at_starts: float, why: str
) -> None:
    judged = judge_gain(reading(ratio), gains, gain_at_starts, READINGS)
    assert (judged.outcome, judged.prompts_needed) == ("no better", None), why


def test_the_prompts_that_are_asked_for_are_at_most_so_many_times_those_given() -> None:
    asked = [judge_gain(reading(1.06), NOISY + shift, 1.05, READINGS) for shift in np.linspace(-2, 2, 81)]
    needed = [variant.prompts_needed for variant in asked if variant.prompts_needed]
    assert max(needed) <= MOST_TIMES * len(NOISY) < 2 * max(needed)


def test_a_single_prompt_that_gains_asks_for_more() -> None:
    judged = judge_gain(reading(1.5), np.array([4.0]), 1.4, READINGS)
    assert (judged.outcome, judged.prompts_needed) == ("too few prompts", None)


def test_a_sure_gain_is_named_whatever_the_other_starts_say() -> None:
    assert judge_gain(reading(1.06, 0.01, 1.005), NOISY, 1.0, READINGS).outcome == "better"
    assert judge_gain(reading(1.01, 0.01, 1.005), NOISY, 1.0, READINGS).outcome == "slightly better"


def test_a_gain_whose_interval_holds_1_is_not_beyond_chance() -> None:
    # [0.99, 1.09] at p 0.05, as the real pair had it
    judged = judge_gain(reading(1.04, 0.01, 0.99), NOISY, 1.04, READINGS)
    assert (judged.outcome, judged.is_better) == ("too few prompts", False)
    assert judged.prompts_needed is not None and judged.prompts_needed > len(NOISY)
    assert judge_gain(reading(1.02, 0.01, 0.99), NOISY, 1.02, READINGS).outcome == "no better"


def test_a_fall_of_acceptance_is_found_at_its_position() -> None:
    positions = np.tile(np.arange(200), 10)
    right = np.random.default_rng(0).random(2000) < np.where(positions < 64, 0.6, 0.3)
    fall = find_fall(positions, right)
    assert fall is not None
    assert fall.position == 64


def test_a_rise_and_a_level_are_no_fall() -> None:
    positions, random = np.tile(np.arange(200), 10), np.random.default_rng(0)
    for rates in (np.full(2000, 0.5), np.where(positions < 64, 0.4, 0.6)):
        assert find_fall(positions, random.random(2000) < rates) is None
    assert find_fall(np.array([], dtype=np.int64), np.array([], dtype=np.bool_)) is None


def test_a_p_value_in_words_has_no_exponent() -> None:
    assert [p_words(value) for value in (0.7, 0.0123, 0.001, 0.00099, 8e-7)] == [
        "0.7",
        "0.01",
        "0.001",
        "<0.001",
        "<0.001",
    ]
