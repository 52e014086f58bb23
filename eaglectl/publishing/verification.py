"""A folder against what was published of it: every file's digest in SHA256SUMS and in eaglectl.json, and files that neither knows."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from eaglectl.checkpoint.source import FolderSource
from eaglectl.errors import Unreadable
from eaglectl.publishing.plan import RECORD, SIGNATURE, SUMS
from eaglectl.validation.release import read_sums

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
    """Every file that is listed or there; `others` are files that nothing lists and no engine reads."""

    folder: str
    lists: tuple[str, ...]
    files: tuple[Checked, ...]
    others: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether all is as it was published."""
        return all(file.judgement == "same" for file in self.files)


@dataclass(frozen=True, slots=True)
class _Stated:
    size: int | None
    sha256: str


def verify_folder(source: FolderSource, shown: str, told: Callable[[int, int], None] | None = None) -> Verification:
    """Hash every file that is listed and compare. Raises Unreadable where no list is there, or a list or file cannot be read."""
    lists = {name: found for name, found in ((SUMS, _sums(source)), (RECORD, _recorded(source))) if found is not None}
    if not lists:
        raise Unreadable(
            f"{shown} has no {SUMS} and no {RECORD} that lists its files: there is nothing to compare with. Files of the Hub are compared"
            " by `hf cache verify REPO --local-dir DIR`"
        )
    names, listed = source.names(), dict.fromkeys(name for found in lists.values() for name in found)
    total, done, files = sum(source.size(name) for name in listed if name in names), 0, []
    for name in listed:
        files.append(_checked(source, name, {by: found[name] for by, found in lists.items() if name in found}, names))
        done += source.size(name) if name in names else 0
        if told:
            told(done, total)
    rest = [
        name
        for name in names
        if name not in listed and name not in lists and name != SIGNATURE and not name.startswith(".")
    ]
    unlisted = [name for name in rest if any(fnmatchcase(name, pattern) for pattern in READ)]
    files += [Checked(name, "unlisted", (), "is in no list, and engines or tools may read it") for name in unlisted]
    return Verification(shown, tuple(lists), tuple(files), tuple(name for name in rest if name not in unlisted))


def _checked(source: FolderSource, name: str, stated: Mapping[str, _Stated], names: tuple[str, ...]) -> Checked:
    if name not in names:
        return Checked(name, "missing", tuple(stated), "is listed and is not there")
    size, digest = source.size(name), _digest(source, name)
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


def _digest(source: FolderSource, name: str) -> str:
    digest, size = hashlib.sha256(), source.size(name)
    for start in range(0, size, BLOCK):
        digest.update(source.read(name, start, min(start + BLOCK, size)))
    return digest.hexdigest()
