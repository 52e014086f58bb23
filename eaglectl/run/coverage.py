"""How much of a target's answers a reduced draft vocabulary holds, and the acceptance that this allows."""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct, field

# below it the vocabulary holds acceptance down: on a trained pair, 0.37 makes a length of 1.40 of 2.78
LEAST_SHARE = 0.8


class Coverage(Struct, frozen=True):
    """The tokens of greedy answers, how many of them have a draft token, and what that allows at most.

    `most_length` is the acceptance length of a drafter that is right wherever it has the token. `sets` has
    the same for each set of prompts, where there are several.
    """

    tokens: int
    covered: int
    most_length: float
    sets: Mapping[str, "Coverage"] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The share of the tokens that have a draft token."""
        return self.covered / self.tokens

    @property
    def words(self) -> str:
        """The share and the cap, in words, with the sets that have a low share."""
        text = f"{self.share:.1%} of the answers' tokens, so a length of {self.most_length:.2f} at most"
        low = [f'"{name}" {part.share:.1%}' for name, part in self.sets.items() if part.is_low]
        return f"{text} ({', '.join(low)})" if low else text

    @property
    def is_low(self) -> bool:
        """Whether this holds acceptance down."""
        return self.share < LEAST_SHARE


def measure_coverage(
    answers: Mapping[str, Sequence[Sequence[int]]], vocabulary: Collection[int], k: int
) -> Coverage | None:
    """Coverage of the answers' token ids, by set; None where they have no second token.

    `vocabulary` are the target tokens that have a draft token. The first token of an answer is not drafted.
    """
    sets = {name: part for name, texts in answers.items() if (part := _coverage(texts, vocabulary, k))}
    whole = _coverage([text for texts in answers.values() for text in texts], vocabulary, k)
    if whole is None or len(sets) < 2:
        return whole
    return Coverage(whole.tokens, whole.covered, whole.most_length, sets)


def _coverage(texts: Sequence[Sequence[int]], vocabulary: Collection[int], k: int) -> Coverage | None:
    tokens = covered = rounds = accepted = 0
    for text in texts:
        known = [token in vocabulary for token in text[1:]]
        tokens, covered = tokens + len(known), covered + sum(known)
        start = 0
        while start < len(known):
            drafted = known[start : start + k]
            right = drafted.index(False) if False in drafted else len(drafted)
            rounds, accepted, start = rounds + 1, accepted + right, start + right + 1
    return Coverage(tokens, covered, 1 + accepted / rounds) if tokens else None
