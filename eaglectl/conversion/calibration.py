"""The statistics of a drafter's target that `calibrate` collects, and the small folder that stores them."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

import eaglectl
from eaglectl.base import Result
from eaglectl.conversion.arithmetic import Array
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import RefusedError, UnreadableError, UsageError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.digests import hashed
from eaglectl.files.files import MIB, open_regular, read_small_file
from eaglectl.files.header import header_json, header_length, parse_header, parse_json
from eaglectl.files.source import Source
from eaglectl.files.writer import STATISTICS, Folder
from eaglectl.text import listed

FILE, MATRICES = "statistics.json", "statistics.safetensors"
SCHEMA = STATISTICS.schema
MAX_STATISTICS = 64 * MIB
WRITES = "`eaglectl calibrate SOURCE -o calibration --target TARGET` writes"
# of a document, whose other keys are named as the fields are
FIELDS = {"rms_norm_eps": "eps", "log_ratio_sd": "spread", "sigma_by_set": "sigmas"}
MOST_SHOWN = 6
ENDS, PIECE = 1 << 16, 8 << 20


class Matrices(Struct, frozen=True):
    """Sums of the refit, float64: `gram` [aux*target_hidden]*2 and `cross` [hidden, aux*target_hidden].

    `massive_states` [tokens, aux*target_hidden] and `massive_outputs` [tokens, hidden] are of massive tokens;
    None where those are not known, or too many.
    """

    gram: Array
    cross: Array
    massive_states: Array | None = None
    massive_outputs: Array | None = None

    @property
    def arrays(self) -> dict[str, Array]:
        """All of them that there are, by name."""
        return {name: array for name, array in msgspec.structs.asdict(self).items() if array is not None}


class MassiveTokens(Struct, frozen=True):
    """Tokens of which a state is ten times its layer's median: how many, at which positions.

    `channels` are those in which the states of each boundary are massive, `times` the largest RMS of such a
    state over the boundary's median; empty where it was not kept.
    """

    tokens: int
    positions: tuple[int, ...]
    channels: tuple[tuple[int, ...], ...]
    times: tuple[float, ...] = ()

    def described(self, boundaries: tuple[int, ...]) -> str:
        """How many there are, where, in which channels, and how many times the median, for people."""
        times = self.times or (0.0,) * len(boundaries)
        parts = [
            f"{listed(map(str, channels), most=MOST_SHOWN)} at boundary {boundary}"
            + (f" (up to {factor:.3g} times the median RMS)" if factor else "")
            for boundary, channels, factor in zip(boundaries, self.channels, times, strict=True)
            if channels
        ]
        places = listed(map(str, self.positions), most=MOST_SHOWN)
        return f"massive tokens: {self.tokens}, at positions {places}; channels {'; '.join(parts)}"


class Statistics(Result, frozen=True):
    """Medians over calibration tokens, and the matrices where there were tokens enough to refit fc.

    `rms` is the median RMS of each aux state, `spread` the sd of its log against the layers' mean, `sigma`
    the median RMS of the first two fed-back states, `sigmas` the same by set of prompts. `digests` are of the
    drafter, the target and all prompts together, `prompts` of each prompt. `engine` is what ran the target;
    empty where it is not known. `measured`: what the drafter's files left open and how it was answered, as
    eaglectl.json has it. `out` is the folder that holds them, `trust_remote_code`: the target's own code was
    allowed to run.
    """

    digests: Mapping[str, str]
    prompts: tuple[str, ...]
    boundaries: tuple[int, ...]
    eps: float
    tokens: int
    rms: tuple[float, ...]
    spread: tuple[float, ...]
    sigma: float
    sigmas: Mapping[str, float]
    is_direction: bool
    matrices: Matrices | None = None
    engine: Mapping[str, str] = field(default_factory=dict)
    measured: tuple[Mapping[str, Any], ...] = ()
    massive: MassiveTokens | None = None
    out: str | None = None
    trust_remote_code: bool = False

    def __fspath__(self) -> str:
        if self.out is None:
            raise UsageError("these statistics are in no folder; calibrate writes one")
        return self.out

    def described(self) -> dict[str, Any]:
        """All of it but the matrices, as eaglectl.json stores it."""
        return {
            "digests": dict(self.digests),
            "boundaries": list(self.boundaries),
            "rms_norm_eps": self.eps,
            "tokens": self.tokens,
            "rms": list(self.rms),
            "log_ratio_sd": list(self.spread),
            "sigma": self.sigma,
            "sigma_by_set": dict(self.sigmas),
            "is_direction": self.is_direction,
            "engine": dict(self.engine),
            **({"massive": msgspec.to_builtins(self.massive)} if self.massive else {}),
            **({"measured": list(self.measured)} if self.measured else {}),
        }


def drafter_digest(checkpoint: Checkpoint, drafter: Drafter) -> str:
    """SHA-256 over the float tensors by canonical name: the same for every layout of one drafter."""
    digest = hashlib.sha256()
    for name in sorted(drafter.tensors):
        tensor = drafter.tensors[name]
        if name in ("d2t", "t2d") or not isinstance(tensor.origin, tuple):
            continue
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        for segment in tensor.origin:
            for start in range(segment.start, segment.stop, PIECE):
                digest.update(checkpoint.read(segment.stored, start, min(start + PIECE, segment.stop)))
    return digest.hexdigest()


def target_digest(source: Source) -> str:
    """SHA-256 of a target's config, and of the size, first and last 64 KiB of each weight file."""
    digest = hashlib.sha256()
    for name in source.names():
        if name != "config.json" and not name.endswith((".safetensors", ".bin")):
            continue
        size = source.size(name)
        digest.update(f"{name} {size}\n".encode())
        for start in sorted({0, max(0, size - ENDS)}):
            digest.update(source.read(name, start, min(start + ENDS, size)))
    return digest.hexdigest()


