"""Write config-<name>.schema.json for every producer from its declaration in eaglectl/formats/producers/.

And NAME.schema.json of every JSON document, from its table of keys and its records, and
published.schema.json, of the figures of others, from their records in eaglectl/formats/published.py.
"""

import json
from pathlib import Path

from eaglectl.formats.catalogue import FORMATS
from eaglectl.formats.format import Format
from schemas.documents import DOCUMENTS, document_schema
from schemas.files import config_schema, policy_schema, published_schema, pyproject_schema

HERE = Path(__file__).parent
# of the files that users write
FILES = {
    HERE / "eaglectl.toml.schema.json": policy_schema(),
    HERE / "pyproject.toml.schema.json": pyproject_schema(),
}


def path(format: Format) -> Path:
    """The schema file of a producer's config."""
    return HERE / f"config-{format.schema_name}.schema.json"


def texts() -> dict[Path, str]:
    """Every schema file with its text; formats that share a schema share the first one's."""
    configs = {path(format): config_schema(format) for format in reversed(FORMATS)}
    documents = {HERE / f"{name}.schema.json": document_schema(name) for name in DOCUMENTS}
    schemas = {**configs, **documents, **FILES, HERE / "published.schema.json": published_schema()}
    return {file: json.dumps(schema, indent=2) + "\n" for file, schema in schemas.items()}


if __name__ == "__main__":
    for file, text in texts().items():
        file.write_text(text)
