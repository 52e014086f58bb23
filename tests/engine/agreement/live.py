"""A random sample of the recorded cases, run again: the same each time, so that a failure is of a change.

EAGLECTL_AGREEMENT_SEED chooses another, EAGLECTL_AGREEMENT_CASES=all takes every case.
"""

import os
import random
from pathlib import Path

from tests.engine.agreement.records import Record, read
from tests.engine.children import run_child


def sample(records: Path, count: int, seed: str = "2026-11-22") -> list[str]:
    """The names of so many recorded cases."""
    names, wanted = sorted(read(records)), os.environ.get("EAGLECTL_AGREEMENT_CASES", str(count))
    if wanted == "all":
        return names
    return sorted(random.Random(os.environ.get("EAGLECTL_AGREEMENT_SEED", seed)).sample(names, int(wanted)))


def run(runner: str, names: list[str], folder: Path, patience: float, **variables: str) -> dict[str, Record]:
    """What the engine of a runner's module does with these cases."""
    answers, log = folder / "answers.json", folder / "log"
    run_child(f"tests.engine.{runner}", answers, *names, patience=patience, log=log, **variables)
    return read(answers)
