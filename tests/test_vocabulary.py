"""d2t and t2d: offsets against absolute ids, order, range, agreement; and the pruning fault's fingerprint."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglectl.drafter.vocabulary import (
    as_engines_read,
    faults,
    from_tokens,
    identity,
    read_vocabulary,
    repeated_offsets,
    row_copies,
)
from eaglectl.errors import RefusedError, UsageError

VOCAB = 50
token_sets = st.sets(st.integers(0, VOCAB - 1), min_size=2, max_size=VOCAB - 1).map(sorted)


def array(values: list[int]) -> tuple[int, ...]:
    return tuple(values)


def mask(tokens: list[int]) -> tuple[int, ...]:
    return tuple(int(token in tokens) for token in range(VOCAB))


@given(token_sets)
def test_offsets_with_t2d_are_offsets(tokens: list[int]) -> None:
    vocabulary = read_vocabulary(
        array([t - i for i, t in enumerate(tokens)]), mask(tokens), len(tokens), VOCAB
    )
    assert list(vocabulary.targets) == tokens


@given(token_sets)
def test_absolute_ids_with_t2d_become_offsets(tokens: list[int]) -> None:
    vocabulary = read_vocabulary(array(tokens), mask(tokens), len(tokens), VOCAB)
    assert list(vocabulary.targets) == tokens
    assert list(vocabulary.offsets) == [t - i for i, t in enumerate(tokens)]


@given(token_sets)
def test_t2d_alone_gives_d2t(tokens: list[int]) -> None:
    assert list(read_vocabulary(None, mask(tokens), len(tokens), VOCAB).targets) == tokens


@given(token_sets)
def test_offsets_alone_are_read_or_asked_and_never_misread(tokens: list[int]) -> None:
    d2t = array([t - i for i, t in enumerate(tokens)])
    try:
        assert list(read_vocabulary(d2t, None, len(tokens), VOCAB).targets) == tokens
    except UsageError as question:
        assert "--source-semantics d2t=offset" in str(question)
        assert list(read_vocabulary(d2t, None, len(tokens), VOCAB, "offset").targets) == tokens


@given(token_sets, st.randoms())
def test_rows_in_another_order_keep_their_order(tokens: list[int], random: object) -> None:
    random.shuffle(tokens)  # type: ignore[attr-defined]
    vocabulary = read_vocabulary(
        array([t - i for i, t in enumerate(tokens)]), mask(tokens), len(tokens), VOCAB, "offset"
    )
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
        read_vocabulary(None if d2t is None else array(d2t), None if t2d is None else mask(t2d), 3, VOCAB)


def test_a_map_that_fits_both_ways_is_asked() -> None:
    with pytest.raises(UsageError, match="d2t=absolute"):
        read_vocabulary(array([1, 3, 5]), None, 3, VOCAB)


def test_the_identity_says_so() -> None:
    assert identity(7).is_identity and not read_vocabulary(array([1, 1, 1]), None, 3, VOCAB).is_identity


def test_equal_rows_where_offsets_repeat_are_the_pruning_fault() -> None:
    assert row_copies([(b"ab", b"ab"), (b"cd", b"cd")])
    assert not row_copies([(b"ab", b"ab"), (b"cd", b"ce")])
    assert not row_copies([(b"\0\0", b"\0\0")]) and not row_copies([])


def test_sampled_places_are_where_offsets_repeat() -> None:
    offsets = array([0, 0, 1, 1, 2, 5, 5])
    assert repeated_offsets(offsets, 10) == [0, 2, 5]
    assert len(repeated_offsets(array([0] * 1000), 64)) == 64


def test_floats_are_cut_as_engines_cut_them_and_none_comes_from_outside_into_the_vocabulary() -> None:
    raw = np.array([1.9, -1.9, 1e30, -1e30, np.inf, np.nan], dtype="<f4").tobytes()
    far = 2**62
    assert as_engines_read("d2t", "F32", raw) == (1, -1, far, -far, far, -far)
    assert as_engines_read("d2t", "BF16", b"\x20\x40\xc0\x7f") == (2, -far)


@pytest.mark.parametrize(
    ("d2t", "t2d", "topics"),
    [
        ([3, 3, 4], None, []),
        ([3, 3, 4], [3, 4, 6], []),
        (None, [3, 4, 6], []),
        (None, [3, 4], ["draft-vocabulary-size"]),
        ([3, 3, 60], [3, 4], ["draft-vocabulary-size", "d2t-range"]),
        ([3, 3, 4], [3, 4, 7], ["d2t-t2d"]),
        ([4, 3, 2], None, ["d2t-unique"]),
        ([6, 3, 1], None, ["d2t-order"]),
        ([3, 4, 49], None, ["d2t-absolute"]),
        ([0, 0, 0], None, ["d2t-identity"]),
    ],
)
def test_faults_are_those_of_the_tables_that_are_there(
    d2t: list[int] | None, t2d: list[int] | None, topics: list[str]
) -> None:
    tables = (None if d2t is None else array(d2t), None if t2d is None else mask(t2d))
    assert [fault.topic for fault in faults(*tables, 3, VOCAB)] == topics
