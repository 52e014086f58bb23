"""A checkpoint as its config and headers describe it; tensor data is read by range, on demand."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

from eaglectl.errors import RefusedError, UnreadableError, check
from eaglectl.files.header import (
    JSON,
    POINTER,
    PULL,
    SHARDS,
    UNSAFE,
    WEIGHTS,
    Header,
    StoredTensor,
    header_length,
    parse_header,
    parse_json,
)
from eaglectl.files.layout import (
    CONFIG,
    INDEX,
    MISTRAL,
    QUANTISATION,
    RECORD,
    SINGLE,
    WEIGHT_SUFFIXES,
    config_name,
    export_words,
    folders_with_config,
    pickle_files,
)
from eaglectl.files.source import FolderSource, Source
from eaglectl.shell import as_path, join, quote
from eaglectl.text import listed

RECORD_SCHEMA = "eaglectl/provenance/1"
# a record that nests deeper was not written by eaglectl
MAX_DEPTH = 100
# read ahead: one request is enough for nearly every drafter's header
FIRST_READ = 100_000
# of a drafter's config, with those of the objects in it; published ones have at most a few hundred
MAX_KEYS = 10_000
# bytes of a shard's header: the metadata, and for each tensor its dtype, shape and offsets beside its name
METADATA, ENTRY = 1_000, 200


class Checkpoint(Struct, frozen=True):
    """Config, tensor table and file list of one checkpoint.

    `scattered` are tensors whose data cannot be read: those of pickles that are not on this machine, or do
    not store it at one place. `names` are those of all files; `nested` is a pickle in which the tensors are
    inside of another item. `claim` is why eaglectl.json is no evidence of these files, if it is none.
    """

    source: Source
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    weight_files: tuple[str, ...]
    sidecars: Mapping[str, Mapping[str, Any]]
    scattered: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()
    nested: str = ""
    claim: str = ""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of one tensor's data."""
        tensor = self.tensors[name]
        if name in self.scattered:
            raise UnreadableError(
                f"{name} is in a pickle, {tensor.file}, from which its data is not read; run `eaglectl"
                f" convert {quote(as_path(self.source.place))}`, and use the folder that it writes",
                UNSAFE,
                tensor.file,
            )
        return self.source.read(
            tensor.file, tensor.start + start, tensor.stop if stop is None else tensor.start + stop
        )

    @property
    def record(self) -> Mapping[str, Any]:
        """eaglectl.json; empty where there is none, or one that is no evidence of these files."""
        return {} if self.claim else self.sidecars.get(RECORD, {})

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@contextmanager
def _naming(source: Source) -> Iterator[None]:
    """What cannot be read is said with the place that it is in."""
    try:
        yield
    except UnreadableError as error:
        text = str(error)
        if error.topic == POINTER and isinstance(source, FolderSource):
            text = text.replace(PULL, f"`git -C {quote(as_path(source.place))} lfs pull`")
        if source.place not in text:
            text = f"{source.place}: {text}"
        raise UnreadableError(text, error.topic, error.where) from None


def read_checkpoint(source: Source) -> Checkpoint:
    """Config and headers of `source`; no tensor data is read. Raises UnreadableError (see each message)."""
    with _naming(source):
        config = read_config(source)
        scattered, nested = frozenset[str](), ""
        if files := pickle_files(source):
            from eaglectl.files.pickles import read_pickled_table

            table = read_pickled_table(source)
            tensors, metadata, scattered, nested = (
                table.tensors,
                table.metadata,
                table.scattered,
                table.nested,
            )
        else:
            files, tensors, metadata = _read_weights(source)
        sidecars = _sidecars(source)
        claim = why_claim(sidecars[RECORD], source, files) if RECORD in sidecars else ""
        return Checkpoint(
            source, config, tensors, metadata, files, sidecars, scattered, source.names(), nested, claim
        )


def _read_weights(
    source: Source,
) -> tuple[tuple[str, ...], Mapping[str, StoredTensor], Mapping[str, str]]:
    """The safetensors files that hold the weights, their tensors and their metadata."""
    files, weight_map = _weight_files(source)
    tensors: dict[str, StoredTensor] = {}
    metadata: dict[str, str] = {}
    for file in files:
        ahead = FIRST_READ
        if weight_map is not None:  # no more than the shard's header may take
            names = [name for name, shard in weight_map.items() if shard == file]
            ahead = min(FIRST_READ, METADATA + sum(ENTRY + len(name) for name in names))
        header = _read_header(source, file, ahead)
        for tensor in header.tensors:
            if tensor.name in tensors:
                both = f"{tensors[tensor.name].file} and {file}"
                raise UnreadableError(f"{tensor.name} is in both {both}; keep one", SHARDS, file)
            tensors[tensor.name] = tensor
        metadata |= header.metadata
    if weight_map is not None:
        _check_index(weight_map, tensors)
    if not tensors:
        raise UnreadableError(f"{source.place}: {listed(files)} holds no tensors", WEIGHTS, files[0])
    return files, tensors, metadata


