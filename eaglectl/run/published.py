"""Acceptance lengths that others published, and which of them were measured as a run of ours was."""

from collections.abc import Mapping

from msgspec import Struct

from eaglectl.errors import check
from eaglectl.formats.published import Preset, last_part, published_file
from eaglectl.run.measurement import DEAD_LENGTH

MOST_LINES = 4


class PublishedLength(Struct, frozen=True):
    """One published acceptance length with all that it takes to compare it.

    `k` is None for a tree of drafts or where the source does not say, `temperature` and `prompts`, the number
    of prompts, where it does not say.
    """

    length: float
    drafter: str
    target: str
    prompt_set: str
    preset: str | None
    k: int | None
    temperature: float | None
    engine: str | None
    chain: str
    source: str
    url: str
    date: str
    prompts: int | None = None

    @property
    def is_dead(self) -> bool:
        """Whether it is that of a drafter that does not work; a gate of TensorRT-LLM passes 1.01."""
        return self.length < DEAD_LENGTH


class Settings(Struct, frozen=True):
    """How a run of ours was made, as far as lengths depend on it; `preset` is its name, None without one.

    `sample` is the number of prompts that were drawn, None for all.
    """

    k: int
    temperature: float
    max_tokens: int
    preset: str | None = None
    sample: int | None = None
    ignores_eos: bool = False

    @property
    def differences(self) -> tuple[str, ...]:
        """What keeps every figure from being alike to the run; empty where its chain decides."""
        if self.preset is None:
            return ("prompts of no preset",)
        preset = published_file().presets[self.preset]
        return tuple(
            text
            for text, is_so in (
                (f"a sample of {self.sample} prompts", self.sample is not None),
                (f"temperature {self.temperature:g}", self.temperature != preset.temperature),
                (f"{self.max_tokens} tokens an answer", self.max_tokens != preset.max_new_tokens),
                ("answers past the end of a sequence", self.ignores_eos),
                (preset.differs, bool(preset.differs)),
            )
            if is_so
        )


class Published(Struct, frozen=True):
    """Lengths for a target: those measured as a run of ours was, and the others, each highest first.

    `target` is what the target is taken for, and `how` where that name is from.
    """

    alike: tuple[PublishedLength, ...] = ()
    otherwise: tuple[PublishedLength, ...] = ()
    settings: Settings | None = None
    target: str = ""
    how: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """What others reach, for people: each length that is alike, else what was measured otherwise."""
        if self.alike:
            lines = tuple(map(_words, self.alike[:MOST_LINES]))
            more = len(self.alike) - MOST_LINES
            return (*lines, *([f"and {more} more"] if more > 0 else []), self._target_words)
        if not self.otherwise:
            return ()
        lengths = [length.length for length in self.otherwise]
        why = ", ".join(self.settings.differences) if self.settings else ""
        names = {length.preset for length in self.otherwise if length.preset}
        usable = sorted(name for name in names if not published_file().presets[name].differs)
        is_open = usable and (self.settings is None or self.settings.preset not in usable)
        return (
            f"measured otherwise: {len(lengths)} published lengths of this target, {min(lengths):.2f} to"
            f" {max(lengths):.2f}{f' (here: {why})' if why else ''}"
            f"{f'; compare with --like {usable[0]}' if is_open else ''}",
            self._target_words,
        )

    @property
    def _target_words(self) -> str:
        return f"the target is taken for {self.target}, by {self.how}"


def preset(name: str) -> Preset:
    """A preset by its name. Raises UsageError, with the reason for a source's run that cannot be made."""
    file = published_file()
    names = ", ".join(file.presets)
    check(
        (name in file.unlike, f"--like {name}: {file.unlike.get(name)}; {names} can be run"),
        (name not in file.presets, f"--like {name}: {names} was expected"),
    )
    return file.presets[name]


def published_lengths() -> tuple[PublishedLength, ...]:
    """Every published length, one for each prompt set of a figure."""
    file, lengths = published_file(), []
    for figure in file.figures:
        source = file.sources[figure.source]
        presets = {made.set: name for name, made in file.presets.items() if made.source == figure.source}
        lengths += [
            PublishedLength(
                length,
                figure.drafter,
                figure.target,
                prompt_set,
                presets.get(prompt_set),
                figure.k,
                source.temperature if figure.temperature is None else figure.temperature,
                figure.engine_name,
                figure.chain,
                source.title,
                figure.url or source.url,
                figure.date or source.date,
                source.prompts,
            )
            for prompt_set, length in figure.lengths.items()
        ]
    return tuple(lengths)


def published_for(names: Mapping[str, str], settings: Settings) -> Published:
    """What others reached with drafters of a target, and which of it was measured as `settings` say.

    `names` are those that the target may have, each with where it is from: Hub repositories or folders, whose
    last part decides, without case. The first that has figures counts. Nothing is alike to a run of one's own
    prompts: sources put prompts otherwise and stop elsewhere, also on one set. A length of another chain or
    temperature is no comparison either.
    """
    for name, how in names.items():
        lengths = [length for length in published_lengths() if last_part(length.target) == last_part(name)]
        if not lengths:
            continue
        lengths.sort(key=lambda length: (-length.length, length.drafter))
        key = (settings.preset, settings.k, settings.temperature)
        alike = tuple(
            length
            for length in lengths
            if not settings.differences and (length.preset, length.k, length.temperature) == key
        )
        otherwise = tuple(length for length in lengths if length not in alike)
        return Published(alike, otherwise, settings, lengths[0].target, how)
    return Published(settings=settings)


def _words(length: PublishedLength) -> str:
    dead = " (dead)" if length.is_dead else ""
    count = "" if length.prompts else ", of how many prompts is not stated"
    return f"{length.length:.2f}{dead}  {length.drafter} ({length.source}, {length.date}{count})"
