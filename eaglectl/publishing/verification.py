"""A folder compared with what was published of it: the digests in SHA256SUMS, eaglectl.json and model.sig.

As strict as `model_signing verify`: every file below the folder is listed, or is a difference.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from eaglectl.checkpoint.header import parse_json
from eaglectl.checkpoint.layout import PROVENANCE, RECORD, SIGNATURE, SUMS
from eaglectl.checkpoint.source import FolderSource
from eaglectl.errors import UnreadableError
from eaglectl.progress import ByteCounter, OnProgress
from eaglectl.publishing.attestation import claims_of
from eaglectl.publishing.contents import FolderContents, is_bookkeeping, read_contents
from eaglectl.publishing.signature import Signature, Signer, read_signature, read_statement
from eaglectl.text import listed
from eaglectl.validation.rules.release import read_sums

Verdict = Literal["equal", "differs", "could-not-look"]
Judgement = Literal["same", "differs", "missing", "unlisted"]
BLOCK = 8 << 20


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file, whether it is as `lists` state it, and how it differs."""

    name: str
    judgement: Judgement
    lists: tuple[str, ...]
    how: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """Every file that is listed or there; `others` are what git and the Hub's client keep for themselves.

    `signature` None: there is no model.sig and none was required, or it was to be ignored; likewise
    `provenance`, whose `how` has its claims.
    """

    folder: str
    lists: tuple[str, ...]
    files: tuple[CheckedFile, ...]
    others: tuple[str, ...]
    signature: Signature | None = None
    provenance: Signature | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether all is as published; "could-not-look": only the signature could not be checked."""
        judgements = {signed.judgement for signed in (self.signature, self.provenance) if signed}
        if judgements & {"failed", "missing"} or any(file.judgement != "same" for file in self.files):
            return "differs"
        return "could-not-look" if "not-looked" in judgements else "equal"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as a list states it; `size` None where the list has none.

    `others`: further digests that the list states for the same name.
    """

    size: int | None
    sha256: str
    others: tuple[str, ...] = ()


Lists = Mapping[str, Mapping[str, ListedFile]]


@dataclass(frozen=True, slots=True)
class Expected:
    """What the caller requires of a folder.

    `signer` None: model.sig is ignored. `needs_record`: eaglectl.json must be there and list the files.
    """

    signer: Signer | None
    needs_signature: bool = False
    needs_record: bool = False


class _FileHasher:
    """SHA-256 of files of the folder, each computed once."""

    def __init__(self, source: FolderSource, counter: ByteCounter) -> None:
        self.source = source
        self.counter = counter
        self._digests: dict[str, str] = {}

    def sha256(self, name: str) -> str:
        """The digest of a file. Raises UnreadableError for a file that cannot be read."""
        if name not in self._digests:
            self._digests[name] = self._hash(name)
        return self._digests[name]

    def _hash(self, name: str) -> str:
        digest, size = hashlib.sha256(), self.source.size(name)
        for start in range(0, size, BLOCK):
            block = self.source.read(name, start, min(start + BLOCK, size))
            digest.update(block)
            self.counter.add(len(block))
        return digest.hexdigest()


def verify_folder(
    source: FolderSource,
    shown: str,
    expected: Expected,
    *,
    is_offline: bool,
    on_progress: OnProgress | None = None,
) -> Verification:
    """Hash every file that is listed or signed, and compare; what no list names is a difference.

    Raises UnreadableError where there is no list and none was required, or a list or file cannot be read.
    """
    contents = read_contents(source)
    lists = _read_lists(source, contents)
    signature = _read_signature(source, contents, expected, is_offline=is_offline)
    signed = (signature.files if signature else None) or {}
    faults = _missing_record(lists, expected)
    is_refused = signature is not None and signature.judgement in ("failed", "missing")
    if not lists and not signed and not is_refused and not faults:
        raise _nothing_to_compare(shown, signature)
    listed = dict.fromkeys(name for files in lists.values() for name in files)
    hasher = _FileHasher(source, _counter(source, contents, [*listed, *signed], on_progress))
    checked = [_check_file(hasher, contents, name, lists) for name in listed if name != RECORD or not faults]
    checked += faults + _unlisted(contents, lists)
    if signature is not None and signature.files is not None:
        signature = _check_signed_files(signature, signature.files, contents, hasher)
    provenance = _read_provenance(source, contents, expected, hasher, is_offline=is_offline)
    return Verification(shown, tuple(lists), tuple(checked), contents.bookkeeping, signature, provenance)