def read_weight_file(path: Path) -> Checkpoint:
    """The tensors of one safetensors file that belongs to no checkpoint. Raises UnreadableError."""
    source = FolderSource(path.parent, path.name)
    with _naming(source):
        header = _read_header(source, path.name, FIRST_READ)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    return Checkpoint(source, {}, tensors, header.metadata, (path.name,), {})


def read_config(source: Source, *, is_target: bool = False) -> Mapping[str, Any]:
    """config.json of `source`, which must be an object; `is_target` is for the words of the message."""
    names = source.names()
    file = config_name(names)
    if file is None:
        remedy = "merge it into its model first"
        if is_target:
            remedy = "give the model that it adapts: engines run the drafter unadapted (sglang 34337)"
        adapter = (
            f"{source.place} is a LoRA adapter (it has adapter_config.json and no config.json), not a whole"
            f" model; {remedy}"
        )
        found = [name for name in MISTRAL if name in names and not is_target]
        mistral = (
            f"{source.place} is in Mistral's own layout ({' and '.join(found)}, no config.json), in which a"
            " drafter is EAGLE-1 (eagle_linear), which vLLM and SGLang serve; eaglectl reads EAGLE-3 and"
            " EAGLE-3.1 drafters only"
        )
        check(
            ("adapter_config.json" in names, adapter, "not-a-drafter", "adapter_config.json"),
            (found, mistral, "not-a-drafter", " ".join(found[:1])),
            error=RefusedError,
        )
        raise UnreadableError(_no_config(source, is_target=is_target), JSON, CONFIG)
    with _naming(source):
        config = parse_json(file, source.read(file), JSON)
        if not isinstance(config, dict):
            kind = type(config).__name__
            raise UnreadableError(f"{file} is a JSON {kind}, not an object", JSON, file)
        count = len(config) + sum(len(value) for value in config.values() if isinstance(value, dict))
        if count > MAX_KEYS and not is_target:
            raise UnreadableError(f"{file} has {count} keys; at most {MAX_KEYS} are read", JSON, file)
        return config


def why_no_checkpoint(source: Source) -> str:
    """Why a folder is no checkpoint at all: it has neither a config nor weights; "" where it may be one."""
    names = source.names()
    is_one = any(name.endswith((CONFIG, *MISTRAL, *WEIGHT_SUFFIXES, ".distcp")) for name in names)
    return "" if is_one else _no_config(source, is_target=False)


def _no_config(source: Source, *, is_target: bool) -> str:
    """What to do about a folder without a config.json: the folder below it that has one, or what to copy."""
    about = f"{source.place} has no config.json"
    if words := export_words(source.names()):
        return f"{about}; {words}"
    if below := _below(source, "target" if is_target else "checkpoint"):
        return f"{about}{below}"
    if is_target:
        return f"{about}; a target is known by it: give the folder or Hub repository with the target's own"
    return (
        f"{about}; a drafter is a config.json beside its weights: copy the trainer's draft json there under"
        " that name"
    )


def _below(source: Source, kind: str = "checkpoint") -> str:
    """What to give in place of a folder with such folders below it, the newest first; "" without any."""
    folders = folders_with_config(source.root) if isinstance(source, FolderSource) else ()
    if not isinstance(source, FolderSource) or not folders:
        return ""
    paths = [str(source.root / folder) for folder in folders]
    newest = f"; the newest: `{join(['eaglectl', 'inspect', as_path(paths[0])])}`"
    return f"; give the folder of one {kind} in it: {listed(paths)}{newest if kind == 'checkpoint' else ''}"


