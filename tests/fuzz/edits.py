"""Inputs by hypothesis: any bytes, and seeds with a few edits."""

from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

PIECES = st.one_of(
    st.binary(max_size=8), st.sampled_from([b"null", b"1e999", b"-1", b"[", b"{", b'"', b"\n", b"\0"])
)
EDIT = st.tuples(st.floats(0, 1), st.integers(0, 8), PIECES)


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


def run_examples(one: Callable[[bytes], None], seeds: Sequence[bytes], count: int = 200) -> None:
    """Call `one` with `count` inputs."""

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(seeds))
    def examples(data: bytes) -> None:
        one(data)

    examples()