def _nothing_to_compare(shown: str, signature: Signature | None) -> UnreadableError:
    about = f" Its {SIGNATURE} could not be used: {signature.how}" if signature else ""
    return UnreadableError(
        f"{shown} has no {SUMS} and no {RECORD} that lists its files: there is nothing to compare with."
        f" Files of the Hub are compared by `hf cache verify REPO --local-dir DIR`.{about}"
    )


def _missing_record(lists: Lists, expected: Expected) -> list[CheckedFile]:
    if not expected.needs_record or RECORD in lists:
        return []
    how = "is required, and is not there or lists no files; fetch it again from who published the drafter"
    return [CheckedFile(RECORD, "missing", (), how)]


def _unlisted(contents: FolderContents, lists: Lists) -> list[CheckedFile]:
    """What is in the folder and not in every list that can name it."""
    faults = []
    for name in sorted(contents.files):
        silent = [list_name for list_name, files in lists.items() if not _is_listed(name, list_name, files)]
        if silent:
            stated = tuple(list_name for list_name, files in lists.items() if name in files)
            how = f"is not in {' and not in '.join(silent)}: it was added, or the list is of other files"
            faults.append(CheckedFile(name, "unlisted", stated, how))
    listed = {name for files in lists.values() for name in files}
    irregular = {name: how for name, how in contents.irregular.items() if name not in listed}
    return faults + [CheckedFile(name, "unlisted", (), how) for name, how in irregular.items()]


def _is_listed(name: str, list_name: str, files: Mapping[str, ListedFile]) -> bool:
    """Whether a list names a file, or cannot: a list is written before itself and before what signs it."""
    later = {SUMS, PROVENANCE, SIGNATURE} | ({RECORD} if list_name == RECORD else set())
    return name in files or name in later


def _read_lists(source: FolderSource, contents: FolderContents) -> Lists:
    lists = {SUMS: _read_sums(source, contents), RECORD: _read_record(source, contents)}
    return {name: files for name, files in lists.items() if files is not None}


def _counter(
    source: FolderSource, contents: FolderContents, names: Iterable[str], on_progress: OnProgress | None
) -> ByteCounter:
    present = set(names) & contents.files
    return ByteCounter(on_progress, "hashing", sum(source.size(name) for name in present))


def _read_signature(
    source: FolderSource, contents: FolderContents, expected: Expected, *, is_offline: bool
) -> Signature | None:
    signer = expected.signer
    if signer is None:
        return None
    if SIGNATURE in contents.files:
        return read_signature(source.path(SIGNATURE), signer, is_offline=is_offline)
    if signer.name:
        return Signature("missing", f"there is no {SIGNATURE}, and {signer.name} was to have signed")
    if expected.needs_signature:
        return Signature("missing", f"there is no {SIGNATURE}, and a signature is required")
    return None


