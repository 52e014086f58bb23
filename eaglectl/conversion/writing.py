"""Carrying out a plan: its weight files, whose bytes stream from file to file, and what is beside them.

Memory does not grow with the checkpoint.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

import eaglectl
from eaglectl.conversion.arithmetic import cast, encoded, join_absorbed
from eaglectl.conversion.card import conversion_card
from eaglectl.conversion.plan import ConversionPlan, DtypeCast, GeneratedBytes, Step
from eaglectl.drafter.drafter import Note
from eaglectl.drafter.tensors import Absorbed, Computed, Tensor
from eaglectl.errors import UsageError
from eaglectl.files.checkpoint import RECORD_SCHEMA, Checkpoint
from eaglectl.files.digests import (
    HEADER_KEY,
    TENSORS,
    Algorithm,
    Digests,
    Range,
    RangeDigests,
    hashed,
    tensor_ranges,
)
from eaglectl.files.files import Stamp
from eaglectl.files.header import DTYPE_BITS, header_json
from eaglectl.files.hub_cache import is_repo_name
from eaglectl.files.layout import CARD, CONFIG, INDEX, RECORD, SINGLE
from eaglectl.files.source import PinnedSource, Source, changed
from eaglectl.files.writer import Bytes, Copy, Folder
from eaglectl.progress import ByteCounter, OnProgress
from eaglectl.text import listed

PAGE = 4096  # bytes of a page of memory, and of a block of most file systems
CAST_BLOCK = 8 << 20  # bytes
REPORTED_BLOCK = 16 << 20  # bytes that are copied between two reports of progress


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
    stored = {name: tensor.stop for name, tensor in checkpoint.tensors.items() if tensor.file == file}
    is_unchanged = checkpoint.metadata == plan.metadata and {step.name for step in steps} == stored.keys()
    is_unchanged = is_unchanged and all(step.action == "kept" for step in steps)
    if file and is_unchanged and (local := LocalFile.of(checkpoint.source, file)):
        return Shard(name, steps, max(stored.values()), copied=local)
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


def _header(metadata: Mapping[str, str], steps: Sequence[Step], checkpoint: Checkpoint) -> bytes:
    """The length and header of a safetensors file with these tensors.

    Spaces at its end put the largest moved tensor as far into a page as in the source: the system then
    copies whole pages, in half the time, and file systems that share blocks (XFS, Btrfs) share them.
    """
    raw = header_json(metadata, ((step.name, step.dtype, step.shape, step.nbytes) for step in steps))
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


class WriteOptions(Struct, frozen=True):
    """Where and how a plan is written; `max_shard_size` is in bytes of tensor data.

    `check` is called with the folder as it is written, before it is published under its name.
    """

    out: Path
    force: bool = False
    link: bool = False
    max_shard_size: int | None = None
    check: Callable[[Path], None] | None = None


def write_plan(
    plan: ConversionPlan,
    checkpoint: Checkpoint,
    original: PinnedSource,
    originals: Sequence[str],
    options: WriteOptions,
    on_progress: OnProgress | None = None,
) -> Path:
    """Write `plan` as a folder and return its path; its record has digests of the output and of `originals`.

    Raises UnreadableError where a file of the source is not as it was when it was first read.
    """
    original.restamp()
    shards = shards_of(plan, checkpoint, options.max_shard_size)
    with Folder(options.out, force=options.force) as folder, Digests() as digests:
        output = _Output(folder, digests)
        unlinked = [shard for shard in shards if not (options.link and output.link(shard, checkpoint))]
        if len(unlinked) < len(shards):
            original.restamp()
        counter = ByteCounter(on_progress, "writing", sum(shard.nbytes for shard in unlinked))
        for shard in unlinked:
            output.write_weights(shard, _counted(_parts(shard, checkpoint), counter), checkpoint)
        if len(shards) > 1:
            output.write(INDEX, [_json(shard_index(plan, shards))])
        output.write(CONFIG, [_json(plan.config)])
        for name in plan.copied_files:
            output.write(name, _read_blocks(checkpoint.source, name))
        if options.link:
            sources = {name: _unread(original.size(name)) for name in originals}
        else:
            sources = _source_files(plan, checkpoint, original, originals, output)
        record = provenance(plan, checkpoint, sources)
        if CARD not in plan.copied_files:
            output.write(CARD, [conversion_card(plan, record).encode()])
        folder.write(RECORD, [_json({**record, "output": {"files": output.stated()}})])
        original.check_unchanged()
        if options.check:
            options.check(folder.work)
        folder.publish()
    return options.out


class _Output:
    """The files of the output as they are written, and what eaglectl.json states of each."""

    def __init__(self, folder: Folder, digests: Digests) -> None:
        self.folder, self.digests = folder, digests
        self.files: dict[str, Mapping[str, Any]] = {}
        self.weights: dict[str, tuple[int, RangeDigests]] = {}

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        """Write a small file, with one digest of its bytes."""
        digest = hashlib.sha256()
        sizes: list[int] = []
        self.folder.write(name, hashed(parts, digest), sizes.append)
        self.files[name] = {"size": sum(sizes), "sha256": digest.hexdigest()}

    def write_weights(self, shard: Shard, parts: Iterable[Bytes], checkpoint: Checkpoint) -> None:
        """Write a weight file, with a digest of its header and one of each tensor."""
        self.folder.write(shard.name, parts)
        with (self.folder.work / shard.name).open("rb") as file:
            ranges = shard_ranges(shard, checkpoint)
            digests = self.digests.of_ranges(shard.name, file.fileno(), ranges, TENSORS)
        self.weights[shard.name] = (shard.nbytes, digests)

    def link(self, shard: Shard, checkpoint: Checkpoint) -> bool:
        """Whether the shard could be made a hard link to the file it is a copy of; it then has no digest.

        Raises UnreadableError where that file is not the one whose header was read.
        """
        if shard.copied is None or not self.folder.link(shard.name, shard.copied.path.resolve()):
            return False
        source, file = checkpoint.source, shard.copied.file
        linked = Stamp.of((self.folder.work / shard.name).stat())
        if isinstance(source, PinnedSource) and not linked.is_same_content(source.pinned(file).stamp):
            raise changed(source, file)
        self.files[shard.name] = _unread(shard.nbytes)
        return True

    def tensors(self) -> dict[str, str]:
        """The digest of every tensor that was written."""
        files = (digests.result() for _, digests in self.weights.values())
        return {name: digest for file in files for name, digest in file.items() if name != HEADER_KEY}

    def stated(self) -> dict[str, Mapping[str, Any]]:
        """Each file as eaglectl.json states it."""
        weights = {name: _stated(size, made.result()) for name, (size, made) in self.weights.items()}
        return dict(sorted({**self.files, **weights}.items()))


def _stated(size: int, digests: Mapping[str, str], *, is_pickle: bool = False) -> Mapping[str, Any]:
    """A weight file as eaglectl.json states it; of a pickle there is one digest."""
    if is_pickle:
        return {"size": size, "sha256": digests[HEADER_KEY]}
    tensors = {name: digest for name, digest in sorted(digests.items()) if name != HEADER_KEY}
    return {"size": size, "digest": TENSORS, "header": digests[HEADER_KEY], "tensors": tensors}


def _read_blocks(source: Source, name: str) -> Iterator[bytes]:
    """The bytes of a file that is copied, in blocks between which progress is reported."""
    size = source.size(name)
    starts = range(0, size, REPORTED_BLOCK)
    return (source.read(name, start, min(start + REPORTED_BLOCK, size)) for start in starts)


def _unread(size: int) -> Mapping[str, Any]:
    return {"size": size, "sha256": None}


def _source_files(
    plan: ConversionPlan,
    checkpoint: Checkpoint,
    original: PinnedSource,
    originals: Sequence[str],
    output: _Output,
) -> dict[str, Mapping[str, Any]]:
    """What eaglectl.json states of each weight file of the source.

    A tensor that was moved as a whole is not read again: its digest is the output's.
    """
    moved = {step.stored[0]: step.name for step in plan.steps if step.is_moved}
    made = {}
    for name in originals:
        ranges, algorithm = _source_ranges(
            checkpoint, original, name, is_pickle=name not in checkpoint.weight_files
        )
        unmoved = {key: range for key, range in ranges.items() if key not in moved}
        descriptor = original.pinned(name).descriptor
        made[name] = ranges, output.digests.of_ranges(name, descriptor, unmoved, algorithm)
    tensors = output.tensors()
    files: dict[str, Mapping[str, Any]] = {}
    for name, (ranges, digests) in made.items():
        known = digests.result() | {key: tensors[moved[key]] for key in ranges if key in moved}
        is_pickle = name not in checkpoint.weight_files
        files[name] = _stated(original.size(name), known, is_pickle=is_pickle)
    return files


def _source_ranges(
    checkpoint: Checkpoint, original: PinnedSource, name: str, *, is_pickle: bool
) -> tuple[dict[str, Range], Algorithm]:
    """The ranges of a weight file that have a digest, and its algorithm; a pickle has one as a whole."""
    if is_pickle:
        return {HEADER_KEY: (0, original.size(name))}, "sha256"
    return tensor_ranges(checkpoint.tensors.values(), name), TENSORS


def link_notes(plan: ConversionPlan, checkpoint: Checkpoint, max_shard_size: int | None) -> tuple[Note, ...]:
    """A warning that names the weight files that `link` makes the same as the source's; none without any."""
    shards = shards_of(plan, checkpoint, max_shard_size)
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

    Weight files have a BLAKE3 digest of their header and one of each tensor, pickles one of the file; a
    sha256 of null means that the file was linked and not read.
    """
    drafter, name = plan.drafter, plan.drafter.target.name
    return {
        "schema": RECORD_SCHEMA,
        "eaglectl": eaglectl.__version__,
        "source": {
            "name": plan.source,
            "producer": drafter.producer,
            "evidence": drafter.evidence,
            "files": dict(files),
        },
        "previous": checkpoint.sidecars.get("eaglectl.json"),
        **plan.identity,
        "written": {change.key: change.after for change in plan.changes if change.after is not None},
        "target": name if name and is_repo_name(name) else None,  # a path serves nobody else
        "tensors": [
            {"name": step.name, "action": step.action, "from": list(step.stored)}
            | ({"how": step.how} if step.how else {})
            for step in plan.steps
            if step.action != "kept"
        ],
        "left": [{"name": left.name, "why": left.why} for left in (*plan.left_tensors, *plan.left_files)],
        **plan.record,
        "notes": [
            {"level": note.level, "about": note.about, "text": note.text}
            for note in plan.notes
            if note.text != drafter.target.origin  # it names places of this machine
        ],
    }


def _parts(shard: Shard, checkpoint: Checkpoint) -> Iterator[Bytes]:
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
            local = {name: LocalFile.of(source, tensors[name].file) for name in step.stored}
            for segment in segments:
                start, file = tensors[segment.stored].start, local[segment.stored]
                if file is None:
                    yield checkpoint.read(segment.stored, segment.start, segment.stop)
                else:
                    yield file.copy(start + segment.start, start + segment.stop)


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


def _counted(parts: Iterable[Bytes], counter: ByteCounter) -> Iterator[Bytes]:
    """The same bytes, large copies in pieces; a piece is counted when the next one is asked for."""
    for part in parts:
        if isinstance(part, bytes):
            yield part
            counter.add(len(part))
            continue
        start = part.start
        # pieces end with a block of the source: only whole blocks can be shared
        while start < part.stop:
            stop = min(start - start % REPORTED_BLOCK + REPORTED_BLOCK, part.stop)
            yield replace(part, start=start, stop=stop)
            counter.add(stop - start)
            start = stop


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