def _weight_files(source: Source) -> tuple[tuple[str, ...], Mapping[str, str] | None]:
    """The safetensors files that hold the weights, and for shards the index's map from tensor to file."""
    if source.only is not None and source.only.endswith(".safetensors"):
        return (source.only,), None
    names = source.names()
    if INDEX in names and SINGLE not in names:
        weight_map = _read_index(source)
        return tuple(sorted(set(weight_map.values()))), weight_map
    files = tuple(name for name in names if name.endswith(".safetensors"))
    if SINGLE in files:
        return (SINGLE,), None
    if len(files) == 1:
        return files, None
    if not files and (words := export_words(names)):
        raise RefusedError(f"{source.place} has no weights that eaglectl reads: {words}", "not-a-drafter")
    if not files:
        about = f"{source.place} has no weights: no .safetensors file, {INDEX} or pytorch_model.bin"
        about += _below(source)
    else:
        about = f"{source.place} has {len(files)} .safetensors files and no {INDEX}; name the one to read"
    raise UnreadableError(about, WEIGHTS)


def _read_index(source: Source) -> Mapping[str, str]:
    """The index's map from tensor to file. Raises UnreadableError where a file that it names is not there."""
    index = parse_json(INDEX, source.read(INDEX), SHARDS)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or {type(file) for file in weight_map.values()} != {str}:
        raise UnreadableError(f'{INDEX} needs a "weight_map" object from tensor to file', SHARDS, INDEX)
    names = source.names()
    for name, file in weight_map.items():
        if file.endswith(".safetensors") and PurePosixPath(file).name == file and file not in names:
            raise UnreadableError(
                f"{file}: No such file, and {INDEX} says that {name} is in it", SHARDS, INDEX
            )
    return weight_map


def _read_header(source: Source, file: str, ahead: int) -> Header:
    size = source.size(file)
    head = source.read(file, 0, min(ahead, size))
    length = header_length(file, head[:8], size)
    raw = head[8 : 8 + length]
    if len(raw) < length:
        raw += source.read(file, len(head), 8 + length)
    return parse_header(file, raw, size)


def _check_index(weight_map: Mapping[str, str], tensors: Mapping[str, StoredTensor]) -> None:
    for name, file in weight_map.items():
        if name not in tensors:
            raise UnreadableError(f"{INDEX} says {name} is in {file}, and it is not there", SHARDS, INDEX)
        if tensors[name].file != file:
            raise UnreadableError(
                f"{INDEX} says {name} is in {file}, and it is in {tensors[name].file}", SHARDS, INDEX
            )
    for name, tensor in tensors.items():
        if name not in weight_map:
            about = f"{name} is in {tensor.file} and not in {INDEX}; engines would skip it: rebuild the index"
            raise UnreadableError(about, SHARDS, INDEX)


def _sidecars(source: Source) -> Mapping[str, Mapping[str, Any]]:
    sidecars: dict[str, Mapping[str, Any]] = {}
    for name in (QUANTISATION, RECORD):
        if name in source.names():
            value = parse_json(name, source.read(name), JSON)
            if not isinstance(value, dict):
                raise UnreadableError(f"{name} is a JSON {type(value).__name__}, not an object", JSON, name)
            sidecars[name] = value
    return sidecars


def why_claim(record: Mapping[str, Any], source: Source, weight_files: Sequence[str]) -> str:
    """Why a record is its author's claim alone; empty where it states the files beside it by digest.

    The config by its bytes; the weights, whose digests need all of their data, by their sizes.
    """
    files: dict[str, Mapping[str, Any]] = {}
    for key in ("output", "published"):
        match record.get(key):
            case {"files": Mapping() as stated}:
                files |= {name: file for name, file in stated.items() if isinstance(file, Mapping)}
    unstated = [name for name in (CONFIG, *weight_files) if name not in files]
    if unstated:
        return f"states no digest of {unstated[0]}"
    if files[CONFIG].get("sha256") != sha256(source.read(CONFIG)).hexdigest():
        return f"is of another {CONFIG}"
    others = [name for name in weight_files if files[name].get("size") != source.size(name)]
    return f"is of another {others[0]}" if others else ""


def history(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The record and the earlier records that it holds, newest first."""
    for _ in range(MAX_DEPTH):
        yield record
        earlier = record.get("previous")
        if not isinstance(earlier, Mapping):
            return
        record = earlier


def is_untrained(record: Mapping[str, Any]) -> bool:
    """Whether `--init-only` wrote the drafter, as a start for a trainer.

    A later conversion does not change that: it moves bytes and trains nothing.
    """
    upgrades = (entry.get("upgrade") for entry in history(record))
    return any(isinstance(upgrade, Mapping) and bool(upgrade.get("needs_finetune")) for upgrade in upgrades)
