"""`verify`: a folder or a repository compared with the lists that state its digests, as sections and as JSON.

These are SHA256SUMS, eaglectl.json, and the listing of a repository on the Hub. Every file below the folder
is listed, or is a difference.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace as replace_fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from msgspec.structs import replace

from eaglectl.base import Result
from eaglectl.errors import UnreadableError, UsageError
from eaglectl.files.checkpoint import hub_name, open_local_folder
from eaglectl.files.files import is_regular
from eaglectl.files.hub import HubSource, open_hub
from eaglectl.files.layout import RECORD, SIGNATURE, SUMS
from eaglectl.files.records import CheckedFile, StatedFile, compare_file, read_record, start_sha256
from eaglectl.files.source import FolderSource, is_blob
from eaglectl.files.writer import Digests
from eaglectl.formats.commands import command
from eaglectl.judge.rule import Policy, read_policy
from eaglectl.judge.rules.release import read_sums
from eaglectl.options import StrPath, with_keywords
from eaglectl.progress import ByteCounter, OnProgress
from eaglectl.publish.request import VerifyOptions
from eaglectl.report.documents import Parts
from eaglectl.report.section import Line, Lines, Outline, Section, Words, first_line, first_lines, toned
from eaglectl.text import listed
from eaglectl.verdicts import FileState, VerifyVerdict

if TYPE_CHECKING:
    from eaglectl.api.keywords import VerifyFields

# .gitattributes is written by the Hub when a repository is created, and `hf download` brings it. The Hub's
# client keeps the state of a download in .cache/huggingface, under these names only: no loader reads them.
# A clone's .git is no such thing: git runs what its config and hooks name.
BOOKKEEPING = re.compile(
    r"\.gitattributes|\.cache/huggingface/(\.gitignore|CACHEDIR\.TAG"
    r"|trees/[0-9a-f]{40,64}\.json|(download|upload)/(.+/)?[^/]+\.(metadata|lock|incomplete))"
)
# the files that a list cannot name: itself, and what is written after it
AFTER = {RECORD: (RECORD, SUMS, SIGNATURE), SUMS: (SUMS, SIGNATURE)}

# a file that one list states without a digest is settled by another list
WORST_FIRST = (FileState.DIFFERS, FileState.SAME, FileState.NOT_LOOKED)

Lists = dict[str, Mapping[str, StatedFile]]


class Verification(Result, frozen=True):
    """Every file that is listed or exists; `others` are internal files of git and the Hub's client.

    `has_signature`: there is a model.sig, which is not checked.
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
        """The verdict; COULD_NOT_LOOK: nothing differs, and some files could not be compared."""
        states = {file.judgement for file in self.files}
        if states - {FileState.SAME, FileState.NOT_LOOKED}:
            return VerifyVerdict.DIFFERS
        return VerifyVerdict.COULD_NOT_LOOK if FileState.NOT_LOOKED in states else VerifyVerdict.EQUAL


def verify_files(
    source: FolderSource | HubSource,
    shown: str,
    *,
    needs_record: bool = False,
    against: HubSource | None = None,
    on_progress: OnProgress | None = None,
) -> Verification:
    """Hash every listed file and compare it; an unlisted file is a difference.

    Files in LFS of a repository are not downloaded: the Hub lists their SHA-256. `needs_record`: a record
    with a list is required; `against`: a repository whose listing must match. Raises UnreadableError if there
    is no list and none is required, if a list or file cannot be read, and for a download that differs from
    the Hub's list.
    """
    if isinstance(source, HubSource):
        source = replace_fields(source, sizes={**source.sizes, **source.below})
    faults = dict.fromkeys(source.sizes, "") if isinstance(source, HubSource) else _walk(source.root)
    others = {name for name, fault in faults.items() if not fault and BOOKKEEPING.fullmatch(name)}
    faults = {name: faults[name] for name in sorted(faults.keys() - others)}
    lists = _read_lists(source, faults, against)
    if not lists and not needs_record:
        advice = (
            f" Pass --against with its repository on the Hub (org/name@revision) to"
            f" `{command('verify', shown)}`, which then compares it with the Hub's list."
        )
        raise UnreadableError(
            f"{shown} has no {SUMS} and no {RECORD} that lists its files: there is nothing to compare with."
            f"{'' if isinstance(source, HubSource) else advice}"
        )
    checked = list(_check_files(source, faults, lists, on_progress))
    if needs_record and RECORD not in lists:
        how = "is required, and is missing or lists no files; download it again from the publisher"
        others_checked = (
            file for file in checked if file.name != RECORD or file.judgement == FileState.UNLISTED
        )
        checked = [CheckedFile(RECORD, FileState.MISSING, (), how), *others_checked]
    has_signature = faults.get(SIGNATURE) == ""
    return Verification(shown, tuple(lists), tuple(checked), tuple(sorted(others)), has_signature)


