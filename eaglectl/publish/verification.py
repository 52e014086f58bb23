"""A folder or a repository compared with the lists that state its digests.

These are SHA256SUMS, eaglectl.json, and the listing of a repository on the Hub. Every file below the folder
is listed, or is a difference.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace as replace_fields
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.base import Result
from eaglectl.errors import UnreadableError
from eaglectl.files.digests import (
    ALGORITHMS,
    HEADER_KEY,
    Algorithm,
    Digests,
    RangeDigests,
    tensor_ranges,
)
from eaglectl.files.files import open_regular
from eaglectl.files.header import header_length, parse_header, parse_json
from eaglectl.files.hub import HubSource
from eaglectl.files.hub_cache import blocks_of, has_digest, is_blob
from eaglectl.files.layout import RECORD, SIGNATURE, SUMS
from eaglectl.files.source import FolderSource, read_open
from eaglectl.formats.commands import command
from eaglectl.judge.rules.release import read_sums
from eaglectl.progress import ByteCounter, OnProgress
from eaglectl.text import listed
from eaglectl.verdicts import FileState, VerifyVerdict

# .gitattributes is written by the Hub when a repository is created, and `hf download` brings it. The Hub's
# client keeps the state of a download in .cache/huggingface, under these names only: no loader reads them.
# A clone's .git is no such thing: git runs what its config and hooks name.
BOOKKEEPING = re.compile(
    r"\.gitattributes|\.cache/huggingface/(\.gitignore|CACHEDIR\.TAG"
    r"|trees/[0-9a-f]{40,64}\.json|(download|upload)/(.+/)?[^/]+\.(metadata|lock|incomplete))"
)
# the files that a list cannot name: itself, and what is written after it
AFTER = {RECORD: (RECORD, SUMS, SIGNATURE), SUMS: (SUMS, SIGNATURE)}
WORST_FIRST = (FileState.DIFFERS, FileState.NOT_LOOKED, FileState.SAME)

# what a file is compared by: its SHA-256, its SHA-256 as the Hub lists it (of files in LFS), git's name of
# it, or the digests of its header and of each tensor
DigestKind = Literal["sha256", "lfs-sha256", "git-id", "tensors"]


class StatedFile(Struct, frozen=True):
    """A file as a list states it: size, and digests of the kind; None where the list does not state it.

    `digests` has the one of the file under "", or, of the kind "tensors", those of the header and of each
    tensor, which `algorithm` made. No file is as a list says that has more than one digest of it.
    """

    size: int | None = None
    kind: DigestKind | None = None
    digests: Mapping[str, str] = {}
    algorithm: Algorithm = "sha256"


Lists = dict[str, Mapping[str, StatedFile]]


class CheckedFile(Struct, frozen=True):
    """A file, whether it is as `lists` state it, how it differs, and what it was compared by.

    `tensors` are those that differ, where the file was compared by tensors; `compared` is how many were.
    """

    name: str
    judgement: FileState
    lists: tuple[str, ...] = ()
    how: str = ""
    by: tuple[DigestKind, ...] = ()
    tensors: tuple[str, ...] = ()
    compared: int = 0


class Evidence(Struct, frozen=True):
    """A file that speaks for the others, what it proves here, and what it does not."""

    name: str
    proves: str
    leaves_open: str


class Verification(Result, frozen=True):
    """Every file that is listed or there; `others` are what git and the Hub's client keep for themselves.

    `has_signature`: there is a model.sig, which is not looked into.
    """

    folder: str
    lists: tuple[str, ...]
    files: tuple[CheckedFile, ...]
    others: tuple[str, ...]
    has_signature: bool = False

    def __fspath__(self) -> str:
        return self.folder

    @property
    def verdict(self) -> VerifyVerdict:
        """Whether all is as published; COULD_NOT_LOOK: nothing differs, and not all could be compared."""
        states = {file.judgement for file in self.files}
        if states - {FileState.SAME, FileState.NOT_LOOKED}:
            return VerifyVerdict.DIFFERS
        return VerifyVerdict.COULD_NOT_LOOK if FileState.NOT_LOOKED in states else VerifyVerdict.EQUAL

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What the lists prove: nothing where a file differs, or was not looked at."""
        if not self.lists or self.verdict != VerifyVerdict.EQUAL:
            return ()
        return (
            Evidence(
                " and ".join(self.lists),
                "no file was lost, added or damaged since the lists were written",
                "who wrote the lists: whoever can change the files can change them too",
            ),
        )


