"""A folder or a repository compared with what was published of it: the digests in SHA256SUMS, eaglectl.json,
and in the listing of a repository.

Every file below the folder is listed, or is a difference.
"""

from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.base import Result
from eaglectl.errors import UnreadableError
from eaglectl.files.digests import Digests
from eaglectl.files.hub import HubSource
from eaglectl.files.layout import RECORD, SIGNATURE, SUMS
from eaglectl.files.source import FolderSource
from eaglectl.formats.commands import command
from eaglectl.progress import ByteCounter, OnProgress
from eaglectl.publish.listed import (
    Digest,
    FolderFiles,
    HubFiles,
    ListedFile,
    Lists,
    Tensors,
    VerifiedFiles,
    can_list,
    hub_list,
    read_lists,
)
from eaglectl.text import listed as names_listed
from eaglectl.verdicts import FileState, VerifyVerdict

WORST_FIRST = (FileState.DIFFERS, FileState.NOT_LOOKED, FileState.SAME)


class CheckedFile(Struct, frozen=True):
    """A file, whether it is as `lists` state it, how it differs, and what it was compared by.

    `tensors` are those that differ, where the file was compared by tensors; `compared` is how many were.
    """

    name: str
    judgement: FileState
    lists: tuple[str, ...]
    how: str = ""
    by: tuple[Digest, ...] = ()
    tensors: tuple[str, ...] = ()
    compared: int = 0


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
        of_files = {file.judgement for file in self.files}
        if of_files - {FileState.SAME, FileState.NOT_LOOKED}:
            return VerifyVerdict.DIFFERS
        is_open = FileState.NOT_LOOKED in of_files
        return VerifyVerdict.COULD_NOT_LOOK if is_open else VerifyVerdict.EQUAL


class Expected(Struct, frozen=True):
    """What the caller requires of a folder.

    `needs_record`: eaglectl.json must be there and list the files. `against`: a repository
    whose listing the files must have.
    """

    needs_record: bool = False
    against: HubSource | None = None


def verify_folder(
    source: FolderSource,
    shown: str,
    expected: Expected,
    *,
    on_progress: OnProgress | None = None,
) -> Verification:
    """Hash every file that is listed, and compare; what no list names is a difference.

    Raises UnreadableError where there is no list and none was required, or a list or file cannot be read.
    """
    counter = ByteCounter(on_progress, "hashing", 0)
    with Digests(counter.add) as digests:
        return _verify(FolderFiles(source, digests, counter), shown, expected)


def verify_repository(source: HubSource, shown: str, expected: Expected) -> Verification:
    """Compare the listing of a repository with the lists in it.

    Files in LFS are not downloaded: the Hub lists their SHA-256. Raises UnreadableError.
    """
    return _verify(HubFiles(source), shown, expected)


def _verify(files: VerifiedFiles, shown: str, expected: Expected) -> Verification:
    lists = _lists(files, expected)
    faults = _missing_record(lists, expected)
    if not (lists or faults):
        raise _nothing_stated(shown, is_folder=isinstance(files, FolderFiles))
    listed = dict.fromkeys(name for stated in lists.values() for name in stated)
    if isinstance(files, FolderFiles):
        files.start(sorted(_hashed_whole(lists)), set(listed))
    checked = [_check_file(files, name, lists) for name in listed if name != RECORD or not faults]
    every = (*checked, *faults, *_unlisted(files, lists))
    return Verification(shown, tuple(lists), every, files.bookkeeping, SIGNATURE in files.names)


def _lists(files: VerifiedFiles, expected: Expected) -> Lists:
    """The lists among the files, and the listing of the repository that they must agree with."""
    lists = read_lists(files.names, files.read)
    return lists if expected.against is None else {**lists, **dict([hub_list(expected.against)])}


def _hashed_whole(lists: Lists) -> set[str]:
    """The files that a list states the SHA-256 of."""
    entries = [entry for stated in lists.values() for entry in stated.items()]
    return {name for name, file in entries if file.sha256 is not None}


def _nothing_stated(shown: str, *, is_folder: bool) -> UnreadableError:
    """The error for files that no list names."""
    about = ""
    if is_folder:
        about = (
            f" `{command('verify', shown)}` with --against and its repository on the Hub (org/name@revision)"
            " compares it with what the Hub lists."
        )
    return UnreadableError(
        f"{shown} has no {SUMS} and no {RECORD} that lists its files: there is nothing to compare with."
        f"{about}"
    )


def _missing_record(lists: Lists, expected: Expected) -> list[CheckedFile]:
    if not expected.needs_record or RECORD in lists:
        return []
    how = "is required, and is not there or lists no files; fetch it again from who published the drafter"
    return [CheckedFile(RECORD, FileState.MISSING, (), how)]


