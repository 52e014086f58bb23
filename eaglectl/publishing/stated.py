"""What lists state of files: SHA256SUMS, eaglectl.json, and the listing of a repository on the Hub."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from eaglectl.checkpoint.header import parse_json
from eaglectl.checkpoint.hub import HubSource
from eaglectl.checkpoint.layout import PROVENANCE, RECORD, SIGNATURE, SUMS
from eaglectl.errors import UnreadableError
from eaglectl.publishing.contents import is_bookkeeping
from eaglectl.validation.rules.release import read_sums

# what a file is compared by: its SHA-256, its SHA-256 as the Hub lists it (of files in LFS), git's name of
# it, or the SHA-256 of its header and of each tensor
Digest = Literal["sha256", "lfs-sha256", "git-id", "tensors"]
Read = Callable[[str], bytes]


class Tensors(Struct, frozen=True):
    """SHA-256 of what is before the first tensor of a safetensors file, and of each tensor's bytes."""

    header: str
    tensors: Mapping[str, str]


class ListedFile(Struct, frozen=True):
    """A file as a list states it; None where the list does not. Without any digest, it was never read.

    `others`: further SHA-256 that the list states for the same name. `is_lfs`: the SHA-256 is the Hub's.
    """

    size: int | None
    sha256: str | None = None
    others: tuple[str, ...] = ()
    tensors: Tensors | None = None
    git_id: str | None = None
    is_lfs: bool = False


Lists = Mapping[str, Mapping[str, ListedFile]]


def read_lists(names: frozenset[str], read: Read) -> Lists:
    """SHA256SUMS and eaglectl.json, those of them that are there and list files. Raises UnreadableError."""
    lists = {}
    if SUMS in names:
        lists[SUMS] = _read_sums(read(SUMS))
    if RECORD in names and (files := _read_record(read(RECORD))):
        lists[RECORD] = files
    return lists


def hub_list(source: HubSource) -> tuple[str, Mapping[str, ListedFile]]:
    """The listing of a repository, and its name in messages."""
    sizes = {**source.sizes, **source.below}
    files = {
        name: ListedFile(
            size,
            source.listed.sha256.get(name),
            git_id=source.listed.git_ids.get(name),
            is_lfs=name in source.listed.sha256,
        )
        for name, size in sizes.items()
        if not is_bookkeeping(name)
    }
    return f"{source.label}@{source.commit[:12]}", files


def can_list(list_name: str, name: str) -> bool:
    """Whether a list can name a file: it is written before itself and before what signs it."""
    if list_name == RECORD:
        return name not in (RECORD, SUMS, PROVENANCE, SIGNATURE)
    return list_name != SUMS or name not in (SUMS, PROVENANCE, SIGNATURE)


def _read_sums(data: bytes) -> Mapping[str, ListedFile]:
    sums = read_sums(data.decode("utf-8", "replace"))
    if sums.broken or not sums.digests:
        where = f"line {sums.broken[0]} is no digest and name" if sums.broken else "it is empty"
        raise UnreadableError(f"{SUMS} cannot be used: {where}; fetch it again")
    return {name: ListedFile(None, first, tuple(others)) for name, (first, *others) in sums.digests.items()}


def _read_record(data: bytes) -> Mapping[str, ListedFile] | None:
    """The files that were published; of what was not, those that `convert` wrote."""
    try:
        record: Any = parse_json(RECORD, data)
        files = record.get("published", record.get("output", {})).get("files")
        if files is None:
            return None
        if not files:
            raise ValueError("a list of no files")
        return {str(name): _recorded(file) for name, file in files.items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise UnreadableError(
            f"{RECORD} cannot be used: it is not as eaglectl writes it; fetch it again"
        ) from None


def _recorded(file: Mapping[str, Any]) -> ListedFile:
    if "tensors" in file:
        tensors = {str(name): str(digest) for name, digest in file["tensors"].items()}
        return ListedFile(int(file["size"]), tensors=Tensors(str(file["header"]), tensors))
    digest = file["sha256"]
    return ListedFile(int(file["size"]), None if digest is None else str(digest))
