"""eaglectl.json as it lies beside the weights: the record of the last conversion, and inside it those of the ones before."""

from collections.abc import Iterator, Mapping
from typing import Any

# conversions of conversions; a file that nests deeper is none of ours
DEEPEST = 100


def history(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The record and the earlier ones that it holds, the newest first."""
    for _ in range(DEEPEST):
        yield record
        earlier = record.get("previous")
        if not isinstance(earlier, Mapping):
            return
        record = earlier


def is_untrained(record: Mapping[str, Any]) -> bool:
    """Whether the drafter was written by `--init-only`, as a start for a trainer; a later conversion moves bytes and trains nothing."""
    upgrades = (one.get("upgrade") for one in history(record))
    return any(isinstance(upgrade, Mapping) and bool(upgrade.get("needs_finetune")) for upgrade in upgrades)
