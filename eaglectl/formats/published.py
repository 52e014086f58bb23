"""What others published of drafters: their figures, and which files their authors measured as stored."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct

from eaglectl.drafter.drafter import Choice
from eaglectl.formats.config_keys import at

DATA = Path(__file__).parent.parent / "run/published.json"
# of one figure, how many of its prompt sets are named in a sentence
MOST_SETS = 3


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
    """A run as a source made it: its prompts, the chain of draft tokens, temperature, tokens and seed.

    `source` and `set` are those of the figures to which such a run is alike. `prompts` is the named set, of
    whose lines `form` makes the text ("{}" is the question); `shots` of its first questions stand in front
    with their answers. `steps` is the least chain that the source has; a run with another of its chains is
    alike to those figures. `seed` is None where the source states none. `differs` is what of the source's
    run is not done here: no figure is alike to such a run.
    """

    source: str
    set: str
    prompts: str
    steps: int
    temperature: float
    max_new_tokens: int
    topk: int = 1
    seed: int | None = None
    form: str = "{}"
    shots: int = 0
    is_chat: bool = True
    differs: str = ""


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """What one source measured of a drafter on its target with one chain or tree of draft tokens.

    `steps`, `topk` and `draft_tokens` are SGLang's: with `topk` 1 a chain of `steps` tokens, and
    `draft_tokens` counts the verified one too. `lengths` are mean acceptance lengths by prompt set, the
    target's own token included; `by_position` is the share accepted at each draft position.
    `temperature`, `engine`, `url` and `date` replace those of the source. `speedups` are how many times
    faster than without a drafter the tokens of one user come, by prompt set.

    `is_by_authors`: the drafter's authors measured it with the file as it is stored. `release`
    is the engine's, where the source states it; else `since` is the first one that can be what they ran.
    `changed` is what was not read as it is stored, "" for nothing; `note` says why, or which release it was.
    """

    source: str
    target: str
    drafter: str
    lengths: Mapping[str, float] = {}
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    batch_size: int | None = None
    temperature: float | None = None
    by_position: tuple[float, ...] = ()
    engine: str | None = None
    url: str | None = None
    date: str | None = None
    speedups: Mapping[str, float] = {}
    concurrency: int | None = None
    hardware: str = ""
    release: str | None = None
    since: str | None = None
    is_by_authors: bool = False
    changed: str = ""
    note: str = ""

    @property
    def k(self) -> int | None:
        """The tokens of a chain; None for a tree, or where the source does not say."""
        return self.steps if self.topk == 1 else None

    @property
    def chain(self) -> str:
        """The drafts of a step in words: "k=3", or a tree as SGLang's three numbers."""
        if self.k is not None:
            return f"k={self.k}"
        if self.topk is None or self.topk == 1:
            return "drafts not stated"
        return f"tree of {self.steps} steps, top {self.topk}, {self.draft_tokens} tokens"

    @property
    def engine_name(self) -> str | None:
        """The engine in which it was measured, by its title; None where the source does not say."""
        return self.engine or published_file().sources[self.source].engine

    @property
    def words(self) -> str:
        """What was measured, and how: "2.03x at concurrency 1 on SPEED-Bench coding, TP=4, GB200"."""
        at = f" at concurrency {self.concurrency}" if self.concurrency else ""
        amounts = [f"{speedup:g}x{at} on {name}" for name, speedup in self.speedups.items()]
        if self.lengths:
            lengths = list(self.lengths.items())[:MOST_SETS]
            text = ", ".join(f"{round(length, 3):g} on {name}" for name, length in lengths)
            amounts.append(f"acceptance length {text}, {self.chain}{'' if self.speedups else at}")
        return ", ".join(filter(None, [*amounts, self.hardware]))

    @property
    def origin(self) -> str:
        """Where and when it was measured: "vLLM 0.20.0, 2026-04, https://..."."""
        source = published_file().sources[self.source]
        engine = " ".join(filter(None, [self.engine_name, self.release]))
        return ", ".join(filter(None, [engine, self.date or source.date, self.url or source.url]))


class PublishedDrafter(Struct, frozen=True, forbid_unknown_fields=True):
    """A published drafter that its authors measured as the file is stored (figures with `is_by_authors`).

    `targets` are those that it is published for. `keys` are the values of its config that are public, by
    paths with dots, null for keys that it has not; `config` is the digest of the whole config, where that is
    public. `reading` answers what the file leaves open as the engine read it that its authors ran.
    """

    name: str
    targets: tuple[str, ...]
    keys: Mapping[str, Any]
    reading: tuple[Choice, ...]
    config: str | None = None

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All figures of the drafter: those of its authors, in the order of the file, then others'."""
        found = [figure for figure in published_file().figures if figure.drafter == self.name]
        return tuple(sorted(found, key=lambda figure: not figure.is_by_authors))


class PublishedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The file of published figures."""

    sources: Mapping[str, PublishedSource]
    presets: Mapping[str, Preset]
    unlike: Mapping[str, str]
    figures: tuple[Figure, ...]
    drafters: tuple[PublishedDrafter, ...] = ()


@cache
def published_file() -> PublishedFile:
    """The sources and presets by name, runs that cannot be made here with the reason, and every figure."""
    return msgspec.json.decode(DATA.read_bytes(), type=PublishedFile)


def published_drafter(
    label: str, digest: str, config: Mapping[str, Any], target: str | None = None
) -> PublishedDrafter | None:
    """The published drafter that a checkpoint is, for a target that it is published for; None for none.

    `label` is the name of its source: a repository's has a slash, and is the drafter's where all that is
    public of the config stands in this one. A folder has no name, so that only the `digest` of a whole config
    tells: a copy with another name, or with one other key, is not what its authors measured.
    """
    for drafter in published_file().drafters:
        has_keys = all(at(config, path) == value for path, value in drafter.keys.items())
        is_named = label == drafter.name and has_keys
        is_copy = "/" not in label and digest == drafter.config
        # one that has no name may be its target
        is_for_target = target is None or last_part(target) in map(last_part, drafter.targets)
        if (is_named or is_copy) and is_for_target:
            return drafter
    return None


def last_part(name: str) -> str:
    """What names of one model have in common, whoever publishes it: the last part, without case."""
    return PurePosixPath(name).name.casefold()
