"""`upload` and what an earlier call measured: kept for the same weights, left out for others."""

import json
from pathlib import Path

import pytest

from tests.builders import call, drafter_folder, write_safetensors
from tests.builders import drafter_tensors as tensors
from tests.cards import ANSWERS, card, matter, record, smoke_file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a download of it is that was published with a measurement."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    folder = drafter_folder(tmp_path)
    text, known = card(folder, smoke=smoke_file(tmp_path)), record(folder, smoke=smoke_file(tmp_path))
    (folder / "README.md").write_text(text)
    (folder / "eaglectl.json").write_text(json.dumps(known))
    return folder


def test_what_eaglectl_json_keeps_is_used_again(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert "2.310" in text and card(folder) == text


def test_measurements_of_other_weights_are_not_kept(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", tensors(), {"format": "pt", "run": "2"})
    done = call("upload", folder, "org/drafter", *ANSWERS, "--dry-run")
    assert done.code == 0 and "is of other weights, and left out" in done.err
    assert "2.310" not in card(folder)
    assert "smoke" not in record(folder)["published"]


@pytest.mark.parametrize("key", ["model-index", '"model-index"', "model-index "])
def test_a_model_index_of_the_users_own_is_not_touched(folder: Path, key: str) -> None:
    text = card(folder, f"---\nlicense: apache-2.0\n{key}:\n- name: x\n  results: []\n---\ntext\n".encode())
    assert f"{key}:\n- name: x\n" in text and "license" in matter(text)


def test_a_licence_is_read_with_results_below_it(folder: Path, tmp_path: Path) -> None:
    policy = tmp_path / "release.toml"
    policy.write_text('[allow]\nlicences = ["apache-2.0"]\n')
    (folder / "README.md").write_text(
        "---\ntags: [a]\nlicense: apache-2.0\nmodel-index:\n- name: x\n---\ntext\n"
    )
    assert call("upload", folder, "org/drafter", *ANSWERS, "--dry-run", "--policy", policy).code == 0
