"""Rules on the numbers in the weights: what is no number, what was never filled, never trained, or is far too large."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod, sqrt
from typing import TYPE_CHECKING

from eaglectl.drafter.tensors import LAYER, is_quantised_part
from eaglectl.errors import EaglectlError
from eaglectl.validation.rule import CannotLook, Hit, rule
from eaglectl.validation.subject import Subject

if TYPE_CHECKING:
    from eaglectl.validation.scanning import Spread, Summary

HALF = 65504.0  # the largest number of float16
# what squares to more than float32 holds: an RMS norm over it is zero or no number
SQUARES = sqrt(3.4028234663852886e38)


@rule("EGL205", "not-finite", "error")
def not_finite(subject: Subject) -> Iterator[Hit]:
    """No number in the weights is NaN or infinite.

    One of them spreads to every draft: vLLM and SGLang load it, propose token 0 for ever and accept nothing, while the server
    answers as before, and slower.

    Fix: go back to a checkpoint from before the training broke down; a cast to float16 makes infinities of large numbers.
    """
    for name, found in subject.scan.items():
        if found.bad:
            tensor = subject.checkpoint.tensors[name]
            count = f"{found.bad} of {prod(tensor.shape)} numbers, the first at {_place(found.first, tensor.shape)}"
            yield Hit(f"{name} holds NaN or infinity: {count}", f"tensor:{name}")


@rule("EGL206", "constant-tensor", "error")
def constant_tensor(subject: Subject) -> Iterator[Hit]:
    """No matrix is all one number, and no norm is all zeros.

    Training leaves no such tensor: it was never filled, or it was filled in place of one that was missing. A bias may be
    zero.

    Fix: restore the tensor from the trainer's checkpoint.
    """
    for name, found in _scanned(subject):
        shape = subject.checkpoint.tensors[name].shape
        is_matrix = len(shape) > 1 and prod(shape) > 1
        if found.constant is not None and (is_matrix or (found.constant == 0 and name.endswith("weight"))):
            yield Hit(f"{name} {list(shape)} is all {found.constant:g}", f"tensor:{name}")


@rule("EGL207", "untrained", "warning")
def untrained(subject: Subject) -> Iterator[Hit]:
    """The weights are not what a training starts from.

    A part looks untrained when its norms are exactly ones and each of its matrices is spread as frameworks draw them: a
    normal distribution of the config's initializer_range, or torch's uniform one. Loaders that miss a name keep such numbers
    with no more than a warning, and save them.

    Fix: compare the tensors with the trainer's checkpoint; convert that again, by names that match.
    """
    parts = _parts(subject)
    fresh = {part: hints for part, names in parts.items() if (hints := _fresh(subject, names))}
    if len(fresh) == len(parts) > 1:
        yield Hit(f"nothing was trained: all norms are ones and all matrices as first drawn ({_first(fresh)})")
        return
    for part, hints in fresh.items():
        text = f"{part} looks untrained: its norms are ones and its matrices as first drawn ({hints[0][1]})"
        yield Hit(text, f"tensor:{hints[0][0]}")


@rule("EGL214", "beyond-float16", "warning")
def beyond_float16(subject: Subject) -> Iterator[Hit]:
    """Every weight fits into float16.

    Served with --dtype float16, or by kernels that know nothing else, a number above 65504 becomes infinite, and the drafts
    are token 0 for ever.

    Fix: serve it in bfloat16; numbers so large are seldom trained, so look at the tensor too.
    """
    for name, found in _large(subject, HALF, SQUARES):
        yield Hit(f"{name} reaches {found.largest:.3g}; float16 ends at 65504", f"tensor:{name}")


@rule("EGL215", "overflowing", "error")
def overflowing(subject: Subject) -> Iterator[Hit]:
    """No weight is so large that its square overflows float32.

    Norms square what they are given. A number beyond 1.8e19 comes from a flipped bit, a wrong dtype or uninitialised
    memory, never from a training, and what passes by it is lost.

    Fix: restore the tensor from the trainer's checkpoint.
    """
    for name, found in _large(subject, SQUARES, float("inf")):
        yield Hit(f"{name} reaches {found.largest:.3g}, whose square no float32 holds", f"tensor:{name}")


def _scanned(subject: Subject) -> Iterator[tuple[str, "Summary"]]:
    """Summaries of the tensors that hold weights: neither of quantisers nor of the draft vocabulary."""
    names = {
        stored: None
        for name, tensor in subject.drafter.tensors.items()
        if name not in ("d2t", "t2d", "mask_hidden") and not name.endswith(".bias") and not is_quantised_part(name)
        for stored in tensor.stored
    }
    return ((name, subject.scan[name]) for name in names if name in subject.scan)


def _large(subject: Subject, least: float, most: float) -> Iterator[tuple[str, "Summary"]]:
    for name, found in subject.scan.items():
        if not found.bad and least < found.largest <= most and not is_quantised_part(name):
            yield name, found


def _parts(subject: Subject) -> Mapping[str, tuple[str, ...]]:
    """Tensors that are trained together: fc with the norms around it, and each layer."""
    parts: dict[str, list[str]] = {}
    for name, tensor in subject.drafter.tensors.items():
        layer = LAYER.fullmatch(name)
        is_edge = name in ("fc.weight", "norm.weight", "input_norm.weight") or name.startswith("fc_norm.")
        if (layer or is_edge) and not is_quantised_part(name) and not name.endswith(".bias"):
            parts.setdefault(f"layer {layer[1]}" if layer else "fc", []).extend(tensor.stored)
    return {part: tuple(dict.fromkeys(names)) for part, names in parts.items()}


def _fresh(subject: Subject, names: Sequence[str]) -> list[tuple[str, str]]:
    """Each matrix of a part with how it was drawn, if the norms are ones and all of them look drawn; else nothing."""
    tensors = subject.checkpoint.tensors
    summaries = {name: subject.scan[name] for name in names if name in subject.scan}
    norms = [name for name in summaries if len(tensors[name].shape) == 1]
    matrices = [name for name in summaries if len(tensors[name].shape) > 1]
    if not norms or not matrices or len(summaries) < len(names):
        return []
    if any(summaries[name].constant != 1 for name in norms) or any(summaries[name].bad for name in matrices):
        return []
    stated = subject.flat.get("initializer_range")
    deviation = float(stated) if isinstance(stated, int | float) and stated > 0 else 0.02
    hints: list[tuple[str, str]] = []
    for name in matrices:
        drawn = _drawn(_spread(subject, name), deviation, tensors[name].shape[-1])
        if not drawn:
            return []
        hints.append((name, f"{name}: {drawn}"))
    return hints


def _spread(subject: Subject, name: str) -> "Spread":
    weights = subject.weights  # before numpy is loaded
    from eaglectl.validation.scanning import spread

    try:
        return spread(weights, name)
    except EaglectlError as error:
        raise CannotLook(str(error)) from None


def _drawn(found: "Spread", deviation: float, width: int) -> str:
    """Which distribution, of those that frameworks draw matrices from, numbers are spread by; empty for none of them."""
    doubt = 4 / sqrt(found.count)  # four standard errors, in units of each figure's own
    for kurtosis, expected, words in (
        (3.0, deviation, f"normal, deviation {deviation:g}"),
        (1.8, 1 / sqrt(3 * width), f"uniform within 1/sqrt({width})"),
    ):
        is_centred = abs(found.mean) <= expected * max(0.01, doubt)
        is_wide = abs(found.deviation / expected - 1) <= max(0.01, doubt * sqrt((kurtosis - 1) / 4))
        if is_centred and is_wide and abs(found.kurtosis - kurtosis) <= max(0.03, doubt * sqrt(24)):
            return words
    return ""


def _first(fresh: Mapping[str, list[tuple[str, str]]]) -> str:
    return next(iter(fresh.values()))[0][1]


def _place(index: int, shape: Sequence[int]) -> list[int]:
    """The indices of a number by its place in the row-major whole."""
    found: list[int] = []
    for size in reversed(shape):
        index, rest = divmod(index, size)
        found.insert(0, rest)
    return found
