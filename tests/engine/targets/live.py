"""Runs a child on some of its records again."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import FIXTURES
from tests.engine import pairs
from tests.engine.targets import records


def sample(known: dict[str, dict[str, Any]], captured: tuple[str, ...]) -> list[str]:
    """Every target that was refused, which takes no forward pass, and these that were captured."""
    return sorted({name for name, record in known.items() if record["outcome"] == "refused"} | {*captured})


def run(child: str, names: list[str], root: Path) -> dict[str, dict[str, Any]]:
    """The records of these architectures, made now."""
    answers = root / "answers.json"
    command = [sys.executable, "-W", "ignore", "-m", f"tests.engine.targets.{child}", str(answers), *names]
    with (root / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=FIXTURES.parent, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(300.0 + 60.0 * len(names))
        finally:
            pairs.end(process)
    assert code == 0, (root / "log").read_text()[-2000:]
    return records.read(answers)
