"""What `upload` will do: the files it sends, each hashed once, where to, and what the repository has of them.

Those bytes are judged, searched for secrets (keys, the token in use, home folders) and published, or it is an
error.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from io import BufferedReader
from os import fstat
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.files.files import Stamp, naming
from eaglectl.files.layout import CARD, NOT_WEIGHTS, RECORD, SIGNATURE, SUMS
from eaglectl.files.source import FolderSource, read_open
from eaglectl.judge.judgement import Report
from eaglectl.judge.rules.files import CODE, KNOWN, PICKLE_SUFFIXES
from eaglectl.judge.rules.release import PATH, first_home
from eaglectl.judge.secrets import scan_file, scan_text
from eaglectl.progress import ByteCounter, OnProgress
from eaglectl.verdicts import FileChange

if TYPE_CHECKING:
    from eaglectl.comparison.comparison import Comparison

IMAGES = (".png", ".jpg", ".safetensors")
# rules of validate check paths in the first; the others hold words of a vocabulary
NOT_TEXT = ("config.json", "tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", "tiktoken.model")
# files up to this size are kept in memory once they are hashed; what the Hub keeps outside of LFS is smaller
MAX_KEPT = 16 << 20
BLOCK = 8 << 20


@dataclass(frozen=True, slots=True)
class UploadFile:
    """A file with its size and digests at the time it was hashed.

    `git_sha1` is git's name of the file, empty where it is too large to be kept outside of LFS. `stamp` is
    of the file on disk. `is_written`: eaglectl wrote it, and the folder has another or none.
    """

    name: str
    size: int
    sha256: str
    git_sha1: str
    content: bytes | Path = field(repr=False)
    stamp: Stamp | None = None
    is_written: bool = False


class LeftOut(Struct, frozen=True):
    """A file or folder that is not sent, and why."""

    name: str
    why: str


def written_file(name: str, data: bytes) -> UploadFile:
    """A file that eaglectl writes."""
    return UploadFile(
        name, len(data), hashlib.sha256(data).hexdigest(), _git_sha1(data), data, is_written=True
    )


def _reason_left_out(name: str, allowed: Sequence[str]) -> str:
    reasons = {
        "a trainer's state": NOT_WEIGHTS.match(name) is not None,
        "a pickle": name.endswith(PICKLE_SUFFIXES),
        "code": name.endswith(CODE),
        "a hidden file": name.startswith("."),
        "no file that a drafter's folder has a use for": not any(
            fnmatchcase(name, pattern) for pattern in (*KNOWN, *allowed)
        ),
    }
    return next((reason for reason, is_so in reasons.items() if is_so), "")


def _read_file(source: FolderSource, name: str, path: Path, on_bytes: Callable[[int], None]) -> UploadFile:
    source.check_cached([name])
    digest, size, kept = hashlib.sha256(), 0, bytearray()
    with source.open_file(name) as file, naming(f"{name} in {source.place}"):
        stamp = Stamp.of(fstat(file.fileno()))
        is_kept = stamp.size <= MAX_KEPT
        while block := file.read(BLOCK):
            digest.update(block)
            size += len(block)
            if is_kept:
                kept += block
            on_bytes(len(block))
    if stamp_of(path) != stamp or size != stamp.size:
        raise RefusedError(
            f"{name} changed while it was hashed; run the command again when nothing writes to the folder"
        )
    if is_kept:
        return UploadFile(name, size, digest.hexdigest(), _git_sha1(kept), bytes(kept), stamp)
    return UploadFile(name, size, digest.hexdigest(), "", path, stamp)


def stamp_of(path: Path) -> Stamp | None:
    """The stamp of the file that has this name now; None where there is none."""
    try:
        return Stamp.of(path.stat())
    except OSError:
        return None


def _git_sha1(data: bytes | bytearray) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class FrozenSource(FolderSource):
    """A folder with the names that it had and the files that were hashed, and no others.

    Small files are read from memory. The others are read from the disk, and only while they are the file that
    was hashed: reading raises RefusedError otherwise.
    """

    listing: tuple[str, ...] = ()
    hashed: Mapping[str, UploadFile] = field(default_factory=dict, compare=False)

    def published(self, files: Sequence[UploadFile]) -> "FrozenSource":
        """What a download of `files` will be: with those that eaglectl wrote, without those left out."""
        by_name = {file.name: file for file in files}
        return replace(self, listing=tuple(sorted(by_name)), hashed=by_name)

    def names(self) -> tuple[str, ...]:
        """The files that the folder had."""
        return self.listing

    def size(self, name: str) -> int:
        """Bytes of a file when it was hashed."""
        return self.hashed[name].size if name in self.hashed else FolderSource.size(self, name)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file."""
        content = self.hashed[name].content if name in self.hashed else None
        if isinstance(content, bytes) and (stop is None or stop <= len(content)):
            return content[start:stop]
        with self.open_file(name) as file:
            return read_open(self.place, name, file.fileno(), start, stop)

    def open_file(self, name: str, *, is_any_size: bool = False) -> BufferedReader:
        """A file, open for reading. Raises RefusedError where it is not the one that was hashed."""
        file = FolderSource.open_file(self, name, is_any_size=is_any_size)
        if name in self.hashed and Stamp.of(fstat(file.fileno())) != self.hashed[name].stamp:
            file.close()
            raise changed(name)
        return file

    def check_unchanged(self) -> None:
        """Raise RefusedError where a file was changed, added or removed after the files were hashed."""
        try:
            names = set(FolderSource.names(self))
        except EaglectlError as error:
            raise RefusedError(
                f"{error}; the folder was there when it was hashed, and nothing was committed"
            ) from None
        for name in sorted(names ^ set(self.listing)):
            raise changed(name, "was added" if name in names else "was removed")
        for name, file in self.hashed.items():
            if file.stamp != stamp_of(self.root / name):
                raise changed(name)