def _check_files(
    source: FolderSource | HubSource, faults: Mapping[str, str], lists: Lists, on_progress: OnProgress | None
) -> Iterator[CheckedFile]:
    """Compare each file that is listed or exists; `faults` has "" for regular files, otherwise the fault."""
    listed_names = dict.fromkeys(chain(*lists.values()))
    total = sum(source.size(name) for name in listed_names if faults.get(name) == "")
    hashed_names = {name for entries in lists.values() for name, file in entries.items() if file.sha256}
    with Digests(ByteCounter(on_progress, "hashing", total).add) as threads:
        names = [name for name in hashed_names if faults.get(name) == ""]
        hashed = {name: start_sha256(source, threads, name) for name in names}
        compare = partial(compare_file, source, threads, hashed)
        for name in {**listed_names, **dict.fromkeys(faults)}:
            yield from _check_file(name, faults.get(name), lists, compare)


def _walk(root: Path) -> dict[str, str]:
    """Return the entries below a folder but folders: "" for a file, else its kind; links are not followed.

    In a snapshot of the Hub client's cache, a link to one of its blobs counts as a file.
    """

    def refuse(error: OSError) -> None:
        where = error.filename or root
        raise UnreadableError(f"{where}: {error.strerror}; its files cannot be compared") from None

    kinds: dict[str, str] = {}
    paths = (Path(parent, name) for parent, *parts in os.walk(root, onerror=refuse) for name in chain(*parts))
    for path in paths:
        name, target = path.relative_to(root).as_posix(), Path(os.path.realpath(path))
        is_of_cache = is_blob(root.resolve(), target) and is_regular(target)
        if path.is_symlink() and not is_of_cache:
            kinds[name] = "is a symbolic link; a published drafter has none"
        elif not path.is_dir():
            kinds[name] = "" if path.is_file() else "is a pipe, a socket or a device, not a file"
    return kinds


def _read_lists(
    source: FolderSource | HubSource, faults: Mapping[str, str], against: HubSource | None
) -> Lists:
    """Read SHA256SUMS, eaglectl.json, and the listing of `against`. Raises UnreadableError."""
    readers = {SUMS: _read_sums, RECORD: read_record}
    all_lists = {name: read(source.read(name)) for name, read in readers.items() if faults.get(name) == ""}
    lists = {name: entries for name, entries in all_lists.items() if entries}
    if against is not None:
        sizes, listed = {**against.sizes, **against.below}, against.listed
        lists[f"{against.label}@{against.commit[:12]}"] = {
            name: StatedFile(size, listed.sha256.get(name), name in listed.sha256, listed.git_ids.get(name))
            for name, size in sizes.items()
            if not BOOKKEEPING.fullmatch(name)
        }
    return lists


def _read_sums(data: bytes) -> Mapping[str, StatedFile]:
    digests_of, broken = read_sums(data.decode("utf-8", "replace"))
    if broken or not digests_of:
        where = f"line {broken[0]} is not a digest and a name" if broken else "it is empty"
        raise UnreadableError(f"{SUMS} cannot be used: {where}; download it again")
    return {name: StatedFile(sha256=" ".join(values)) for name, values in digests_of.items()}


def _check_file(
    name: str, fault: str | None, lists: Lists, compare: Callable[[str, str, StatedFile], CheckedFile]
) -> Iterator[CheckedFile]:
    """Compare a file with each list; `fault` is the reason if it is not regular, None if it is missing."""
    listed_as = {list_name: entries[name] for list_name, entries in lists.items() if name in entries}
    if fault is None:
        yield CheckedFile(name, FileState.MISSING, tuple(listed_as), "is listed and missing")
    elif fault:
        state = FileState.DIFFERS if listed_as else FileState.UNLISTED
        yield CheckedFile(name, state, tuple(listed_as), fault)
    elif listed_as:
        results = [compare(name, list_name, file) for list_name, file in listed_as.items()]
        worst = min(results, key=lambda result: WORST_FIRST.index(result.judgement))
        by = tuple(dict.fromkeys(kind for result in results for kind in result.by))
        yield replace(worst, lists=tuple(listed_as), by=by)
    silent = [
        list_name
        for list_name in lists
        if list_name not in listed_as and name not in AFTER.get(list_name, ())
    ]
    if silent and fault == "":
        how = f"is not in {' and not in '.join(silent)}: it was added, or the list is of other files"
        yield CheckedFile(name, FileState.UNLISTED, tuple(listed_as), how)


