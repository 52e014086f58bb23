"""One wording of each verdict: in the terminal, in JSON documents, in their schemas, in the Python API."""

import ast
import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl import verdicts
from tests.builders import call, drafter_folder
from tests.conftest import FIXTURES
from tests.pages import smoke_report

SCHEMAS = FIXTURES.parent / "schemas"
MODELOPT = str(FIXTURES / "producers/modelopt/hf-ids")
NATIVE = str(FIXTURES / "producers/vllm/native")
ENUMS = [
    item
    for item in vars(verdicts).values()
    if isinstance(item, type) and item.__module__ == verdicts.__name__
]
# the key of each enum in schemas, and the schemas
KEYS = {
    "CheckVerdict": [
        ("validate", "verdict"),
        ("smoke", "verdict"),
        ("smoke", "outcome"),
        ("diagnose", "verdict"),
    ],
    "DiagnosisEnding": [("diagnose", "ending")],
    "DiffVerdict": [("diff", "verdict"), ("upload", "verdict")],
    "FactState": [("diff", "state")],
    "FileChange": [("upload", "change")],
    "FileState": [("verify", "judgement")],
    "GateEnding": [("convert", "ending")],
    "MatchEnding": [("smoke", "ending")],
    "ReadingOutcome": [("smoke", "outcome"), ("diagnose", "outcome")],
    "AnswerOutcome": [("convert", "outcome")],
    "ServedAs": [("inspect", "outcome")],
    "SignatureState": [("verify", "judgement")],
    "TensorState": [("diff", "state")],
    "UploadOutcome": [("upload", "outcome")],
    "VerifyVerdict": [("verify", "verdict")],
}


def listed(schema: Any, key: str) -> Iterator[set[str]]:
    """The values that a schema lists for a key, wherever it stands."""
    definitions = schema.get("$defs", {})

    def parts(part: Any) -> Iterator[set[str]]:
        if isinstance(part, dict):
            yield from enums(part.get(key))
        if isinstance(part, dict | list):
            for inner in part.values() if isinstance(part, dict) else part:
                yield from parts(inner)

    def enums(part: Any) -> Iterator[set[str]]:
        match part:
            case {"enum": list(values)}:
                yield {value for value in values if value is not None}
            case {"$ref": str(reference)}:
                yield from enums(definitions[reference.removeprefix("#/$defs/")])
            case {"anyOf": list(choices)}:
                for choice in choices:
                    yield from enums(choice)

    return parts(schema)


def members(enum: type[StrEnum], schema: str) -> set[str]:
    """The members that a command's document can have: only `validate` skips."""
    return {member for member in enum if member != "skipped" or schema == "validate"}


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_schemas_list_the_members(enum: type[StrEnum]) -> None:
    for name, key in KEYS[enum.__name__]:
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
        assert members(enum, name) in list(listed(schema, key)), (name, key)


@pytest.mark.parametrize("name", sorted(KEYS))
def test_what_a_schema_lists_under_such_a_key_is_an_enum(name: str) -> None:
    known = [values for enum in ENUMS for values in (set(enum), members(enum, ""))]
    for schema_name, key in KEYS[name]:
        schema = json.loads((SCHEMAS / f"{schema_name}.schema.json").read_text())
        assert [values for values in listed(schema, key) if values not in known] == []


def test_every_enum_can_be_imported_from_eaglectl() -> None:
    assert [getattr(eaglectl, enum.__name__) for enum in ENUMS] == ENUMS


# words that are a verdict wherever they stand alone
DISTINCT = {"could-not-look", "same-headers", "not-looked", "nothing-to-do", "slightly better"}


def test_no_module_spells_a_verdict_itself() -> None:
    spelled = []
    for path in Path(eaglectl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in DISTINCT and path.name != "verdicts.py":
                spelled.append(f"{path.name}:{node.lineno} {node.value}")
    assert spelled == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return drafter_folder(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (("inspect", MODELOPT, "--engine", "vllm==0.22.0"), ("engines", 0, "outcome")),
        (("validate", MODELOPT, "--engine", "vllm==0.22.0"), ("verdict",)),
        (("validate", MODELOPT, "--engine", "vllm==0.22.0"), ("releases", 0, "verdict")),
        (("validate", "gone"), ("verdict",)),
        (("diff", NATIVE, NATIVE), ("verdict",)),
        (("diff", NATIVE, NATIVE, "--headers-only"), ("verdict",)),
        (("diff", NATIVE, MODELOPT), ("verdict",)),
    ],
)
def test_the_terminal_prints_what_the_document_says(
    folder: Path, arguments: tuple[str, ...], keys: tuple[str | int, ...]
) -> None:
    document = call(*arguments, "--json").document
    for key in keys:
        document = document[key]
    assert isinstance(document, str) and document in call(*arguments, "-v").out


def test_verify_prints_what_its_document_says(folder: Path) -> None:
    assert call("convert", folder, "-o", "out").code == 0
    words = [("equal", None), ("differs", "unlisted")]
    for verdict, judgement in words:
        document, text = call("verify", "out", "--json").document, call("verify", "out").out
        assert document["verdict"] == verdict and text.startswith(f"{verdict}  ")
        assert judgement is None or f"  {judgement}  extra.txt" in text
        Path("out/extra.txt").write_text("x")


def test_members_are_texts() -> None:
    report = smoke_report()
    assert report.verdict is eaglectl.CheckVerdict(str(report.verdict))
    assert json.dumps({"verdict": report.verdict}) == f'{{"verdict": "{report.verdict}"}}'
