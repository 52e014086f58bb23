"""Carrying out a plan: bytes stream from the source's files into new ones; memory does not grow with the checkpoint."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.checkpoint.checkpoint import INDEX, SINGLE, Checkpoint
from eaglectl.checkpoint.header import DTYPE_BITS
from eaglectl.checkpoint.source import Source
from eaglectl.checkpoint.writer import Bytes, Copy, Folder
from eaglectl.conversion.arithmetic import cast, encoded, join_absorbed
from eaglectl.conversion.card import conversion_card
from eaglectl.conversion.plan import Cast, Derived, Plan, Step
from eaglectl.drafter.tensors import Absorbed, Computed, Segment, Tensor
from eaglectl.errors import EaglectlError, Usage

BLOCK = 8 << 20


@dataclass(frozen=True, slots=True)
class Writing:
    """How a plan is to be written."""

    out: Path
    force: bool = False
    link: bool = False
    max_shard_size: int | None = None
    told: Callable[[int], None] | None = None


def write_plan(
    plan: Plan, checkpoint: Checkpoint, original: Source, originals: Sequence[str], writing: Writing
) -> Path:
    """Write `plan` as a folder and return its path. `original` and its files `originals` are what the digests are of."""
    shards = _shards(plan, checkpoint, writing.max_shard_size)
    with (
        Folder(writing.out, force=writing.force) as folder,
        _Digests(original, [] if writing.link else originals) as digests,
    ):
        for name, (steps, intact) in shards.items():
            path = checkpoint.source.path(intact) if intact else None
            if path and writing.link and folder.link(name, path.resolve()):
                continue
            size = max(tensor.stop for tensor in checkpoint.tensors.values() if tensor.file == intact) if intact else 0
            parts = [Copy(path, 0, size)] if path else _file(plan, checkpoint, steps)
            folder.write(name, parts, writing.told)
        if len(shards) > 1:
            folder.write(INDEX, [_json(_index(plan, shards))])
        folder.write("config.json", [_json(plan.config)])
        for name in plan.copied_files:
            folder.write(name, [checkpoint.source.read(name)])
        files = {
            name: {"size": original.size(name), "sha256": digest} for name, digest in digests.result(originals).items()
        }
        record = provenance(plan, checkpoint, files)
        if "README.md" not in plan.copied_files:
            folder.write("README.md", [conversion_card(plan, record).encode()])
        folder.write("eaglectl.json", [_json(record)])
        folder.publish()
    return writing.out


def provenance(plan: Plan, checkpoint: Checkpoint, files: Mapping[str, Any]) -> dict[str, Any]:
    """eaglectl.json: where the output came from, and `previous`, the source's own. A sha256 of null means that the file was linked and not read."""
    drafter = plan.drafter
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
        "eagle": drafter.version,
        "layout": plan.layout,
        "boundaries": None if drafter.aux.boundaries is None else list(drafter.aux.boundaries),
        "tensors": [
            {"name": s.name, "action": s.action, "from": list(s.origin), **({"how": s.how} if s.how else {})}
            for s in plan.steps
            if s.action != "kept"
        ],
        "left": [{"name": left.name, "why": left.why} for left in (*plan.left_tensors, *plan.left_files)],
        **plan.record,
        "notes": [{"level": note.level, "about": note.about, "text": note.text} for note in plan.notes],
    }


def _shards(plan: Plan, checkpoint: Checkpoint, limit: int | None) -> Mapping[str, tuple[Sequence[Step], str | None]]:
    """Output file -> its steps, and the source file it is a copy of, if it is one. The source's own division is kept."""
    groups: list[tuple[list[Step], str | None]] = []
    if limit is None:
        by_file: dict[str, list[Step]] = {}
        for step in plan.steps:
            by_file.setdefault(
                checkpoint.tensors[step.origin[0]].file if step.origin else checkpoint.weight_files[0], []
            ).append(step)
        groups = [
            (_aligned(steps), file if _is_intact(plan, checkpoint, file, steps) else None)
            for file, steps in sorted(by_file.items())
        ]
    else:
        for step in plan.steps:
            if step.nbytes > limit:
                raise Usage(f"--max-shard-size {limit}: {step.name} alone has {step.nbytes} bytes; give at least that")
            if not groups or sum(s.nbytes for s in groups[-1][0]) + step.nbytes > limit:
                groups.append(([], None))
            groups[-1][0].append(step)
        groups = [(_aligned(steps), None) for steps, _ in groups]
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {f"model-{i:05}-of-{len(groups):05}.safetensors": group for i, group in enumerate(groups, 1)}


