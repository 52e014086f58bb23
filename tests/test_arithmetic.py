"""Arithmetic on tensors: float64 inside, rounded once, refused where it cannot be held."""

import struct
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from eaglectl.conversion import rewriting
from eaglectl.conversion.rewriting import encoded, evaluate
from eaglectl.drafter.floats import Array, decode, encode
from eaglectl.drafter.tensors import Computed, Segment, Tensor
from eaglectl.errors import RefusedError


class Stored:
    """A checkpoint of these bytes by name."""

    def __init__(self, **parts: bytes) -> None:
        self.parts = parts

    def read(self, name: str, start: int, stop: int) -> bytes:
        return self.parts[name][start:stop]


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


def test_what_is_not_finite_and_whole_numbers_are_refused() -> None:
    for value in (np.inf, np.nan, 1e300):
        with pytest.raises(RefusedError, match="cannot hold"):
            encode(np.array([value]), "BF16", "x")
    with pytest.raises(RefusedError, match="arithmetic needs"):
        decode(b"\0\0\0\0", "I32", "x")


@given(st.integers(1, 40), st.integers(1, 7), st.data())
def test_rows_made_in_blocks_are_those_made_at_once(count: int, width: int, data: st.DataObject) -> None:
    values = np.arange(count * width, dtype=np.float64).reshape(count, width) - 20
    raw = encode(values, "F32", "x")
    cuts = [0, *sorted(data.draw(st.sets(st.integers(0, count)))), count]
    pieces = {f"p{i}": raw[4 * width * a : 4 * width * b] for i, (a, b) in enumerate(pairwise(cuts))}
    stored: Any = Stored(**pieces)
    parts = tuple(Segment(name, 0, len(part)) for name, part in pieces.items())
    source, seen = Tensor("x", "F32", (count, width), parts), []

    def tripled(block: Array) -> Array:
        seen.append(block.size)
        return 3 * block

    once = replace(source, origin=Computed("times 3", (source,), tripled, by_rows=True))
    other = Computed("of nothing", (), lambda start, stop: values[start:stop], by_rows=True)
    less = Computed("", (Tensor("y", "F32", source.shape, other),), lambda v: v - 1, by_rows=True)
    twice = Tensor("x", "F32", (count, width), less)
    with mock.patch("eaglectl.conversion.rewriting.BLOCK", data.draw(st.integers(1, 50))):
        block = rewriting.BLOCK
        found = b"".join(encoded(once, stored))
        assert max(seen) <= max(block, width)
        assert b"".join(encoded(twice, stored)) == encode(values - 1, "F32", "x")
    assert found == encode(3 * values, "F32", "x")
    assert (evaluate(twice, stored) == values - 1).all()


def test_rows_that_need_one_another_stay_whole_and_blocks_of_columns_move_stored_or_made() -> None:
    file: Any = Stored(x=struct.pack("<8f", *range(8)))
    stored = Tensor("x", "F32", (2, 4), (Segment("x", 0, 32),))
    made, turned = (
        replace(stored, origin=Computed("", (stored,), change))
        for change in (lambda values: values, lambda values: values[::-1])
    )
    for tensor in (stored, made):
        assert evaluate(tensor.with_blocks([1, 0]), file).tolist() == [[2, 3, 0, 1], [6, 7, 4, 5]]
    with mock.patch("eaglectl.conversion.rewriting.BLOCK", 1):
        assert b"".join(encoded(turned, file)) == struct.pack("<8f", 4, 5, 6, 7, 0, 1, 2, 3)
