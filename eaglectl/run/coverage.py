"""The share of a target's answers, or of other texts, that a reduced draft vocabulary holds.

It limits acceptance: a token outside the draft vocabulary is never drafted.
"""

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.files.checkpoint import history

# below it the vocabulary lowers acceptance: on a trained pair, 0.37 reduces a length of 2.78 to 1.40
LEAST_SHARE = 0.8
ANSWERS, TEXTS, COUNTED = "the answers' tokens", "the texts' tokens", "the counted tokens"


class TokenText(Struct, frozen=True):
    """A text as token ids of the target, the set of its prompt, and its script ("" without letters).

    The first token of an answer is the target's own, and is not drafted.
    """

    set: str
    tokens: Sequence[int]
    script: str = ""


class Coverage(Struct, frozen=True):
    """The count of tokens in texts, of those with a draft token, and the acceptance length that they allow.

    `most_length` is the acceptance length of a drafter that is right at every covered token. `sets` has the
    same for each set of prompts, `scripts` for the texts of each script (of most of their letters), if there
    are several. `tokens_are` names the counted tokens in `words` and reports; the parts need no name. `size`
    is the number of draft tokens. `wider` is the drafter that this one was pruned from, by eaglectl.json: its
    name and its number of draft tokens. With `is_of_target`, lm_head consists of rows of the target's.
    `commands` count such tokens and select others by the counts, if that needs no training and the files are
    local.
    """

    tokens: int
    covered: int
    most_length: float
    sets: Mapping[str, "Coverage"] = field(default_factory=dict)
    scripts: Mapping[str, "Coverage"] = field(default_factory=dict)
    tokens_are: str = ANSWERS
    size: int = 0
    wider: tuple[str, int] | None = None
    is_of_target: bool = False
    commands: tuple[str, ...] = ()

    @property
    def advice(self) -> str:
        """What raises the share."""
        if self.is_of_target:
            return (
                "train with a draft vocabulary counted on such answers, or select other rows of the target's"
                " head by these counts, without training, and measure: it was not trained to draft them"
            )
        if self.wider:
            name, rows = self.wider
            return f"prune {name} ({rows} tokens) again by counts of such answers, without training"
        return "train with a draft vocabulary counted on such answers"

    @property
    def share(self) -> float:
        """The share of the tokens with a draft token."""
        return self.covered / self.tokens

    @property
    def words(self) -> str:
        """The share and the length that it allows, with the sets and scripts that have a low share."""
        text = f"{self.share:.1%} of {self.tokens_are}, so a length of at most {self.most_length:.2f}"
        low = [f"{name} {part.share:.1%}" for name, part in self.low_parts.items()]
        return f"{text} ({', '.join(low)})" if low else text

    @property
    def low_parts(self) -> dict[str, "Coverage"]:
        """The sets, in quotes, and scripts with a low share; a script with a set's texts is left out."""
        sets = {f'"{name}"': part for name, part in self.sets.items()}
        scripts = {name: part for name, part in self.scripts.items() if part not in self.sets.values()}
        return {name: part for name, part in (sets | scripts).items() if part.share < LEAST_SHARE}

    @property
    def holds_down(self) -> bool:
        """Whether the share of all texts, of a set or of a script is low."""
        return self.share < LEAST_SHARE or bool(self.low_parts)


def script_of(text: str) -> str:
    """Return the script of most letters of a text, as Unicode names it ("Devanagari"); "" without letters."""
    names = (unicodedata.name(character, "").partition(" ")[0] for character in text if character.isalpha())
    common = Counter(names).most_common(1)
    return common[0][0].capitalize() if common else ""


def pruned_from(record: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the drafter that was pruned to this one: name and number of draft tokens; None if unpruned."""
    for entry in history(record):
        match entry:
            case {"pruning": {"of": int(rows)}, "source": {"name": str(name)}}:
                return name, rows
    return None


def measure_coverage(
    texts: Sequence[TokenText], vocabulary: Collection[int], k: int, tokens_are: str = ANSWERS
) -> Coverage | None:
    """Measure the coverage of texts at `k` draft tokens a round, by set and script; None without tokens.

    `vocabulary` are the target tokens that have a draft token; `tokens_are` names the counted tokens in
    reports.
    """
    whole = _coverage([text.tokens for text in texts], vocabulary, k, tokens_are)
    if whole is None:
        return None
    groups = []
    for names in ([text.set for text in texts], [text.script for text in texts]):
        named: dict[str, list[Sequence[int]]] = {}
        for name, text in zip(names, texts, strict=True):
            named.setdefault(name, []).append(text.tokens)
        coverages = {name: _coverage(several, vocabulary, k) for name, several in named.items() if name}
        parts = {name: part for name, part in coverages.items() if part}
        groups.append(parts if len(parts) > 1 else {})
    return replace(whole, sets=groups[0], scripts=groups[1], size=len(vocabulary))


def coverage_of_counts(counts: Mapping[int, int], vocabulary: Collection[int], k: int) -> Coverage:
    """Return the coverage of counted tokens; `most_length` is that of tokens in a random order."""
    tokens = sum(counts.values())
    covered = sum(count for token, count in counts.items() if token in vocabulary)
    length = sum((covered / tokens) ** depth for depth in range(k + 1))
    return Coverage(tokens, covered, length, tokens_are=COUNTED, size=len(vocabulary))


def counts_text(texts: Iterable[TokenText]) -> str:
    """Return the count of each token in texts, as `--token-counts` takes it: a line "id count" for each."""
    counts = Counter(chain.from_iterable(text.tokens[1:] for text in texts))
    return "".join(f"{token} {count}\n" for token, count in sorted(counts.items()))


def _coverage(
    texts: Sequence[Sequence[int]], vocabulary: Collection[int], k: int, tokens_are: str = ANSWERS
) -> Coverage | None:
    # `most_length` comes from rounds of k draft tokens: a round accepts up to the first token that has no
    # draft token, which the target then adds
    tokens = covered = rounds = accepted = 0
    for text in texts:
        is_covered = [token in vocabulary for token in text[1:]]
        tokens, covered = tokens + len(is_covered), covered + sum(is_covered)
        start = 0
        while start < len(is_covered):
            drafted = is_covered[start : start + k]
            right = drafted.index(False) if False in drafted else len(drafted)
            rounds, accepted, start = rounds + 1, accepted + right, start + right + 1
    return Coverage(tokens, covered, 1 + accepted / rounds, tokens_are=tokens_are) if tokens else None