def _unlisted(files: VerifiedFiles, lists: Lists) -> list[CheckedFile]:
    """What is there and not in every list that can name it."""
    faults = []
    for name in sorted(files.names):
        silent = [
            list_name
            for list_name, stated in lists.items()
            if name not in stated and can_list(list_name, name)
        ]
        if silent:
            stating = tuple(list_name for list_name, stated in lists.items() if name in stated)
            how = f"is not in {' and not in '.join(silent)}: it was added, or the list is of other files"
            faults.append(CheckedFile(name, FileState.UNLISTED, stating, how))
    listed = {name for stated in lists.values() for name in stated}
    irregular = {name: how for name, how in files.irregular.items() if name not in listed}
    return faults + [CheckedFile(name, FileState.UNLISTED, (), how) for name, how in irregular.items()]


def _check_file(files: VerifiedFiles, name: str, lists: Lists) -> CheckedFile:
    stated = {list_name: entries[name] for list_name, entries in lists.items() if name in entries}
    checked = CheckedFile(name, FileState.SAME, tuple(stated))
    if name in files.irregular:
        return replace(checked, judgement=FileState.DIFFERS, how=files.irregular[name])
    if name not in files.names:
        return replace(checked, judgement=FileState.MISSING, how="is listed and is not there")
    results = [_compare(files, name, list_name, file, checked) for list_name, file in stated.items()]
    by = tuple(dict.fromkeys(digest for result in results for digest in result.by))
    worst = min(results, key=lambda result: WORST_FIRST.index(result.judgement))
    if worst.judgement == FileState.NOT_LOOKED and (equal := [result for result in results if result.by]):
        worst = equal[0]  # another list settles it
    return replace(worst, by=by)


def _compare(
    files: VerifiedFiles, name: str, list_name: str, stated: ListedFile, checked: CheckedFile
) -> CheckedFile:
    """A file compared with what one list states of it."""
    differs = partial(replace, checked, judgement=FileState.DIFFERS)
    if stated.others:
        return differs(how=f"has {1 + len(stated.others)} digests in {list_name}, and a file has one")
    if stated.size is not None and stated.size != (size := files.size(name)):
        return differs(how=f"has {size} bytes and {list_name} says {stated.size}")
    if stated.tensors is not None:
        return _compare_tensors(files, name, list_name, stated.tensors, checked)
    if stated.sha256 is not None:
        digest = files.sha256(name)
        by: Digest = "lfs-sha256" if stated.is_lfs or files.is_listed_digest(name) else "sha256"
        if digest == stated.sha256:
            return replace(checked, by=(by,))
        how = f"has SHA-256 {digest[:12]}... and {list_name} says {stated.sha256[:12]}..."
        return differs(by=(by,), how=how)
    if stated.git_id is not None:
        if files.has_git_id(name, stated.git_id):
            return replace(checked, by=("git-id",))
        how = f"has not the git id {stated.git_id[:12]}... that {list_name} says"
        return differs(by=("git-id",), how=how)
    how = f"has its size, and {list_name} has no digest of it"
    if list_name == RECORD:
        how += ": it was linked by `convert --link`, which reads no data; convert without --link"
    return replace(checked, judgement=FileState.NOT_LOOKED, how=how)


def _compare_tensors(
    files: VerifiedFiles, name: str, list_name: str, stated: Tensors, checked: CheckedFile
) -> CheckedFile:
    """A weight file compared with digests of its header and of each tensor."""
    try:
        found = files.tensors(name, stated.algorithm)
    except UnreadableError as error:
        return replace(checked, judgement=FileState.DIFFERS, how=f"has no header that can be read: {error}")
    if found is None:
        how = (
            f"was not downloaded, and {list_name} has digests of its tensors alone: download the repository,"
            " and verify that folder"
        )
        return replace(checked, judgement=FileState.NOT_LOOKED, how=how)
    checked = replace(checked, by=("tensors",), compared=len(stated.tensors))
    names = sorted(set(stated.tensors) | set(found.tensors))
    tensors = tuple(name for name in names if stated.tensors.get(name) != found.tensors.get(name))
    if tensors:
        how = f"has other bytes than {list_name} says in {names_listed(tensors)}"
        return replace(checked, judgement=FileState.DIFFERS, how=how, tensors=tensors)
    if found.header != stated.header:
        how = (
            f"has another header than {list_name} says: its metadata, or dtypes, shapes and order of tensors"
        )
        return replace(checked, judgement=FileState.DIFFERS, how=how)
    return checked


class Evidence(Struct, frozen=True):
    """A file that speaks for the others, what it proves here, and what it does not."""

    name: str
    proves: str
    leaves_open: str


def evidence_of(verification: "Verification") -> tuple[Evidence, ...]:
    """What was looked at and held; a file that failed, or was not looked at, proves nothing."""
    found = []
    if verification.lists and all(file.judgement == FileState.SAME for file in verification.files):
        found.append(
            Evidence(
                " and ".join(verification.lists),
                "no file was lost, added or damaged since the lists were written",
                "who wrote the lists: whoever can change the files can change them too",
            )
        )
    return tuple(found)
