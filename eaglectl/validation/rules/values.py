"""Rules on the numbers in the weights: not finite, never initialised, never trained, or far too large."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod, sqrt
from typing import TYPE_CHECKING

from eaglectl.drafter.tensors import LAYER, is_quantised_part
from eaglectl.errors import EaglectlError
from eaglectl.validation.rule import CannotLook, Match, rule
from eaglectl.validation.subject import Subject

if TYPE_CHECKING:
    from eaglectl.validation.scanning import Spread, Summary

HALF = 65504.0  # the largest number of float16
# the largest number whose square float32 holds: an RMS norm over a larger one is zero or NaN
SQUARES = sqrt(3.4028234663852886e38)


@rule("EGL205", "not-finite", "error")
def not_finite(subject: Subject) -> Iterator[Match]:
    """No number in the weights is NaN or infinite.

    One such number spreads to every draft: vLLM and SGLang load it, propose only token 0 and accept
    nothing, while the server answers as usual, but slower.

    Fix: go back to a checkpoint from before training diverged; a cast to float16 turns large numbers into
    infinities.
    """
    for name, summary in subject.scan.items():
        if summary.bad:
            tensor = subject.checkpoint.tensors[name]
            first = _indices(summary.first, tensor.shape)
            count = f"{summary.bad} of {prod(tensor.shape)} numbers, the first at {first}"
            yield Match(f"{name} holds NaN or infinity: {count}", f"tensor:{name}")


@rule("EGL206", "constant-tensor", "error")
def constant_tensor(subject: Subject) -> Iterator[Match]:
    """No matrix is one constant, and no norm is all zeros.

    Training leaves no such tensor: it was never initialised, or it was created in place of a missing one. A
    bias may be zero.

    Fix: restore the tensor from the trainer's checkpoint.
    """
    for name, summary in _summaries(subject):
        shape = subject.checkpoint.tensors[name].shape
        is_matrix = len(shape) > 1 and prod(shape) > 1
        if summary.constant is None:
            continue
        if is_matrix or (summary.constant == 0 and name.endswith("weight")):
            yield Match(f"{name} {list(shape)} is all {summary.constant:g}", f"tensor:{name}")


@rule("EGL207", "untrained", "warning")
def untrained(subject: Subject) -> Iterator[Match]:
    """The weights are not as training initialises them.

    A part looks untrained when its norms are exactly ones and each of its matrices is distributed as
    frameworks initialise it: normal with the config's initializer_range, or uniform as in torch. Loaders
    that miss a name keep such numbers with at most a warning, and save them.

    Fix: compare the tensors with the trainer's checkpoint; convert that again, with names that match.
    """
    parts = _parts(subject)
    fresh = {part: matrices for part, names in parts.items() if (matrices := _untrained(subject, names))}
    if len(fresh) == len(parts) > 1:
        _, distribution = next(iter(fresh.values()))[0]
        yield Match(
            f"nothing was trained: all norms are ones and all matrices as first drawn ({distribution})"
        )
        return
    for part, matrices in fresh.items():
        name, distribution = matrices[0]
        text = f"{part} looks untrained: its norms are ones and its matrices as first drawn ({distribution})"
        yield Match(text, f"tensor:{name}")


@rule("EGL214", "beyond-float16", "warning")
def beyond_float16(subject: Subject) -> Iterator[Match]:
    """Every weight fits into float16.

    Served with --dtype float16, or by kernels that support nothing else, a number above 65504 becomes
    infinite, and every draft is token 0.

    Fix: serve it in bfloat16; trained numbers are rarely so large, so inspect the tensor too.
    """
    for name, summary in _large(subject, HALF, SQUARES):
        yield Match(f"{name} reaches {summary.largest:.3g}; float16 ends at 65504", f"tensor:{name}")


@rule("EGL215", "overflowing", "error")
def overflowing(subject: Subject) -> Iterator[Match]:
    """No weight is so large that its square overflows float32.

    Norms square their inputs. A number beyond 1.8e19 comes from a flipped bit, a wrong dtype or
    uninitialised memory, never from training, and destroys everything computed from it.

    Fix: restore the tensor from the trainer's checkpoint.
    """
    for name, summary in _large(subject, SQUARES, float("inf")):
        yield Match(f"{name} reaches {summary.largest:.3g}, whose square no float32 holds", f"tensor:{name}")


def _summaries(subject: Subject) -> Iterator[tuple[str, "Summary"]]:
    """Summaries of matrices and norms, without those of quantisers, the draft vocabulary and biases."""
    names = {
        stored: None
        for name, tensor in subject.drafter.tensors.items()
        if name not in ("d2t", "t2d", "mask_hidden")
        and not name.endswith(".bias")
        and not is_quantised_part(name)
        for stored in tensor.stored
    }
    return ((name, subject.scan[name]) for name in names if name in subject.scan)


def _large(subject: Subject, least: float, most: float) -> Iterator[tuple[str, "Summary"]]:
    for name, summary in subject.scan.items():
        if not summary.bad and least < summary.largest <= most and not is_quantised_part(name):
            yield name, summary


def _parts(subject: Subject) -> Mapping[str, tuple[str, ...]]:
    """Tensors that are trained together: fc with the norms around it, and each layer."""
    parts: dict[str, list[str]] = {}
    for name, tensor in subject.drafter.tensors.items():
        layer = LAYER.fullmatch(name)
        is_edge = name in ("fc.weight", "norm.weight", "input_norm.weight") or name.startswith("fc_norm.")
        if (layer or is_edge) and not is_quantised_part(name) and not name.endswith(".bias"):
            parts.setdefault(f"layer {layer[1]}" if layer else "fc", []).extend(tensor.stored)
    return {part: tuple(dict.fromkeys(names)) for part, names in parts.items()}


def _untrained(subject: Subject, names: Sequence[str]) -> list[tuple[str, str]]:
    """Each matrix of a part with its distribution, if the norms are ones and all matrices look
    initialised; else none.
    """
    summaries = {name: subject.scan[name] for name in names if name in subject.scan}
    matrices = [name for name in summaries if len(subject.checkpoint.tensors[name].shape) > 1]
    norms = [name for name in summaries if name not in matrices]
    if not norms or not matrices or len(summaries) < len(names):
        return []
    is_initial = all(summaries[name].constant == 1 for name in norms)
    if not is_initial or any(summaries[name].bad for name in matrices):
        return []
    return _distributions(subject, matrices)


def _distributions(subject: Subject, matrices: Sequence[str]) -> list[tuple[str, str]]:
    """Each matrix with its distribution; none where one of them has no known distribution."""
    distributions: list[tuple[str, str]] = []
    for name in matrices:
        distribution = _distribution_of(subject, name)
        if not distribution:
            return []
        distributions.append((name, f"{name}: {distribution}"))
    return distributions


def _distribution_of(subject: Subject, name: str) -> str:
    width = subject.checkpoint.tensors[name].shape[-1]
    return _distribution(_spread(subject, name), _initializer_range(subject), width)


def _initializer_range(subject: Subject) -> float:
    stated = subject.flat.get("initializer_range")
    return float(stated) if isinstance(stated, int | float) and stated > 0 else 0.02


def _spread(subject: Subject, name: str) -> "Spread":
    weights = subject.weights  # before numpy is loaded
    from eaglectl.validation.scanning import spread

    try:
        return spread(weights, name)
    except EaglectlError as error:
        raise CannotLook(str(error)) from None


def _distribution(spread: "Spread", deviation: float, width: int) -> str:
    """The distribution that frameworks initialise matrices with and that fits the numbers; "" where none
    does.
    """
    error = 4 / sqrt(spread.count)  # four standard errors, in units of each statistic
    for kurtosis, expected, words in (
        (3.0, deviation, f"normal, deviation {deviation:g}"),
        (1.8, 1 / sqrt(3 * width), f"uniform within 1/sqrt({width})"),
    ):
        is_centred = abs(spread.mean) <= expected * max(0.01, error)
        is_wide = abs(spread.deviation / expected - 1) <= max(0.01, error * sqrt((kurtosis - 1) / 4))
        if is_centred and is_wide and abs(spread.kurtosis - kurtosis) <= max(0.03, error * sqrt(24)):
            return words
    return ""


def _indices(position: int, shape: Sequence[int]) -> list[int]:
    """The indices of the number at a position of a row-major tensor."""
    indices: list[int] = []
    for size in reversed(shape):
        position, index = divmod(position, size)
        indices.insert(0, index)
    return indices
