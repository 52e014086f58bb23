"""The readings of a file that the sensitivity probe tries."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.readings import FixReading, readings, with_sizes
from eaglectl.drafter.drafter import DOUBLE_NORM, HIDDEN_NORM, JOINED_NORMS, Drafter, Rope
from eaglectl.drafter.vocabulary import FROM_T2D

DEFAULT_ROPE_THETA = 10000.0
MADE_OF_T2D = "d2t made of t2d"


class Candidate(Struct, frozen=True):
    """A reading: the option of `convert` for it, the drafter as it then is, and its aux boundaries.

    `reading` is set where tensors move; the tensors of `drafter` are the stored ones. `tokens` are the target
    tokens of the draft tokens, where they are not those of d2t.
    """

    name: str
    option: str
    drafter: Drafter
    boundaries: tuple[int, ...]
    is_d2t_absolute: bool = False
    reading: FixReading | None = None
    tokens: tuple[int, ...] = ()


def candidates(
    drafter: Drafter, depth: int, target_rope: Rope | None, marked_tokens: tuple[int, ...] = ()
) -> Iterator[Candidate]:
    """Other readings of `drafter` for a target of `depth` layers with `target_rope`.

    `marked_tokens` are those of a t2d that contradicts d2t.
    """
    boundaries = drafter.aux.boundaries or ()
    for step in (-1, 1):
        shifted = tuple(boundary + step for boundary in boundaries)
        if shifted and min(shifted) >= 0 and max(shifted) <= depth:
            option = f"--aux-layers {','.join(map(str, shifted))}"
            yield Candidate(f"aux boundaries {step:+d}", option, drafter, shifted)
    yield from _switched(drafter, boundaries)
    for name, answer, rope in _ropes(drafter.rope, target_rope):
        option = f"--source-semantics rope={answer}"
        yield Candidate(name, option, replace(drafter, rope=rope), boundaries)
    if drafter.has_reduced_vocabulary:
        option = "--source-semantics d2t=absolute"
        yield Candidate("d2t as absolute ids", option, drafter, boundaries, is_d2t_absolute=True)
    if marked_tokens:
        option = f"--fix-reading {FROM_T2D}"
        yield Candidate(MADE_OF_T2D, option, drafter, boundaries, tokens=marked_tokens)
    for reading in readings(drafter):
        resized, option = with_sizes(drafter, reading.key, reading.value), f"--fix-reading {reading.text}"
        yield Candidate(reading.title, option, resized, boundaries, reading=reading)


def _switched(drafter: Drafter, boundaries: tuple[int, ...]) -> Iterator[Candidate]:
    """Each switch of the norms the other way; the second norm where there is a doubt about it."""
    for switch in ("norm_output", "norm_before_residual"):
        flipped = not getattr(drafter.norms, switch)
        value = str(flipped).lower()
        norms = replace(drafter.norms, **{switch: flipped})
        option = f"--source-semantics {switch}={value}"
        yield Candidate(f"{switch} {value}", option, replace(drafter, norms=norms), boundaries)
    doubted = {note.topic for note in drafter.notes} | {entry.topic for entry in drafter.settled}
    if doubted & {DOUBLE_NORM, JOINED_NORMS}:
        norms = replace(drafter.norms, hidden_twice=not drafter.norms.hidden_twice)
        count = "twice" if norms.hidden_twice else "once"
        option = f"--source-semantics {HIDDEN_NORM}={count}"
        yield Candidate(f"state normed {count}", option, replace(drafter, norms=norms), boundaries)


def _ropes(stated: Rope, target: Rope | None) -> Iterator[tuple[str, str, Rope]]:
    """Name, answer and rope of each other rope: 10000, the target's base, its scaling, none."""
    bases = [DEFAULT_ROPE_THETA]
    if target is not None and target.theta.is_integer():
        bases.append(target.theta)
    for base in dict.fromkeys(bases):
        if base != stated.theta:
            yield f"rope base {base:.0f}", f"{base:.0f}", replace(stated, theta=base)
    if stated.scaling is not None and "mrope_section" not in stated.scaling:
        yield "rope without scaling", "plain", replace(stated, scaling=None)
    if target is not None and target.scaling not in (None, stated.scaling):
        rope = replace(stated, theta=target.theta, scaling=target.scaling)
        yield "rope of the target, with its scaling", "target", rope
