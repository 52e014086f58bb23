"""A folder against what was published of it: each file's digest in SHA256SUMS, eaglectl.json and model.sig, and files that none knows."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from eaglectl.checkpoint.source import FolderSource
from eaglectl.errors import Unreadable
from eaglectl.publishing.plan import RECORD, SIGNATURE, SUMS
from eaglectl.publishing.signature import Signature, Signer, read_signature
from eaglectl.validation.release import read_sums

Verdict = Literal["equal", "differs", "could-not-look"]
Judgement = Literal["same", "differs", "missing", "unlisted"]
BLOCK = 8 << 20
# what an engine takes for a part of the checkpoint, whoever put it there
READ = ("config.json", "*.safetensors", "model.safetensors.index.json", "*.bin", "*.pt", "*.pth", "*.py")


@dataclass(frozen=True, slots=True)
class Checked:
    """One file: whether it is the one that `lists` name, and how it is not."""

    name: str
    judgement: Judgement
    lists: tuple[str, ...]
    how: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """Every file that is listed or there; `others` are files that nothing lists and no engine reads.

    `signature` None: there is no model.sig and none was asked for, or it was not to be looked at.
    """

    folder: str
    lists: tuple[str, ...]
    files: tuple[Checked, ...]
    others: tuple[str, ...]
    signature: Signature | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether all is as it was published; "could-not-look": the files are, and the signature could not be looked at."""
        judged = self.signature.judgement if self.signature else "verified"
        if judged in ("failed", "missing") or any(file.judgement != "same" for file in self.files):
            return "differs"
        return "could-not-look" if judged == "not-looked" else "equal"


@dataclass(frozen=True, slots=True)
class _Stated:
    size: int | None
    sha256: str


@dataclass(slots=True)
class _Digests:
    """SHA-256 of files of the folder, each computed once; `told` hears bytes of `total`."""

    source: FolderSource
    told: Callable[[int, int], None] | None
    total: int = 0
    done: int = 0
    found: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        """Raises Unreadable for a file that cannot be read."""
        if name in self.found:
            return self.found[name]
        digest, size = hashlib.sha256(), self.source.size(name)
        for start in range(0, size, BLOCK):
            digest.update(self.source.read(name, start, min(start + BLOCK, size)))
            self.done += min(BLOCK, size - start)
            if self.told:
                self.told(self.done, self.total)
        return self.found.setdefault(name, digest.hexdigest())


def verify_folder(
    source: FolderSource, shown: str, signer: Signer | None, *, is_offline: bool, told: Callable[[int, int], None] | None = None
) -> Verification:  # fmt: skip
    """Hash every file that is listed or signed and compare. `signer` None: model.sig is not looked at.

    Raises Unreadable where no list is there, or a list or file cannot be read.
    """
    names = source.names()
    lists = {name: found for name, found in ((SUMS, _sums(source)), (RECORD, _recorded(source))) if found is not None}
    signature = _signature(source, signer, is_offline=is_offline)
    signed = (signature.files if signature else None) or {}
    if not lists and not signed:
        about = f" Its {SIGNATURE} could not be used: {signature.how}" if signature else ""
        raise Unreadable(
            f"{shown} has no {SUMS} and no {RECORD} that lists its files: there is nothing to compare with. Files of the Hub are compared"
            f" by `hf cache verify REPO --local-dir DIR`.{about}"
        )
    listed = dict.fromkeys(name for found in lists.values() for name in found)
    digests = _Digests(source, told, sum(source.size(name) for name in dict.fromkeys([*listed, *signed]) if name in names))  # fmt: skip
    files = [_checked(digests, name, {by: found[name] for by, found in lists.items() if name in found}) for name in listed]  # fmt: skip
    rest = [
        name
        for name in names
        if name not in listed and name not in lists and name not in (SIGNATURE, *signed) and not name.startswith(".")
    ]
    unlisted = [name for name in rest if _is_read(name)]
    files += [Checked(name, "unlisted", (), "is in no list, and engines or tools may read it") for name in unlisted]
    if signature is not None and signature.files is not None:
        signature = _held(signature, digests)
    return Verification(shown, tuple(lists), tuple(files), tuple(name for name in rest if name not in unlisted), signature)  # fmt: skip


def _signature(source: FolderSource, signer: Signer | None, *, is_offline: bool) -> Signature | None:
    if signer is None:
        return None
    if SIGNATURE in source.names():
        return read_signature(source.path(SIGNATURE), signer, is_offline=is_offline)
    return Signature("missing", f"there is no {SIGNATURE}, and {signer.said} was to have signed") if signer.said else None  # fmt: skip


def _held(signature: Signature, digests: _Digests) -> Signature:
    """The signature, held to the files: each signed one is there and the same, and engines read no other."""
    signed, names = signature.files or {}, digests.source.names()
    wrong = [f"{name} is not there" if name not in names else f"{name} is another file" for name, digest in signed.items() if name not in names or digests.of(name) != digest]  # fmt: skip
    wrong += [f"{name} was not signed" for name in names if name not in signed and _is_read(name)]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return Signature("failed", f"it is {signature.how}, and not over these files: {', '.join(wrong[:3])}{more}")
    return replace(signature, how=f"{signature.how}, over {len(signed)} files")


def _is_read(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in READ)


def _checked(digests: _Digests, name: str, stated: Mapping[str, _Stated]) -> Checked:
    if name not in digests.source.names():
        return Checked(name, "missing", tuple(stated), "is listed and is not there")
    size, digest = digests.source.size(name), digests.of(name)
    for by, one in stated.items():
        if one.size is not None and one.size != size:
            return Checked(name, "differs", tuple(stated), f"has {size} bytes and {by} says {one.size}")
        if one.sha256 != digest:
            return Checked(
                name, "differs", tuple(stated), f"has SHA-256 {digest[:12]}... and {by} says {one.sha256[:12]}..."
            )
    return Checked(name, "same", tuple(stated))


def _sums(source: FolderSource) -> Mapping[str, _Stated] | None:
    if SUMS not in source.names():
        return None
    sums, broken = read_sums(source.read(SUMS).decode("utf-8", "replace"))
    if broken or not sums:
        where = f"line {broken[0]} is no digest and name" if broken else "it is empty"
        raise Unreadable(f"{SUMS} cannot be used: {where}; fetch it again")
    return {name: _Stated(None, digest) for name, digest in sums.items()}


def _recorded(source: FolderSource) -> Mapping[str, _Stated] | None:
    if RECORD not in source.names():
        return None
    try:
        record: Any = json.loads(source.read(RECORD))
        files = record.get("published", {}).get("files")
        return (
            None
            if files is None
            else {str(name): _Stated(int(one["size"]), str(one["sha256"])) for name, one in files.items()}
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Unreadable(f"{RECORD} cannot be used: it is not as eaglectl writes it; fetch it again") from None
