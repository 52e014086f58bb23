"""The canonical drafter's own answers: what its rope and its layers mean."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.drafter.drafter import Feature, Rope
from eaglectl.errors import RefusedError
from tests.conftest import FIXTURES

YARN = {"rope_type": "yarn", "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0}
WHOLE = 0.1 * math.log(64) + 1


@pytest.mark.parametrize(
    ("scaling", "has_factors", "factors"),
    [
        (YARN, True, (1.0, WHOLE**2)),
        ({**YARN, "mscale": 0.5}, True, ((0.05 * math.log(64) + 1) / WHOLE, WHOLE**2)),
        ({"rope_type": "yarn", "factor": 64.0}, True, (WHOLE, 1.0)),  # cos and sin alone
        ({**YARN, "factor": 1.0}, True, (1.0, 1.0)),
        (YARN, False, (1.0, 1.0)),
        (None, True, (1.0, 1.0)),
    ],
)
def test_yarns_factors_are_those_of_the_formula(
    scaling: dict[str, Any] | None, has_factors: bool, factors: tuple[float, float]
) -> None:
    assert Rope(1e4, scaling, True, has_factors).mla_factors == pytest.approx(factors)


def test_a_layer_slides_where_its_kind_says_so_by_a_number_of_tokens() -> None:
    plain = eaglectl.inspect(str(FIXTURES / "producers/vllm/native")).drafter
    carried = {"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"]}
    two = replace(plain, dims=replace(plain.dims, layers=2), carried=carried)
    assert two.windows == (512, 0)
    kinds, qwen3 = carried["layer_types"], {"layers.0.self_attn.q_norm.weight": plain.tensors["fc.weight"]}
    for config, windows, tensors in (
        ({**carried, "layer_types": kinds[1:] * 2}, (0, 0), {}),
        ({"sliding_window": 512, "use_sliding_window": True}, (0, 0), {}),  # Llama reads no such key
        ({"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 1}, (0, 512), qwen3),
        ({"sliding_window": 512}, (0, 0), qwen3),
        ({**carried, "sliding_window": None}, (0, 0), {}),
        ({"layer_types": kinds}, (0, 0), {}),
    ):
        drafter = replace(two, carried=config, tensors={**two.tensors, **tensors})
        assert drafter.windows == windows, config
        assert (Feature.SLIDING_WINDOW in drafter.features()) is any(windows), config
    for window in ("512", True, 0.5, -1):
        with pytest.raises(RefusedError, match="a number of tokens was expected"):
            assert replace(two, carried={**carried, "sliding_window": window}).windows
