"""Two drafters side by side."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from eaglectl.api.inputs import open_target
from eaglectl.comparison import vocabulary
from eaglectl.comparison.comparison import Comparison, Fact, Side, TensorPair
from eaglectl.comparison.meaning import fact, facts
from eaglectl.comparison.pairing import (
    Headers,
    Told,
    files_to_read,
    in_one_order,
    is_known_equal,
    pair_headers,
    pair_values,
)
from eaglectl.comparison.sides import known_digests, open_side, unneeded, with_files
from eaglectl.comparison.spelling import spelling
from eaglectl.errors import Refused, Unreadable
from eaglectl.formats.format import Answers
from eaglectl.formats.reading import check_answers

ASKED_OF_BOTH = ("rope_theta", "mask_token_id")


def diff(
    a: str, b: str, *, target: str | None = None, headers_only: bool = False, answers: Answers | None = None, told: Callable[[int, int], None] | None = None,
) -> Comparison:  # fmt: skip
    """Whether two checkpoints are the same drafter: what they mean, then their tensors' data; how they are spelled is told apart.

    `answers` go to the side whose files leave the question open. `headers_only` reads no tensor data, so that the verdict on
    values is never "equal". `told` hears how many bytes of A of how many are compared.
    Raises Usage, and Unreadable for all else that keeps the two from being compared, such as a side that is no drafter.
    """
    try:
        return _compared(a, b, target, answers or Answers(), headers_only=headers_only, told=told)
    except Refused as error:  # whose exit code would say that they differ
        raise Unreadable(str(error), error.topic, error.where) from None


def _compared(a: str, b: str, target: str | None, answers: Answers, *, headers_only: bool, told: Told | None) -> Comparison:  # fmt: skip
    known_target = open_target(target)
    check_answers(answers)
    one, other = open_side("A", a, known_target, answers), open_side("B", b, known_target, answers)
    notes = (*_questions(one, other), *unneeded(one, other, answers, known_target))
    spelled = one, other
    one, other, disorder = in_one_order(one, other)
    notes = (*notes, *disorder)
    if headers_only:
        tensors: tuple[TensorPair, ...] = tuple(pair for pair, _, _ in pair_headers(one, other))
        stated = (*facts(one, other), _unread(one, other))
        return Comparison(one, other, stated, tensors, spelling(*spelled), False, notes)
    answer = answers.semantics.get("d2t")
    mine, theirs = vocabulary.read(one, answer), vocabulary.read(other, answer)
    stated = (*facts(one, other), vocabulary.compare(one, other, mine, theirs))
    pairs = list(pair_headers(one, other, vocabulary.head_rows(mine, theirs)))
    tensors = tuple(_read(one, other, pairs, told))
    return Comparison(one, other, stated, tensors, spelling(*spelled, vocabulary.remarks(mine, theirs)), True, notes)


def _read(a: Side, b: Side, pairs: list[Headers], told: Told | None) -> Iterator[TensorPair]:
    """The pairs with their data looked at; of the Hub, files that are the same on both sides are not fetched."""
    known, one, other = known_digests(a, b), a.checkpoint, b.checkpoint
    needed = [pair for pair in pairs if not is_known_equal(one, other, pair[1], pair[2], known)]
    one = with_files(one, files_to_read(one, needed, "a"))
    other = with_files(other, files_to_read(other, needed, "b"))
    return pair_values(one, other, pairs, known, told)


def _unread(a: Side, b: Side) -> Fact:
    """The draft vocabulary by its size alone."""
    sizes = [f"{side.drafter.dims.draft_vocab} tokens" for side in (a, b)]
    found = fact(vocabulary.NAME, *sizes)
    is_whole = not a.drafter.has_reduced_vocabulary and not b.drafter.has_reduced_vocabulary
    return found if found.state == "differs" or is_whole else replace(found, state="not-compared")


def _questions(a: Side, b: Side) -> Iterator[str]:
    """What only their users know, beyond what makes a fact unknown."""
    asked: dict[str, list[str]] = {}
    for name, side in (("A", a), ("B", b)):
        for note in side.drafter.told("question"):
            if note.about in ASKED_OF_BOTH:
                asked.setdefault(note.text, []).append(name)
    return (f"{' and '.join(names)}: {text}" for text, names in asked.items())
