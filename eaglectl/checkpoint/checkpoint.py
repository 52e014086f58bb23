"""A checkpoint as its config and headers describe it; tensor data stays where it lies until somebody asks for a range."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from eaglectl.checkpoint.header import StoredTensor, header_length, parse_header, parse_json
from eaglectl.checkpoint.source import Source
from eaglectl.errors import Refused, Unreadable

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLES = (".bin", ".pt", ".pth")
# rules of validate that a fault met here is a case of
WEIGHTS, SHARDS, JSON, UNSAFE = "one-weight-source", "shard-index", "readable-json", "unsafe-file"
# read ahead: one request is enough for nearly every drafter's header
FIRST_READ = 100_000
# where an index says what a shard holds, no more is read than its header may take: the metadata, and for each tensor its
# dtype, shape and offsets beside its name
METADATA, ENTRY = 4_000, 200


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Config, tensor table and file list of one checkpoint."""

    source: Source
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    weight_files: tuple[str, ...]
    sidecars: Mapping[str, Mapping[str, Any]]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of one tensor's data."""
        tensor = self.tensors[name]
        return self.source.read(tensor.file, tensor.start + start, tensor.stop if stop is None else tensor.start + stop)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def read_checkpoint(source: Source) -> Checkpoint:
    """Config and headers of `source`; no tensor data is read. Raises Unreadable (see each message)."""
    config = read_config(source)
    files, weight_map = _weight_files(source)
    tensors: dict[str, StoredTensor] = {}
    metadata: dict[str, str] = {}
    for file in files:
        found, extra = _read_header(source, file, _first_read(file, weight_map))
        for tensor in found:
            if tensor.name in tensors:
                both = f"{tensors[tensor.name].file} and {file}"
                raise Unreadable(f"{tensor.name} is in both {both}; keep one", SHARDS, file)
            tensors[tensor.name] = tensor
        metadata |= extra
    if weight_map is not None:
        _check_index(weight_map, tensors)
    if not tensors:
        raise Unreadable(f"{source.label}: {', '.join(files)} holds no tensors", WEIGHTS, files[0])
    return Checkpoint(source, config, tensors, metadata, files, _sidecars(source))


def read_config(source: Source) -> Mapping[str, Any]:
    """config.json of `source`, which must be an object."""
    names = source.names()
    if "config.json" not in names and "adapter_config.json" in names:
        raise Refused(
            f"{source.label} is a LoRA adapter (it has adapter_config.json and no config.json), not a whole model; merge"
            " it into its model first",
            "not-a-drafter",
            "adapter_config.json",
        )
    if "config.json" not in names:
        has_weights = any(name.endswith((".safetensors", *PICKLES)) for name in names)
        raise Unreadable(
            f"{source.label} has no config.json; a drafter is a config.json beside its weights: copy the trainer's"
            " draft json there under that name",
            JSON if has_weights else "",  # with neither, this is no checkpoint at all
            "config.json",
        )
    config = parse_json("config.json", source.read("config.json"), JSON)
    if not isinstance(config, dict):
        raise Unreadable(f"config.json is a JSON {type(config).__name__}, not an object", JSON, "config.json")
    return config


def pickle_files(source: Source) -> tuple[str, ...]:
    """The pickles that hold the weights of `source`, when no safetensors file does; empty otherwise."""
    names = source.names()
    if source.only is not None:
        return (source.only,) if source.only.endswith(PICKLES) else ()
    if any(name.endswith(".safetensors") or name == INDEX for name in names):
        return ()
    shards = tuple(name for name in names if name.endswith(".distcp"))
    for table in (".metadata", "model/.metadata"):
        if table in names and shards:
            return (table, *shards)
    return tuple(name for name in names if name.endswith(PICKLES) and not NOT_WEIGHTS.match(name))


