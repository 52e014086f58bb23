"""What `calibrate` found out about a drafter and its target: kept as a small folder that may travel between machines."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import eaglectl
from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.checkpoint.header import header_length, parse_header, parse_json
from eaglectl.checkpoint.source import Source
from eaglectl.checkpoint.writer import STATISTICS, Folder
from eaglectl.conversion.arithmetic import Array
from eaglectl.drafter.drafter import Drafter
from eaglectl.drafter.tensors import Segment
from eaglectl.errors import Refused, Unreadable, Usage

FILE, MATRICES = "statistics.json", "statistics.safetensors"
SCHEMA = "eaglectl/statistics/1"
ENDS, PIECE = 1 << 16, 8 << 20


@dataclass(frozen=True, slots=True)
class Matrices:
    """Sums of the refit, float64: `gram` [aux*target_hidden]*2 and `cross` [hidden, aux*target_hidden] (reference/collecting.py)."""

    gram: Array
    cross: Array


@dataclass(frozen=True, slots=True)
class Statistics:
    """Medians over calibration tokens, and the matrices where there were tokens enough to refit fc.

    `rms` is the median RMS of each aux state, `spread` the sd of its log against the layers' mean, `sigma` the median RMS of
    the first two fed-back states, `sigmas` the same by set of prompts; `digests` name the drafter, the target and all prompts, `prompts` each of them.
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
    engine: Mapping[str, str] = field(default_factory=dict)  # what ran the target; empty where it is not known

    def described(self) -> dict[str, Any]:
        """All of it but the matrices, as provenance holds it."""
        return {
            "digests": dict(self.digests), "boundaries": list(self.boundaries), "rms_norm_eps": self.eps, "tokens": self.tokens,
            "rms": list(self.rms), "log_ratio_sd": list(self.spread), "sigma": self.sigma, "sigma_by_set": dict(self.sigmas), "is_direction": self.is_direction,
            "engine": dict(self.engine),
        }  # fmt: skip


def drafter_digest(checkpoint: Checkpoint, drafter: Drafter) -> str:
    """SHA-256 over the drafter's float tensors by canonical name, so that another spelling of the same drafter has the same."""
    digest = hashlib.sha256()
    for name in sorted(drafter.tensors):
        tensor = drafter.tensors[name]
        if name in ("d2t", "t2d") or not isinstance(tensor.origin, tuple):
            continue
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        for segment in tensor.origin:
            for piece in _pieces(segment):
                digest.update(checkpoint.read(piece.stored, piece.start, piece.stop))
    return digest.hexdigest()


def _pieces(segment: Segment) -> tuple[Segment, ...]:
    starts = range(segment.start, segment.stop, PIECE)
    return tuple(Segment(segment.stored, start, min(start + PIECE, segment.stop)) for start in starts)


def target_digest(source: Source) -> str:
    """A fingerprint of a target: its config, and size, first and last 64 KiB of each weight file. Seconds for any size."""
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
    """Write a folder, all or nothing. Raises Usage where it exists, Unreadable where nothing can be written."""
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
            folder.write(MATRICES, _counted(_stored(statistics.matrices), digest))
            document["matrices"] = {"sha256": digest.hexdigest()}
        folder.write(FILE, [(json.dumps(document, indent=2) + "\n").encode()])
        folder.publish()


