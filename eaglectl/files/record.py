"""eaglectl.json: the record of the last conversion, which holds the records of earlier ones."""

from collections.abc import Iterator, Mapping
from typing import Any

RECORD_SCHEMA = "eaglectl/provenance/1"
# a record that nests deeper was not written by eaglectl
MAX_DEPTH = 100


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
