"""What SGLang 0.5.23 did with each case: `records.json`, one case a line."""

import json
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

RECORDS = Path(__file__).with_name("records.json")
SGLANG = "sglang==0.5.23"
# parameters that the target fills, and those of later layers that are not used
SHARED_OR_UNUSED = re.compile(r"lm_head\.weight|embed_tokens\.weight|layers\.[1-9]\d*\.input_layernorm")
# raises: an exception; dies: a signal, or no end; as meant: it drafts what the reference engine drafts with
# the checkpoint; as base: the checkpoint as a whole means nothing, and it drafts what the good drafter does;
# differently: neither; loads: it was loaded only
Verdict = Literal["raises", "dies", "as meant", "as base", "differently", "loads"]


@dataclass(frozen=True, slots=True)
class Record:
    """The engine's verdict on one case. `digest` says of which bytes, `captured` has the target's boundaries,
    the others names of tensors without a place and of parameters that got nothing, or not all.
    """

    digest: str
    verdict: Verdict
    reason: str = ""
    captured: tuple[int, ...] = ()
    skipped: tuple[str, ...] = ()
    unfilled: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()

    @property
    def is_filled(self) -> bool:
        """Whether the file, or the target, filled all that is used.

        What nothing fills is often zero on a CPU, and then harmless by chance.
        """
        return not self.partly and all(SHARED_OR_UNUSED.search(name) for name in self.unfilled)

    @property
    def is_served(self) -> bool:
        """Whether the engine drafts as the checkpoint was trained to; false where it was loaded only."""
        return self.is_filled and self.verdict in ("as meant", "as base")

    @property
    def is_wrong(self) -> bool:
        """Whether it was seen not to."""
        if self.verdict == "loads":
            return bool(self.skipped) or not self.is_filled
        return not self.is_served

    @property
    def stopped(self) -> str:
        """The verdict, which has one word for all ways to stop."""
        return self.verdict


def read(path: Path = RECORDS) -> dict[str, Record]:
    """All records of a file, none where there is no file."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: Record(digest, verdict, reason, *(tuple(names) for names in more))
        for name, (digest, verdict, reason, *more) in rows.items()
    }


def write(path: Path, records: Mapping[str, Record]) -> None:
    """Write them, one a line."""
    rows = [f"{json.dumps(name)}: {json.dumps(astuple(record))}" for name, record in records.items()]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
