"""Every JSON document has a schema, and every schema a document that is checked against it."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec import Struct
from msgspec.structs import replace

import eaglectl
from eaglectl.conversion.upgrade import Statistics, write_statistics
from eaglectl.publish.card import read_training
from eaglectl.report.documents.document import Parts, part
from eaglectl.run.job import LoadResult
from tests.builders import STATED, call, drafter_folder
from tests.cases import file_digests
from tests.conftest import FIXTURES
from tests.pages import smoke_report

SCHEMAS = FIXTURES.parent / "schemas"
SCHEMA_ID = re.compile(r"eaglectl/([a-z]+)/(\d+)")
NATIVE = str(FIXTURES / "producers/vllm/native")
IDS = str(FIXTURES / "producers/modelopt/hf-ids")
DIGEST = "0" * 64
RESOLVED = {
    "class": "Eagle3LlamaForCausalLM",
    "layers": 1,
    "fc_norm": True,
    "norm_output": True,
    "norm_before_fc": False,
    "norm_before_residual": False,
    "fc": [32, 96],
    "own_embed_tokens": True,
    "own_lm_head": True,
}


def schema_ids() -> set[str]:
    """The schema ids in the code."""
    ids = set()
    for path in Path(eaglectl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Constant(value=str(text)) if SCHEMA_ID.fullmatch(text):
                    ids.add(text)
    return ids


def command(*arguments: str) -> Callable[[Path], Any]:
    return lambda _: call(*arguments, "--json").document


def converted(folder: Path) -> Any:
    return call("convert", NATIVE, "-o", folder / "converted", "--json").document


def provenance(folder: Path) -> Any:
    converted(folder)
    return json.loads((folder / "converted/eaglectl.json").read_text())


def statistics() -> Statistics:
    return Statistics(
        digests=dict.fromkeys(("drafter", "target", "prompts"), DIGEST),
        prompts=(DIGEST[:16],),
        boundaries=(2, 4, 5),
        eps=1e-6,
        tokens=99,
        rms=(0.5, 1.0, 4.0),
        spread=(0.1, 0.1, 0.1),
        sigma=2.0,
        sigmas={},
        is_direction=False,
        engine={"name": "transformers", "device": "cpu", "dtype": "float32"},
    )


def written_statistics(folder: Path) -> Any:
    write_statistics(statistics(), folder / "statistics", force=False)
    return json.loads((folder / "statistics/statistics.json").read_text())


def smoked(_: Path) -> Any:
    report = smoke_report()
    return replace(report, run=replace(report.run, engine="reference")).to_dict()


def diagnosed(_: Path) -> Any:
    """One that ends before anything runs, with a run beside it."""
    diagnosis = eaglectl.diagnose(NATIVE, NATIVE)
    evidence = replace(diagnosis.evidence, reference=smoke_report())
    return replace(diagnosis, evidence=evidence).to_dict()


def planned_upload(folder: Path) -> Any:
    return call("upload", drafter_folder(folder, card=STATED), "org/name", "--dry-run", "--json").document


def verified(folder: Path) -> Any:
    checkpoint = drafter_folder(folder)
    digests = file_digests(checkpoint)
    (checkpoint / "SHA256SUMS").write_text("".join(f"{digests[name]}  {name}\n" for name in digests))
    return call("verify", checkpoint, "--json").document


DOCUMENTS: dict[str, Callable[[Path], Any]] = {
    "calibrate": lambda _: replace(statistics(), out="statistics").to_dict(),
    "convert": converted,
    "diagnose": diagnosed,
    "diff": command("diff", NATIVE, IDS),
    "engines": command("engines"),
    "error": command("inspect", "nowhere/at/all"),
    "inspect": command("inspect", NATIVE),
    "load": lambda _: LoadResult("0.32.0", ("norm.weight",), RESOLVED).to_dict(),
    "provenance": provenance,
    "ready": command("ready", NATIVE),
    "rules": command("rules"),
    "smoke": smoked,
    "statistics": written_statistics,
    "training": lambda _: read_training(FIXTURES / "cards/training.json"),
    "upload": planned_upload,
    "validate": command("validate", NATIVE),
    "verify": verified,
}


class Ink(Struct, frozen=True):
    name: str
    shade: int | None = None


class Pen(Struct, frozen=True):
    path: Path
    ink: Ink
    spare: tuple[Ink, ...] = ()


def nib(pen: Pen) -> str:
    return f"{pen.ink.name} nib"


PENS: Parts = {
    Pen: ("path", "colour=ink.name", "*ink", ("nib", nib), "spare?"),
    Ink: ("hue=name", "shade?"),
}


def test_a_table_states_the_keys_of_a_record_in_their_order() -> None:
    pen = Pen(Path("a/b"), Ink("red", 3), (Ink("blue"),))
    assert list(part(pen, PENS).items()) == [
        ("path", "a/b"),
        ("colour", "red"),
        ("hue", "red"),
        ("shade", 3),
        ("nib", "red nib"),
        ("spare", [{"hue": "blue"}]),
    ]


def test_a_key_that_may_be_absent_is_where_its_value_is_empty() -> None:
    assert list(part(Pen(Path("a"), Ink("red")), PENS)) == ["path", "colour", "hue", "nib"]


def test_a_record_without_an_entry_is_written_whole() -> None:
    assert part(Pen(Path("a"), Ink("red")), {Pen: ("ink",)}) == {"ink": {"name": "red", "shade": None}}


def test_every_schema_id_in_the_code_has_a_document_here() -> None:
    assert {SCHEMA_ID.fullmatch(text)[1] for text in schema_ids()} == set(DOCUMENTS)  # type: ignore[index]


def test_every_schema_has_a_document_here() -> None:
    names = {path.name.removesuffix(".schema.json") for path in SCHEMAS.glob("*.schema.json")}
    others = ("published", "eaglectl.toml", "pyproject.toml")
    of_files = {name for name in names if name.startswith("config-") or name in others}
    assert names - of_files == set(DOCUMENTS)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_keeps_its_schema(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    document = json.loads(json.dumps(DOCUMENTS[name](tmp_path)))
    assert SCHEMA_ID.fullmatch(document["schema"])[1] == name  # type: ignore[index]
    jsonschema.Draft202012Validator(schema).validate(document)


@pytest.mark.parametrize(("name", "key"), [("inspect", "inspections"), ("validate", "reports")])
@pytest.mark.parametrize("sources", [[NATIVE], [NATIVE, IDS]])
def test_version_2_has_a_list_for_one_source_too(name: str, key: str, sources: list[str]) -> None:
    document = call(name, *sources, "--json", "--json-version", "2").document
    assert (document["schema"], len(document[key])) == (f"eaglectl/{name}/2", len(sources))
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)


def test_version_1_is_the_default_and_2_the_last() -> None:
    assert call("inspect", NATIVE, "--json").document["schema"] == "eaglectl/inspect/1"
    assert call("inspect", NATIVE, "--json", "--json-version", "3").code == 2
