"""Whether a running server drafts as the files of a drafter do.

Its rounds are compared with those of the reference. On prompts with equal answers, the same drafter has equal
rounds, but for rounding. Another drafter has equal rounds on few prompts, even if it is as good.
"""

import math
from collections.abc import Mapping, Sequence

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

# the share of prompts with equal rounds that the same drafter exceeds, of those with equal answers and enough
# rounds. For fixtures/tiny on vLLM 0.32.0: 24 of 24 in float32 and 15 of 17 in bfloat16; with noise of 5 % on
# each weight, which does not change the acceptance length, 6 of 24 and 3 of 17; with 1 %, 15 of 24
LIKE_SHARE = 0.5
FEWEST_ROUNDS = 4
# without equal answers, a ratio of acceptance lengths below this or above its inverse is another drafter's
LIKE_RATIO = 0.97
# characters of an answer that must be equal for the same target; rounding may change the rest
BEGIN = 16
Z = 1.96  # of a two-sided interval of 95 %
OTHERS = "old, partly loaded, or with an embedding or head that is not tied"


class FilesMatch(Struct, frozen=True):
    """The rounds of a server compared with those of the reference for one drafter's files.

    `compared` are the prompts with equal answers and FEWEST_ROUNDS or more, `equal` those with equal rounds.
    `length` is the files' acceptance length, `ratio` the server's over it. `needed` is about how many prompts
    would decide; None if more would not.
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
        """The figures that decide."""
        return (
            f"rounds are equal on {self.equal} of {self.compared} prompts with equal answers, and the"
            f" server's length is x{self.ratio.words} of the {self.length.value:.2f} of {self.source}"
        )


class ServerMatch(Struct, frozen=True):
    """Whether the server drafts as the first of `files`; `nearest` is the source that it drafts as, or "".

    On `alike` of `prompts` prompts, the server's answer begins like that of the target's files.
    """

    files: tuple[FilesMatch, ...]
    prompts: int
    alike: int
    ending: MatchEnding
    nearest: str
    words: str

    @property
    def is_of_another_target(self) -> bool:
        """Whether most answers begin differently than the target's."""
        return 2 * self.alike < self.prompts


def match_server(
    served: Sequence[PromptResult],
    files: Sequence[tuple[str, Sequence[PromptResult]]],
    texts: Sequence[str],
) -> ServerMatch:
    """Compare a server's results with those of each drafter's files; `texts` are the target's answers.

    Raises UnreadableError if one of them drafted nothing.
    """
    answers = [(result.text.strip(), text.strip()) for result, text in zip(served, texts, strict=True)]
    begin_alike = sum(theirs[:BEGIN] == ours[:BEGIN] for theirs, ours in answers)
    matches = tuple(
        _compare_rounds(source, served, results, [theirs == ours for theirs, ours in answers])
        for source, results in files
    )
    count = len(served)
    if 2 * begin_alike < count:
        ending, nearest, words = (
            MatchEnding.COULD_NOT_TELL,
            "",
            f"could not tell: the server answers only {begin_alike} of {count} prompts as the target's files"
            " do; pass the target that it serves",
        )
    else:
        ending, nearest, words = _judge_matches(matches, served, [results for _, results in files])
    return ServerMatch(matches, count, begin_alike, ending, nearest, words)


def _compare_rounds(
    source: str, served: Sequence[PromptResult], results: Sequence[PromptResult], same: Sequence[bool]
) -> FilesMatch:
    """Compare the server's rounds with those of the files, on the prompts with the `same` answer."""
    pairs = [
        (server_result, file_result)
        for server_result, file_result, is_same in zip(served, results, same, strict=True)
        if is_same and file_result.drafts >= FEWEST_ROUNDS
    ]
    equal = sum((on_server.drafts, on_server.accepted) in _counts(by_files) for on_server, by_files in pairs)
    lengths, change = (measure(served), measure(results)), ratio(served, results)
    ending, needed = _ending(lengths, len(pairs), equal, change)
    total = None if needed is None else math.ceil(needed * len(served) / max(len(pairs), 1))
    return FilesMatch(source, len(pairs), equal, lengths[1].length, change, ending, total)


