"""Writing a plan: weight files, copied as streams, and the files beside them.

Memory does not grow with the checkpoint.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

import eaglectl
from eaglectl.conversion.plan import ConversionPlan, GeneratedBytes, Step
from eaglectl.conversion.rewriting import encoded, join_absorbed
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import Absorbed, Computed, Tensor
from eaglectl.errors import UnreadableError, UsageError
from eaglectl.files.checkpoint import Checkpoint, history, is_untrained
from eaglectl.files.files import Stamp, sha256
from eaglectl.files.header import DTYPE_BITS, header_json
from eaglectl.files.layout import CARD, CONFIG, INDEX, RECORD, RECORD_SCHEMA, SINGLE
from eaglectl.files.source import PinnedSource, Source, changed, is_repo_name
from eaglectl.files.writer import (
    HEADER_KEY,
    TENSORS,
    Bytes,
    Copy,
    Digests,
    Folder,
    Range,
    RangeDigests,
    hashed,
    tensor_ranges,
)
from eaglectl.formats.catalogue import by_name
from eaglectl.progress import ByteCounter, OnProgress
from eaglectl.text import as_markdown, listed, printable

PAGE = 4096  # bytes of a page of memory, and of a block of most file systems
REPORTED_BLOCK = 16 << 20  # bytes that are copied between two reports of progress
DEFINITION = (
    "Acceptance length: tokens per step of the target, 1 + accepted draft tokens / drafts. In brackets: 95 %"
    " over prompts."
)
UNTRAINED = (
    "> **Not trained: do not serve it.** `eaglectl convert --to 3.1 --init-only` wrote this as a starting"
    " point for training: its new norms are untrained and its acceptance was not measured. Train it first."
)
FC_NORM = {
    "refit": "on: every state is divided by its RMS, and fc is refit to the normed states",
    "calibrated": "on: every state is divided by its RMS and multiplied by the median RMS; fc is unchanged",
    "ones": "on, with weights of ones; fc is unchanged",
    "off": "off",
}
NORM_OUTPUT = {
    "absorbed": "on: the norm's weights moved into lm_head",
    "residual scaled": "on: the residual stream is scaled to the norm's RMS",
    "flag": "on; no weight changed",
    "as trained": "on, as trained",
    "off": "off",
}
# an unescaped bar ends a cell of a table
BAR = re.compile(r"(?<!\\)\|")
# steps that make a drafter differ from the one that the gate measured
OTHER = ("pruning", "downgrade", "upgrade")


class Shard(Struct, frozen=True):
    """A weight file of the output: its steps, its size, and the byte ranges of its header and its tensors.

    It has a header, or is a copy of a file of the source.
    """

    name: str
    steps: Sequence[Step]
    nbytes: int
    ranges: dict[str, Range]
    header: bytes = b""
    copied: str = ""


def shards_of(plan: ConversionPlan, checkpoint: Checkpoint, limit: int | None) -> tuple[Shard, ...]:
    """Return the weight files of the output: divided as the source, or of at most `limit` bytes each."""
    groups: dict[Any, list[Step]] = {}
    number, size = 0, 0
    for step in plan.steps:
        if limit is None:
            file = checkpoint.tensors[step.stored[0]].file if step.stored else checkpoint.weight_files[0]
            groups.setdefault(file, []).append(step)
            continue
        if step.nbytes > limit:
            raise UsageError(
                f"--max-shard-size {limit}: {step.name} alone has {step.nbytes} bytes; pass at least that",
                options=("--max-shard-size",),
            )
        size += step.nbytes
        if size > limit:
            number, size = number + 1, step.nbytes
        groups.setdefault(number, []).append(step)
    shards = []
    for index, (group, steps) in enumerate(sorted(groups.items()), 1):
        # readers map tensors in place, so each must start at a multiple of its element:
        # widest first, as safetensors orders them
        aligned = sorted(steps, key=lambda step: -DTYPE_BITS[step.dtype])
        name = f"model-{index:05}-of-{len(groups):05}.safetensors" if len(groups) > 1 else SINGLE
        shards.append(_shard(plan, checkpoint, name, aligned, group))
    return tuple(shards)


def _shard(
    plan: ConversionPlan, checkpoint: Checkpoint, name: str, steps: Sequence[Step], file: object
) -> Shard:
    """Return the shard with these steps: a copy of the source's `file` if nothing in it changes.

    Spaces at the end of its header put the largest moved tensor as far into a page as in the source: the
    system then copies whole pages, in half the time, and file systems that share blocks (XFS, Btrfs) share
    them.
    """
    stored = {name: tensor for name, tensor in checkpoint.tensors.items() if tensor.file == file}
    is_unchanged = checkpoint.metadata == plan.metadata and {step.name for step in steps} == stored.keys()
    if stored and is_unchanged and all(step.action == "kept" for step in steps):
        ranges = tensor_ranges(stored.values(), str(file))
        return Shard(name, steps, max(tensor.stop for tensor in stored.values()), ranges, copied=str(file))
    raw = header_json(plan.metadata, ((step.name, step.dtype, step.shape, step.nbytes) for step in steps))
    raw += b" " * _page_padding(8 + len(raw), steps, checkpoint)
    header = len(raw).to_bytes(8, "little") + raw
    ranges, position = {HEADER_KEY: (0, len(header))}, len(header)
    for step in steps:
        ranges[step.name] = (position, position + step.nbytes)
        position += step.nbytes
    return Shard(name, steps, position, ranges, header)


def _page_padding(start: int, steps: Sequence[Step], checkpoint: Checkpoint) -> int:
    """Return how many bytes to leave before the tensors, which would begin at `start`; 0 without a gain."""
    largest, padding = 0, 0
    for step in steps:
        if step.is_moved and step.nbytes > largest:
            largest, padding = step.nbytes, (checkpoint.tensors[step.stored[0]].start - start) % PAGE
        start += step.nbytes
    return padding if largest >= PAGE and padding % 8 == 0 else 0


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

    Raises UnreadableError if a file of the source changed after it was first read.
    """
    original.restamp()
    shards = shards_of(plan, checkpoint, options.max_shard_size)
    with Folder(options.out, force=options.force) as folder, Digests() as digests:
        output = _Output(folder, digests)
        unlinked = [shard for shard in shards if not (options.link and output.link(shard, checkpoint))]
        if len(unlinked) < len(shards):
            original.restamp()
        output.start_source(plan, checkpoint, original, originals)
        counter = ByteCounter(on_progress, "writing", sum(shard.nbytes for shard in unlinked))
        for shard in unlinked:
            output.write_weights(shard, checkpoint, counter)
        if len(shards) > 1:
            weight_map = {step.name: shard.name for shard in shards for step in shard.steps}
            index = {"metadata": {"total_size": plan.nbytes}, "weight_map": dict(sorted(weight_map.items()))}
            output.write(INDEX, [_json(index)])
        output.write(CONFIG, [_json(plan.config)])
        for name in plan.copied_files:
            output.write(name, [checkpoint.source.read(name)])
        record = provenance(plan, checkpoint, output.source_files(original, originals))
        if CARD not in plan.copied_files:
            output.write(CARD, [conversion_card(plan, record).encode()])
        folder.write(RECORD, [_json({**record, "output": {"files": output.stated()}})])
        output.check_source(original)
        if options.check:
            options.check(folder.work)
        folder.publish()
    return options.out


