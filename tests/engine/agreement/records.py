"""What vLLM 0.32.0 did with each case: its V1 runner in `records.json`, V2 in `records_v2.json`."""

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

RECORDS = Path(__file__).with_name("records.json")
RECORDS_V2 = Path(__file__).with_name("records_v2.json")
VLLM = "vllm==0.32.0"
# raises: an exception; dies: a signal, or no end; as meant: it drafts what the reference engine drafts with
# the checkpoint;
# as base: the checkpoint as a whole means nothing, and it drafts what the good drafter does; differently:
# neither
Verdict = Literal["raises", "dies", "as meant", "as base", "differently"]


@dataclass(frozen=True, slots=True)
class Record:
    """The engine's verdict on one case; `digest` says of which bytes."""

    digest: str
    verdict: Verdict
    said: str = ""

    @property
    def is_served(self) -> bool:
        """Whether the engine drafts as the checkpoint was trained to."""
        return self.verdict in ("as meant", "as base")


def read(path: Path = RECORDS) -> dict[str, Record]:
    """All records of a file, none where there is no file."""
    return {name: Record(*row) for name, row in json.loads(path.read_text()).items()} if path.exists() else {}


def write(path: Path, records: Mapping[str, Record]) -> None:
    """Write them, one a line."""
    rows = [f"{json.dumps(name)}: {json.dumps(astuple(record))}" for name, record in records.items()]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")
