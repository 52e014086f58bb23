"""Aux layers: boundaries inside, ids at the edges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglectl.drafter.boundaries import (
    convention_by_pattern,
    default_boundaries,
    may_be_default,
    sorted_order,
    to_boundaries,
)
from eaglectl.drafter.default_layers import TRAINING_DEFAULT
from eaglectl.drafter.drafter import Target
from eaglectl.engines.catalogue import aux_readings
from eaglectl.engines.sglang import sglang_ids

depths = st.integers(7, 128)
kinds = st.sampled_from(
    ["llama", "qwen3", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "gpt_oss", "minimax_m3", "gemma3_text"]
)


@pytest.mark.parametrize(
    ("depth", "expected"), [(32, (2, 16, 29)), (61, (2, 30, 58)), (36, (2, 18, 33)), (80, (2, 40, 77))]
)
def test_the_default_is_what_engines_take(depth: int, expected: tuple[int, ...]) -> None:
    assert default_boundaries(depth) == expected


@pytest.mark.parametrize(
    ("ids", "depth", "expected"),
    [
        ((2, 30, 58), 61, "boundary"),
        ((1, 29, 57), 61, "output"),
        ((24, 30, 36), 36, "boundary"),  # nvidia/gpt-oss-120b-Eagle3-v3
        ((1, 17, 33), 36, None),  # SpecForge's gpt-oss-120b json: not the default, 34 as a boundary
        ((1, 11, 21), 24, None),
        ((2, 30, 58), None, None),
    ],
)
def test_numbers_give_their_convention_away_only_when_they_must(
    ids: tuple[int, ...], depth: int | None, expected: str | None
) -> None:
    assert convention_by_pattern(ids, depth) == expected


@given(depths)
def test_the_training_default_is_written_and_counted_alike(depth: int) -> None:
    assert TRAINING_DEFAULT.at(depth) == default_boundaries(depth)
    assert TRAINING_DEFAULT.may_be(default_boundaries(depth))
    assert not TRAINING_DEFAULT.may_be((1, *default_boundaries(depth)[1:]))


def test_ids_of_any_size_are_no_default_and_cost_no_time() -> None:
    assert not TRAINING_DEFAULT.may_be((2, 10**9, 10**18))


@given(depths)
def test_a_default_may_be_a_default(depth: int) -> None:
    assert may_be_default(default_boundaries(depth))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_sorting_keeps_every_place(boundaries: list[int]) -> None:
    distinct, order = sorted_order(boundaries)
    if order is None:
        assert list(distinct) == boundaries
    else:
        assert sorted(place for places in order for place in places) == list(range(len(boundaries)))
        assert all(
            boundaries[place] == b for b, places in zip(distinct, order, strict=True) for place in places
        )


@given(st.data(), depths, kinds)
def test_ids_written_for_sglang_mean_the_trained_boundaries_there(
    data: st.DataObject, depth: int, kind: str
) -> None:
    boundaries = tuple(sorted(data.draw(st.sets(st.integers(0, depth), min_size=1, max_size=5))))
    target = Target(model_type=kind, depth=depth)
    ids = sglang_ids(boundaries, target)
    if isinstance(ids, str):
        assert boundaries[0] in (0, 1), "only the embeddings, and boundary 1 of DeepSeek, have no ids"
        return
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}}
    reading = next(r for r in aux_readings(config, target).values() if r.engine == "SGLang")
    assert reading.boundaries == boundaries


@pytest.mark.parametrize(
    ("boundaries", "kind", "expected"),
    [
        ((2, 30, 58), "kimi_k2", (1, 29, 57)),
        ((3, 30, 58), "kimi_k2", (3, 30, 58)),
        ((3, 30, 58), "llama", (2, 29, 57)),
        ((24, 30, 36), "gpt_oss", (23, 29, 35)),
    ],
)
def test_sglang_ids_follow_the_model(
    boundaries: tuple[int, ...], kind: str, expected: tuple[int, ...]
) -> None:
    assert (
        sglang_ids(
            boundaries, Target(model_type=kind, depth={"kimi_k2": 61, "llama": 61, "gpt_oss": 36}[kind])
        )
        == expected
    )


@pytest.mark.parametrize("kind", ["deepseek_v3", "kimi_k2"])
def test_boundary_1_of_a_deepseek_target_cannot_be_written(kind: str) -> None:
    assert "no ids" in str(sglang_ids((1, 30, 58), Target(model_type=kind, depth=61)))


def test_without_a_model_type_only_what_all_models_agree_on_is_written() -> None:
    assert sglang_ids((2, 30, 58), Target()) == (1, 29, 57)
    assert "--target" in str(sglang_ids((3, 30, 58), Target()))


def test_one_config_means_different_layers_to_different_engines() -> None:
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 57]}}
    read = {
        r.engine: r.boundaries for r in aux_readings(config, Target(model_type="llama", depth=64)).values()
    }
    assert read["vLLM, V1 runner"] == (1, 29, 57)
    assert read["vLLM, V2 runner"] == (2, 32, 61)
    assert read["SGLang"] == read["tokenspeed"] == (2, 30, 58)
    assert read["ATOM"] == (1, 29, 57)


@pytest.mark.parametrize(
    ("kind", "depth", "ids", "expected"),
    [
        (
            "gpt_oss",
            36,
            [24, 30, 36],
            (24, 30, 36),
        ),  # gpt_oss.py:1347-1352: the target's depth can be no output
        ("gpt_oss", 36, [1, 17, 33], (2, 18, 34)),
        ("deepseek_v3", 61, [2, 30, 58], (2, 30, 58)),
        ("deepseek_v3", 61, [1, 29, 57], (2, 30, 58)),
        ("llama", 32, [], (2, 16, 29)),
        ("minimax_m3_vl", 60, [], (3, 31, 58)),
        (None, 61, [2, 30, 58], None),
    ],
)
def test_sglang_adds_one_and_takes_defaults_by_target(
    kind: str | None, depth: int, ids: list[int], expected: tuple[int, ...] | None
) -> None:
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
    assert aux_readings(config, Target(model_type=kind, depth=depth))["SGLang"].boundaries == expected


@given(st.lists(st.integers(0, 90), min_size=1, max_size=4))
def test_an_output_id_is_one_boundary_lower(ids: list[int]) -> None:
    assert to_boundaries(ids, "output") == tuple(i + 1 for i in to_boundaries(ids, "boundary"))
