"""Comparing files with lists: by SHA-256, git's id or digests of tensors.

`verify`, and every command that uses eaglectl.json as evidence, compare with these functions.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from blake3 import blake3
from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert

from eaglectl.errors import UnreadableError
from eaglectl.files.files import Stamp, open_regular, sha256
from eaglectl.files.header import header_length, parse_header, parse_json
from eaglectl.files.layout import RECORD
from eaglectl.files.source import FolderSource, blocks_of, has_digest
from eaglectl.files.writer import HEADER_KEY, Algorithm, Digests, tensor_ranges
from eaglectl.text import listed
from eaglectl.verdicts import FileState

if TYPE_CHECKING:
    from eaglectl.files.hub import HubSource

# the digest that a comparison uses: SHA-256, the SHA-256 that the Hub lists (of files in LFS), git's id, or
# the digests of the header and of each tensor
DigestKind = Literal["sha256", "lfs-sha256", "git-id", "tensors"]


class StatedFile(Struct, frozen=True):
    """An entry of a list: size, and one kind of digests; None if the list does not state it.

    `sha256` has several digests, separated by a blank, if a list contradicts itself: no file matches them.
    `is_lfs`: the Hub lists it. `digest` is the algorithm of `header` and `tensors`.
    """

    size: int | None = None
    sha256: str | None = None
    is_lfs: bool = False
    git_id: str | None = None
    tensors: dict[str, str] | None = None
    header: str = ""
    digest: Algorithm = "sha256"


class _FileList(Struct, frozen=True):
    files: Annotated[dict[str, StatedFile], Meta(min_length=1)] | None = None


class _Record(Struct, frozen=True):
    """The lists in eaglectl.json: the published files, otherwise those that `convert` wrote."""

    output: _FileList = _FileList()
    published: _FileList | UnsetType = UNSET


class CheckedFile(Struct, frozen=True):
    """The result of comparing a file with `lists`: how it differs, and the kinds of digests (`by`).

    `tensors` are the differing ones, if the file was compared by tensors.
    """

    name: str
    judgement: FileState
    lists: tuple[str, ...] = ()
    how: str = ""
    by: tuple[DigestKind, ...] = ()
    tensors: tuple[str, ...] = ()


def read_record(data: bytes) -> Mapping[str, StatedFile]:
    """Return the files that eaglectl.json lists; empty if it lists none. Raises UnreadableError."""
    try:
        record = convert(parse_json(RECORD, data), _Record)
        files = (record.published or record.output).files or {}
        if any(
            file.size is None or file.git_id or file.is_lfs or file.sha256 == "" for file in files.values()
        ):
            raise ValidationError
    except (ValidationError, OverflowError, RecursionError):
        raise UnreadableError(
            f"{RECORD} cannot be used: it has an unexpected form; download it again"
        ) from None
    return files


def compare_file(
    source: "FolderSource | HubSource",
    threads: Digests,
    hashed: Mapping[str, tuple[DigestKind, Callable[[], str]]],
    name: str,
    list_name: str,
    stated: StatedFile,
) -> CheckedFile:
    """Compare a file with its entry in a list; `hashed` has its SHA-256. Raises UnreadableError."""
    size, how = source.size(name), ""
    path = source.path(name) if isinstance(source, FolderSource) else None
    by: tuple[DigestKind, ...] = ()
    if stated.size not in (None, size):
        how = f"has {size} bytes and {list_name} says {stated.size}"
    elif stated.sha256:
        kind, digest = hashed[name][0], hashed[name][1]()
        by = ("lfs-sha256" if stated.is_lfs else kind,)
        if digest != stated.sha256:
            digests = " and ".join(f"{part[:12]}..." for part in stated.sha256.split())
            how = f"has SHA-256 {digest[:12]}... and {list_name} says {digests}"
    elif path and stated.git_id:
        by = ("git-id",)
        with open_regular(path) as file:
            if not has_digest(stated.git_id, size, blocks_of(file.fileno())):
                how = f"does not have the git id {stated.git_id[:12]}... in {list_name}"
    elif path and stated.tensors is not None:
        return _compare_tensors(path, threads, name, list_name, stated)
    else:
        how = f"has the listed size, and {list_name} has no digest of it"
        if stated.tensors is not None:
            how = (
                f"was not downloaded, and {list_name} has only digests of its tensors: download the"
                " repository, and verify that folder"
            )
        elif list_name == RECORD:
            how += ": it was linked by `convert --link`, which reads no data; convert without --link"
        return CheckedFile(name, FileState.NOT_LOOKED, how=how)
    return CheckedFile(name, FileState.DIFFERS if how else FileState.SAME, how=how, by=by)


def start_sha256(
    source: "FolderSource | HubSource", threads: Digests, name: str
) -> tuple[DigestKind, Callable[[], str]]:
    """Start the SHA-256 of a file; return its kind and a function that waits for it."""
    if not isinstance(source, FolderSource):
        if digest := source.listed.sha256.get(name):
            return "lfs-sha256", lambda: digest
        return "sha256", lambda: hashlib.sha256(source.read(name)).hexdigest()
    with open_regular(source.path(name)) as file:
        whole = {"": (0, os.fstat(file.fileno()).st_size)}
        started = threads.of_ranges(name, file.fileno(), whole, "sha256")
    return "sha256", lambda: started.result()[""]


def _compare_tensors(
    path: Path, threads: Digests, name: str, list_name: str, listed_file: StatedFile
) -> CheckedFile:
    # compare a file tensor by tensor with its digests in a record, to name those that differ
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = header_length(name, file.read(8), size)
            ranges = tensor_ranges(parse_header(name, file.read(length), size).tensors, name)
            ranges[HEADER_KEY] = (0, 8 + length)
            actual = threads.of_ranges(name, file.fileno(), ranges, listed_file.digest).result()
    except UnreadableError as error:
        return CheckedFile(name, FileState.DIFFERS, how=f"has an unreadable header: {error}")
    digests = {**(listed_file.tensors or {}), HEADER_KEY: listed_file.header}
    keys = {key for key in {*digests, *actual} if digests.get(key) != actual.get(key)}
    tensors = tuple(sorted(keys - {HEADER_KEY}))
    how = f"has another header than in {list_name}: its metadata, or dtypes, shapes and order of tensors"
    if tensors:
        how = f"has other bytes than in {list_name}, in {listed(tensors)}"
    if not keys:
        return CheckedFile(name, FileState.SAME, by=("tensors",))
    return CheckedFile(name, FileState.DIFFERS, how=how, by=("tensors",), tensors=tensors)


# whether a file is as a record states it, by its path and state, and the digest of the record
COMPARED: dict[tuple[Path, Stamp, str] | None, FileState] = {}


def compare_record(
    source: "FolderSource | HubSource",
    beside: Sequence[str],
    weights: Mapping[str, int],
    *,
    headers_only: bool = False,
) -> tuple[str, str]:
    """Compare the files with eaglectl.json.

    Returns why it is no evidence of them, "" if they match; and the only part of the weights that was
    compared ("headers" or "sizes"), "" if all bytes were. `beside` are files beside the weights, `weights`
    the ends of their headers. With `headers_only`, only sizes and headers are compared of weights without a
    SHA-256 on the Hub. Raises UnreadableError for a file that cannot be read.
    """
    raw, unread = source.read(RECORD), ""
    try:
        listed_files = read_record(raw)
    except UnreadableError:
        return "has an unexpected form", ""
    digests = {} if isinstance(source, FolderSource) else source.listed.sha256
    for name in (*beside, *weights):
        file = listed_files.get(name, StatedFile())
        if headers_only and name in weights and not (file.sha256 and name in digests):
            algorithm = {"blake3": blake3}.get(file.digest, sha256)
            header = file.header and algorithm(source.read(name, 0, weights[name])).hexdigest()
            is_same = (source.size(name), header) == (file.size, file.header)
            state = FileState.SAME if is_same else FileState.DIFFERS
            unread = "headers" if header and unread != "sizes" else "sizes"
        else:
            state = _state(source, name, file, sha256(raw).hexdigest())
        if name not in listed_files or state == FileState.NOT_LOOKED:
            return f"has no digest of {name}", ""
        if state == FileState.DIFFERS:
            return f"is of another {name}", ""
    return "", unread


def _state(source: "FolderSource | HubSource", name: str, listed_file: StatedFile, record: str) -> FileState:
    # compare a file with eaglectl.json, once for each state of both
    if not isinstance(source, FolderSource) and listed_file.tensors is not None:
        source = source.downloaded()
    path = source.path(name)
    key = None if path is None else (path.resolve(), Stamp.of(path.stat()), record)
    if key in COMPARED:
        return COMPARED[key]
    with Digests() as threads:
        hashed = {name: start_sha256(source, threads, name)} if listed_file.sha256 else {}
        state = compare_file(source, threads, hashed, name, RECORD, listed_file).judgement
    return state if key is None else COMPARED.setdefault(key, state)
