"""Write config-<name>.schema.json for every producer from its declaration in eaglectl/formats/producers/."""

import json
from pathlib import Path

from eaglectl.formats.catalogue import FORMATS
from eaglectl.formats.config_schema import config_schema
from eaglectl.formats.format import Format

HERE = Path(__file__).parent


def path(format: Format) -> Path:
    """The schema file of a producer's config."""
    return HERE / f"config-{format.schema_name}.schema.json"


def texts() -> dict[Path, str]:
    """Every schema file with its text; formats that share a schema share the first one's."""
    return {path(format): json.dumps(config_schema(format), indent=2) + "\n" for format in reversed(FORMATS)}


if __name__ == "__main__":
    for file, text in texts().items():
        file.write_text(text)