def _aligned(steps: Sequence[Step]) -> list[Step]:
    # readers map tensors in place, so each must start at a multiple of its element: widest first, as safetensors orders them
    return sorted(steps, key=lambda step: -DTYPE_BITS[step.dtype])


def _is_intact(plan: Plan, checkpoint: Checkpoint, file: str, steps: Sequence[Step]) -> bool:
    here = {name for name, tensor in checkpoint.tensors.items() if tensor.file == file}
    return (
        checkpoint.metadata == plan.metadata
        and all(step.action == "kept" for step in steps)
        and {step.name for step in steps} == here
    )


def _file(plan: Plan, checkpoint: Checkpoint, steps: Sequence[Step]) -> Iterator[Bytes]:
    table: dict[str, Any] = {"__metadata__": dict(sorted(plan.metadata.items()))}
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
    yield len(raw).to_bytes(8, "little") + raw
    yield from _merged(part for step in steps for part in _parts(step, checkpoint))


def _parts(step: Step, checkpoint: Checkpoint) -> Iterator[Bytes]:
    match step.way:
        case Derived(data):
            yield data
        case Absorbed(w_kc, w_vc):
            yield from join_absorbed(checkpoint, w_kc, w_vc)
        case Computed():
            yield from encoded(Tensor(step.name, step.dtype, step.shape, step.way), checkpoint)
        case Cast(segments, before):
            for segment in segments:
                for start in range(segment.start, segment.stop, BLOCK):
                    yield cast(
                        checkpoint.read(segment.stored, start, min(start + BLOCK, segment.stop)),
                        before,
                        step.dtype,
                        step.name,
                    )
        case segments:
            files = {segment.stored: checkpoint.tensors[segment.stored].file for segment in segments}
            paths = {name: checkpoint.source.path(file) for name, file in files.items()}  # once, not for every row
            yield from (_located(segment, checkpoint, paths[segment.stored]) for segment in segments)


def _located(segment: Segment, checkpoint: Checkpoint, path: Path | None) -> Bytes:
    tensor = checkpoint.tensors[segment.stored]
    if path is None:
        return checkpoint.read(segment.stored, segment.start, segment.stop)
    return Copy(path, tensor.start + segment.start, tensor.start + segment.stop)


def _merged(parts: Iterable[Bytes]) -> Iterator[Bytes]:
    last: Copy | None = None
    for part in parts:
        if last and isinstance(part, Copy) and part.path == last.path and part.start == last.stop:
            last = Copy(last.path, last.start, part.stop)
            continue
        if last:
            yield last
        last = part if isinstance(part, Copy) else None
        if isinstance(part, bytes):
            yield part
    if last:
        yield last


def _index(plan: Plan, shards: Mapping[str, tuple[Sequence[Step], str | None]]) -> Mapping[str, Any]:
    weight_map = {step.name: file for file, (steps, _) in shards.items() for step in steps}
    return {"metadata": {"total_size": plan.nbytes}, "weight_map": dict(sorted(weight_map.items()))}


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


class _Digests:
    """SHA-256 of files, computed beside the copying so that both share one pass through the page cache."""

    def __init__(self, source: Source, names: Sequence[str]) -> None:
        self.source, self.names = source, names
        self.found: dict[str, str] = {}
        self.error: OSError | EaglectlError | None = None
        self.stopped = False
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "_Digests":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped = True
        self.thread.join()

    def result(self, names: Sequence[str]) -> dict[str, str | None]:
        """Digest of each of `names`; None for one that was not asked for."""
        self.thread.join()
        if self.error:
            raise self.error
        return {name: self.found.get(name) for name in names}

    def _run(self) -> None:
        try:
            for name in self.names:
                path = self.source.path(name)
                if path is None:
                    continue
                digest = hashlib.sha256()
                with path.open("rb") as file:
                    while not self.stopped and (block := file.read(1 << 20)):
                        digest.update(block)
                self.found[name] = digest.hexdigest()
        except (OSError, EaglectlError) as error:
            self.error = error
