"""eaglectl/formats/known_drafters.json: what fixtures/published knows of open facts, by name and config."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from eaglectl.formats.settling import KNOWN, config_digest
from tests.published import ALL


def document() -> str:
    """The file: an entry for each declaration that settles something, with the digest of its config."""
    entries = [
        {"name": drafter.name, "config": config_digest(drafter.said["config"]), **drafter.said["settles"]}
        for drafter in ALL
        if "settles" in drafter.said
    ]
    return json.dumps(entries, indent=2) + "\n"


def write() -> None:
    """Write the file."""
    KNOWN.write_text(document())
