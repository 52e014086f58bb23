"""Model cards and what they are made of."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import eaglectl


def answers(folder: Path) -> eaglectl.CardAnswers:
    """The answers to what README.md does not state."""
    text = (folder / "README.md").read_text(errors="replace") if (folder / "README.md").exists() else ""
    licence = None if "license:" in text else "apache-2.0"
    return eaglectl.CardAnswers(licence, None if "base_model:" in text else "example/target-8b")


def card(folder: Path, text: bytes | None = None, **options: Any) -> str:
    """The README.md that would be published, with its line breaks."""
    if text is not None:
        (folder / "README.md").write_bytes(text)
    return _planned(folder, **{"card": answers(folder), **options})["README.md"].decode()


def record(folder: Path, **options: Any) -> dict[str, Any]:
    found = json.loads(_planned(folder, **{"card": answers(folder), **options})["eaglectl.json"])
    assert isinstance(found, dict)
    return found


def _planned(folder: Path, **options: Any) -> dict[str, bytes]:
    """The files that would be published."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        done = eaglectl.upload(str(folder), "org/drafter", eaglectl.UploadOptions(dry_run=True, **options))
    return {file.name: bytes(file.content) for file in done.plan.files}  # type: ignore[arg-type]


def release(folder: Path, out: Path, **options: Any) -> Path:
    """What a download of the drafter in `folder` holds once it is published."""
    out.mkdir(parents=True)
    for name, data in _planned(folder, **options).items():
        (out / name).write_bytes(data)
    return out


def matter(text: str) -> dict[str, Any]:
    found = yaml.safe_load(text.split("---")[1])
    assert isinstance(found, dict)
    return found


ANSWERS = ("--license", "apache-2.0", "--base-model", "example/target-8b")


def smoke_file(folder: Path) -> Path:
    """What `smoke --json` would have said of the drafter in `folder`."""
    path = folder / "smoke.json"
    files = [folder / "drafter" / name for name in ("config.json", "model.safetensors")]
    interval = {"interval": [0.1, 0.9]}
    engine = {"name": "vllm", "version": "0.32.0", "device": "cuda", "dtype": "bfloat16", "differences": []}
    document = {
        "schema": "eaglectl/smoke/1",
        "version": "0.1.0",
        "source": "/home/bob/x",
        "verdict": "pass",
        **{"acceptance_length": 2.31, "interval": [2.2, 2.4], "drafts": 400, "prompts": 20, "lossless": True},
        **{"k": 3, "max_tokens": 64, "seed": 0, "prompts_digest": "0" * 64, "temperature": 0.0},
        "per_position": [{"value": 0.7, **interval}, {"value": 0.4, **interval}],
        "files": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
        "engine": {**engine, "proves": "what this release does", "resolved": {"a": "/home/bob"}},
    }
    path.write_text(json.dumps(document))
    return path
