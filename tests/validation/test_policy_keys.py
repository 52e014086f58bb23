"""The keys of eaglectl.toml: their schema and page say what the reader takes, and errors name the key."""

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from docs import configuration
from eaglectl.errors import UsageError
from eaglectl.judge.policy_file import PolicyTable, parse_policy, read_policy
from schemas.files import policy_schema, pyproject_schema
from tests.conftest import FIXTURES

SCHEMAS = FIXTURES.parent / "schemas"


def as_json(values: Any) -> Any:
    return json.loads(json.dumps(values, default=str))


def test_the_example_of_the_page_is_read_and_keeps_the_schema() -> None:
    values = tomllib.loads(configuration.EXAMPLE)
    policy = parse_policy(values, "eaglectl.toml")
    assert policy.fail_on == "warning" and policy.off == {"EGL705"} and policy.verify.require_record
    jsonschema.Draft202012Validator(policy_schema()).validate(as_json(values))
    jsonschema.Draft202012Validator(pyproject_schema()).validate({"tool": {"eaglectl": as_json(values)}})


def test_the_schemas_are_as_the_keys_are() -> None:
    assert json.loads((SCHEMAS / "eaglectl.toml.schema.json").read_text()) == as_json(policy_schema())
    assert json.loads((SCHEMAS / "pyproject.toml.schema.json").read_text()) == as_json(pyproject_schema())


@pytest.mark.parametrize(
    "text",
    [
        "fail-on = 'fatal'",
        "engines = 'vllm'",
        "enginges = []",
        "[defaults]\naux-layers = []",
        "[defaults]\naux-layers = [-1]",
        "[defaults]\naux-convention = 'input'",
        "[defaults]\nassume = 1",
        "[defaults.source-semantics]\nrope = 1",
        "[[suppress]]\nrule = 'EGL001'",
        "[severities]\nEGL001 = 'high'",
        "[allow]\nlicenses = []",
        "[verify]\nrequire-record = 1",
        "suppress = 1",
    ],
)
def test_what_the_reader_refuses_the_schema_refuses(text: str) -> None:
    values = tomllib.loads(text)
    with pytest.raises(UsageError):
        parse_policy(values, "p")
    assert not jsonschema.Draft202012Validator(policy_schema()).is_valid(as_json(values))


def test_every_key_is_described_and_in_the_example() -> None:
    tables = msgspec.json.schema_components([PolicyTable])[1]
    example = tomllib.loads(configuration.EXAMPLE)
    inner = {"AllowTable": "allow", "VerifyPolicy": "verify", "DefaultsTable": "defaults"}
    assert set(example) == set(tables["PolicyTable"]["properties"])
    assert set(example["suppress"][0]) == set(tables["Suppression"]["properties"])
    for table, key in inner.items():
        assert set(example[key]) == set(tables[table]["properties"])
    keys = [
        key for table in tables.values() for key in table["properties"].values() if "$ref" not in str(key)
    ]
    assert all(key["description"] for key in keys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nengines = ['vlm']\n", "p.toml: --engine vlm: near it: vllm"),
        ("[severities]\n\nmissing-tensors = 'note'\n", "p.toml: missing-tensors is no rule"),
        (
            "[[suppress]]\nrule = 'EGL001'\n",
            "p.toml: Object missing required field `reason` - at `$.suppress[0]`",
        ),
        ("[verify]\nidentity = 'a'\n", "p.toml: Object contains unknown field `identity` - at `$.verify`"),
    ],
)
def test_an_error_names_the_file_and_the_key(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_policy(path)
    assert message in str(caught.value)
    (tmp_path / "pyproject.toml").write_text("[tool.eaglectl]\nfail-on = 3\n")
    with pytest.raises(
        UsageError, match=r"pyproject.toml: Expected `str \| null`, got `int` - at `\$.fail-on`"
    ):
        read_policy(tmp_path / "pyproject.toml")
