"""Opening A and B: answers go where a file leaves their question open, and of the Hub nothing is downloaded that both have."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from eaglectl.checkpoint.checkpoint import Checkpoint, read_checkpoint
from eaglectl.checkpoint.hub import HubSource
from eaglectl.checkpoint.source import open_source
from eaglectl.comparison.comparison import Side
from eaglectl.comparison.pairing import Known
from eaglectl.drafter.drafter import Drafter, Target
from eaglectl.errors import EaglectlError, Unreadable, Usage
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.format import Answers
from eaglectl.formats.keys import MISSING, Keys
from eaglectl.formats.reading import read_drafter

Open = Callable[[Side], bool]


def _asks(topic: str) -> Open:
    return lambda side: any(note.topic == topic for note in side.drafter.notes)


def _is_output_open(side: Side) -> bool:
    return side.drafter.norms.norm_output is None


# --source-semantics KEY: where a file leaves it open
OPEN: Mapping[str, Open] = {
    "norm_output": _is_output_open,
    "specforge": _is_output_open,
    "norm_before_residual": lambda side: Keys(side.flat).take("norm_before_residual") is MISSING,
    "rope": _asks("rope-base-doubt"),
    "rope_interleave": _asks("rope-pairing"),
    "mask_token_id": _asks("mask-token"),
}


def open_side(name: str, text: str, target: Target, answers: Answers) -> Side:
    """One side, headers only. Raises Unreadable for all that keeps it from being compared: exit code 1 is for a difference."""
    try:
        checkpoint = read_checkpoint(open_source(text))
        side = _side(text, checkpoint, read_drafter(checkpoint, Answers(), target))
        picked = needed_answers(side, answers)
        if picked != Answers():
            side = _side(text, checkpoint, read_drafter(checkpoint, picked, target))
        _ = side.drafter.rope.mla_factors  # raises what would be raised later, when it is no longer known of which side
    except Usage:
        raise
    except EaglectlError as error:
        raise Unreadable(f"{name}{'' if text in str(error) else f' ({text})'}: {error}") from None
    return side


def _side(text: str, checkpoint: Checkpoint, drafter: Drafter) -> Side:
    flatten = by_name(drafter.producer).flatten
    return Side(text, checkpoint, drafter, flatten(checkpoint.config) if flatten else checkpoint.config)


def needed_answers(side: Side, answers: Answers) -> Answers:
    """The answers to what this side's files leave open; d2t is asked where it is read."""
    is_open = side.drafter.aux.boundaries is None
    has_ids = side.drafter.aux.ids is not None or answers.aux_layers is not None
    semantics = {key: value for key, value in answers.semantics.items() if key in OPEN and OPEN[key](side)}
    convention = answers.aux_convention if is_open and has_ids else None
    return Answers(answers.aux_layers if is_open else None, convention, semantics)


def unneeded(a: Side, b: Side, answers: Answers, target: Target) -> Iterator[str]:
    """A note for each answer that neither side asked for."""
    plain = [_side(side.source, side.checkpoint, read_drafter(side.checkpoint, Answers(), target)) for side in (a, b)]
    used = [needed_answers(side, answers) for side in plain]
    if answers.aux_layers and not any(one.aux_layers for one in used):
        yield "--aux-layers was not needed: the layers of both are known"
    if answers.aux_convention and not any(one.aux_convention for one in used):
        yield "--aux-convention was not needed: neither file has ids of unknown meaning"
    for key in answers.semantics:
        if key in OPEN and not any(key in one.semantics for one in used):
            yield f"--source-semantics {key} was not needed: neither file leaves it open"


def known_digests(a: Side, b: Side) -> Known:
    """What is known of whole weight files without downloading any; nothing where both lie on this machine."""
    return Known(_digests(a, b), _digests(b, a))


def _digests(side: Side, other: Side) -> dict[str, str]:
    """The Hub's own digests, and those of local files that are as large as one that the Hub lists for the other side."""
    source, beyond = side.checkpoint.source, other.checkpoint.source
    files = side.checkpoint.weight_files
    if isinstance(source, HubSource):
        return {file: source.digests[file] for file in files if file in source.digests}
    sizes = {beyond.size(file) for file in other.checkpoint.weight_files} if isinstance(beyond, HubSource) else set()
    paths = {file: source.path(file) for file in files if source.size(file) in sizes}
    return {file: _sha256(path) for file, path in paths.items() if path}


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Unreadable(f"{path.name}: {error.strerror}") from None


def with_files(checkpoint: Checkpoint, needed: Collection[str]) -> Checkpoint:
    """The checkpoint with these weight files on this machine: those of a Hub repository in the client's cache. Raises Unreadable."""
    source = checkpoint.source
    if not isinstance(source, HubSource) or not needed:
        return checkpoint
    without = set(checkpoint.weight_files) - set(needed)
    return replace(checkpoint, source=source.downloaded(without))
