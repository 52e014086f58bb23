"""How a drafter was trained, as its trainer states it in a file for the card (`upload --training`)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eaglectl.errors import UsageError
from eaglectl.files.files import read_small_file
from eaglectl.files.header import parse_json
from eaglectl.files.hub_cache import is_repo_name
from eaglectl.judge.rules.config import schema_file, violations
from eaglectl.text import as_markdown

SCHEMA = "eaglectl/training/1"
SCHEMA_FILE = "training.schema.json"
MAX_TRAINING = 1 << 20
RESPONSES = {
    "target": "written by the target for the prompts of the data",
    "dataset": "those of the data",
}
# keys that a table shows as they are, and what they are called there
ROWS = {
    "framework": "trained with",
    "epochs": "epochs",
    "steps": "steps",
    "tokens": "tokens",
    "global_batch_size": "global batch size",
    "learning_rate": "learning rate",
    "max_length": "longest sample, in tokens",
    "ttt_length": "draft steps unrolled (training-time test)",
    "hardware": "hardware",
}


def read_training(path: str | Path) -> Mapping[str, Any]:
    """Read a file of schemas/training.schema.json.

    Raises UnreadableError for a file that cannot be read, UsageError for one that does not keep the schema.
    """
    raw = read_small_file(Path(path), MAX_TRAINING, "--training")
    document = parse_json(f"--training {path}", raw)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UsageError(f'--training {path} has no "schema": "{SCHEMA}"; see schemas/{SCHEMA_FILE}')
    schema = json.loads(schema_file(SCHEMA_FILE).read_text(encoding="utf-8"))
    for place, message in violations(schema, document, is_strict=True):
        raise UsageError(f"--training {path}: {place}: {message} (schemas/{SCHEMA_FILE})")
    return document


def hub_datasets(training: Mapping[str, Any]) -> list[str]:
    """The data that has a page on the Hub, each once."""
    names = [dataset["name"] for dataset in training.get("datasets", [])]
    return list(dict.fromkeys(name for name in names if is_repo_name(name)))


def training_rows(training: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The facts of the file as rows of a table in Markdown."""
    rows = []
    if datasets := training.get("datasets"):
        rows.append(("data", ", ".join(map(_dataset, datasets))))
    if responses := training.get("responses"):
        rows.append(("answers", RESPONSES[responses]))
    if languages := training.get("language"):
        rows.append(("language", ", ".join(languages)))
    return rows + [(title, _shown(training[key])) for key, title in ROWS.items() if key in training]


def _shown(value: str | float) -> str:
    if isinstance(value, str):
        return as_markdown(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _dataset(dataset: Mapping[str, Any]) -> str:
    name = as_markdown(dataset["name"])
    if is_repo_name(dataset["name"]):
        name = f"[{dataset['name']}](https://huggingface.co/datasets/{dataset['name']})"
    about = [
        *([f"split {as_markdown(dataset['split'])}"] if "split" in dataset else []),
        *([f"revision {as_markdown(dataset['revision'])}"] if "revision" in dataset else []),
        *([f"{dataset['samples']:,} samples"] if "samples" in dataset else []),
    ]
    return f"{name} ({', '.join(about)})" if about else name
