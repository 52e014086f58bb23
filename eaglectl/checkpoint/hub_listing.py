"""What a Hub repository holds, as the Hub lists it, and which of its files a checkpoint is made of."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from eaglectl.checkpoint.checkpoint import INDEX, NOT_WEIGHTS, PICKLES, SINGLE, VOCABULARY_PICKLES, pickle_files
from eaglectl.checkpoint.header import parse_json
from eaglectl.checkpoint.hub_faults import Asked, unreachable
from eaglectl.checkpoint.source import Source
from eaglectl.errors import Unreadable

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
# large files beside the weights that no drafter needs (GGUF, ONNX, videos)
BESIDE = 64 << 20


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one commit: the sizes of its files, and the SHA-256 of those that are kept as large files."""

    commit: str
    sizes: Mapping[str, int]
    digests: Mapping[str, str]


def listed(asked: Asked, answer: bytes) -> Listing:
    """Commit and files, with their sizes and digests, of the Hub's answer. Raises Unreadable."""
    try:
        info = parse_json("", answer)
    except Unreadable:
        info = None
    commit = info.get("sha") if isinstance(info, dict) else None
    files = info.get("siblings") if isinstance(info, dict) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit) or not isinstance(files, list):
        raise unreachable(asked, "does not answer as a Hub does")
    sizes: dict[str, int] = {}
    digests: dict[str, str] = {}
    for file in files:
        name, size = (file.get("rfilename"), file.get("size")) if isinstance(file, dict) else (None, None)
        if not isinstance(name, str) or type(size) is not int or size < 0:
            raise unreachable(asked, "lists files without names and sizes")
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
            raise unreachable(asked, f'lists a file "{name}", which points out of the repository')
        sizes[name] = size
        large = file.get("lfs")
        digest = large.get("sha256") if isinstance(large, dict) else None
        if isinstance(digest, str) and SHA256.fullmatch(digest):
            digests[name] = digest
    has_model = "model/.metadata" in sizes
    top = {name: size for name, size in sizes.items() if "/" not in name}
    inner = {name: size for name, size in sizes.items() if re.fullmatch(r"model/[^/]+", name) and has_model}
    return Listing(commit, top | inner, digests)


def needed(source: Source, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """What a checkpoint is made of: its weights in one form, and the small files beside them."""
    names, pickles, shards = source.names(), pickle_files(source), _shards(source)

    def is_needed(name: str) -> bool:
        if name.endswith(".safetensors"):
            return name == SINGLE if SINGLE in names else not shards or name in shards
        if name.endswith((*PICKLES, ".distcp", ".metadata")):
            return name in pickles or name in VOCABULARY_PICKLES
        return "/" not in name and sizes[name] <= BESIDE and not NOT_WEIGHTS.match(name)

    return tuple(name for name in names if is_needed(name))


def is_whole(source: Source) -> bool:
    """Whether the weights are there, as far as the names of the files tell."""
    shards = _shards(source)
    if shards:
        return shards <= set(source.names())
    return any(name.endswith((".safetensors", *PICKLES, ".distcp")) for name in source.names())


def _shards(source: Source) -> set[str]:
    """The files that the index names, where the weights lie in shards."""
    names = source.names()
    if INDEX not in names or SINGLE in names:
        return set()
    index = parse_json(INDEX, source.read(INDEX))
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    return {str(file) for file in weight_map.values()} if isinstance(weight_map, dict) else set()