def _stored(matrices: Matrices) -> Iterator[bytes]:
    table: dict[str, Any] = {"__metadata__": {"format": "np"}}
    position, arrays = 0, [np.ascontiguousarray(array, "<f8") for array in (matrices.gram, matrices.cross)]
    for name, array in zip(("gram", "cross"), arrays, strict=True):
        table[name] = {"dtype": "F64", "shape": list(array.shape), "data_offsets": [position, position + array.nbytes]}
        position += array.nbytes
    raw = json.dumps(table, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    yield len(raw).to_bytes(8, "little") + raw
    for array in arrays:
        view = array.data.cast("B")
        yield from (bytes(view[start : start + PIECE]) for start in range(0, len(view), PIECE))


def _counted(parts: Iterable[bytes], digest: "hashlib._Hash") -> Iterator[bytes]:
    for part in parts:
        digest.update(part)
        yield part


def read_statistics(folder: Path) -> Statistics:
    """What `calibrate` wrote, looked at number by number. Raises Unreadable where it is not that."""
    try:
        value = parse_json(FILE, (folder / FILE).read_bytes())
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise Unreadable(f"{FILE} is not what this version of it writes")
        found = Statistics(
            dict(value["digests"]), tuple(value["prompts"]), tuple(value["boundaries"]), _number(value["rms_norm_eps"]), int(value["tokens"]), tuple(value["rms"]),
            tuple(value["log_ratio_sd"]), _number(value["sigma"]), dict(value["sigma_by_set"]), bool(value["is_direction"]), _matrices(folder, value),
            dict(value.get("engine", {})),
        )  # fmt: skip
        if fault := next(_faults(found), None):
            raise Unreadable(f"{FILE} is not as it was written: {fault}")
    except OSError as error:
        raise Unreadable(f"--calibration {folder}: {error.filename and Path(error.filename).name}: {error.strerror}; give the folder that `eaglectl calibrate` wrote") from None  # fmt: skip
    except (Unreadable, ValueError, KeyError, TypeError) as error:
        what = f"{FILE} has no {error}" if isinstance(error, KeyError) else str(error)
        raise Unreadable(f"--calibration {folder}: not a folder that `eaglectl calibrate` wrote ({what}); calibrate again") from None  # fmt: skip
    return found


def _number(value: object) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is no number")
    return float(value)  # type: ignore[arg-type]


def _matrices(folder: Path, document: Mapping[str, Any]) -> Matrices | None:
    """The matrices beside the document, which has their digest. Raises Unreadable where they are others, or cut."""
    known = document.get("matrices")
    if not known and not (folder / MATRICES).exists():
        return None
    path = folder / MATRICES
    with path.open("rb") as file:
        size = path.stat().st_size
        length = header_length(MATRICES, file.read(8), size)
        header = parse_header(MATRICES, file.read(length), size)
        file.seek(0)
        if known and hashlib.file_digest(file, "sha256").hexdigest() != known["sha256"]:
            raise Unreadable(f"{MATRICES} is not the file that was written with {FILE}")
    if any(t.dtype != "F64" for t in header.tensors):
        raise Unreadable(f"{MATRICES} is not float64")
    found = {t.name: np.memmap(path, "<f8", "r", t.start, t.shape) for t in header.tensors}
    return Matrices(found["gram"], found["cross"])


def _faults(found: Statistics) -> Iterator[str]:
    """What no calibration gives."""
    count = len(found.boundaries)
    if not count or len(found.rms) != count or len(found.spread) != count:
        yield "boundaries, rms and log_ratio_sd differ in length"
    numbers = (*found.rms, *found.spread, *found.sigmas.values(), *found.boundaries)
    if not all(type(number) in (int, float) for number in numbers):
        yield "a size is no number"
    elif not all(number > 0 for number in (found.eps, found.sigma, found.tokens, *found.rms, *found.sigmas.values())):
        yield "a size is not above 0"
    if found.matrices is None:
        return
    gram, cross = found.matrices.gram, found.matrices.cross
    if gram.ndim != 2 or cross.ndim != 2 or gram.shape != (cross.shape[1],) * 2 or len(gram) % max(count, 1):
        yield f"gram {list(gram.shape)} and cross {list(cross.shape)} do not fit together"
    elif not (np.isfinite(gram.sum()) and np.isfinite(cross.sum())):
        yield "the matrices are not finite"


def check_statistics(
    statistics: Statistics, checkpoint: Checkpoint, drafter: Drafter, target: Source | None, *, is_of_states: bool = False
) -> None:  # fmt: skip
    """Raise Refused unless they were made with this drafter, these aux layers and, where one is given, this target.

    `is_of_states`: the sizes of the target's states are all that is taken, which every drafter of these layers shares.
    """
    again = "run `eaglectl calibrate` with this drafter and its target"
    if not is_of_states and statistics.digests.get("drafter") != drafter_digest(checkpoint, drafter):
        raise Refused(f"the calibration was made with another drafter; {again}")
    stated, used = drafter.norms.norm_before_residual, statistics.is_direction
    if stated != used and not is_of_states:
        raise Refused(f"the calibration was made with norm_before_residual {str(used).lower()}, and this drafter says {str(stated).lower()}; {again}")  # fmt: skip
    eps = float(drafter.settings["rms_norm_eps"])
    if statistics.eps != eps and not is_of_states:
        raise Refused(f"the calibration was made with rms_norm_eps {statistics.eps:g}, and this drafter has {eps:g}; {again}")  # fmt: skip
    if len(statistics.boundaries) != drafter.dims.aux:
        raise Refused(f"the calibration is of {len(statistics.boundaries)} layers and this drafter takes {drafter.dims.aux}; {again}")  # fmt: skip
    if is_of_states and drafter.aux.boundaries is None:
        raise Usage(f"whether this drafter takes the calibration's boundaries {list(statistics.boundaries)} is not known; pass --target or --aux-layers")  # fmt: skip
    if drafter.aux.boundaries is not None and statistics.boundaries != drafter.aux.boundaries:
        raise Refused(
            f"the calibration is of boundaries {list(statistics.boundaries)} and this drafter takes {list(drafter.aux.boundaries)}; {again}"
        )
    if target is not None and statistics.digests.get("target") != target_digest(target):
        raise Refused(f"the calibration was made with another target; {again}")