@with_keywords
def verify(
    folder: StrPath,
    options: VerifyOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: "Unpack[VerifyFields]",
) -> Verification:
    """Compare a folder, or a repository on the Hub, with its SHA256SUMS and eaglectl.json.

    For a repository (org/name[@revision]), files with a SHA-256 on the Hub are not downloaded. Every unlisted
    file is a difference; a model.sig is not read. Raises UnreadableError if there is nothing to compare with,
    UsageError for options that contradict each other.
    """
    folder, options = os.fspath(folder), options or VerifyOptions()
    policy = read_policy(options.policy) if isinstance(options.policy, str) else options.policy or Policy()
    needs_record = options.needs_record or policy.verify.require_record
    is_repository = hub_name(folder) is not None and not os.path.lexists(folder)
    if is_repository and options.against:
        raise UsageError(
            f"--against compares a folder with the Hub, and {folder} is on the Hub: leave --against out",
            options=("--against",),
        )
    return verify_files(
        _listing(folder) if is_repository else open_local_folder(folder),
        folder,
        needs_record=needs_record,
        against=None if options.against is None else _listing(options.against),
        on_progress=on_progress,
    )


def _listing(text: str) -> HubSource:
    # the Hub's own list of files, which a cached copy cannot stand for
    if hub_name(text) is None:
        raise UsageError(
            f"--against {text}: a repository was expected, like org/name or org/name@revision",
            options=("--against",),
        )
    source = open_hub(text)
    if not isinstance(source, HubSource):
        raise UnreadableError(f"{text}: the listing comes from the network, and this call is offline")
    return source


# the digests of a comparison, in words
COMPARISON_WORDS = {
    "sha256": "SHA-256",
    "lfs-sha256": "the SHA-256 that the Hub lists",
    "git-id": "the git id that the Hub lists",
    "tensors": "the digests of the header and of each tensor",
}


def _evidence(verification: Verification) -> list[dict[str, str]]:
    evidence = {
        "name": " and ".join(verification.lists),
        "proves": "no file was lost, added or damaged since they were written",
        "leaves_open": "who wrote them: anyone who can change the files can change these lists",
    }
    return [evidence] if verification.lists and verification.verdict == VerifyVerdict.EQUAL else []


PARTS: Parts = {
    Verification: (
        "folder",
        "verdict",
        "lists",
        "files",
        "others",
        "has_signature",
        ("evidence", _evidence),
    ),
    CheckedFile: ("name", "judgement", "lists", "how", "by", "tensors"),
}


def verification_outline(verification: Verification) -> Outline:
    """Return the verdict, the kinds of comparison, every file that differs, and what is proved."""
    same = [file for file in verification.files if file.judgement == FileState.SAME]
    lists, rest = " and ".join(verification.lists), len(verification.files) - len(same)
    lead = f"{len(same)} files match {lists}" if lists else "no list"
    if rest:
        lead += f", {rest} {'does' if rest == 1 else 'do'} not"
    kinds = [text for digest, text in COMPARISON_WORDS.items() if any(digest in file.by for file in same)]
    lines: list[Line] = [Words(f"compared: {listed(kinds)}", "quiet")] if kinds else []
    others = [file for file in verification.files if file.judgement != FileState.SAME]
    lines += first_lines([(toned(file.judgement), f"  {file.name} {file.how}") for file in others])
    if verification.has_signature:
        lines.append(Words(f"{SIGNATURE} was not checked: `model_signing verify` shows who signed", "doubt"))
    evidence = [
        f"{part['name']} show that {part['proves']}, not {part['leaves_open']}"
        for part in _evidence(verification)
    ]
    sections = [
        Section("Files", [Lines(lines, is_unbroken=True)], has_heading=False),
        Section("Evidence", [Lines(evidence)], has_heading=False),
    ]
    verdict, folder = toned(verification.verdict), verification.folder
    head = first_line(verification.verdict, f"{folder}: {lead}")
    return Outline(command="verify", verdict=verdict, subject=folder, lead=lead, head=head, sections=sections)
