"""What an engine captured of each tiny target: `ENGINE-RELEASE.json` here, one architecture a line."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.engine.children import run_child

VLLM, SGLANG = (Path(__file__).with_name(f"{name}.json") for name in ("vllm-0.32.0", "sglang-0.5.23"))


def read(path: Path) -> dict[str, dict[str, Any]]:
    """All records of a file, none where there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(path: Path, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Write them, sorted, one a line."""
    rows = [f"{json.dumps(name)}: {json.dumps(records[name])}" for name in sorted(records)]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def sample(known: Mapping[str, Mapping[str, Any]], captured: tuple[str, ...]) -> list[str]:
    """Every target that was refused, which takes no forward pass, and these that were captured."""
    if os.environ.get("EAGLECTL_AGREEMENT_CASES") == "all":
        return sorted(known)
    return sorted({name for name, record in known.items() if record["outcome"] == "refused"} | {*captured})


def run(child: str, names: list[str], root: Path) -> dict[str, dict[str, Any]]:
    """The records of these architectures, made now."""
    answers, log, patience = root / "answers.json", root / "log", 300.0 + 60.0 * len(names)
    run_child(f"tests.engine.targets.{child}", answers, *names, patience=patience, log=log)
    return read(answers)
