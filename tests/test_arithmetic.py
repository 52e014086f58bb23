"""Arithmetic on tensors: float64 inside, rounded once, refused where it cannot be held."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglectl.conversion.arithmetic import decode, encode
from eaglectl.errors import Refused


@given(st.binary(min_size=2, max_size=64).filter(lambda raw: len(raw) % 2 == 0))
def test_stored_bfloat16_comes_back_bit_for_bit(raw: bytes) -> None:
    values = decode(raw, "BF16", "x")
    if np.isfinite(values).all():
        assert encode(values, "BF16", "x") == raw


@given(st.floats(width=64, allow_nan=False, min_value=-3e38, max_value=3e38))
def test_bfloat16_is_the_nearest_one(value: float) -> None:
    (found,) = decode(encode(np.array([value]), "BF16", "x"), "BF16", "x").tolist()
    (bits,) = struct.unpack("<H", encode(np.array([value]), "BF16", "x"))
    near = [decode(struct.pack("<H", other % 65536), "BF16", "x")[0] for other in (bits - 1, bits + 1)]
    assert all(abs(found - value) <= abs(other - value) for other in near if np.isfinite(other))


def test_a_value_just_above_half_way_is_not_rounded_twice() -> None:
    half = 1 + 2**-8
    assert decode(encode(np.array([half]), "BF16", "x"), "BF16", "x")[0] == 1.0
    assert decode(encode(np.array([half + 2**-40]), "BF16", "x"), "BF16", "x")[0] == 1 + 2**-7


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e300])
def test_what_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(Refused, match="cannot hold"):
        encode(np.array([value]), "BF16", "x")


def test_whole_numbers_are_no_floats() -> None:
    with pytest.raises(Refused, match="arithmetic needs"):
        decode(b"\0\0\0\0", "I32", "x")
