"""How far an engine's draft logits are from the reference's."""

from math import inf

import pytest
import torch

from tests.engine.logits import BOUND, difference, largest_difference, rounded

NONE = -inf
STEP = torch.tensor([4.0, -8.0, NONE, 1.0])


def test_the_largest_difference_is_a_part_of_the_largest_logit() -> None:
    assert difference(torch.tensor([4.0, -8.0, NONE, 1.5]), STEP) == pytest.approx(0.5 / 8)


@pytest.mark.parametrize(
    "logits",
    [
        [4.0, NONE, NONE, 1.0],
        [4.0, -8.0, 2.0, 1.0],
        [4.0, float("nan"), NONE, 1.0],
        [4.0, inf, NONE, 1.0],
        [4.0, -8.0, NONE],
    ],
)
def test_other_tokens_with_a_finite_logit_are_infinitely_far(logits: list[float]) -> None:
    assert difference(torch.tensor(logits), STEP) == inf


def test_a_reference_without_any_logit_but_zero_compares_with_nothing() -> None:
    assert difference(torch.zeros(3), torch.zeros(3)) == inf


def test_a_step_past_the_third_is_not_compared() -> None:
    assert largest_difference([[STEP, STEP, STEP, -STEP]], [[STEP, STEP, STEP, STEP]]) == 0
    assert largest_difference([[STEP, STEP, -STEP]], [[STEP, STEP, STEP]]) == 2


def test_the_worst_of_all_prompts_counts() -> None:
    assert largest_difference([[STEP], [2 * STEP]], [[STEP], [STEP]]) == 1


@pytest.mark.parametrize(("logits", "reference"), [([], []), ([[STEP]], []), ([[]], [[]]), ([[STEP]], [[]])])
def test_what_was_not_drafted_is_infinitely_far(
    logits: list[list[torch.Tensor]], reference: list[list[torch.Tensor]]
) -> None:
    assert largest_difference(logits, reference) == inf


def test_numbers_of_float32_are_compared_in_float64() -> None:
    reference = torch.tensor([1.0, 1.0 + 2e-9], dtype=torch.float64)
    assert 0 < difference(reference.float(), reference) < BOUND


@pytest.mark.parametrize(
    ("value", "figure"), [(1.24e-06, 1e-06), (9.7e-06, 1e-05), (0.0849, 0.08), (0.0, 0.0), (inf, inf)]
)
def test_a_recorded_difference_has_one_figure(value: float, figure: float) -> None:
    assert rounded(value) == figure
