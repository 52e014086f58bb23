"""The files that the Hub lists for a repository, and which of them make up a checkpoint."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct

from eaglectl.checkpoint.header import parse_json
from eaglectl.checkpoint.hub_cache import ListedDigests
from eaglectl.checkpoint.hub_errors import HubRequest, unreachable
from eaglectl.checkpoint.layout import INDEX, NOT_WEIGHTS, PICKLES, SINGLE, VOCABULARY_PICKLES, pickle_files
from eaglectl.checkpoint.source import Source
from eaglectl.errors import UnreadableError

# git's names of commits and files: SHA-1, SHA-256 where the repository uses it
GIT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
COMMIT = re.compile(r"[0-9a-f]{40,64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
# larger files that are not weights are not downloaded (GGUF, ONNX, videos)
MAX_BESIDE = 64 << 20


class RepositoryListing(Struct, frozen=True):
    """The files of a repository at one commit: their sizes and digests.

    `below`: sizes of files in subfolders, which are no part of a checkpoint.
    """

    commit: str
    sizes: Mapping[str, int]
    digests: ListedDigests
    below: Mapping[str, int]


def read_listing(request: HubRequest, body: bytes) -> RepositoryListing:
    """Parse the Hub's list of files: commit, sizes and digests. Raises UnreadableError."""
    commit, files = _commit_and_files(request, body)
    sizes: dict[str, int] = {}
    digests: dict[str, str] = {}
    git_ids: dict[str, str] = {}
    for file in files:
        name, size = _name_and_size(request, file)
        sizes[name] = size
        if digest := _lfs_digest(file):
            digests[name] = digest
        elif git_id := _git_id(file):
            git_ids[name] = git_id
    has_model = "model/.metadata" in sizes
    wanted = {
        name: size
        for name, size in sizes.items()
        if "/" not in name or (has_model and re.fullmatch(r"model/[^/]+", name))
    }
    below = {name: size for name, size in sizes.items() if name not in wanted}
    return RepositoryListing(commit, wanted, ListedDigests(digests, git_ids), below)


def with_tree(digests: ListedDigests, body: bytes) -> ListedDigests:
    """The digests and those of other files in a Hub's answer to `tree`; an answer without any adds none."""
    try:
        entries = parse_json("", body)
    except UnreadableError:
        return digests
    sha256, git_ids = dict(digests.sha256), dict(digests.git_ids)
    for entry in entries if isinstance(entries, list) else ():
        match entry:
            case {"path": str() as name} if name in digests:
                pass
            case {"path": str() as name, "lfs": {"oid": str() as digest}} if SHA256.fullmatch(digest):
                sha256[name] = digest
            case {"path": str() as name, "oid": str() as git_id} if GIT_ID.fullmatch(git_id):
                if "lfs" not in entry:
                    git_ids[name] = git_id
    return ListedDigests(sha256, git_ids)


def _commit_and_files(request: HubRequest, body: bytes) -> tuple[str, list[Any]]:
    try:
        info = parse_json("", body)
    except UnreadableError:
        info = None
    match info:
        case {"sha": str() as commit, "siblings": list() as files} if COMMIT.fullmatch(commit):
            return commit, files
    raise unreachable(request, "does not answer as a Hub does")


def _name_and_size(request: HubRequest, file: object) -> tuple[str, int]:
    match file:
        case {"rfilename": str() as name, "size": int() as size} if type(size) is int and size >= 0:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name:
                raise unreachable(request, f'lists a file "{name}", which points out of the repository')
            return name, size
    raise unreachable(request, "lists files without names and sizes")


def _lfs_digest(file: object) -> str | None:
    match file:
        case {"lfs": {"sha256": str() as digest}} if SHA256.fullmatch(digest):
            return digest
    return None


def _git_id(file: object) -> str | None:
    match file:
        case {"lfs": dict()}:
            return None  # the id is of the pointer
        case {"blobId": str() as git_id} if GIT_ID.fullmatch(git_id):
            return git_id
    return None


def checkpoint_files(source: Source, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The files that make up a checkpoint: its weights in one form, and the small files beside them."""
    pickles, shards = pickle_files(source), _shards(source)
    return tuple(name for name in source.names() if _is_wanted(name, sizes, pickles, shards))


def readable_files(source: Source, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The same; every file where the weights' index cannot be read, which is for others to report."""
    try:
        return checkpoint_files(source, sizes)
    except UnreadableError:
        return tuple(sizes)


def _is_wanted(name: str, sizes: Mapping[str, int], pickles: tuple[str, ...], shards: set[str]) -> bool:
    if name.endswith(".safetensors"):
        if SINGLE in sizes:
            return name == SINGLE
        return not shards or name in shards
    if name.endswith((*PICKLES, ".distcp", ".metadata")):
        return name in pickles or name in VOCABULARY_PICKLES
    return "/" not in name and sizes[name] <= MAX_BESIDE and not NOT_WEIGHTS.match(name)


def has_weights(source: Source) -> bool:
    """Whether the weights are there, judging by the names of the files."""
    names = source.names()
    if shards := _shards(source):
        return shards <= set(names)
    return any(name.endswith((".safetensors", *PICKLES, ".distcp")) for name in names)


def _shards(source: Source) -> set[str]:
    """The files that the index names; empty where the weights are not in shards."""
    names = source.names()
    if INDEX not in names or SINGLE in names:
        return set()
    index = parse_json(INDEX, source.read(INDEX))
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    return {str(file) for file in weight_map.values()} if isinstance(weight_map, dict) else set()
