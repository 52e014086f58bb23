"""eaglectl.json: the record of the last conversion, which holds the records of earlier ones."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from eaglectl.files.layout import CONFIG
from eaglectl.files.source import Source

RECORD_SCHEMA = "eaglectl/provenance/1"
# a record that nests deeper was not written by eaglectl
MAX_DEPTH = 100


def why_claim(record: Mapping[str, Any], source: Source, weight_files: Sequence[str]) -> str:
    """Why a record is its author's claim alone; empty where it states the files beside it by digest.

    The config by its bytes; the weights, whose digests need all of their data, by their sizes.
    """
    files: dict[str, Mapping[str, Any]] = {}
    for key in ("output", "published"):
        match record.get(key):
            case {"files": Mapping() as stated}:
                files |= {name: file for name, file in stated.items() if isinstance(file, Mapping)}
    unstated = [name for name in (CONFIG, *weight_files) if name not in files]
    if unstated:
        return f"states no digest of {unstated[0]}"
    if files[CONFIG].get("sha256") != sha256(source.read(CONFIG)).hexdigest():
        return f"is of another {CONFIG}"
    others = [name for name in weight_files if files[name].get("size") != source.size(name)]
    return f"is of another {others[0]}" if others else ""


def history(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The record and the earlier records that it holds, newest first."""
    for _ in range(MAX_DEPTH):
        yield record
        earlier = record.get("previous")
        if not isinstance(earlier, Mapping):
            return
        record = earlier


def is_untrained(record: Mapping[str, Any]) -> bool:
    """Whether `--init-only` wrote the drafter, as a start for a trainer.

    A later conversion does not change that: it moves bytes and trains nothing.
    """
    upgrades = (entry.get("upgrade") for entry in history(record))
    return any(isinstance(upgrade, Mapping) and bool(upgrade.get("needs_finetune")) for upgrade in upgrades)