def _counts(result: PromptResult) -> list[tuple[int, tuple[int, ...]]]:
    """Return drafts and accepted by position, whole and without the last round (llama-server omits it)."""
    last = result.rounds[-1] if result.rounds else 0
    accepted = tuple(count - (place < last) for place, count in enumerate(result.accepted))
    shorter = [(result.drafts - 1, accepted)] if result.rounds else []
    return [(result.drafts, result.accepted), *shorter]


def _ending(
    lengths: tuple[Measurement, Measurement], compared: int, equal: int, change: Estimate
) -> tuple[MatchEnding, int | None]:
    """Return whether both are of one drafter, and about how many compared prompts would decide."""
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


def _judge_matches(
    matches: Sequence[FilesMatch], served: Sequence[PromptResult], files: Sequence[Sequence[PromptResult]]
) -> tuple[MatchEnding, str, str]:
    # whether the server drafts as these files: the one reading that fits, or the nearest of several; returns
    # the ending, the source that the server drafts as ("" if unknown), and both in words
    first, prompts = matches[0], len(served)
    fitting = [place for place, match in enumerate(matches) if match.ending == MatchEnding.YES]
    if len(fitting) > 1:
        return _nearest_match(
            matches, {place: _distances(served, files[place]) for place in fitting}, prompts
        )
    if fitting:
        other = matches[fitting[0]]
        if other is first:
            return MatchEnding.YES, first.source, f"yes: {first.figures}"
        words = f"no, it drafts as {other.source}: {other.figures}; {first.figures}"
        return MatchEnding.NO, other.source, words
    if first.ending == MatchEnding.NO:
        words = f"no: {first.figures}; it reads the file differently (see inspect), or has other weights"
        words += f" ({OTHERS}): load {first.source} into the server again"
        return MatchEnding.NO, "", words
    would = f"about {first.needed} would decide" if first.needed else "more would not decide"
    if first.compared < prompts // 2:
        would += "; fewer --max-tokens leave more answers equal"
    words = f"could not tell with {prompts} prompts ({first.figures}); {would}"
    return MatchEnding.COULD_NOT_TELL, "", words


def _distances(served: Sequence[PromptResult], results: Sequence[PromptResult]) -> list[int]:
    sides = [[(result.drafts, *result.accepted) for result in side] for side in (served, results)]
    pairs = zip(*sides, strict=True)
    return [
        sum(abs(served_count - other_count) for served_count, other_count in zip(*counts, strict=False))
        for counts in pairs
    ]


def _nearest_match(
    matches: Sequence[FilesMatch], distances: Mapping[int, Sequence[int]], prompts: int
) -> tuple[MatchEnding, str, str]:
    # of two readings that fit, the one with the nearer drafts, if the difference is significant; returns as
    # `_judge_matches` does
    near, far = sorted(distances, key=lambda place: sum(distances[place]))[:2]
    gains = [
        far_distance - near_distance
        for near_distance, far_distance in zip(distances[near], distances[far], strict=True)
    ]
    is_shown, needed = judge_gain(gains)
    nearest, other = matches[near], matches[far]
    if is_shown:
        yes = "yes" if near == 0 else f"no, it drafts as {nearest.source}"
        words = f"{yes}: {nearest.figures}, nearer than {other.source} ({other.equal})"
        return (MatchEnding.NO if near else MatchEnding.YES), nearest.source, words
    would = f"about {needed} would decide" if needed else "these prompts do not distinguish them"
    words = (
        f"could not tell with {prompts} prompts whether it drafts as {nearest.source} or as {other.source},"
        f" which draft alike; {would}"
    )
    return MatchEnding.COULD_NOT_TELL, "", words