def write_statistics(statistics: Statistics, out: Path, *, force: bool) -> None:
    """Write a folder, all or nothing.

    Raises UsageError where it exists, UnreadableError where nothing can be written.
    """
    document = {
        "schema": SCHEMA,
        "eaglectl": eaglectl.__version__,
        **statistics.described(),
        "prompts": list(statistics.prompts),
        "matrices": None,
    }
    with Folder(out, force=force, kind=STATISTICS) as folder:
        if statistics.matrices is not None:
            digest = hashlib.sha256()
            folder.write(MATRICES, hashed(_stored(statistics.matrices), digest))
            document["matrices"] = {"sha256": digest.hexdigest()}
        folder.write(FILE, [(json.dumps(document, indent=2) + "\n").encode()])
        folder.publish()


def _stored(matrices: Matrices) -> Iterator[bytes]:
    arrays = {name: np.ascontiguousarray(array, "<f8") for name, array in matrices.arrays.items()}
    entries = ((name, "F64", array.shape, array.nbytes) for name, array in arrays.items())
    raw = header_json({"format": "np"}, entries)
    yield len(raw).to_bytes(8, "little") + raw
    for array in arrays.values():
        view = array.reshape(-1).data.cast("B")
        yield from (bytes(view[start : start + PIECE]) for start in range(0, len(view), PIECE))


def read_statistics(folder: Path) -> Statistics:
    """The statistics in a folder that `calibrate` wrote, every number checked.

    Raises UnreadableError for anything else.
    """
    try:
        value = parse_json(FILE, read_small_file(folder / FILE, MAX_STATISTICS, "--calibration"))
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise UnreadableError(f"{FILE} is not what this version of it writes")
        fields = {FIELDS.get(key, key): part for key, part in value.items()}
        statistics = msgspec.convert({**fields, "matrices": None}, Statistics)
        statistics = replace(statistics, matrices=_matrices(folder, value))
        if fault := next(_faults(statistics), None):
            raise UnreadableError(f"{FILE} is not as it was written: {fault}")
    except OSError as error:
        raise UnreadableError(
            f"--calibration {error.filename or folder}: {error.strerror}; give the folder that {WRITES}"
        ) from None
    except (UnreadableError, ValueError, KeyError, TypeError) as error:
        what = f"{MATRICES} has no {error}" if isinstance(error, KeyError) else str(error)
        raise UnreadableError(
            f"--calibration {folder}: not a folder that calibrate wrote ({what}); give the one that {WRITES}"
        ) from None
    return statistics


