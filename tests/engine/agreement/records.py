"""What engines did with each case, one a line: vLLM in its V1 and V2 runner, SGLang and llama.cpp."""

import json
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

from tests.engine.logits import BOUND

VLLM, SGLANG, LLAMACPP = "vllm==0.32.0", "sglang==0.5.23", "llama.cpp==0.3.36"
FOLDER = Path(__file__).parent
RECORDS, RECORDS_V2 = FOLDER / "records.json", FOLDER / "records_v2.json"
SGLANG_RECORDS = FOLDER.parent / "sglang/records.json"
LLAMACPP_RECORDS = FOLDER.parent / "llamacpp/records.json"
# parameters that the target fills, and those of later layers that are not used
SHARED_OR_UNUSED = re.compile(r"lm_head\.weight|embed_tokens\.weight|layers\.[1-9]\d*\.input_layernorm")
# raises: an exception; refused: by the converter; fails: what it wrote does not load; dies: a signal, or no
# end; as meant: it drafts what the reference engine drafts with the checkpoint; as base: the checkpoint as a
# whole means nothing, and it drafts what the good drafter does; differently: neither; loads: it was loaded
# only
Verdict = Literal["raises", "refused", "fails", "dies", "as meant", "as base", "differently", "loads"]


@dataclass(frozen=True, slots=True)
class Record:
    """The engine's verdict on one case.

    `digest` says of which bytes, `difference` how far its draft logits are from the reference, rounded
    (tests/engine/logits.py; None: not compared). `captured` has the target's boundaries, the others names of
    tensors without a place and of parameters that got nothing, or not all.
    """

    digest: str
    verdict: Verdict
    reason: str = ""
    difference: float | None = None
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
        is_near = self.difference is None or self.difference < BOUND
        return self.is_filled and is_near and self.verdict in ("as meant", "as base")

    @property
    def is_wrong(self) -> bool:
        """Whether it was seen not to."""
        if self.verdict == "loads":
            return bool(self.skipped) or not self.is_filled
        return not self.is_served

    @property
    def stopped(self) -> str:
        """The verdict, with one word for all ways not to load."""
        return "raises" if self.verdict in ("refused", "fails") else self.verdict


def read(path: Path = RECORDS) -> dict[str, Record]:
    """All records of a file, none where there is no file."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: Record(*row[:4], *map(tuple, row[4:])) for name, row in rows.items()}


def write(path: Path, records: Mapping[str, Record]) -> None:
    """Write them, one a line."""
    rows = []
    for name, record in records.items():
        row = list(astuple(record))
        while row[-1] in ((), None):
            row.pop()
        rows.append(f"{json.dumps(name)}: {json.dumps(row)}")
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
