"""Carrying out a plan: bytes stream from file to file; memory does not grow with the checkpoint."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.checkpoint.header import DTYPE_BITS
from eaglectl.checkpoint.hub_names import is_repo_name
from eaglectl.checkpoint.layout import INDEX, SINGLE
from eaglectl.checkpoint.pinned import PinnedSource, Stamp, changed
from eaglectl.checkpoint.source import Source
from eaglectl.checkpoint.writer import Bytes, Copy, Folder
from eaglectl.conversion.arithmetic import cast, encoded, join_absorbed
from eaglectl.conversion.card import conversion_card
from eaglectl.conversion.file_digests import FileDigests
from eaglectl.conversion.plan import ConversionPlan, DtypeCast, GeneratedBytes, Step
from eaglectl.drafter.drafter import Note
from eaglectl.drafter.tensors import Absorbed, Computed, Segment, Tensor
from eaglectl.errors import UsageError
from eaglectl.progress import OnProgress, Progress
from eaglectl.text import listed

CAST_BLOCK = 8 << 20  # bytes
REPORTED_BLOCK = 64 << 20  # bytes that are copied between two reports of progress


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where and how a plan is written; `max_shard_size` is in bytes of tensor data."""

    out: Path
    force: bool = False
    link: bool = False
    max_shard_size: int | None = None


@dataclass(frozen=True, slots=True)
class _LocalFile:
    """A weight file of the source on this machine, and its descriptor where the source keeps it open."""

    file: str
    path: Path
    descriptor: int | None

    @classmethod
    def of(cls, source: Source, file: str) -> "_LocalFile | None":
        if isinstance(source, PinnedSource):
            pinned = source.pinned(file)
            return cls(file, pinned.path, pinned.descriptor)
        path = source.path(file)
        return None if path is None else cls(file, path, None)

    def copy(self, start: int, stop: int) -> Copy:
        """Bytes [start, stop) of it."""
        return Copy(self.path, start, stop, self.descriptor)


@dataclass(frozen=True, slots=True)
class _Shard:
    """A weight file of the output: its steps, its size, and its header or the local file it is a copy of."""

    name: str
    steps: Sequence[Step]
    nbytes: int
    header: bytes = b""
    copied: "_LocalFile | None" = None


def write_plan(
    plan: ConversionPlan,
    checkpoint: Checkpoint,
    original: PinnedSource,
    originals: Sequence[str],
    options: WriteOptions,
    on_progress: OnProgress | None = None,
) -> Path:
    """Write `plan` as a folder and return its path; its record has the digests of `originals`.

    Raises UnreadableError where a file of the source is not as it was when it was first read.
    """
    original.restamp()
    shards = _shards(plan, checkpoint, options.max_shard_size)
    with (
        Folder(options.out, force=options.force) as folder,
        FileDigests(original, [] if options.link else originals) as digests,
    ):
        unlinked = [shard for shard in shards if not (options.link and _link(folder, shard, checkpoint))]
        if len(unlinked) < len(shards):
            original.restamp()
        counter = _Counter(sum(shard.nbytes for shard in unlinked), on_progress)
        for shard in unlinked:
            folder.write(shard.name, counter.counted(_parts(shard, checkpoint)))
        if len(shards) > 1:
            folder.write(INDEX, [_json(_index(plan, shards))])
        folder.write("config.json", [_json(plan.config)])
        for name in plan.copied_files:
            folder.write(name, _file_pieces(checkpoint.source, name))
        files = {
            name: {"size": original.size(name), "sha256": digest}
            for name, digest in digests.result(originals).items()
        }
        record = provenance(plan, checkpoint, files)
        if "README.md" not in plan.copied_files:
            folder.write("README.md", [conversion_card(plan, record).encode()])
        folder.write("eaglectl.json", [_json(record)])
        original.check_unchanged()
        folder.publish()
    return options.out


def _file_pieces(source: Source, name: str) -> Iterator[bytes]:
    size = source.size(name)
    for start in range(0, size, REPORTED_BLOCK):
        yield source.read(name, start, min(start + REPORTED_BLOCK, size))


def link_notes(plan: ConversionPlan, checkpoint: Checkpoint, max_shard_size: int | None) -> tuple[Note, ...]:
    """A warning that names the weight files that `link` makes the same as the source's; none without any."""
    shards = _shards(plan, checkpoint, max_shard_size)
    linked = [f"{shard.name} (the source's {shard.copied.file})" for shard in shards if shard.copied]
    if not linked:
        return ()
    text = (
        f"--link: {listed(linked)} is one file under two names: an edit of it in the output changes the"
        " source, and the other way round; leave --link out for a copy"
    )
    return (Note("warning", "link", text),)


def provenance(plan: ConversionPlan, checkpoint: Checkpoint, files: Mapping[str, Any]) -> dict[str, Any]:
    """eaglectl.json: the origin of the output, and `previous`, the source's own record.

    A sha256 of null means that the file was linked and not read.
    """
    drafter, name = plan.drafter, plan.drafter.target.name
    return {
        "schema": "eaglectl/provenance/1",
        "eaglectl": eaglectl.__version__,
        "source": {
            "name": plan.source,
            "producer": drafter.producer,
            "evidence": drafter.evidence,
            "files": dict(files),
        },
        "previous": checkpoint.sidecars.get("eaglectl.json"),
        **plan.identity,
        "target": name if name and is_repo_name(name) else None,  # a path serves nobody else
        "tensors": [_step_record(step) for step in plan.steps if step.action != "kept"],
        "left": [{"name": left.name, "why": left.why} for left in (*plan.left_tensors, *plan.left_files)],
        **plan.record,
        "notes": [
            {"level": note.level, "about": note.about, "text": note.text}
            for note in plan.notes
            if note.text != drafter.target.origin  # it names places of this machine
        ],
    }