def _matrices(folder: Path, document: Mapping[str, Any]) -> Matrices | None:
    """The matrices beside the document, which has their digest.

    Raises UnreadableError where they differ or are truncated.
    """
    stated, path = document.get("matrices"), folder / MATRICES
    if not stated and not path.exists():
        return None
    with open_regular(path, "--calibration") as file:
        size = os.fstat(file.fileno()).st_size
        length = header_length(MATRICES, file.read(8), size)
        header = parse_header(MATRICES, file.read(length), size)
        file.seek(0)
        if stated and hashlib.file_digest(file, "sha256").hexdigest() != stated["sha256"]:
            raise UnreadableError(f"{MATRICES} is not the file that was written with {FILE}")
    if any(tensor.dtype != "F64" for tensor in header.tensors):
        raise UnreadableError(f"{MATRICES} is not float64")
    arrays = {
        tensor.name: np.memmap(path, "<f8", "r", tensor.start, tensor.shape) for tensor in header.tensors
    }
    return Matrices(
        arrays["gram"], arrays["cross"], arrays.get("massive_states"), arrays.get("massive_outputs")
    )


def _faults(statistics: Statistics) -> Iterator[str]:
    """What no calibration gives."""
    count = len(statistics.boundaries)
    if not count or {len(statistics.rms), len(statistics.spread)} != {count}:
        yield "boundaries, rms and log_ratio_sd differ in length"
    sizes = (
        statistics.eps,
        statistics.sigma,
        statistics.tokens,
        *statistics.rms,
        *statistics.sigmas.values(),
    )
    if not all(size > 0 for size in sizes):
        yield "a size is not above 0"
    if statistics.matrices is not None:
        yield from _matrix_faults(statistics.matrices, max(count, 1))


def _matrix_faults(matrices: Matrices, layers: int) -> Iterator[str]:
    gram, cross = matrices.gram, matrices.cross
    with np.errstate(invalid="ignore", over="ignore"):
        are_finite = bool(np.isfinite(gram.sum()) and np.isfinite(cross.sum()))
    is_fitting = gram.ndim == 2 and cross.ndim == 2 and gram.shape == (cross.shape[1],) * 2
    if not is_fitting or len(gram) % layers:
        yield f"gram {list(gram.shape)} and cross {list(cross.shape)} do not fit together"
    elif not are_finite:
        yield "the matrices are not finite"
    states, outputs = matrices.massive_states, matrices.massive_outputs
    if states is not None or outputs is not None:
        shapes = [None if part is None else part.shape[1:] for part in (states, outputs)]
        are_alike = states is not None and outputs is not None and len(states) == len(outputs)
        if not are_alike or shapes != [gram.shape[1:], cross.shape[:1]]:
            yield "the states of massive tokens do not fit the matrices"


def check_statistics(
    statistics: Statistics,
    checkpoint: Checkpoint,
    drafter: Drafter,
    target: Source | None,
    *,
    is_of_states: bool = False,
) -> None:
    """Raise RefusedError unless they were made with this drafter, these aux layers and this target.

    `is_of_states`: only the scales of the target's states are used, which every drafter of these layers
    shares.
    """
    differences = _differences(statistics, checkpoint, drafter, target, is_of_states=is_of_states)
    if difference := next(differences, None):
        raise RefusedError(f"the calibration {difference}; give --calibration the folder that {WRITES}")


def _differences(
    statistics: Statistics,
    checkpoint: Checkpoint,
    drafter: Drafter,
    target: Source | None,
    *,
    is_of_states: bool,
) -> Iterator[str]:
    """How the statistics differ from this drafter and target, each text to follow "the calibration"."""
    made, has = statistics.is_direction, drafter.norms.norm_before_residual
    eps, boundaries = float(drafter.settings["rms_norm_eps"]), drafter.aux.boundaries
    if not is_of_states and statistics.digests.get("drafter") != drafter_digest(checkpoint, drafter):
        yield "was made with another drafter"
    if not is_of_states and made != has:
        yield (
            f"was made with norm_before_residual {str(made).lower()}, and this drafter says"
            f" {str(has).lower()}"
        )
    if not is_of_states and statistics.eps != eps:
        yield f"was made with rms_norm_eps {statistics.eps:g}, and this drafter has {eps:g}"
    if len(statistics.boundaries) != drafter.dims.aux:
        yield f"is of {len(statistics.boundaries)} layers and this drafter takes {drafter.dims.aux}"
    if boundaries is not None and statistics.boundaries != boundaries:
        yield f"is of boundaries {list(statistics.boundaries)} and this drafter takes {list(boundaries)}"
    if is_of_states and boundaries is None:
        raise UsageError(
            f"whether this drafter takes the calibration's boundaries {list(statistics.boundaries)} is not"
            " known; pass --target or --aux-layers"
        )
    if target is not None and statistics.digests.get("target") != target_digest(target):
        yield "was made with another target"
