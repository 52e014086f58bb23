"""A and B as they are read, with the answers to what their files leave open, and how they are written."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from eaglectl.comparison.comparison import KeyPair, NamePair, Remark, Side, Spelling
from eaglectl.comparison.pairing import tensors_of
from eaglectl.drafter.drafter import Target
from eaglectl.errors import EaglectlError, UnreadableError, UsageError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.formats.catalogue import by_name, known_answers
from eaglectl.formats.config_keys import Keys
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.text import listed

IsOpen = Callable[[Side], bool]


def _has_note(*topics: str) -> IsOpen:
    return lambda side: any(note.topic in topics for note in side.drafter.notes)


CONVENTIONS = {"boundary": "boundaries", "output": "outputs of layers", None: "of unknown meaning"}
# --source-semantics KEY: whether the files of a side leave it open
OPEN: Mapping[str, IsOpen] = {
    **dict.fromkeys(("norm_output", *known_answers()), lambda side: side.drafter.norms.norm_output is None),
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


@contextmanager
def naming_side(name: str, text: str) -> Iterator[None]:
    """Raise errors but UsageError as UnreadableError, with the side: exit code 1 is for a difference."""
    try:
        yield
    except UsageError:
        raise
    except EaglectlError as error:
        label = name if text in str(error) else f"{name} ({text})"
        raise UnreadableError(f"{label}: {error}") from None


def read_side(text: str, checkpoint: Checkpoint, target: Target, answers: Answers) -> Side:
    """A or B, headers only, with those of the answers that its files need; d2t is read later."""
    needed = Answers()
    for _ in range(2):
        drafter = read_drafter(checkpoint, needed, target)
        flat = by_name(drafter.producer).flat(checkpoint.config)
        side = Side(text, checkpoint, drafter, flat, target, needed)
        aux = drafter.aux
        is_answered = aux.boundaries is None or (aux.ids is None and answers.aux_layers is not None)
        has_ids = aux.ids is not None or answers.aux_layers is not None
        needed = Answers(
            answers.aux_layers if is_answered else None,
            answers.aux_convention if is_answered and has_ids else None,
            {key: value for key, value in answers.semantics.items() if key in OPEN and OPEN[key](side)},
        )
        if needed == Answers():
            break
    _ = side.drafter.rope.mla_factors  # raises here, where the side is known
    return side


def unneeded_answers(a: Side, b: Side, answers: Answers) -> Iterator[str]:
    """A note for each answer that neither side needs."""
    given, *needed = (
        {
            "--aux-layers": each.aux_layers,
            "--aux-convention": each.aux_convention,
            **{f"--source-semantics {key}": True for key in each.semantics if key in OPEN},
        }
        for each in (answers, a.answers, b.answers)
    )
    for option, value in given.items():
        if value and not any(side.get(option) for side in needed):
            yield f"{option} was not needed: {NOT_NEEDED.get(option, 'neither file leaves it open')}"


def compare_spelling(a: Side, b: Side, vocabulary: Iterable[Remark] = ()) -> Spelling:
    """Every difference in how the files are written; `vocabulary` are those of the draft vocabulary."""
    words_a, words_b = _words(a), _words(b)
    remarks = [
        Remark(about, text, words_b[about]) for about, text in words_a.items() if text != words_b[about]
    ]
    tensors_a, tensors_b = tensors_of(a), tensors_of(b)
    names = [
        NamePair(name, tensor.stored, tensors_b[name].stored)
        for name, tensor in tensors_a.items()
        if name in tensors_b and tensor.stored != tensors_b[name].stored
    ]
    keys_a, keys_b = dict(_flat(a.flat)), dict(_flat(b.flat))
    keys = [
        KeyPair(key, keys_a.get(key), keys_b.get(key))
        for key in dict.fromkeys((*keys_a, *keys_b))
        if keys_a.get(key) != keys_b.get(key)
    ]
    return Spelling((*remarks, *vocabulary), tuple(names), tuple(keys))


def _words(side: Side) -> dict[str, str]:
    drafter, aux = side.drafter, side.drafter.aux
    ids = f"{', '.join(map(str, aux.ids))} ({CONVENTIONS[aux.convention]})" if aux.ids else "none"
    return {
        "producer": by_name(drafter.producer).title,
        "layer ids": ids,
        "files": listed(side.checkpoint.weight_files),
        "target": drafter.target.name or "not named",
        "strays": listed(drafter.strays) or "none",
    }


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys as "object.key"; null is left out, as it means the same as an absent key."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value
