"""The real target: fetched by digest, dequantised, checked, and read by eaglectl."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.real.conftest import make_target

pytestmark = pytest.mark.slow


def test_the_folder_has_what_a_target_has_and_no_tied_head(real_target: Path) -> None:
    from safetensors import safe_open

    with safe_open(real_target / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert len(names) == 272 and "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    config = json.loads((real_target / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]) == (576, 30, 49152)
    assert config["tie_word_embeddings"] and "quantization_config" not in config
    assert "<|im_start|>" in (real_target / "chat_template.jinja").read_text()


def test_other_weights_are_refused_by_their_digest(
    real_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLECTL_REAL", str(tmp_path))
    (tmp_path / "target").mkdir()
    shutil.copy(real_target / "model.safetensors", tmp_path / "target")
    with (tmp_path / "target/model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    ended = make_target()
    assert ended.returncode == 1
    assert "the digest of its tensors is" in ended.stderr and "make real-target" in ended.stderr


def test_without_an_index_it_ends_with_3_and_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLECTL_REAL", str(tmp_path))
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    ended = make_target()
    assert ended.returncode == 3
    assert "PIP_INDEX_URL" in ended.stderr and "make real-target" in ended.stderr