class FolderFiles:
    """The files below a folder; `threads` hash them.

    `irregular` are links, pipes and devices, each with what it is; `bookkeeping` is what no list names. Links
    are not followed. Raises UnreadableError for a folder that cannot be listed.
    """

    def __init__(self, source: FolderSource, threads: Digests) -> None:
        self.source, self.threads = source, threads
        self.started: dict[str, RangeDigests] = {}
        self.names: set[str] = set()
        self.bookkeeping: set[str] = set()
        self.irregular: dict[str, str] = {}
        for folder, folders, files in os.walk(source.root, onerror=self._refuse):
            for path in sorted(Path(folder, name) for name in (*folders, *files)):
                self._add(path)

    def _refuse(self, error: OSError) -> None:
        where = error.filename or self.source.root
        raise UnreadableError(f"{where}: {error.strerror}; what is in it cannot be compared") from None

    def _add(self, path: Path) -> None:
        name = path.relative_to(self.source.root).as_posix()
        if path.is_symlink():
            target = Path(os.path.realpath(path))
            if target.is_file() and is_blob(self.source.root.resolve(), target):  # the Hub client's own
                self.names.add(name)
            else:
                self.irregular[name] = "is a symbolic link; a published drafter has none"
        elif path.is_file():
            (self.bookkeeping if BOOKKEEPING.fullmatch(name) else self.names).add(name)
        elif not path.is_dir():
            self.irregular[name] = "is a pipe, a socket or a device, and no file"

    def start(self, lists: Lists) -> None:
        """Have the threads begin with the SHA-256 of the files that `lists` state it of."""
        stated = [(name, file.kind) for files in lists.values() for name, file in files.items()]
        for name in self.names & {name for name, kind in stated if kind in ("sha256", "lfs-sha256")}:
            with open_regular(self.source.path(name)) as file:
                whole = {"": (0, os.fstat(file.fileno()).st_size)}
                self.started[name] = self.threads.of_ranges(name, file.fileno(), whole, "sha256")

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return self.source.size(name)

    def read(self, name: str) -> bytes:
        """A small file, as it is: what it should be is for the lists to state."""
        with open_regular(self.source.path(name)) as file:
            return read_open(self.source.place, name, file.fileno(), 0, None)

    def digests(self, name: str, stated: StatedFile) -> tuple[DigestKind, Mapping[str, str]]:
        """The digests of a file, of the kind that is stated.

        Raises UnreadableError for one that is to be compared by tensors and is no safetensors file.
        """
        if stated.kind in ("sha256", "lfs-sha256"):
            return stated.kind, self.started[name].result()
        with open_regular(self.source.path(name)) as file:
            size = os.fstat(file.fileno()).st_size
            if stated.kind == "git-id":
                return "git-id", stated.digests if has_digest(
                    stated.digests[""], size, blocks_of(file.fileno())
                ) else {}
            length = header_length(name, file.read(8), size)
            ranges = {
                **tensor_ranges(parse_header(name, file.read(length), size).tensors, name),
                HEADER_KEY: (0, 8 + length),
            }
            return "tensors", self.threads.of_ranges(name, file.fileno(), ranges, stated.algorithm).result()


class HubFiles:
    """The files of a repository at one commit; only files outside of LFS are downloaded, to be hashed."""

    def __init__(self, source: HubSource) -> None:
        sizes = {**source.sizes, **source.below}
        self.source = replace_fields(source, sizes=sizes)
        self.bookkeeping = {name for name in sizes if BOOKKEEPING.fullmatch(name)}
        self.names = set(sizes) - self.bookkeeping
        self.irregular: dict[str, str] = {}
        # both raise UnreadableError for a file that is not as the Hub lists it
        self.size, self.read = self.source.size, self.source.read

    def digests(self, name: str, _: StatedFile) -> tuple[DigestKind, Mapping[str, str]]:
        """The Hub's SHA-256 of a file in LFS, else that of what it sends."""
        if name in self.source.listed.sha256:
            return "lfs-sha256", {"": self.source.listed.sha256[name]}
        return "sha256", {"": hashlib.sha256(self.read(name)).hexdigest()}


