"""d2t and t2d: offsets against absolute ids, order, range, agreement; and the pruning fault's fingerprint."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglectl.drafter.tensors import (
    as_engines_read,
    from_tokens,
    numbers,
    read_vocabulary,
    repeated_offsets,
    row_copies,
)
from eaglectl.errors import RefusedError, UsageError
from tests.builders import TARGETS, Stored, call, drafter_folder, offsets, write_record

VOCAB = 50
token_sets = st.sets(st.integers(0, VOCAB - 1), min_size=2, max_size=VOCAB - 1).map(sorted)


def mask(tokens: list[int]) -> tuple[int, ...]:
    return tuple(int(token in tokens) for token in range(VOCAB))


def as_offsets(tokens: list[int]) -> tuple[int, ...]:
    return tuple(token - index for index, token in enumerate(tokens))


@given(token_sets)
def test_d2t_of_either_kind_with_t2d_and_t2d_alone_are_offsets(tokens: list[int]) -> None:
    for d2t in (as_offsets(tokens), tuple(tokens), None):
        vocabulary = read_vocabulary(d2t, mask(tokens), len(tokens), VOCAB)
        assert list(vocabulary.targets) == tokens
        assert vocabulary.offsets == as_offsets(tokens)


@given(token_sets)
def test_offsets_alone_are_read_or_asked_and_never_misread(tokens: list[int]) -> None:
    d2t = as_offsets(tokens)
    try:
        assert list(read_vocabulary(d2t, None, len(tokens), VOCAB).targets) == tokens
    except UsageError as question:
        assert "--source-semantics d2t=offset" in str(question)
        assert list(read_vocabulary(d2t, None, len(tokens), VOCAB, "offset").targets) == tokens


@given(token_sets, st.randoms())
def test_rows_in_another_order_keep_their_order(tokens: list[int], random: object) -> None:
    random.shuffle(tokens)  # type: ignore[attr-defined]
    vocabulary = read_vocabulary(as_offsets(tokens), mask(tokens), len(tokens), VOCAB, "offset")
    assert list(vocabulary.targets) == tokens
    assert from_tokens(tokens, len(tokens), VOCAB).offsets == vocabulary.offsets


@pytest.mark.parametrize(
    ("d2t", "t2d", "word"),
    [
        ([0, 0, 60], None, "reaches"),
        ([-1, 0, 0], None, "reaches"),
        ([5, 4, 0], None, "repeats"),
        ([0, 0, 0], [1, 2, 3], "t2d marks"),
        (None, None, "d2t is missing"),
        (None, [1, 2], "marks 2 target tokens"),
    ],
)
def test_a_map_that_cannot_be_is_refused(d2t: list[int] | None, t2d: list[int] | None, word: str) -> None:
    with pytest.raises(RefusedError, match=word):
        read_vocabulary(None if d2t is None else tuple(d2t), None if t2d is None else mask(t2d), 3, VOCAB)


def test_equal_rows_where_offsets_repeat_are_the_pruning_fault() -> None:
    assert row_copies([(b"ab", b"ab"), (b"cd", b"cd")])
    assert not row_copies([(b"ab", b"ab"), (b"cd", b"ce")])
    assert not row_copies([(b"\0\0", b"\0\0")]) and not row_copies([])
    # of many places some, spread over the table
    assert repeated_offsets((0, 0, 1, 1, 2, 5, 5), 10) == [0, 2, 5]
    assert repeated_offsets((0,) * 1001, 4) == [0, 250, 500, 750]


@pytest.mark.parametrize(("dtype", "code"), [("F32", "<f4"), ("F64", "<f8")])
def test_whole_numbers_in_wide_floats_are_read_and_others_refused(dtype: str, code: str) -> None:
    assert numbers("d2t", dtype, np.array([0, 3, 70000], dtype=code).tobytes()) == (0, 3, 70000)
    for wrong in (0.5, np.nan, np.inf):
        with pytest.raises(RefusedError, match="whole numbers were expected"):
            numbers("d2t", dtype, np.array([0, wrong], dtype=code).tobytes())
    with pytest.raises(RefusedError, match="whole numbers were expected"):
        numbers("d2t", "BF16", bytes(4))


@pytest.mark.parametrize(("dtype", "code"), [("U16", "<u2"), ("U32", "<u4"), ("U64", "<u8")])
def test_unsigned_numbers_are_read_and_those_beyond_int64_refused(dtype: str, code: str) -> None:
    assert numbers("d2t", dtype, np.array([0, 3, 65535], dtype=code).tobytes()) == (0, 3, 65535)
    if dtype == "U64":
        with pytest.raises(RefusedError, match="whole numbers were expected"):
            numbers("d2t", dtype, np.array([2**63], dtype=code).tobytes())


def test_what_a_rule_asks_of_an_unsigned_table_convert_does(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path, tensors={"d2t": ("U64", *offsets()[1:])})
    assert "EGL311" in call("validate", source, "--engine", "vllm").out
    assert "EGL1190" in call("validate", source, "--engine", "sglang").out
    assert call("convert", source, "-o", tmp_path / "out").code == 0
    assert call("validate", tmp_path / "out").code == 0


def test_floats_are_cut_as_engines_cut_them_and_none_comes_from_outside_into_the_vocabulary() -> None:
    raw = np.array([1.9, -1.9, 1e30, -1e30, np.inf, np.nan], dtype="<f4").tobytes()
    far = 2**62
    assert as_engines_read("d2t", "F32", raw) == (1, -1, far, -far, far, -far)
    assert as_engines_read("d2t", "BF16", b"\x20\x40\xc0\x7f") == (2, -far)


# beyond int64, at its ends, and no number
FAR = [1e300, -1e300, 2.0**63, 2.0**64, -(2.0**64), float("inf"), float("-inf"), float("nan")]


def far_table(dtype: str, value: float) -> Stored:
    """A d2t of floats whose first number is far outside of int64."""
    code = "d" if dtype == "F64" else "f"
    value = value if dtype == "F64" or abs(value) != 1e300 else value / 1e265
    return dtype, (len(TARGETS),), struct.pack(f"<{len(TARGETS)}{code}", value, *TARGETS[1:])


@pytest.mark.fast(3)
@pytest.mark.parametrize("has_record", [True, False])
@pytest.mark.parametrize("dtype", ["F64", "F32"])
@pytest.mark.parametrize("value", FAR)
def test_no_command_ends_in_a_fault_by_a_number_beyond_int64(
    tmp_path: Path, value: float, dtype: str, has_record: bool
) -> None:
    source = drafter_folder(tmp_path, tensors={"d2t": far_table(dtype, value)})
    good = drafter_folder(tmp_path, "good")
    if has_record:
        write_record(source, d2t={"meaning": "offset", "sha256": "0" * 64})
    for words in (
        ("inspect", source),
        ("validate", source),
        ("diff", source, good),
        ("diff", good, source),
        ("convert", source, "-o", tmp_path / "out"),
        ("upload", source, "o/n", "--dry-run"),
        ("diagnose", source),
        ("smoke", source, "--target", good),
    ):
        done = call(*words)
        assert done.code in (0, 1, 2, 3), (words, done.err[-500:])
    assert "EGL30" in call("validate", source).out


@pytest.mark.parametrize("dtype, value", [(dtype, value) for dtype in ("F64", "F32") for value in FAR])
def test_a_number_beyond_int64_is_no_whole_number(dtype: str, value: float) -> None:
    with pytest.raises(RefusedError, match="whole numbers were expected"):
        numbers("d2t", dtype, far_table(dtype, value)[2])
    assert min(as_engines_read("d2t", dtype, far_table(dtype, value)[2])) >= -(2**62)