def freeze(
    source: FolderSource, allowed: Sequence[str] = (), on_progress: OnProgress | None = None
) -> tuple[FrozenSource, tuple[UploadFile, ...], tuple[LeftOut, ...]]:
    """The folder as it is, every file of it that may be sent, hashed, and the others.

    `allowed` adds patterns of names. Raises RefusedError for a link that leaves the folder, UnreadableError
    for a file that cannot be read.
    """
    names = source.names()
    reasons = {name: _reason_left_out(name, allowed) for name in names}
    left_out = [LeftOut(name, why) for name, why in reasons.items() if why]
    sent = [name for name, why in reasons.items() if not why]
    try:
        paths = {name: source.path(name) for name in sent}
    except UnreadableError as error:
        raise RefusedError(str(error), error.topic, error.where) from None
    folders = sorted(entry.name for entry in source.root.iterdir() if entry.is_dir())
    left_out += [LeftOut(f"{name}/", "a folder; a drafter's files lie beside each other") for name in folders]
    counter = ByteCounter(on_progress, "hashing", sum(map(source.size, sent)))
    files = tuple(_read_file(source, name, path, counter.add) for name, path in paths.items())
    frozen = FrozenSource(source.root, source.only, listing=names, hashed={file.name: file for file in files})
    return frozen, files, tuple(left_out)


def changed(name: str, how: str = "changed") -> RefusedError:
    """The error for a file that is not as it was when the files were hashed."""
    return RefusedError(
        f"{name} {how} after the files were hashed: what was judged is not what lies there now, and nothing"
        " was committed. Run the command again when nothing writes to the folder"
    )


def check_leaks(
    frozen: FrozenSource, files: Sequence[UploadFile], metadata: Mapping[str, str], token: str | None
) -> None:
    """Raise RefusedError where a file, or the metadata of the weights, holds a secret or a local path."""
    published = frozen.published(files)
    leaks = set(_metadata_leaks(metadata, token))
    for file in files:
        read = partial(published.read, file.name)
        for leak in scan_file(file.name, file.size, read, token):
            leaks.add(f"{file.name} holds {leak.kind} ({leak.place})")
        is_text = file.name not in NOT_TEXT and not file.name.endswith(IMAGES)
        if is_text and (home := first_home(read(0, file.size))):
            leaks.add(f"{file.name} names {home}, somebody's home folder")
    if leaks:
        more = f" and {len(leaks) - 5} more" if len(leaks) > 5 else ""
        raise RefusedError(
            f"{'; '.join(sorted(leaks)[:5])}{more}. Remove it and run the command again; a key that was shown"
            " to anybody is to be withdrawn"
        )


def _metadata_leaks(metadata: Mapping[str, str], token: str | None) -> Iterator[str]:
    for leak in scan_text("\n".join((*metadata, *metadata.values())), token):
        yield f"the metadata of the weights holds {leak.kind}"
    for key, value in metadata.items():
        if PATH.fullmatch(value) or first_home(value.encode("utf-8", "replace")):
            yield f"the metadata of the weights says {key}: a path of one machine"


def check_message(message: str | None, token: str | None) -> None:
    """Raise RefusedError where a commit's message holds a secret, UsageError where it is no message."""
    if message is None:
        return
    if not message.strip() or any(not line.isprintable() for line in message.splitlines()):
        raise UsageError(
            "--message: a text of printable characters was expected, its first line as the title"
        )
    for leak in scan_text(message, token):
        raise RefusedError(f"--message holds {leak.kind}; leave it out, and withdraw a key that was shown")


class Changes(Struct, frozen=True):
    """The drafter of the repository (A) and of the folder (B).

    `comparison` None: `reason` states why nothing was compared. `weights` are weight files that are new or
    changed; their values are not compared, as the repository's are not downloaded: `command`, a `diff`, does.
    """

    comparison: "Comparison | None"
    reason: str
    weights: tuple[str, ...]
    command: str