def verify_folder(
    source: FolderSource,
    shown: str,
    *,
    needs_record: bool = False,
    against: HubSource | None = None,
    on_progress: OnProgress | None = None,
) -> Verification:
    """Hash every file that is listed, and compare; what no list names is a difference.

    `needs_record`: eaglectl.json must be there and list the files; `against`: a repository whose listing they
    must be as. Raises UnreadableError where no list is there or required, or a list or file cannot be read.
    """
    counter = ByteCounter(on_progress, "hashing", 0)
    with Digests(counter.add) as threads:
        files = FolderFiles(source, threads)
        lists = read_lists(files)
        if against is not None:
            lists[f"{against.label}@{against.commit[:12]}"] = _read_listing(against)
        counter.total = sum(files.size(name) for name in files.names & {*chain(*lists.values())})
        files.start(lists)
        return _verify(files, shown, lists, needs_record=needs_record)


def verify_repository(source: HubSource, shown: str, *, needs_record: bool = False) -> Verification:
    """Compare the listing of a repository with the lists in it.

    Files in LFS are not downloaded: the Hub lists their SHA-256. Raises UnreadableError.
    """
    files = HubFiles(source)
    return _verify(files, shown, read_lists(files), needs_record=needs_record)


def read_lists(files: FolderFiles | HubFiles) -> Lists:
    """SHA256SUMS and eaglectl.json, those of them that are there and list files. Raises UnreadableError."""
    readers = {SUMS: _read_sums, RECORD: _read_record}
    stated = {name: read(files.read(name)) for name, read in readers.items() if name in files.names}
    return {name: entries for name, entries in stated.items() if entries}


def _read_sums(data: bytes) -> Mapping[str, StatedFile]:
    sums = read_sums(data.decode("utf-8", "replace"))
    if sums.broken or not sums.digests:
        where = f"line {sums.broken[0]} is no digest and name" if sums.broken else "it is empty"
        raise UnreadableError(f"{SUMS} cannot be used: {where}; fetch it again")
    return {
        name: StatedFile(kind="sha256", digests={"": first, **dict.fromkeys(others, "")})
        for name, (first, *others) in sums.digests.items()
    }


