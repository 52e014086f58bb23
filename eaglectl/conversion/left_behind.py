"""What a conversion leaves behind: dropped tensors, biases of zeros, unused tensors, side files."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.checkpoint.source import check_whole
from eaglectl.conversion.plan import LeftBehind, Step
from eaglectl.conversion.plan_checks import missing_features
from eaglectl.drafter.drafter import Drafter, bias_feature
from eaglectl.errors import OptionNeededError, UsageError
from eaglectl.formats.format import Layout
from eaglectl.formats.names import canonical_name
from eaglectl.text import listed

COPIED_SUFFIXES = (".md", ".txt", ".jinja", ".model")
LEGAL_PREFIXES = ("LICENSE", "NOTICE")
TRAINER_STATE = (
    "meta.json",
    "trainer_state.json",
    "training_state.json",
    "latest_checkpointed_iteration.txt",
)
REWRITTEN = ("config.json", "eaglectl.json", "SHA256SUMS", "model.safetensors.index.json")


def without_dropped(drafter: Drafter, drop: Sequence[str]) -> Drafter:
    """The drafter without the named tensors, which must be unknown or optional.

    Raises UsageError for others.
    """
    optional = {
        tensor.stored[0]: name for name, tensor in drafter.tensors.items() if _is_optional(name, drafter)
    }
    for name in drop:
        if name not in drafter.unknown and name not in optional:
            droppable = listed(sorted((*drafter.unknown, *optional))) or "nothing"
            raise UsageError(
                f"--drop {name}: no drafter works without it, or the file has no such tensor; droppable here:"
                f" {droppable}"
            )
    dropped = {optional.get(name) for name in drop}
    return replace(
        drafter,
        tensors={name: tensor for name, tensor in drafter.tensors.items() if name not in dropped},
        notes=tuple(note for note in drafter.notes if note.about not in drop),
    )


def _is_optional(name: str, drafter: Drafter) -> bool:
    if name == "embed_tokens.weight":  # engines share the target's
        return drafter.dims.hidden == drafter.dims.target_hidden
    return name in ("mask_hidden", "t2d") or name.endswith(".bias")


def without_zero_biases(
    checkpoint: Checkpoint, drafter: Drafter, layout: Layout
) -> tuple[Drafter, Mapping[str, str]]:
    """The drafter without biases of zeros that `layout` has no place for, and why by stored name (C32)."""
    missing = missing_features(drafter, layout)
    zeros = [
        name
        for name, tensor in drafter.tensors.items()
        if bias_feature(name) in missing and not any(any(checkpoint.read(stored)) for stored in tensor.stored)
    ]
    reasons = {drafter.tensors[name].stored[0]: "all zeros, and this layout has no biases" for name in zeros}
    tensors = {name: tensor for name, tensor in drafter.tensors.items() if name not in zeros}
    return replace(drafter, tensors=tensors), reasons


def tensors_left_behind(
    checkpoint: Checkpoint, drafter: Drafter, steps: Sequence[Step], reasons: Mapping[str, str]
) -> Iterator[LeftBehind]:
    """The stored tensors no step uses. Raises RefusedError for one without a reason to leave it."""
    used = {name for step in steps for name in step.stored}
    for name in checkpoint.tensors:
        if name in used:
            continue
        if why := drafter.strays.get(name) or reasons.get(name):
            yield LeftBehind(name, why)
        elif canonical_name(name) in ("d2t", "t2d"):
            yield LeftBehind(name, "the identity map of a full vocabulary, which says nothing")
        else:
            raise OptionNeededError(f"{name} would be lost; pass --drop {name} if it may be left behind")


def side_files(checkpoint: Checkpoint) -> tuple[tuple[str, ...], tuple[LeftBehind, ...]]:
    """The files beside the weights that are copied, and those that are left behind.

    Raises UnreadableError for one to copy that is larger than any of its kind.
    """
    copied, left = [], []
    for name in checkpoint.source.names():
        if name in checkpoint.weight_files or name in REWRITTEN or "/" in name:
            continue
        if _is_copied(name):
            check_whole(checkpoint.source.place, name, checkpoint.source.size(name))
            copied.append(name)
        else:
            left.append(LeftBehind(name, _why_left(name)))
    return tuple(copied), tuple(left)


def _is_copied(name: str) -> bool:
    if name in TRAINER_STATE:
        return False
    is_settings = name.endswith(".json") and "index" not in name
    return is_settings or name.endswith(COPIED_SUFFIXES) or name.upper().startswith(LEGAL_PREFIXES)


def _why_left(name: str) -> str:
    if name in TRAINER_STATE:
        return "how far a trainer was, which says nothing of the drafter"
    return "code is not shipped with weights" if name.endswith(".py") else "not part of a drafter's release"
