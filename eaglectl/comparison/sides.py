"""Opening A and B: answers to their open questions, and which files of the Hub need a download."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from eaglectl.comparison.comparison import Side
from eaglectl.comparison.pairing import KnownDigests
from eaglectl.drafter.drafter import Target
from eaglectl.errors import EaglectlError, UnreadableError, UsageError
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint
from eaglectl.files.hub import HubSource
from eaglectl.files.opening import open_source
from eaglectl.files.source import FolderSource, Source
from eaglectl.formats.catalogue import by_name, known_answers
from eaglectl.formats.config_keys import Keys
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter

IsOpen = Callable[[Side], bool]


def _has_note(*topics: str) -> IsOpen:
    return lambda side: any(note.topic in topics for note in side.drafter.notes)


def _is_output_open(side: Side) -> bool:
    return side.drafter.norms.norm_output is None


# --source-semantics KEY: whether the files of a side leave it open
OPEN: Mapping[str, IsOpen] = {
    "norm_output": _is_output_open,
    **dict.fromkeys(known_answers(), _is_output_open),
    "norm_before_residual": lambda side: not Keys(side.flat).is_stated("norm_before_residual"),
    "rope": _has_note("rope-base-doubt", "rope-untrained"),
    "rope_interleave": _has_note("rope-pairing"),
    "mask_token_id": _has_note("mask-token"),
    "harmless": _has_note("unread-key", "partial-rotary"),
}


NOT_NEEDED = {
    "--aux-layers": "the files of both state their layers",
    "--aux-convention": "neither file has ids of unknown meaning",
}


def open_side(
    name: str,
    text: str,
    target_of: Callable[[Checkpoint], Target],
    answers: Answers,
    source: Source | None = None,
) -> Side:
    """Open A or B, headers only; `source` are its files where they are open already.

    Raises UsageError, and UnreadableError for all other errors: exit code 1 is for a difference.
    """
    try:
        checkpoint = read_checkpoint(source or open_source(text))
        target = target_of(checkpoint)
        side = _side(text, checkpoint, Answers(), target)
        needed = needed_answers(side, answers)
        if needed != Answers():
            side = _side(text, checkpoint, needed, target)
        _ = side.drafter.rope.mla_factors  # raises here, where the side is known
    except UsageError:
        raise
    except EaglectlError as error:
        label = name if text in str(error) else f"{name} ({text})"
        raise UnreadableError(f"{label}: {error}") from None
    return side


def _side(text: str, checkpoint: Checkpoint, answers: Answers, target: Target) -> Side:
    drafter = read_drafter(checkpoint, answers, target)
    return Side(text, checkpoint, drafter, by_name(drafter.producer).flat(checkpoint.config), target)


def needed_answers(side: Side, answers: Answers) -> Answers:
    """The answers to what the files of a side leave open, but for d2t, which is read later."""
    aux = side.drafter.aux
    is_open, is_assumed = aux.boundaries is None, aux.ids is None
    is_answered = is_open or (is_assumed and answers.aux_layers is not None)
    has_ids = not is_assumed or answers.aux_layers is not None
    semantics = {key: value for key, value in answers.semantics.items() if key in OPEN and OPEN[key](side)}
    convention = answers.aux_convention if is_answered and has_ids else None
    return Answers(answers.aux_layers if is_answered else None, convention, semantics)


def unneeded_answers(a: Side, b: Side, answers: Answers) -> Iterator[str]:
    """A note for each answer that neither side needs."""
    needed: set[str] = set()
    for side in (a, b):
        unanswered = _side(side.source, side.checkpoint, Answers(), side.target)
        needed.update(_options(needed_answers(unanswered, answers)))
    for option in _options(answers):
        if option not in needed:
            yield f"{option} was not needed: {NOT_NEEDED.get(option, 'neither file leaves it open')}"


def _options(answers: Answers) -> Iterator[str]:
    """The options of the command line that give the answers."""
    if answers.aux_layers:
        yield "--aux-layers"
    if answers.aux_convention:
        yield "--aux-convention"
    yield from (f"--source-semantics {key}" for key in answers.semantics if key in OPEN)


def known_digests(a: Side, b: Side) -> KnownDigests:
    """Digests of whole weight files that are known without a download; none where both are local."""
    return _digests(a, b), _digests(b, a)


def _digests(side: Side, other: Side) -> dict[str, str]:
    """The Hub's digests, and those of local files with the size of a file that the other side has there."""
    source, files = side.checkpoint.source, side.checkpoint.weight_files
    hub = other.checkpoint.source
    if isinstance(source, HubSource):
        return {file: source.listed.sha256[file] for file in files if file in source.listed.sha256}
    if not isinstance(hub, HubSource):
        return {}
    sizes = {hub.size(file) for file in other.checkpoint.weight_files}
    paths = {file: source.path(file) for file in files if source.size(file) in sizes}
    return {file: _sha256(path) for file, path in paths.items() if path}


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from None


def with_files(checkpoint: Checkpoint, needed: Collection[str]) -> Checkpoint:
    """The checkpoint with its weight files in `needed` on this machine; the Hub's are downloaded.

    Raises UnreadableError, also for files in the Hub client's cache that are not what was downloaded.
    """
    source = checkpoint.source
    if isinstance(source, FolderSource):
        source.check_cached(needed)
    if not isinstance(source, HubSource) or not needed:
        return checkpoint
    without = set(checkpoint.weight_files) - set(needed)
    return replace(checkpoint, source=source.downloaded(without))
