"""Facts of an engine's data file: for which releases and drafters they hold, and what then happens."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from msgspec import Struct, convert

from eaglectl.engines.data import cached, check_evidence, load
from eaglectl.engines.releases import is_within
from eaglectl.verdicts import ServedAs

# run: a recorded case shows it on the engine itself; read: its sources show it
EvidenceKind = Literal["run", "read"]
# what an engine reads otherwise than was trained, where nothing else of its network differs
Misread = Literal[
    "aux layers", "rope base", "fc_norm", "norm_before_fc", "norm_output", "norm_before_residual"
]


class Fact(Struct, frozen=True):
    """One fact of an engine: in `releases` (PEP 508, empty for all), for drafters of `classes`, this happens.

    `message` has places for a checkpoint's values; `summary`, `why` and `fix` are the rule's documentation.
    `remedy` is the smallest change that helps: config keys to write, "convert", "restore" (only the trainer
    can) or "upgrade" (the engine). `reported_by` are rules that report the same defect whatever the engine.
    Where a final fact holds, no other is reported. `misread`: the fact is that this is read otherwise than it
    was trained, and no more. `run_in` has the releases in which the engine itself
    showed the fact, each with the recorded case; in all others it was read in the sources.
    """

    id: str
    rule: str
    releases: str
    classes: tuple[str, ...]
    outcome: ServedAs
    message: str
    summary: str
    why: str
    fix: str
    remedy: Mapping[str, Any] | str
    source: str
    run_in: Mapping[str, str]
    reported_by: tuple[str, ...] = ()
    is_final: bool = False
    misread: Misread | None = None

    def evidence(self, release: str) -> EvidenceKind:
        """How it is known that the fact holds in a release."""
        return "run" if release in self.run_in else "read"


class AppliedFact(Struct, frozen=True):
    """A fact that holds for one checkpoint in one release.

    `text` is its message with that checkpoint's values.
    """

    fact: Fact
    text: str


@cached
def facts(engine: str) -> tuple[Fact, ...]:
    """The facts of an engine, in the order of its data file.

    Raises ValueError where one does not state its evidence.
    """
    rows = load(engine)["facts"]
    for row in rows:
        check_evidence(row, f"the fact {row['id']}", partial(is_within, row["releases"]))
    return convert(rows, tuple[Fact, ...])