def _step_record(step: Step) -> dict[str, Any]:
    record: dict[str, Any] = {"name": step.name, "action": step.action, "from": list(step.stored)}
    return record | {"how": step.how} if step.how else record


def _shards(plan: ConversionPlan, checkpoint: Checkpoint, limit: int | None) -> tuple[_Shard, ...]:
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
) -> _Shard:
    """The shard with these steps, which is a copy of the source's `file` where nothing in that changes."""
    if (
        file
        and _is_unchanged(plan, checkpoint, file, steps)
        and (local := _LocalFile.of(checkpoint.source, file))
    ):
        end = max(tensor.stop for tensor in checkpoint.tensors.values() if tensor.file == file)
        return _Shard(name, steps, end, copied=local)
    header = _header(plan.metadata, steps)
    return _Shard(name, steps, len(header) + sum(step.nbytes for step in steps), header)


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


def _header(metadata: Mapping[str, str], steps: Sequence[Step]) -> bytes:
    """The length and header of a safetensors file with these tensors."""
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
    return len(raw).to_bytes(8, "little") + raw


def _link(folder: Folder, shard: _Shard, checkpoint: Checkpoint) -> bool:
    """Whether the shard could be made a hard link to the file it is a copy of.

    Raises UnreadableError where that file is not the one whose header was read.
    """
    if shard.copied is None or not folder.link(shard.name, shard.copied.path.resolve()):
        return False
    source, file = checkpoint.source, shard.copied.file
    linked = Stamp.of((folder.work / shard.name).stat())
    if isinstance(source, PinnedSource) and not linked.is_same_content(source.pinned(file).stamp):
        raise changed(source, file)
    return True


def _parts(shard: _Shard, checkpoint: Checkpoint) -> Iterator[Bytes]:
    if shard.copied:
        yield shard.copied.copy(0, shard.nbytes)
        return
    yield shard.header
    yield from _merged(part for step in shard.steps for part in _step_parts(step, checkpoint))


def _step_parts(step: Step, checkpoint: Checkpoint) -> Iterator[Bytes]:
    match step.origin:
        case GeneratedBytes(data):
            yield data
        case Absorbed(w_kc, w_vc):
            yield from join_absorbed(checkpoint, w_kc, w_vc)
        case Computed():
            yield from encoded(Tensor(step.name, step.dtype, step.shape, step.origin), checkpoint)
        case DtypeCast(segments, before):
            for segment in segments:
                for start in range(segment.start, segment.stop, CAST_BLOCK):
                    raw = checkpoint.read(segment.stored, start, min(start + CAST_BLOCK, segment.stop))
                    yield cast(raw, before, step.dtype, step.name)
        case segments:
            # looked up once per stored tensor, not once per row
            source, tensors = checkpoint.source, checkpoint.tensors
            local = {name: _LocalFile.of(source, tensors[name].file) for name in step.stored}
            yield from (_located(segment, checkpoint, local[segment.stored]) for segment in segments)


def _located(segment: Segment, checkpoint: Checkpoint, local: _LocalFile | None) -> Bytes:
    tensor = checkpoint.tensors[segment.stored]
    if local is None:
        return checkpoint.read(segment.stored, segment.start, segment.stop)
    return local.copy(tensor.start + segment.start, tensor.start + segment.stop)


def _merged(parts: Iterable[Bytes]) -> Iterator[Bytes]:
    """The same bytes with neighbouring copies of one file as one copy."""
    last: Copy | None = None
    for part in parts:
        if last and isinstance(part, Copy) and part.path == last.path and part.start == last.stop:
            last = replace(last, stop=part.stop)
            continue
        if last:
            yield last
        last = part if isinstance(part, Copy) else None
        if isinstance(part, bytes):
            yield part
    if last:
        yield last


class _Counter:
    """Counts the bytes of all shards as they are written, and reports them."""

    def __init__(self, total: int, on_progress: OnProgress | None) -> None:
        self.done, self.total, self.on_progress = 0, total, on_progress

    def counted(self, parts: Iterable[Bytes]) -> Iterator[Bytes]:
        """The same bytes, large copies in pieces; a piece is reported when the next one is asked for."""
        for part in parts:
            for piece in _pieces(part):
                yield piece
                self.done += piece.stop - piece.start if isinstance(piece, Copy) else len(piece)
                if self.on_progress:
                    self.on_progress(Progress("writing", self.done, self.total, "bytes"))


def _pieces(part: Bytes) -> Iterator[Bytes]:
    if isinstance(part, bytes):
        yield part
        return
    for start in range(part.start, part.stop, REPORTED_BLOCK):
        yield replace(part, start=start, stop=min(start + REPORTED_BLOCK, part.stop))


def _index(plan: ConversionPlan, shards: Sequence[_Shard]) -> Mapping[str, Any]:
    weight_map = {step.name: shard.name for shard in shards for step in shard.steps}
    return {"metadata": {"total_size": plan.nbytes}, "weight_map": dict(sorted(weight_map.items()))}


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
