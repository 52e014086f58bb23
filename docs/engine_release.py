"""docs/engines.md: an hour with a release, with what the scan printed on the day of SGLang 0.5.17."""

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eaglectl.engines.behaviour import releases
from eaglectl.engines.data import FOLDER
from eaglectl.engines.releases import is_within
from tools.engine_data import data_from
from tools.scan.report import lines
from tools.scan.scanner import held_to_data

PAGE = Path(__file__).with_name("engines.md")
SCANS = PAGE.parent.parent / "tests/tools/scans"
BEFORE, RELEASE = "0.5.16", "0.5.17"
BLOCK = re.compile(r"(```\n\$ python -m tools.scan (sglang-[^\n]*)\n).*?```", re.DOTALL)


def page() -> str:
    """The page with the scan as it is printed now."""
    found = json.loads((SCANS / f"sglang-{RELEASE}.json").read_text())
    text = PAGE.read_text()
    block = BLOCK.search(text)
    assert block
    with tempfile.TemporaryDirectory() as parent, data_from(data_before(Path(parent))):
        printed = "\n".join(line.rstrip() for line in lines(held_to_data(found), block[2]))
    return text.replace(block[0], f"{block[1]}{printed}\n```")


def data_before(parent: Path) -> Path:
    """The data files as they were before the release: what is said of later ones is left out.

    The recorded cases count as run with the release before.
    """
    known = releases("sglang")
    known = known[: known.index(BEFORE) + 1]
    copy = parent / "data"
    copy.mkdir()
    for file in FOLDER.glob("*.json"):
        shutil.copy(file, copy)
    path = copy / "sglang_releases.json"
    data = json.loads(path.read_text())
    data["behaviour"] = [
        {**row, "run_in": {}, "releases": [release for release in row["releases"] if release in known]}
        for row in data["behaviour"]
        if set(row["releases"]) & set(known)
    ]
    data["facts"] = [fact for row in data["facts"] for fact in _before(row, known)]
    path.write_text(json.dumps(data))
    path = copy / "sglang_targets.json"
    targets = json.loads(path.read_text())
    rows = {
        name: [row for row in listed if row["from"] in known]
        for name, listed in targets["architectures"].items()
    }
    read = {release: targets["read"][release] for release in known}
    architectures = {name: listed for name, listed in rows.items() if listed}
    path.write_text(json.dumps({**targets, "run_in": {}, "read": read, "architectures": architectures}))
    scan = json.loads((SCANS / f"sglang-{BEFORE}.json").read_text())
    path = copy / "recorded.json"
    recorded = json.loads(path.read_text())
    path.write_text(json.dumps(recorded | {"sglang": {"release": BEFORE, "functions": scan["functions"]}}))
    return copy


def _before(row: Mapping[str, Any], known: tuple[str, ...]) -> list[Mapping[str, Any]]:
    """A fact as it was: in all releases where it held in all, gone where it held in none."""
    holding = [release for release in known if is_within(row["releases"], release)]
    return (
        [{**row, "run_in": {}, "releases": "" if len(holding) == len(known) else row["releases"]}]
        if holding
        else []
    )
