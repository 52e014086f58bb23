"""The keys of eaglectl.toml: their schema and page say what the reader takes, and errors name the line."""

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from docs import configuration
from eaglectl.errors import UsageError
from eaglectl.judge.policy import Defaults, Policy, Suppression, VerifyPolicy
from eaglectl.judge.policy_file import MAX_LINES, line_of, parse_policy, read_policy
from eaglectl.judge.policy_keys import ALLOW, KEYS, SUPPRESSION, VERIFY
from schemas.files import policy_schema, pyproject_schema
from tests.conftest import FIXTURES

SCHEMAS = FIXTURES.parent / "schemas"


def as_json(values: Any) -> Any:
    return json.loads(json.dumps(values, default=str))


def test_the_example_of_the_page_is_read_and_keeps_the_schema() -> None:
    values = tomllib.loads(configuration.example())
    policy = parse_policy(values, "eaglectl.toml")
    assert policy.fail_on == "warning" and policy.off == {"EGL705"} and policy.verify.require_record
    jsonschema.Draft202012Validator(policy_schema()).validate(as_json(values))
    jsonschema.Draft202012Validator(pyproject_schema()).validate({"tool": {"eaglectl": as_json(values)}})


def test_the_page_and_the_schemas_are_as_the_keys_are() -> None:
    assert configuration.PAGE.read_text() == configuration.page()
    assert json.loads((SCHEMAS / "eaglectl.toml.schema.json").read_text()) == policy_schema()
    assert json.loads((SCHEMAS / "pyproject.toml.schema.json").read_text()) == pyproject_schema()


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


def test_every_field_that_is_read_has_a_key() -> None:
    """The records' names are those of the keys, but for the four that the file calls otherwise."""
    others = {"allowed": "allow", "suppressions": "suppress", "off": "severities", "origin": "defaults"}
    names = {others.get(name, name.replace("_", "-")) for name in Policy.__struct_fields__}
    assert names == set(KEYS)
    assert {name.replace("_", "-") for name in VerifyPolicy.__struct_fields__} == set(VERIFY)
    assert set(Suppression.__struct_fields__) == set(SUPPRESSION)
    fields = {name.replace("_", "-") for name in Defaults.__struct_fields__}
    assert fields - {"origin", "engines"} == set(KEYS["defaults"].keys)
    assert all(key.help for table in (KEYS, ALLOW, VERIFY, SUPPRESSION) for key in table.values())


TEXT = '''# a comment
engines = [
  "vllm",  # one
  "sglang",
]

fail-on = "never"
[severities]
EGL001 = "note"

[[suppress]]
rule = """
fail-on = 3
"""
reason = "x"
# between
[[suppress]]
rule = "b"
inner = { a = 1 }
[tool.eaglectl.allow]
files = []
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("engines",), 2),
        (("engines", 1), 2),
        (("fail-on",), 7),
        (("severities",), 8),
        (("severities", "EGL001"), 9),
        (("suppress", 0), 11),
        (("suppress", 0, "rule"), 12),
        (("suppress", 0, "reason"), 15),
        (("suppress", 1), 17),
        (("suppress", 1, "rule"), 18),
        (("suppress", 1, "inner", "a"), 19),
        (("tool", "eaglectl", "allow", "files"), 21),
        (("absent",), None),
        (("suppress", 2), None),
        (("fail-on", "x"), None),
    ],
)
def test_the_line_is_that_on_which_the_statement_begins(
    path: tuple[str | int, ...], line: int | None
) -> None:
    assert line_of(TEXT, path) == line


def test_a_file_of_many_lines_has_no_line() -> None:
    assert line_of("\n" * MAX_LINES + "a = 1", ("a",)) is None
    assert line_of("\n" * (MAX_LINES - 1) + "a = 1", ("a",)) == MAX_LINES
    assert line_of("# \u2028\na = 1", ("a",)) == 2
    assert line_of("a = [\n" + "1,\n" * 100 + "]\nb = 1\n", ("b",)) == 103


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nengines = ['vlm']\n", "p.toml:2: engines: "),
        ("[severities]\n\nmissing-tensors = 'note'\n", "p.toml:3: severities.missing-tensors: "),
        ("[[suppress]]\nrule = 'EGL001'\n", "p.toml:1: suppress[1].reason is absent"),
        ("[verify]\nidentity = 'a'\n", "p.toml:2: verify.identity"),
    ],
)
def test_an_error_names_the_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_policy(path)
    assert message in str(caught.value)
    (tmp_path / "pyproject.toml").write_text("[tool.eaglectl]\nfail-on = 3\n")
    with pytest.raises(UsageError, match=r"pyproject.toml:2: fail-on is 3"):
        read_policy(tmp_path / "pyproject.toml")