class _Output:
    def __init__(self, folder: Folder, digests: Digests) -> None:
        self.folder, self.digests = folder, digests
        self.files: dict[str, Mapping[str, Any]] = {}
        self.weights: dict[str, tuple[int, RangeDigests]] = {}
        self.linked: set[str] = set()  # files of the source
        self.moved: dict[str, str] = {}
        self.sources: dict[str, _SourceFile] = {}

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        digest, sizes = sha256(), list[int]()
        self.folder.write(name, hashed(parts, digest), sizes.append)
        self.files[name] = {"size": sum(sizes), "sha256": digest.hexdigest()}

    def write_weights(self, shard: Shard, checkpoint: Checkpoint, counter: ByteCounter) -> None:
        def hash_ranges(descriptor: int) -> None:
            digests = self.digests.of_ranges(shard.name, descriptor, shard.ranges, TENSORS)
            self.weights[shard.name] = (shard.nbytes, digests)

        self.folder.write(
            shard.name, _with_progress(_parts(shard, checkpoint), counter), on_written=hash_ranges
        )

    def link(self, shard: Shard, checkpoint: Checkpoint) -> bool:
        """Hard-link the shard to the file that it copies, if possible; return whether that was done.

        A linked shard has no digest. Raises UnreadableError if the file changed after its header was read.
        """
        source, file = checkpoint.source, shard.copied
        if not file or not self.folder.link(shard.name, _copy(source, file).path.resolve()):
            return False
        linked = Stamp.of((self.folder.work / shard.name).stat())
        if isinstance(source, PinnedSource) and not linked.is_same_content(source.pinned(file).stamp):
            raise changed(source, file)
        header = sha256(source.read(file, *shard.ranges[HEADER_KEY])).hexdigest()
        self.files[shard.name] = {"size": shard.nbytes, "sha256": None, "header": header}
        self.linked.add(file)
        return True

    def stated(self) -> dict[str, Mapping[str, Any]]:
        weights = {
            name: _file_entry(size, digests.result()) for name, (size, digests) in self.weights.items()
        }
        return dict(sorted({**self.files, **weights}.items()))

    def start_source(
        self, plan: ConversionPlan, checkpoint: Checkpoint, original: PinnedSource, originals: Iterable[str]
    ) -> None:
        """Start on the digests of the weight files of the source that are not linked; a pickle has one.

        A tensor that is moved as a whole is not read twice: its digest is the output's.
        """
        self.moved = {step.stored[0]: step.name for step in plan.steps if step.is_moved}
        for name in set(originals) - self.linked:
            is_pickle = name not in checkpoint.weight_files
            ranges = tensor_ranges(checkpoint.tensors.values(), name)
            if is_pickle:
                ranges = {HEADER_KEY: (0, original.size(name))}
            reread = partial(
                self.digests.of_ranges,
                name,
                original.pinned(name).descriptor,
                algorithm="sha256" if is_pickle else TENSORS,
            )
            unmoved = {key: place for key, place in ranges.items() if key not in self.moved}
            self.sources[name] = _SourceFile(ranges, is_pickle, reread, reread(ranges=unmoved))

    def source_digests(self) -> dict[str, dict[str, str]]:
        """Return the digests of each weight file of the source by the key of its range."""
        written = {
            key: value
            for _, tensor_digests in self.weights.values()
            for key, value in tensor_digests.result().items()
        }
        return {
            name: {key: written[self.moved[key]] for key in file.ranges if key in self.moved}
            | file.started.result()
            for name, file in self.sources.items()
        }

    def source_files(self, original: PinnedSource, originals: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return the entry of eaglectl.json on each weight file of the source."""
        digests, entries = self.source_digests(), dict[str, Mapping[str, Any]]()
        for name in originals:
            size = original.size(name)
            entries[name] = {"size": size, "sha256": digests.get(name, {}).get(HEADER_KEY)}
            if name in digests and not self.sources[name].is_pickle:
                entries[name] = _file_entry(size, digests[name])
        return entries

    def check_source(self, original: PinnedSource) -> None:
        """Raise UnreadableError if a file of the source changed.

        Weight files whose status alone changed are read again.
        """
        if not (touched := set(original.check_unchanged()) - self.linked):
            return
        digests = self.source_digests()
        for name in touched:
            file = self.sources.get(name)
            if file is None or file.reread(ranges=file.ranges).result() != digests[name]:
                raise changed(original, name)


class _SourceFile(Struct):
    """A weight file of the source: its ranges, and the digests of those that are not moved as a whole."""

    ranges: Mapping[str, Range]
    is_pickle: bool
    reread: Callable[..., RangeDigests]
    started: RangeDigests


def _file_entry(size: int, digests: Mapping[str, str]) -> Mapping[str, Any]:
    tensors = {name: digest for name, digest in sorted(digests.items()) if name != HEADER_KEY}
    return {"size": size, "digest": TENSORS, "header": digests[HEADER_KEY], "tensors": tensors}


def link_notes(plan: ConversionPlan, checkpoint: Checkpoint, max_shard_size: int | None) -> tuple[Note, ...]:
    """Return a warning with the output files that `link` makes the same as the source's; none without any."""
    shards = shards_of(plan, checkpoint, max_shard_size)
    linked = [f"{shard.name} (the source's {shard.copied})" for shard in shards if shard.copied]
    text = (
        f"--link: {listed(linked)} is one file under two names: an edit in the output changes the source,"
        " and vice versa; leave --link out for a copy"
    )
    return (Note("warning", "link", text),) if linked else ()


def provenance(plan: ConversionPlan, checkpoint: Checkpoint, files: Mapping[str, Any]) -> dict[str, Any]:
    """Build eaglectl.json: the origin of the output, and `previous`, the source's own record.

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
        "previous": checkpoint.earlier,
        **plan.identity,
        "written": {change.key: change.after for change in plan.changes if change.after is not None},
        "target": name if name and is_repo_name(name) else None,  # a path is of this machine
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
            if note.text != drafter.target.origin  # it has paths of this machine
        ],
    }


def _copy(source: Source, file: str, start: int = 0, stop: int = 0) -> Copy:
    if isinstance(source, PinnedSource):
        pinned = source.pinned(file)
        return Copy(pinned.path, start, stop, pinned.descriptor)
    path = source.path(file)
    assert path is not None, "a conversion reads files on this machine"
    return Copy(path, start, stop)


def _parts(shard: Shard, checkpoint: Checkpoint) -> Iterator[Bytes]:
    # the bytes of a file of weights, in order: ranges of the source, or computed values
    if shard.copied:
        yield _copy(checkpoint.source, shard.copied, 0, shard.nbytes)
        return
    yield shard.header
    for step in shard.steps:
        match step.origin:
            case GeneratedBytes(data):
                yield data
            case Absorbed(w_kc, w_vc):
                yield from join_absorbed(checkpoint, w_kc, w_vc)
            case Computed():
                yield from encoded(Tensor(step.name, step.dtype, step.shape, step.origin), checkpoint)
            case segments:
                # looked up once per stored tensor, not once per row
                stored = {name: checkpoint.tensors[name] for name in step.stored}
                files = {name: _copy(checkpoint.source, tensor.file) for name, tensor in stored.items()}
                for segment in segments:
                    first, file = stored[segment.stored].start, files[segment.stored]
                    yield replace(file, start=first + segment.start, stop=first + segment.stop)


def _with_progress(parts: Iterable[Bytes], counter: ByteCounter) -> Iterator[Bytes]:
    """Yield the same bytes, large copies in pieces; a piece is counted when the next one is read."""
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


def conversion_card(plan: ConversionPlan, record: Mapping[str, Any]) -> str:
    """Build README.md for an output whose source has none; `record` is its eaglectl.json."""
    drafter = plan.drafter
    base, unserved = drafter.target.name, unserved_lines(record)
    aux, gate = drafter.aux.boundaries, gate_lines(record)
    boundaries = "the engines' default" if aux is None else f"boundaries {list(aux)}"
    lines = [
        "---",
        *([f"base_model: {base}"] if base and is_repo_name(base) else []),
        *(["library_name: vllm"] if not unserved else []),
        "tags: [speculative-decoding, eagle3]",
        "---",
        "",
        f"# EAGLE-{drafter.version} drafter",
        "",
        *unserved,
        f"Converted from {as_markdown(plan.source)} ({format_title(drafter.producer)}) to"
        f" {format_title(plan.layout)} by eaglectl {eaglectl.__version__}; aux layers: {boundaries}.",
        "",
        *settled_lines(drafter),
        *upgrade_lines(record),
        *(["## Acceptance", "", DEFINITION, "", *gate] if gate else []),
    ]
    return "\n".join(lines)


def unserved_lines(record: Mapping[str, Any]) -> list[str]:
    """Return a quotation if no requested release serves the output (`--force-unserved`); else empty.

    Raises UnreadableError for a record that eaglectl did not write.
    """
    unserved = record.get("unserved", ())
    try:
        titles = as_markdown(", ".join(engine["engine"] for engine in unserved))
        texts = dict.fromkeys(text for engine in unserved for text in engine["reasons"])
        words = f"by any requested release of {titles}: {as_markdown('; '.join(texts))}"
    except (KeyError, TypeError):
        raise _broken_record("the list of engines that do not serve it") from None
    return [f"> **Not served as trained** {words}.", ""] if unserved else []


def format_title(name: str) -> str:
    """Return a format's name for readers who know engines and trainers, but not eaglectl's formats."""
    return by_name(name).title


def settled_lines(drafter: Drafter) -> list[str]:
    """Return a quotation for each open fact of the drafter, and a line for each one that was measured."""
    texts = [f"> **Not settled:** {as_markdown(note.reason)}." for note in drafter.notes if note.is_open]
    for entry in drafter.settled:
        if entry.by == "measured":
            text = f"{entry.question}; {entry.answer}: {entry.evidence}"
            texts.append(f"Measured: {as_markdown(text)}.")
    return [line for text in texts for line in (text, "")]


def upgrade_lines(record: Mapping[str, Any]) -> list[str]:
    """Return how the drafter became EAGLE-3.1, and whether it is untrained; empty without such a record."""
    lines = [UNTRAINED, ""] if is_untrained(record) else []
    for entry in history(record):
        if isinstance(upgrade := entry.get("upgrade"), Mapping):
            return [*lines, "## How it became EAGLE-3.1", "", *table(("", ""), _method(entry, upgrade)), ""]
    return lines


def gate_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the gate's measurements; empty if there were none, or the drafter has changed since."""
    for entry in history(record):
        if isinstance(gate := entry.get("gate"), Mapping):
            return _gate(gate, is_earlier=entry is not record)
        if any(step in entry for step in OTHER):
            return []
    return []


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return [
        *lines,
        *(f"| {' | '.join(printable(BAR.sub('&#124;', cell)) for cell in row)} |" for row in rows),
    ]


def _method(record: Mapping[str, Any], upgrade: Mapping[str, Any]) -> list[tuple[str, str]]:
    # the card's rows on the upgrade; RefusedError for a record that eaglectl did not write
    try:
        fc_norm, norm_output = (
            words.get(upgrade[key], as_markdown(str(upgrade[key])))
            for key, words in (("fc_norm", FC_NORM), ("norm_output", NORM_OUTPUT))
        )
        if refit := upgrade.get("refit"):
            fc_norm += f" ({float(refit['relative_residual']):.1%} of its former output is unexplained)"
        if upgrade.get("is_exact"):
            norm_output += "; the function is unchanged"
        calibration = upgrade.get("calibration")
        tokens = (
            f"{int(calibration['tokens']):,} tokens of prompts and the target's own answers"
            if calibration
            else "nothing"
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _broken_record("the entry on the conversion to EAGLE-3.1") from None
    rows = [("fc_norm", fc_norm), ("norm_output", norm_output), ("calibrated on", tokens)]
    if not record.get("gate") and not upgrade.get("needs_finetune"):
        rows.append(("acceptance", "not compared with the source's (`--no-gate`)"))
    return rows


def _gate(gate: Mapping[str, Any], *, is_earlier: bool) -> list[str]:
    # the card's table of the gate; RefusedError for a record that eaglectl did not write
    try:
        rows = [
            [
                str(int(row["k"])),
                f"{row['acceptance_length_before']:.3f}",
                f"{row['acceptance_length']:.3f}",
                f"{row['ratio']:.3f} [{row['interval'][0]:.3f}, {row['interval'][1]:.3f}]",
            ]
            for row in gate["rows"]
        ]
        prompts, least = int(gate["prompts"]), float(gate["tolerance"])
        engine, device, dtype = (as_markdown(str(gate[key])) for key in ("engine", "device", "dtype"))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise _broken_record("the gate's entry") from None
    if not rows:
        return []
    when = ", before it was rewritten in this layout" if is_earlier else ""
    about = (
        f"EAGLE-3 before and EAGLE-3.1 after the conversion, drafting k tokens, on the same {prompts}"
        f" prompts, none of them from calibration ({engine}, {device}, {dtype}){when}; the ratio's lower"
        f" bound had to reach {least:g}:"
    )
    return [about, "", *table(("k", "before", "after", "ratio"), rows), ""]


def _broken_record(what: str) -> UnreadableError:
    return UnreadableError(
        f"eaglectl.json cannot be used: {what} has an unexpected form; convert again, or remove the file",
        where="eaglectl.json",
    )