def _read_provenance(
    source: FolderSource,
    contents: FolderContents,
    expected: Expected,
    hasher: _FileHasher,
    *,
    is_offline: bool,
) -> Signature | None:
    """The judgement on the provenance: signed by the same signer, and about these files."""
    if expected.signer is None or PROVENANCE not in contents.files:
        return None
    path = source.path(PROVENANCE)
    signature, statement = read_statement(path, expected.signer, is_offline=is_offline)
    if statement is None:
        return signature
    claims = claims_of(statement)
    if claims is None:
        return Signature("not-looked", "it is signed, and is no SLSA provenance as eaglectl writes it")
    faults = [_signed_fault(name, digest, contents, hasher) for name, digest in claims.files.items()]
    if different := [fault for fault in faults if fault]:
        how = f"it is {signature.how}, and about other files: {listed(different, most=3)}"
        return Signature("failed", how)
    return replace(signature, how=f"{signature.how}: {claims.words}", files=claims.files)


def _check_signed_files(
    signature: Signature, signed: Mapping[str, str], contents: FolderContents, hasher: _FileHasher
) -> Signature:
    """The signature, failed where a signed file differs or a file was not signed."""
    faults = [_signed_fault(name, digest, contents, hasher) for name, digest in signed.items()]
    unsigned = sorted(contents.files - set(signed) - {SIGNATURE})
    faults += [f"{name} was not signed" for name in (*unsigned, *contents.irregular)]
    if faults := [fault for fault in faults if fault]:
        more = f", and {len(faults) - 3} more" if len(faults) > 3 else ""
        return Signature(
            "failed", f"it is {signature.how}, and not over these files: {', '.join(faults[:3])}{more}"
        )
    return replace(signature, how=f"{signature.how}, over {len(signed)} files")


def _signed_fault(name: str, digest: str, contents: FolderContents, hasher: _FileHasher) -> str:
    """How a signed file differs; empty where it does not."""
    if is_bookkeeping(name):  # signed from a download; each client writes its own
        return ""
    if name not in contents.files:
        return f"{name} is not there"
    return "" if hasher.sha256(name) == digest else f"{name} is another file"


def _check_file(hasher: _FileHasher, contents: FolderContents, name: str, lists: Lists) -> CheckedFile:
    stated = {list_name: files[name] for list_name, files in lists.items() if name in files}
    if name in contents.irregular:
        return CheckedFile(name, "differs", tuple(stated), contents.irregular[name])
    if name not in contents.files:
        return CheckedFile(name, "missing", tuple(stated), "is listed and is not there")
    size, digest = hasher.source.size(name), hasher.sha256(name)
    for list_name, file in stated.items():
        if file.others:
            how = f"has {1 + len(file.others)} digests in {list_name}, and a file has one"
            return CheckedFile(name, "differs", tuple(stated), how)
        if file.size is not None and file.size != size:
            how = f"has {size} bytes and {list_name} says {file.size}"
            return CheckedFile(name, "differs", tuple(stated), how)
        if file.sha256 != digest:
            how = f"has SHA-256 {digest[:12]}... and {list_name} says {file.sha256[:12]}..."
            return CheckedFile(name, "differs", tuple(stated), how)
    return CheckedFile(name, "same", tuple(stated))


def _read_sums(source: FolderSource, contents: FolderContents) -> Mapping[str, ListedFile] | None:
    if SUMS not in contents.files:
        return None
    sums = read_sums(source.read(SUMS).decode("utf-8", "replace"))
    if sums.broken or not sums.digests:
        where = f"line {sums.broken[0]} is no digest and name" if sums.broken else "it is empty"
        raise UnreadableError(f"{SUMS} cannot be used: {where}; fetch it again")
    return {name: ListedFile(None, first, tuple(others)) for name, (first, *others) in sums.digests.items()}


def _read_record(source: FolderSource, contents: FolderContents) -> Mapping[str, ListedFile] | None:
    if RECORD not in contents.files:
        return None
    try:
        record: Any = parse_json(RECORD, source.read(RECORD))
        files = record.get("published", {}).get("files")
        if files is None:
            return None
        if not files:
            raise ValueError("a list of no files")
        return {str(name): ListedFile(int(file["size"]), str(file["sha256"])) for name, file in files.items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise UnreadableError(
            f"{RECORD} cannot be used: it is not as eaglectl writes it; fetch it again"
        ) from None
