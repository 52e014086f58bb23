"""The canonical drafter's own answers: what its tensors, rope, layers and notes mean."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.drafter.drafter import Choice, Drafter, Feature, Rope, bias_feature, question
from eaglectl.drafter.tensors import spread_over
from eaglectl.errors import RefusedError
from tests.conftest import FIXTURES

YARN = {"rope_type": "yarn", "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0}


@pytest.fixture(scope="module")
def plain() -> Drafter:
    return eaglectl.inspect(str(FIXTURES / "producers/vllm/native")).drafter


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("fc.bias", Feature.FC_BIAS),
        ("layers.0.mlp.up_proj.bias", Feature.MLP_BIAS),
        ("layers.0.self_attn.o_proj.bias", Feature.OUTPUT_BIAS),
        ("layers.0.self_attn.q_proj.bias", Feature.ATTENTION_BIAS),
        ("layers.0.self_attn.o_proj.weight", None),
    ],
)
def test_a_bias_is_a_feature_by_its_module(name: str, feature: Feature | None) -> None:
    assert bias_feature(name) is feature


def test_yarns_factors_are_those_of_the_formula() -> None:
    whole = 0.1 * math.log(64) + 1
    assert Rope(1e4, YARN, True).mla_factors == pytest.approx((1.0, whole**2))
    assert Rope(1e4, {**YARN, "mscale": 0.5}, True).mla_factors == pytest.approx(
        ((0.05 * math.log(64) + 1) / whole, whole**2)
    )
    assert Rope(1e4, {**YARN, "factor": 1.0}, True).mla_factors == (1.0, 1.0)
    assert (
        Rope(1e4, YARN, True, has_mla_factors=False).mla_factors
        == Rope(1e4, None, True).mla_factors
        == (1.0, 1.0)
    )


def test_without_mscale_yarn_scales_cos_and_sin_alone() -> None:
    rope = Rope(1e4, {"rope_type": "yarn", "factor": 64.0}, True)
    assert rope.mla_factors == pytest.approx((0.1 * math.log(64) + 1, 1.0))


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({"sliding_window": 512, "layer_types": ["sliding_attention"]}, (512,)),
        ({"sliding_window": 512, "layer_types": ["full_attention"]}, (0,)),
        ({"sliding_window": 512}, (0,)),
        ({"sliding_window": None, "layer_types": ["sliding_attention"]}, (0,)),
        ({}, (0,)),
    ],
)
def test_a_layer_slides_where_its_kind_and_a_window_say_so(
    config: dict[str, Any], windows: tuple[int, ...], plain: Drafter
) -> None:
    drafter = replace(plain, carried=config)
    assert drafter.windows == windows
    assert (Feature.SLIDING_WINDOW in drafter.features()) is any(windows)


@pytest.mark.parametrize("window", ["512", True, 0.5, -1])
def test_a_window_that_is_no_number_of_tokens_is_refused(window: object, plain: Drafter) -> None:
    drafter = replace(plain, carried={"sliding_window": window, "layer_types": ["sliding_attention"]})
    with pytest.raises(RefusedError, match="which is no number of tokens"):
        assert drafter.windows


def test_a_question_lists_each_option_once_and_its_usual_answer_first() -> None:
    one, usual = Choice("--x", "a", "as it is"), Choice("--x", "b", "as usual", is_usual=True)
    other = Choice("--y", "", "PATH", is_free=True)
    asked = question("fc", "it is open", "a-topic", [one, usual, other])
    assert asked.text == "it is open; pass --x a (as it is) or b (as usual), or --y PATH"
    assert (asked.why, asked.whole_choices) == ("it is open", [usual, one])


@pytest.mark.parametrize(("count", "rows"), [(0, []), (1, [0]), (3, [0, 1, 2])])
def test_all_rows_of_a_small_matrix_are_sampled(count: int, rows: list[int]) -> None:
    assert spread_over(count) == rows


def test_rows_of_a_large_matrix_are_sampled_evenly_from_its_first_to_its_last() -> None:
    rows = spread_over(631)
    assert (rows[:3], rows[-1], len(rows)) == ([0, 10, 20], 630, 64)
