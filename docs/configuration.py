"""docs/reference/configuration.md: every key of eaglectl.toml, from its declaration."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.json import schema_components

from eaglectl.judge.rule import PolicyTable

PAGE = Path(__file__).with_name("reference") / "configuration.md"
HEAD = """# Keys of eaglectl.toml

Written by `make docs` from `eaglectl/judge/rule.py`;
[pipelines](../pipelines.md#eaglectltoml) explains the file. Editors complete and check it with
[its schema](../../schemas/eaglectl.toml.schema.json), and `[tool.eaglectl]` by
[that of pyproject.toml](../../schemas/pyproject.toml.schema.json): for Taplo, the first line of the file is
`#:schema schemas/eaglectl.toml.schema.json`, with the path to a checkout.
"""


TABLES = ("allow", "suppress", "verify", "defaults")
EXAMPLE = """engines = ["vllm>=0.22", "sglang"]
required = ["EGL003"]
severities = { unknown-file = "error", EGL705 = "off" }
fail-on = "warning"
approximate = 0.2

[allow]
architectures = ["LlamaForCausalLMEagle3"]
dtypes = ["BF16"]
licences = ["apache-2.0", "mit"]
files = ["*.log"]
quantisation = ["fp8"]
start-options = ["--max-model-len"]
base-models = ["my-org/*"]

[[suppress]]
rule = "EGL701"
reason = "checked by another job"
until = 2027-01-31
where = "config.json:"

[verify]
require-record = true

[defaults]
target = "models/my-target"
aux-layers = [2, 16, 29]
aux-convention = "boundary"
source-semantics = { specforge = "pre-879" }
assume = true
"""


def page() -> str:
    """The whole page."""
    _, tables = schema_components([PolicyTable])
    by_key = dict(zip(TABLES, ("AllowTable", "Suppression", "VerifyPolicy", "DefaultsTable"), strict=True))
    top = {name: key for name, key in tables["PolicyTable"]["properties"].items() if name not in TABLES}
    parts = [HEAD, "## At the top level\n", *_rows(top)]
    for name, table in by_key.items():
        title = f"`[[{name}]]`" if name == "suppress" else f"`[{name}]`"
        keys = tables[table]
        parts += [f"\n## {title}\n", f"{keys['description']}\n", *_rows(keys["properties"])]
    return "\n".join([*parts, "\n## An example\n", "```toml", EXAMPLE.rstrip(), "```", ""])


def _rows(keys: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield from ("| key | value | |", "|---|---|---|")
    for name, key in keys.items():
        needed = "" if "default" in key else ", needed"
        cells = (f"`{name}`", f"{_kind(key)}{needed}", key["description"])
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _kind(schema: Mapping[str, Any]) -> str:
    """A value of a schema in words."""
    match schema:
        case {"anyOf": kinds}:
            return " or ".join(_kind(kind) for kind in kinds if kind != {"type": "null"})
        case {"enum": values}:
            return f"one of {', '.join(value for value in values if value is not None)}"
        case {"format": "date"}:
            return "a date without quotes"
        case {"type": "array", "items": {"type": "integer"}}:
            return "whole numbers"
        case {"type": "array"}:
            return "a list of texts"
        case {"type": "object", "additionalProperties": inner}:
            kind = _kind(inner)
            return f"a table of {'texts' if kind == 'a text' else kind}"
        case {"type": "number"}:
            return "a number"
        case {"type": "boolean"}:
            return "true or false"
    return "a text"