class RemoteFile(Struct, frozen=True):
    """A file in the repository: `sha256` for files in LFS, git's sha1 for the others."""

    size: int
    sha256: str | None
    git_sha1: str

    def difference(self, file: UploadFile) -> str:
        """How this differs from the file that is sent; "" where both are the same, byte for byte."""
        if self.size != file.size:
            return f"{self.size} bytes there, {file.size} here"
        kind, there, here = "git sha1", self.git_sha1, file.git_sha1
        if self.sha256 is not None:
            kind, there, here = "SHA-256", self.sha256, file.sha256
        return "" if there == here else f"{kind} {there[:12]}... there, {here[:12]}... here"


class RepositoryState(Struct, frozen=True):
    """A repository when it was read: head of the revision, files, tags, and the heads of pull requests."""

    head: str
    is_private: bool
    files: Mapping[str, RemoteFile]
    tags: Mapping[str, str] = {}
    pulls: Mapping[str, str] = {}


class UploadPlan(Struct, frozen=True):
    """What `upload` will do.

    `state` None: the repository does not exist, or (`is_seen` False) could not be read. `proposed` is an open
    pull request that holds all files already. `target` states which target the drafter was judged with, or
    why with none; `changes` how the drafter differs from that of the repository, where it has files;
    `doubts` what is open of how it was trained; `report` is the verdict on the files. `unseen` states why the
    repository could not be read, where the Hub did not answer.
    """

    repo: str
    revision: str
    files: tuple[UploadFile, ...]
    left_out: tuple[LeftOut, ...]
    state: RepositoryState | None
    is_seen: bool
    is_pull: bool
    is_private: bool
    tag: str | None
    title: str
    description: str
    target: str = ""
    is_target_seen: bool = True
    proposed: str | None = None
    changes: Changes | None = None
    doubts: tuple[str, ...] = ()
    report: Report | None = None
    unseen: str = ""

    @property
    def card(self) -> str:
        """The text of the card that is published."""
        content = next(file.content for file in self.files if file.name == CARD)
        return (content if isinstance(content, bytes) else content.read_bytes()).decode()

    def change(self, file: UploadFile) -> FileChange:
        """How the commit changes a file in the repository."""
        if self.state is None:
            return FileChange.NEW if self.is_seen else FileChange.UNKNOWN
        remote = self.state.files.get(file.name)
        if remote is None:
            return FileChange.NEW
        return FileChange.CHANGED if remote.difference(file) else FileChange.UNCHANGED

    @property
    def changed(self) -> tuple[UploadFile, ...]:
        """The files that the commit holds."""
        return tuple(file for file in self.files if self.change(file) != FileChange.UNCHANGED)

    @property
    def is_needed(self) -> bool:
        """Whether the repository lacks any of it: a file, or the tag."""
        is_there = self.proposed is not None or not self.changed
        is_tagged = self.tag is None or (self.state is not None and self.tag in self.state.tags)
        return not (is_there and is_tagged)

    @property
    def extra(self) -> tuple[str, ...]:
        """Files that only the repository has; they stay."""
        if self.state is None:
            return ()
        names = {file.name for file in self.files} | {".gitattributes"}
        return tuple(sorted(set(self.state.files) - names))

    @property
    def nbytes(self) -> int:
        """Bytes of the files that the commit holds."""
        return sum(file.size for file in self.changed)


def check_plan(plan: UploadPlan) -> None:
    """Raise RefusedError for what would fail only after the commit."""
    if plan.tag and plan.is_pull and plan.changed:
        raise RefusedError(
            "a pull request is not a release yet, and a tag is never moved: leave --tag out, merge, and"
            " run the"
            f" command with --tag {plan.tag} again; or give --direct"
        )
    changed = {file.name for file in plan.changed}
    # a signature that stays in the repository; of what upload writes itself it signs none
    is_kept = plan.state is not None and SIGNATURE in plan.state.files and SIGNATURE not in changed
    if is_kept and changed - ({CARD, RECORD, SUMS} if SIGNATURE not in plan.extra else set()):
        raise RefusedError(
            f"{plan.repo} has a {SIGNATURE} over the files before, which these would break: sign them with"
            f" `model_signing sign`, or first run `hf repos delete-files {plan.repo} {SIGNATURE}`"
        )
    if plan.tag and plan.state:
        commit = plan.state.tags.get(plan.tag)
        if commit is not None and (plan.changed or commit != plan.state.head):
            raise RefusedError(moved_tag(plan.repo, plan.tag, commit))


def moved_tag(repo: str, tag: str, commit: str) -> str:
    """The message for a tag that is at another commit."""
    return (
        f"the tag {tag} of {repo} is at commit {commit[:12]} already, and a tag is never moved; give another"
        " --tag"
    )
