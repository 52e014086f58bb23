"""Acceptance lengths that others published, and which of them were measured as a run of ours was."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct

DATA = Path(__file__).with_name("published.json")
# below it a drafter adds no more than chance: a gate of TensorRT-LLM passes 1.01
DEAD = 1.05


class PublishedSource(Struct, frozen=True, forbid_unknown_fields=True):
    """Where figures were read: its address, its date, and what holds for all of its figures.

    `date` is that of the figures where their source states it, else the month in which they were read.
    `temperature`, `max_new_tokens`, `prompts` (of a set) and `seed` are None where the source states none.
    """

    title: str
    url: str
    date: str
    note: str = ""
    engine: str | None = None
    temperature: float | None = None
    max_new_tokens: int | None = None
    prompts: int | None = None
    seed: int | None = None


class Preset(Struct, frozen=True, forbid_unknown_fields=True):
    """A run as a source made it: the named set of prompts, tokens drafted at a step, temperature, tokens.

    `source` and `set` are those of the figures to which such a run is alike. `k` is the least that the source
    has; a run with another of its numbers is alike to those figures.
    """

    source: str
    set: str
    prompts: str
    k: int
    temperature: float
    max_new_tokens: int


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """What one source measured of a drafter on its target with one chain or tree of draft tokens.

    `steps`, `topk` and `draft_tokens` are SGLang's: with `topk` 1 a chain of `steps` tokens, and
    `draft_tokens` counts the verified one too. `lengths` are mean acceptance lengths by prompt set, the
    target's own token included; `by_position` is the share accepted at each draft position.
    `temperature`, `engine` and `url` replace those of the source.
    """

    source: str
    target: str
    drafter: str
    lengths: Mapping[str, float]
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    batch_size: int | None = None
    temperature: float | None = None
    by_position: tuple[float, ...] = ()
    engine: str | None = None
    url: str | None = None

    @property
    def k(self) -> int | None:
        """The tokens of a chain; None for a tree, or where the source does not say."""
        return self.steps if self.topk == 1 else None


class PublishedLength(Struct, frozen=True):
    """One published acceptance length with all that it takes to compare it.

    `k` is None for a tree of drafts or where the source does not say, `temperature` where it does not say.
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


class Published(Struct, frozen=True):
    """Lengths for a target: those measured alike (preset, chain, temperature), and the others."""

    alike: tuple[PublishedLength, ...]
    otherwise: tuple[PublishedLength, ...]


class _Data(Struct, frozen=True, forbid_unknown_fields=True):
    sources: Mapping[str, PublishedSource]
    presets: Mapping[str, Preset]
    figures: tuple[Figure, ...]


@cache
def _data() -> _Data:
    return msgspec.json.decode(DATA.read_bytes(), type=_Data)


def sources() -> Mapping[str, PublishedSource]:
    """The sources by the name that figures have for them."""
    return _data().sources


def presets() -> Mapping[str, Preset]:
    """What `--like` takes: runs that can be made here as their source made them."""
    return _data().presets


def figures() -> tuple[Figure, ...]:
    """Every figure, in the order of the file: by source, target, drafter, chain."""
    return _data().figures


def published_lengths() -> tuple[PublishedLength, ...]:
    """Every published length, one for each prompt set of a figure."""
    return tuple(
        _length(figure, prompt_set, length)
        for figure in figures()
        for prompt_set, length in figure.lengths.items()
    )


def published_for(target: str, preset: str | None, k: int, temperature: float) -> Published:
    """What others reached with drafters of a target, highest first.

    `target` is a Hub repository or a folder: its last part decides, without case. `preset` is the name of the
    run's preset, None for a run of one's own, which nothing is alike to: sources put prompts otherwise and
    stop elsewhere, also on one set. A length of another chain or temperature is no comparison either.
    """
    lengths = [length for length in published_lengths() if _name(length.target) == _name(target)]
    lengths.sort(key=lambda length: (-length.length, length.drafter))
    alike = tuple(
        length
        for length in lengths
        if preset is not None and (length.preset, length.k, length.temperature) == (preset, k, temperature)
    )
    return Published(alike, tuple(length for length in lengths if length not in alike))


def _length(figure: Figure, prompt_set: str, length: float) -> PublishedLength:
    source = sources()[figure.source]
    temperature = source.temperature if figure.temperature is None else figure.temperature
    return PublishedLength(
        length,
        figure.drafter,
        figure.target,
        prompt_set,
        _preset(figure.source, prompt_set),
        figure.k,
        temperature,
        figure.engine or source.engine,
        _chain(figure),
        source.title,
        figure.url or source.url,
        source.date,
    )


def _preset(source: str, prompt_set: str) -> str | None:
    made = [name for name, preset in presets().items() if (preset.source, preset.set) == (source, prompt_set)]
    return made[0] if made else None


def _chain(figure: Figure) -> str:
    """The drafts of a step in words: "k=3", or a tree as SGLang's three numbers."""
    if figure.k is not None:
        return f"k={figure.k}"
    if figure.topk is None or figure.topk == 1:
        return "drafts not stated"
    return f"tree of {figure.steps} steps, top {figure.topk}, {figure.draft_tokens} tokens"


def _name(target: str) -> str:
    return PurePosixPath(target).name.casefold()
