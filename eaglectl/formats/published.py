"""What others published of drafters: their figures, and which files their authors measured as stored."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct

from eaglectl.drafter.drafter import Choice
from eaglectl.files.files import sha256
from eaglectl.formats.config_keys import at
from eaglectl.formats.format import Origin

DATA = Path(__file__).parent.parent / "run/published.json"
# of one figure, how many of its prompt sets are named in a sentence
MOST_SETS = 3


class PublishedSource(Struct, frozen=True, forbid_unknown_fields=True):
    """The source of figures: its address, its date, and what holds for all of its figures.

    `date` is that of the figures where their source states it, else the month in which they were read.
    `temperature` and `prompts` (of a set) are None where the source states none. `comparable` are
    the sets that were put as `--prompts NAME` puts them, with the most tokens of an answer.
    """

    title: str
    url: str
    date: str
    note: str = ""
    engine: str | None = None
    temperature: float | None = None
    prompts: int | None = None
    comparable: Mapping[str, int] = {}


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """What one source measured of a drafter on its target with one chain or tree of draft tokens.

    `steps`, `topk` and `draft_tokens` are SGLang's: with `topk` 1 a chain of `steps` tokens; `draft_tokens`
    counts the verified token too. `lengths` are mean acceptance lengths by prompt set, with the target's
    token. `speedups` are the ratios of one user's tokens per second with and without the drafter.
    `temperature`, `engine`, `url` and `date` replace those of the source.

    `is_by_authors`: the drafter's authors measured the file as stored. `release` is the engine's, if stated;
    otherwise `since` is the earliest possible one. `changed` is what was not read as stored, "" for nothing.
    """

    source: str
    target: str
    drafter: str
    lengths: Mapping[str, float] = {}
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    temperature: float | None = None
    engine: str | None = None
    url: str | None = None
    date: str | None = None
    release: str | None = None
    since: str | None = None
    speedups: Mapping[str, float] = {}
    is_by_authors: bool = False
    changed: str = ""

    @property
    def k(self) -> int | None:
        """The draft tokens of a chain; None for a tree, or if the source does not say."""
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
        """The title of the engine it was measured in; None if the source does not say."""
        return self.engine or published_file().sources[self.source].engine

    @property
    def words(self) -> str:
        """What was measured: "2.03x on SPEED-Bench coding, acceptance length 2.94 on humaneval, k=3"."""
        amounts = [f"{speedup:g}x on {name}" for name, speedup in self.speedups.items()]
        if lengths := list(self.lengths.items())[:MOST_SETS]:
            text = ", ".join(f"{round(length, 3):g} on {name}" for name, length in lengths)
            amounts.append(f"acceptance length {text}, {self.chain}")
        return ", ".join(amounts)

    @property
    def origin(self) -> str:
        """Where and when it was measured: "vLLM 0.20.0, 2026-04, https://..."."""
        source = published_file().sources[self.source]
        engine = " ".join(filter(None, [self.engine_name, self.release]))
        return ", ".join(filter(None, [engine, self.date or source.date, self.url or source.url]))


class PublishedDrafter(Struct, frozen=True, forbid_unknown_fields=True):
    """A published drafter that its authors measured as the file is stored (figures with `is_by_authors`).

    `targets` are the targets it is published for. `keys` are the public values of its config, by paths with
    dots; null for an absent key. `config` is the digest of the whole config, if it is public. `reading`
    answers what the file leaves open: as its authors' engine read it, or, if its training is public
    (`source`: its address), as it was trained.
    """

    name: str
    targets: tuple[str, ...]
    keys: Mapping[str, Any]
    reading: tuple[Choice, ...]
    config: str | None = None
    source: str = ""

    @property
    def offers(self) -> list[tuple[Choice, Origin]]:
        """The answers, each with its origin."""
        by = Origin("known", self.source)
        if not self.source:
            by = Origin("published", f"{self.name}: {self.figures[0].origin}")
        return [(choice, by) for choice in self.reading]

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All figures of the drafter: those of its authors, in the order of the file, then others'."""
        return tuple(
            sorted(
                [figure for figure in published_file().figures if figure.drafter == self.name],
                key=lambda figure: not figure.is_by_authors,
            )
        )


class PublishedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The file of published figures."""

    sources: Mapping[str, PublishedSource]
    figures: tuple[Figure, ...]
    drafters: tuple[PublishedDrafter, ...] = ()


@cache
def published_file() -> PublishedFile:
    """Return the sources by name, and every figure."""
    return msgspec.json.decode(DATA.read_bytes(), type=PublishedFile)


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a config, independent of its order and spacing."""
    return sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def published_drafter(
    label: str, config: Mapping[str, Any], target: str | None = None
) -> PublishedDrafter | None:
    """Return the published drafter that a checkpoint is, if published for this target; else None.

    `label` is the name of its source. A repository's has a slash; it matches if all published keys have the
    same values in this config. A folder has no name, so it matches by the digest of the whole config alone: a
    copy with another key is not what its authors measured.
    """
    for drafter in published_file().drafters:
        is_named, is_trained = label == drafter.name, bool(drafter.source)
        is_copy = "/" not in label and drafter.config is not None and not is_trained
        if is_named and not is_trained:
            is_public = all(at(config, path) == value for path, value in drafter.keys.items())
        else:
            is_public = (is_named or is_copy) and config_digest(config) == drafter.config
        # one that has no name may be its target; how it was trained holds for every target
        is_any = target is None or is_trained
        if is_public and (is_any or last_part(target or "") in map(last_part, drafter.targets)):
            return drafter
    return None


def last_part(name: str) -> str:
    """Return the last part of a model's name, case-folded: the same for all who publish that model."""
    return PurePosixPath(name).name.casefold()
