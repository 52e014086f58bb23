"""Whether a running server drafts as the files of a drafter do: its rounds beside those of the reference.

Both decode the same prompts greedily. Where the answers are equal, so are the rounds, prompt by prompt, if
the drafters are, but for rounding; another drafter's are equal on few prompts, also where it is as good.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from eaglectl.run.measurement import (
    DEAD_LENGTH,
    FEWEST_PROMPTS,
    Estimate,
    Measurement,
    PromptResult,
    judge_gain,
    measure,
    ratio,
)
from eaglectl.verdicts import MatchEnding

# the share of prompts with equal rounds that the same drafter exceeds, of those with equal answers and rounds
# enough. Of fixtures/tiny on vLLM 0.32.0: 24 of 24 in float32 and 15 of 17 in bfloat16; with noise of 5 % on
# each weight, which leaves the acceptance length as it is, 6 of 24 and 3 of 17; with 1 %, 15 of 24
LIKE_SHARE = 0.5
FEWEST_ROUNDS = 4
# without equal answers, the least ratio of acceptance lengths, and one over it, that is no other drafter's
LIKE_RATIO = 0.97
# characters by which a target is known as the same, where rounding changes an answer further on
BEGIN = 16
Z = 1.96  # of a two-sided interval of 95 %
OTHERS = "stale, partly loaded, or with an embedding or head that is not tied"


class FilesMatch(Struct, frozen=True):
    """The rounds of a server beside those that the reference makes of one drafter's files.

    `equal` of `compared` prompts have equal rounds: of those with equal answers and FEWEST_ROUNDS or more.
    `length` is the files' acceptance length, `ratio` the server's over it. `needed`: about how many prompts
    would tell; None where more would not.
    """

    source: str
    compared: int
    equal: int
    length: Estimate
    ratio: Estimate
    ending: MatchEnding
    needed: int | None = None

    @property
    def figures(self) -> str:
        """What it was judged by."""
        return (
            f"rounds are equal on {self.equal} of {self.compared} prompts answered alike, and the server's"
            f" length is x{self.ratio.words} of the {self.length.value:.2f} of {self.source}"
        )


class ServerMatch(Struct, frozen=True):
    """Whether the server drafts as the first of `files` does, and which of them it drafts as ("": of none).

    Of `prompts` the server begins `alike` answers as the target's files do.
    """

    files: tuple[FilesMatch, ...]
    prompts: int
    alike: int
    ending: MatchEnding
    nearest: str
    words: str


def match_server(
    served: Sequence[PromptResult],
    files: Sequence[tuple[str, Sequence[PromptResult]]],
    texts: Sequence[str],
) -> ServerMatch:
    """Compare a server's results with those of each drafter's files; `texts` are the target's answers.

    Raises UnreadableError where one of them drafted nothing.
    """
    answers = [(result.text.strip(), text.strip()) for result, text in zip(served, texts, strict=True)]
    begin_alike = sum(theirs[:BEGIN] == ours[:BEGIN] for theirs, ours in answers)
    same = [theirs == ours for theirs, ours in answers]
    matches = tuple(_match(source, served, results, same) for source, results in files)
    count = len(served)
    if 2 * begin_alike < count:
        words = (
            f"could not tell: the server answers only {begin_alike} of {count} prompts as the target's files"
            " do; give the target that it serves"
        )
        return ServerMatch(matches, count, begin_alike, MatchEnding.COULD_NOT_TELL, "", words)
    ending, nearest, words = _judge(matches, _distances(served, files), count)
    return ServerMatch(matches, count, begin_alike, ending, nearest, words)


def _match(
    source: str, served: Sequence[PromptResult], results: Sequence[PromptResult], same: Sequence[bool]
) -> FilesMatch:
    pairs = [
        (theirs, ours)
        for theirs, ours, is_same in zip(served, results, same, strict=True)
        if is_same and ours.drafts >= FEWEST_ROUNDS
    ]
    equal = sum((theirs.drafts, theirs.accepted) in _counts(ours) for theirs, ours in pairs)
    lengths, change = (measure(served), measure(results)), ratio(served, results)
    ending, needed = _ending(lengths, len(pairs), equal, change)
    scale = len(served) / max(len(pairs), 1)
    total = None if needed is None else math.ceil(needed * scale)
    return FilesMatch(source, len(pairs), equal, lengths[1].length, change, ending, total)


def _counts(result: PromptResult) -> list[tuple[int, tuple[int, ...]]]:
    """Drafts and accepted drafts by position, and both without the last round: llama-server leaves it out."""
    last = result.rounds[-1] if result.rounds else 0
    accepted = tuple(count - (place < last) for place, count in enumerate(result.accepted))
    shorter = [(result.drafts - 1, accepted)] if result.rounds else []
    return [(result.drafts, result.accepted), *shorter]


def _ending(
    lengths: tuple[Measurement, Measurement], compared: int, equal: int, change: Estimate
) -> tuple[MatchEnding, int | None]:
    """Whether one drafter made both, and about how many compared prompts would tell."""
    if all(measured.length.value <= DEAD_LENGTH for measured in lengths):
        return MatchEnding.COULD_NOT_TELL, None  # dead drafters are all alike
    if compared < FEWEST_PROMPTS:
        is_other = change.high < LIKE_RATIO or change.low > 1 / LIKE_RATIO
        return (MatchEnding.NO, None) if is_other else (MatchEnding.COULD_NOT_TELL, 2 * FEWEST_PROMPTS)
    share, spread = equal / compared, Z**2 / compared
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    if middle - half > LIKE_SHARE:
        return MatchEnding.YES, compared
    if middle + half < LIKE_SHARE:
        return MatchEnding.NO, compared
    smooth = (equal + 1) / (compared + 2)
    distance = abs(smooth - LIKE_SHARE)
    needed = math.ceil(smooth * (1 - smooth) * (Z / distance) ** 2) if distance else None
    return MatchEnding.COULD_NOT_TELL, needed


def _distances(
    served: Sequence[PromptResult], files: Sequence[tuple[str, Sequence[PromptResult]]]
) -> list[list[int]]:
    """How far the counts of each drafter's files are from the server's, by prompt."""
    counts = [
        [(result.drafts, *result.accepted) for result in results]
        for results in (served, *(results for _, results in files))
    ]
    return [
        [
            sum(abs(first - second) for first, second in zip(theirs, own, strict=False))
            for theirs, own in zip(counts[0], ours, strict=True)
        ]
        for ours in counts[1:]
    ]


def _judge(
    matches: Sequence[FilesMatch], distances: Sequence[Sequence[int]], prompts: int
) -> tuple[MatchEnding, str, str]:
    """The ending, the source that fits ("" for none), and both in words."""
    first = matches[0]
    fitting = [place for place, match in enumerate(matches) if match.ending == MatchEnding.YES]
    if fitting == [0]:
        return MatchEnding.YES, first.source, f"yes: {first.figures}"
    if len(fitting) > 1:
        return _nearest(matches, distances, fitting, prompts)
    if fitting:
        other = matches[fitting[0]]
        return (
            MatchEnding.NO,
            other.source,
            f"no, it drafts as {other.source}: {other.figures}; {first.figures}",
        )
    if first.ending == MatchEnding.NO:
        words = f"no: {first.figures}; its weights are others ({OTHERS}): load {first.source} there again"
        return MatchEnding.NO, "", words
    would = f"about {first.needed} would" if first.needed else "more would not"
    if first.compared < prompts // 2:
        would += "; fewer --max-tokens leave more answers equal"
    words = f"could not tell with {prompts} prompts ({first.figures}); {would}"
    return MatchEnding.COULD_NOT_TELL, "", words


def _nearest(
    matches: Sequence[FilesMatch], distances: Sequence[Sequence[int]], fitting: Sequence[int], prompts: int
) -> tuple[MatchEnding, str, str]:
    """Of two that fit, the one whose counts are nearer beyond chance."""
    near, far = sorted(fitting, key=lambda place: sum(distances[place]))[:2]
    gains = [there - here for here, there in zip(distances[near], distances[far], strict=True)]
    is_shown, needed = judge_gain(gains)
    nearest, other = matches[near], matches[far]
    if is_shown:
        yes = "yes" if near == 0 else f"no, it drafts as {nearest.source}"
        words = f"{yes}: {nearest.figures}, nearer than {other.source} ({other.equal})"
        return (MatchEnding.NO if near else MatchEnding.YES), nearest.source, words
    would = f"about {needed} would" if needed else "these prompts do not tell them apart"
    words = (
        f"could not tell with {prompts} prompts whether as {nearest.source} or as {other.source}, which draft"
        f" alike; {would}"
    )
    return MatchEnding.COULD_NOT_TELL, "", words
