"""`upload --ml-bom`: the drafter as a CycloneDX ML-BOM, checked by CycloneDX's own validator."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from eaglectl import api
from tests.builders import STATED, call, drafter_folder
from tests.conftest import FIXTURES
from tests.test_card import measured, smoke_with

validation = pytest.importorskip("cyclonedx.validation.json")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return drafter_folder(tmp_path, card=STATED)


def published(folder: Path, **options: Any) -> dict[str, bytes]:
    done = api.upload(str(folder), "org/drafter", api.UploadOptions(dry_run=True, has_bom=True, **options))
    return {file.name: bytes(file.content) for file in done.plan.files}  # type: ignore[arg-type]


def checked(raw: bytes) -> dict[str, Any]:
    from cyclonedx.schema import SchemaVersion

    assert validation.JsonStrictValidator(SchemaVersion.V1_6).validate_str(raw.decode()) is None
    document = json.loads(raw)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    return dict(document)


def test_a_bom_names_the_drafter_its_target_data_licence_and_files(folder: Path, tmp_path: Path) -> None:
    smoke = smoke_with(tmp_path, sets={"code": measured(8, 2.9)})
    answers = api.CardAnswers(training=FIXTURES / "cards/training.json")
    files = published(folder, card=answers, smoke=smoke)
    document = checked(files["ml-bom.cdx.json"])
    drafter = document["metadata"]["component"]
    assert (drafter["type"], drafter["group"], drafter["name"]) == (
        "machine-learning-model",
        "org",
        "drafter",
    )
    assert drafter["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    digests = {part["name"]: part["hashes"][0]["content"] for part in drafter["components"]}
    assert digests == {
        name: hashlib.sha256(files[name]).hexdigest()
        for name in ("README.md", "config.json", "model.safetensors")
    }
    card = drafter["modelCard"]
    assert card["modelParameters"]["architectureFamily"] == "EAGLE-3"
    metrics = card["quantitativeAnalysis"]["performanceMetrics"]
    assert [(metric["slice"], metric["value"]) for metric in metrics] == [
        ("all prompts", "2.31"),
        ("code", "2.9"),
    ]
    assert [(part["type"], part["name"]) for part in document["components"]] == [
        ("machine-learning-model", "target-8b"),
        ("data", "HuggingFaceH4/ultrachat_200k"),
        ("data", "in-house support chats"),
    ]


def test_a_bom_is_listed_and_the_same_for_the_same_files(folder: Path) -> None:
    first = published(folder)
    assert published(folder) == first
    assert "ml-bom.cdx.json" in json.loads(first["eaglectl.json"])["published"]["files"]
    assert b"  ml-bom.cdx.json\n" in first["SHA256SUMS"]
    assert "licenses" in checked(first["ml-bom.cdx.json"])["metadata"]["component"]


def test_a_licence_that_spdx_does_not_know_is_named(folder: Path) -> None:
    (folder / "README.md").write_text(STATED.replace("apache-2.0", "llama3.1"))
    drafter = checked(published(folder)["ml-bom.cdx.json"])["metadata"]["component"]
    assert drafter["licenses"] == [{"license": {"name": "llama3.1"}}]


def test_an_old_bom_is_written_again_unasked(folder: Path) -> None:
    (folder / "ml-bom.cdx.json").write_text("{}")
    done = api.upload(str(folder), "org/drafter", api.UploadOptions(dry_run=True))
    bom = next(file for file in done.plan.files if file.name == "ml-bom.cdx.json")
    assert isinstance(bom.content, bytes) and checked(bom.content)["version"] == 1


def test_verify_says_what_a_bom_does_not_prove(folder: Path, tmp_path: Path) -> None:
    download = tmp_path / "download"
    download.mkdir()
    for name, data in published(folder).items():
        (download / name).write_bytes(data)
    done = call("verify", download)
    assert done.code == 0 and "by ml-bom.cdx.json proved:" in done.out
    assert "its publisher states them" in " ".join(done.out.split())
    (download / "ml-bom.cdx.json").write_text("{}")
    done = call("verify", download)
    assert done.code == 1 and "proved" not in done.out


def test_the_option_adds_it(folder: Path) -> None:
    assert "ml-bom.cdx.json" in call("upload", folder, "org/drafter", "--dry-run", "--ml-bom").out
    assert "ml-bom.cdx.json" not in call("upload", folder, "org/drafter", "--dry-run").out
