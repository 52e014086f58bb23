"""What llama.cpp did with each case: `records.json`, one case a line."""

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

RECORDS = Path(__file__).with_name("records.json")
LLAMACPP = "llama.cpp==0.3.36"
# refused: by the converter; fails: what it wrote does not load; dies: at a request;
# as meant: it drafts what the reference engine drafts with the checkpoint; as base: the checkpoint as a whole
# means nothing, and it drafts what the good drafter does; differently: neither
Verdict = Literal["refused", "fails", "dies", "as meant", "as base", "differently"]


@dataclass(frozen=True, slots=True)
class Record:
    """The engine's verdict on one case; `digest` says of which bytes, `captured` has the target's layers."""

    digest: str
    verdict: Verdict
    reason: str = ""
    captured: tuple[int, ...] = ()

    @property
    def is_served(self) -> bool:
        """Whether the engine drafts as the checkpoint was trained to."""
        return self.verdict in ("as meant", "as base")

    @property
    def is_wrong(self) -> bool:
        """Whether it was seen not to."""
        return not self.is_served

    @property
    def stopped(self) -> str:
        """The verdict in the words of the other engines' records, which have one for all ways to stop."""
        return "raises" if self.verdict in ("refused", "fails") else self.verdict


def read(path: Path = RECORDS) -> dict[str, Record]:
    """All records of a file, none where there is no file."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: Record(digest, verdict, reason, tuple(captured))
        for name, (digest, verdict, reason, captured) in rows.items()
    }


def write(path: Path, records: Mapping[str, Record]) -> None:
    """Write them, one a line."""
    rows = [f"{json.dumps(name)}: {json.dumps(astuple(record))}" for name, record in records.items()]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