# small pickles beside the weights that hold the draft vocabulary, not weights (NeMo Automodel, SpecForge)
VOCABULARY_PICKLES = ("speculative_token_map.pt", "eagle_meta.pt", "vocab_mapping.pt")
# what trainers save beside the weights and no engine reads
NOT_WEIGHTS = re.compile(
    r"(optimizer|scheduler|scaler|rng_state|training_args|training_state_rank)|"
    + "|".join(map(re.escape, VOCABULARY_PICKLES))
)


def _weight_files(source: Source) -> tuple[tuple[str, ...], Mapping[str, str] | None]:
    if source.only is not None and source.only.endswith(".safetensors"):
        return (source.only,), None
    names = source.names()
    pickles = pickle_files(source)
    if pickles:
        raise Unreadable(
            f"{source.label}: the weights are pickles ({', '.join(pickles[:3])}), which are only opened to be"
            f" converted; run `eaglectl convert {source.label} -o OUT`, then use OUT",
            UNSAFE,
            pickles[0],
        )
    if INDEX in names and SINGLE not in names:
        index = parse_json(INDEX, source.read(INDEX), SHARDS)
        weight_map = index.get("weight_map") if isinstance(index, dict) else None
        if (
            not isinstance(weight_map, dict)
            or not weight_map
            or not all(isinstance(file, str) for file in weight_map.values())
        ):
            raise Unreadable(f'{INDEX} needs a "weight_map" object from tensor to file', SHARDS, INDEX)
        for name, file in weight_map.items():
            if file.endswith(".safetensors") and PurePosixPath(file).name == file and file not in names:
                raise Unreadable(f"{file}: No such file, and {INDEX} says that {name} is in it", SHARDS, INDEX)
        return tuple(sorted(set(weight_map.values()))), weight_map
    found = tuple(name for name in names if name.endswith(".safetensors"))
    if SINGLE in found:
        return (SINGLE,), None
    match found:
        case ():
            about = f"{source.label} has no weights: no .safetensors file, {INDEX} or pytorch_model.bin"
            raise Unreadable(about, WEIGHTS)
        case (name,):
            return (name,), None
    about = f"{source.label} has {len(found)} .safetensors files and no {INDEX}; name the one to read"
    raise Unreadable(about, WEIGHTS)


def _first_read(file: str, weight_map: Mapping[str, str] | None) -> int:
    if weight_map is None:
        return FIRST_READ
    return min(FIRST_READ, METADATA + sum(ENTRY + len(name) for name, place in weight_map.items() if place == file))


def _read_header(source: Source, file: str, ahead: int) -> tuple[tuple[StoredTensor, ...], Mapping[str, str]]:
    size = source.size(file)
    head = source.read(file, 0, min(ahead, size))
    length = header_length(file, head[:8], size)
    raw = head[8 : 8 + length]
    if len(raw) < length:
        raw += source.read(file, len(head), 8 + length)
    header = parse_header(file, raw, size)
    return header.tensors, header.metadata


def _check_index(weight_map: Mapping[str, str], tensors: Mapping[str, StoredTensor]) -> None:
    for name, file in weight_map.items():
        if name not in tensors:
            raise Unreadable(f"{INDEX} says {name} is in {file}, and it is not there", SHARDS, INDEX)
        if tensors[name].file != file:
            raise Unreadable(f"{INDEX} says {name} is in {file}, and it is in {tensors[name].file}", SHARDS, INDEX)
    for name, tensor in tensors.items():
        if name not in weight_map:
            about = f"{name} is in {tensor.file} and not in {INDEX}; engines would skip it: rebuild the index"
            raise Unreadable(about, SHARDS, INDEX)


def _sidecars(source: Source) -> Mapping[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for name in ("hf_quant_config.json", "eaglectl.json"):
        if name in source.names():
            value = parse_json(name, source.read(name), JSON)
            if not isinstance(value, dict):
                raise Unreadable(f"{name} is a JSON {type(value).__name__}, not an object", JSON, name)
            found[name] = value
    return found
