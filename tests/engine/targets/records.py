"""What an engine captured of each tiny target: `ENGINE-RELEASE.json` here, one architecture a line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VLLM, SGLANG = (Path(__file__).with_name(f"{name}.json") for name in ("vllm-0.32.0", "sglang-0.5.23"))


def read(path: Path) -> dict[str, dict[str, Any]]:
    """All records of a file, none where there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(path: Path, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Write them, sorted, one a line."""
    rows = [f"{json.dumps(name)}: {json.dumps(records[name])}" for name in sorted(records)]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