def _read_record(data: bytes) -> Mapping[str, StatedFile]:
    """The files that were published; of what was not, those that `convert` wrote."""
    try:
        record: Any = parse_json(RECORD, data)
        files = record.get("published", record.get("output", {})).get("files")
        if files is None:
            return {}
        if not files:
            raise ValueError("a list of no files")
        return {str(name): _recorded(file) for name, file in files.items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise UnreadableError(
            f"{RECORD} cannot be used: it is not as eaglectl writes it; fetch it again"
        ) from None


def _recorded(file: Mapping[str, Any]) -> StatedFile:
    size = int(file["size"])
    if "tensors" in file:
        tensors = {str(name): str(digest) for name, digest in file["tensors"].items()}
        if (algorithm := file.get("digest", "sha256")) not in ALGORITHMS:
            raise ValueError(algorithm)
        return StatedFile(size, "tensors", {**tensors, HEADER_KEY: str(file["header"])}, algorithm)
    digest = file["sha256"]
    return StatedFile(size) if digest is None else StatedFile(size, "sha256", {"": str(digest)})


def _read_listing(source: HubSource) -> Mapping[str, StatedFile]:
    kinds: dict[DigestKind, Mapping[str, str]] = {
        "lfs-sha256": source.listed.sha256,
        "git-id": source.listed.git_ids,
    }
    stated = {}
    for name, size in {**source.sizes, **source.below}.items():
        if not BOOKKEEPING.fullmatch(name):
            kind = next((kind for kind, digests in kinds.items() if name in digests), None)
            stated[name] = StatedFile(size, kind, {"": kinds[kind][name]} if kind else {})
    return stated


def _verify(files: FolderFiles | HubFiles, shown: str, lists: Lists, *, needs_record: bool) -> Verification:
    if not lists and not needs_record:
        advice = ""
        if isinstance(files, FolderFiles):
            advice = (
                f" `{command('verify', shown)}` with --against and its repository on the Hub"
                " (org/name@revision) compares it with what the Hub lists."
            )
        raise UnreadableError(
            f"{shown} has no {SUMS} and no {RECORD} that lists its files: there is nothing to compare"
            f" with.{advice}"
        )
    names = dict.fromkeys(chain(*lists.values()))
    faults = []
    if needs_record and RECORD not in lists:
        how = "is required, and is not there or lists no files; fetch it again from who published the drafter"
        faults.append(CheckedFile(RECORD, FileState.MISSING, (), how))
        names.pop(RECORD, None)
    checked = [_check_file(files, name, lists) for name in names]
    for name in sorted(files.names):  # those that are not in every list that can name them
        silent = [each for each in lists if name not in lists[each] and name not in AFTER.get(each, ())]
        if silent:
            stating = tuple(each for each in lists if name in lists[each])
            how = f"is not in {' and not in '.join(silent)}: it was added, or the list is of other files"
            faults.append(CheckedFile(name, FileState.UNLISTED, stating, how))
    irregular = sorted(set(files.irregular) - set(names))
    faults += [CheckedFile(name, FileState.UNLISTED, (), files.irregular[name]) for name in irregular]
    return Verification(
        shown, tuple(lists), (*checked, *faults), tuple(sorted(files.bookkeeping)), SIGNATURE in files.names
    )


def _check_file(files: FolderFiles | HubFiles, name: str, lists: Lists) -> CheckedFile:
    stated = {each: lists[each][name] for each in lists if name in lists[each]}
    if name in files.irregular:
        return CheckedFile(name, FileState.DIFFERS, tuple(stated), files.irregular[name])
    if name not in files.names:
        return CheckedFile(name, FileState.MISSING, tuple(stated), "is listed and is not there")
    results = [_compare(files, name, list_name, file) for list_name, file in stated.items()]
    by = tuple(dict.fromkeys(kind for result in results for kind in result.by))
    if by:  # a list without a digest is settled by another one
        results = [result for result in results if result.judgement != FileState.NOT_LOOKED]
    return replace(
        min(results, key=lambda result: WORST_FIRST.index(result.judgement)), lists=tuple(stated), by=by
    )


def _compare(files: FolderFiles | HubFiles, name: str, list_name: str, stated: StatedFile) -> CheckedFile:
    if stated.size is not None and stated.size != (size := files.size(name)):
        how = f"has {size} bytes and {list_name} says {stated.size}"
        return CheckedFile(name, FileState.DIFFERS, how=how)
    if gap := _gap(files, list_name, stated):
        return CheckedFile(name, FileState.NOT_LOOKED, how=gap)
    try:
        kind, digests = files.digests(name, stated)
    except UnreadableError as error:
        if stated.kind != "tensors":
            raise
        return CheckedFile(name, FileState.DIFFERS, how=f"has no header that can be read: {error}")
    differing = [
        key for key in sorted({*stated.digests, *digests}) if stated.digests.get(key) != digests.get(key)
    ]
    tensors = tuple(key for key in differing if key != HEADER_KEY) if kind == "tensors" else ()
    compared = len(stated.digests) - 1
    if not differing:
        return CheckedFile(name, FileState.SAME, by=(kind,), compared=compared)
    how = _difference(list_name, stated, kind, digests, tensors)
    return CheckedFile(name, FileState.DIFFERS, (), how, (kind,), tensors, compared)


def _difference(
    list_name: str, stated: StatedFile, kind: DigestKind, digests: Mapping[str, str], tensors: Sequence[str]
) -> str:
    """How a file differs from what a list states of it; `tensors` are those with other bytes."""
    if tensors:
        return f"has other bytes than {list_name} says in {listed(tensors)}"
    if kind == "tensors":
        return (
            f"has another header than {list_name} says: its metadata, or dtypes, shapes and order of tensors"
        )
    if kind == "git-id":
        return f"has not the git id {stated.digests[''][:12]}... that {list_name} says"
    if len(stated.digests) > 1:
        return f"has {len(stated.digests)} digests in {list_name}, and a file has one"
    return f"has SHA-256 {digests[''][:12]}... and {list_name} says {stated.digests[''][:12]}..."


def _gap(files: FolderFiles | HubFiles, list_name: str, stated: StatedFile) -> str:
    """Why a file cannot be compared with what a list states of it; "" where it can."""
    if stated.kind == "tensors" and isinstance(files, HubFiles):
        return (
            f"was not downloaded, and {list_name} has digests of its tensors alone: download the repository,"
            " and verify that folder"
        )
    if stated.kind is not None:
        return ""
    gap = f"has its size, and {list_name} has no digest of it"
    if list_name == RECORD:
        gap += ": it was linked by `convert --link`, which reads no data; convert without --link"
    return gap
