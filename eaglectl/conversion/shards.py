"""The weight files of a conversion's output: which tensors each holds, and where they lie in it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.checkpoint.digests import HEADER_KEY, Range, tensor_ranges
from eaglectl.checkpoint.header import DTYPE_BITS
from eaglectl.checkpoint.layout import SINGLE
from eaglectl.checkpoint.source import PinnedSource, Source
from eaglectl.checkpoint.writer import Copy
from eaglectl.conversion.plan import ConversionPlan, Step
from eaglectl.errors import UsageError

PAGE = 4096  # bytes of a page of memory, and of a block of most file systems


class LocalFile(Struct, frozen=True):
    """A weight file of the source on this machine, and its descriptor where the source keeps it open."""

    file: str
    path: Path
    descriptor: int | None

    @classmethod
    def of(cls, source: Source, file: str) -> "LocalFile | None":
        """The file of that name; None where it is not on this machine."""
        if isinstance(source, PinnedSource):
            pinned = source.pinned(file)
            return cls(file, pinned.path, pinned.descriptor)
        path = source.path(file)
        return None if path is None else cls(file, path, None)

    def copy(self, start: int, stop: int) -> Copy:
        """Bytes [start, stop) of it."""
        return Copy(self.path, start, stop, self.descriptor)


class Shard(Struct, frozen=True):
    """A weight file of the output: its steps, its size, and its header or the local file it is a copy of."""

    name: str
    steps: Sequence[Step]
    nbytes: int
    header: bytes = b""
    copied: LocalFile | None = None


def shards_of(plan: ConversionPlan, checkpoint: Checkpoint, limit: int | None) -> tuple[Shard, ...]:
    """The weight files of the output: divided as the source, or into files of at most `limit` bytes."""
    groups: list[tuple[str | None, Sequence[Step]]]
    if limit is None:
        groups = list(_by_source_file(plan, checkpoint))
    else:
        groups = [(None, steps) for steps in _by_size(plan.steps, limit)]
    shards = []
    for number, (file, steps) in enumerate(groups, 1):
        # readers map tensors in place, so each must start at a multiple of its element:
        # widest first, as safetensors orders them
        aligned = sorted(steps, key=lambda step: -DTYPE_BITS[step.dtype])
        name = f"model-{number:05}-of-{len(groups):05}.safetensors" if len(groups) > 1 else SINGLE
        shards.append(_shard(plan, checkpoint, name, aligned, file))
    return tuple(shards)


def _shard(
    plan: ConversionPlan, checkpoint: Checkpoint, name: str, steps: Sequence[Step], file: str | None
) -> Shard:
    """The shard with these steps, which is a copy of the source's `file` where nothing in that changes."""
    if (
        file
        and _is_unchanged(plan, checkpoint, file, steps)
        and (local := LocalFile.of(checkpoint.source, file))
    ):
        end = max(tensor.stop for tensor in checkpoint.tensors.values() if tensor.file == file)
        return Shard(name, steps, end, copied=local)
    header = _header(plan.metadata, steps, checkpoint)
    return Shard(name, steps, len(header) + sum(step.nbytes for step in steps), header)


def _by_source_file(plan: ConversionPlan, checkpoint: Checkpoint) -> Iterator[tuple[str, Sequence[Step]]]:
    by_file: dict[str, list[Step]] = {}
    for step in plan.steps:
        file = checkpoint.tensors[step.stored[0]].file if step.stored else checkpoint.weight_files[0]
        by_file.setdefault(file, []).append(step)
    yield from sorted(by_file.items())


def _by_size(steps: Sequence[Step], limit: int) -> Iterator[Sequence[Step]]:
    group: list[Step] = []
    for step in steps:
        if step.nbytes > limit:
            raise UsageError(
                f"--max-shard-size {limit}: {step.name} alone has {step.nbytes} bytes; give at least that"
            )
        if group and sum(other.nbytes for other in group) + step.nbytes > limit:
            yield group
            group = []
        group.append(step)
    if group:
        yield group


def _is_unchanged(plan: ConversionPlan, checkpoint: Checkpoint, file: str, steps: Sequence[Step]) -> bool:
    stored = {name for name, tensor in checkpoint.tensors.items() if tensor.file == file}
    return (
        checkpoint.metadata == plan.metadata
        and all(step.action == "kept" for step in steps)
        and {step.name for step in steps} == stored
    )


def _header(metadata: Mapping[str, str], steps: Sequence[Step], checkpoint: Checkpoint) -> bytes:
    """The length and header of a safetensors file with these tensors.

    Spaces at its end put the largest moved tensor as far into a page as in the source: the system then
    copies whole pages, in half the time, and file systems that share blocks (XFS, Btrfs) share them.
    """
    table: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    position = 0
    for step in steps:
        table[step.name] = {
            "dtype": step.dtype,
            "shape": list(step.shape),
            "data_offsets": [position, position + step.nbytes],
        }
        position += step.nbytes
    raw = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    raw += b" " * _page_padding(8 + len(raw), steps, checkpoint)
    return len(raw).to_bytes(8, "little") + raw


def _page_padding(start: int, steps: Sequence[Step], checkpoint: Checkpoint) -> int:
    """How many bytes to leave before the tensors, which would begin at `start`; 0 where nothing is gained."""
    largest, padding = 0, 0
    for step in steps:
        if step.is_moved and step.nbytes > largest:
            largest, padding = step.nbytes, (checkpoint.tensors[step.stored[0]].start - start) % PAGE
        start += step.nbytes
    return padding if largest >= PAGE and padding % 8 == 0 else 0


def shard_ranges(shard: Shard, checkpoint: Checkpoint) -> dict[str, Range]:
    """Where the header and each tensor of a weight file lie in it."""
    if shard.copied:
        return tensor_ranges(checkpoint.tensors.values(), shard.copied.file)
    ranges, position = {HEADER_KEY: (0, len(shard.header))}, len(shard.header)
    for step in shard.steps:
        ranges[step.name] = (position, position + step.nbytes)
        position += step.nbytes
    return ranges


def shard_index(plan: ConversionPlan, shards: Sequence[Shard]) -> Mapping[str, Any]:
    """The index of the weight files: where each tensor is."""
    weight_map = {step.name: shard.name for shard in shards for step in shard.steps}
    return {"metadata": {"total_size": plan.nbytes}, "weight_map": dict(sorted(weight_map.items()))}
