"""Inputs by hypothesis: any bytes, seeds with a few edits, and quick random variants of those."""

import random
from collections.abc import Callable, Iterator, Sequence

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

WORDS = (b"null", b"1e999", b"-1", b"[", b"{", b'"', b"\n", b"\0")
EDIT = st.tuples(st.floats(0, 1), st.integers(0, 8), st.one_of(st.binary(max_size=8), st.sampled_from(WORDS)))


def edited(seed: bytes, edits: Sequence[tuple[float, int, bytes]]) -> bytes:
    """The seed with pieces put where others were."""
    for place, length, piece in edits:
        start = int(place * len(seed))
        seed = seed[:start] + piece + seed[start + length :]
    return seed


def inputs(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Any bytes, and seeds with up to six edits."""
    changed = st.builds(edited, st.sampled_from(list(seeds)), st.lists(EDIT, max_size=6))
    return st.one_of(changed, st.binary(max_size=200))


def variants(data: bytes, chance: random.Random, count: int) -> Iterator[bytes]:
    """The input, and further edits of it: hypothesis itself draws some hundred inputs a second."""
    yield data
    for _ in range(count):
        edits = [
            (chance.random(), chance.randrange(9), chance.choice((*WORDS, chance.randbytes(2))))
            for _ in range(chance.randrange(1, 5))
        ]
        yield edited(data, edits)


def run_examples(one: Callable[[bytes], None], seeds: Sequence[bytes], count: int, more: int = 0) -> None:
    """Call `one` with `count` inputs, and with `more` variants of each."""

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(seeds), st.integers(0, 2**32))
    def examples(data: bytes, number: int) -> None:
        for variant in variants(data, random.Random(number), more):
            one(variant)

    examples()
