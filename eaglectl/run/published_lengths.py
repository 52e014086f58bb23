"""The published acceptance lengths that a run is compared with."""

from collections.abc import Mapping

from msgspec import Struct

from eaglectl.formats.published import Figure, PublishedSource, last_part, published_file
from eaglectl.run.measurement import DEAD_LENGTH

MOST_LINES = 4


class PublishedLength(Struct, frozen=True):
    """One published acceptance length, with its prompt set, its figure and the figure's source."""

    length: float
    prompt_set: str
    figure: Figure
    source: PublishedSource

    @property
    def is_dead(self) -> bool:
        """Whether the drafter does not work, though its length was published (TensorRT-LLM's gate: 1.01)."""
        return self.length < DEAD_LENGTH

    @property
    def run(self) -> tuple[str, int | None, float | None, int | None]:
        """The prompt set, k, temperature and new tokens of a comparable run; None matches no run."""
        figure, source = self.figure, self.source
        temperature = source.temperature if figure.temperature is None else figure.temperature
        return self.prompt_set, figure.k, temperature, source.comparable.get(self.prompt_set)

    @property
    def text(self) -> str:
        """The length, its drafter, and where and when it was measured."""
        dead = " (dead)" if self.is_dead else ""
        count = "" if self.source.prompts else ", number of prompts not stated"
        place = f"{self.source.title}, {self.figure.date or self.source.date}{count}"
        return f"{self.length:.2f}{dead}  {self.figure.drafter} ({place})"


class Published(Struct, frozen=True):
    """Published lengths for a target, highest first; those of `alike` are comparable with our run.

    `target` is the published name of the target, `how` its source.
    """

    alike: tuple[PublishedLength, ...] = ()
    otherwise: tuple[PublishedLength, ...] = ()
    target: str = ""
    how: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The comparable lengths as lines; without any, the range of the others."""
        lines = [length.text for length in self.alike[:MOST_LINES]]
        if len(self.alike) > MOST_LINES:
            lines.append(f"and {len(self.alike) - MOST_LINES} more")
        if self.otherwise and not lines:
            lengths = [length.length for length in self.otherwise]
            lines = [
                f"measured differently: {len(lengths)} published lengths of this target, {min(lengths):.2f}"
                f" to {max(lengths):.2f}"
            ]
        return (*lines, f"the target is identified as {self.target} by {self.how}") if lines else ()


def published_for(
    names: Mapping[str, str], prompts: str | None, k: int, temperature: float, max_tokens: int
) -> Published:
    """Return the published lengths of a target's drafters, and which of them are comparable with our run.

    `names` maps possible names of the target (Hub repositories or folders) to their sources. Only the last
    part of a name counts, without case; the first name with figures is used. A length with other prompts,
    another k or temperature, or another end of answers is not comparable. `prompts` is the named set of the
    run; None for other prompts, for a sample of a set, and for answers past their end.
    """
    run = prompts, k, temperature, max_tokens
    for name, how in names.items():
        lengths = [
            length for length in published_lengths() if last_part(length.figure.target) == last_part(name)
        ]
        if lengths:
            lengths.sort(key=lambda length: (-length.length, length.figure.drafter))
            alike = tuple(length for length in lengths if length.run == run)
            otherwise = tuple(length for length in lengths if length not in alike)
            return Published(alike, otherwise, lengths[0].figure.target, how)
    return Published()


def published_lengths() -> tuple[PublishedLength, ...]:
    """Return every published length, one for each prompt set of a figure."""
    file = published_file()
    return tuple(
        PublishedLength(length, prompt_set, figure, file.sources[figure.source])
        for figure in file.figures
        for prompt_set, length in figure.lengths.items()
    )
