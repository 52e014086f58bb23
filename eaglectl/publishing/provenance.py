"""What is published beside the weights so that others can check them: eaglectl.json with its output's digests, and SHA256SUMS."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import Unreadable, Usage
from eaglectl.publishing.plan import RECORD, SIGNATURE, SUMS, File
from eaglectl.validation.release import RECORD_SCHEMA

# what the record does not list: itself, and what is made after it
LATER = (RECORD, SUMS, SIGNATURE)
# what of a smoke document is published: no names of folders
SMOKE_KEYS = (
    "version", "verdict", "acceptance_length", "interval", "per_position", "drafts", "prompts", "lossless", "k", "max_tokens", "seed",
    "prompts_digest",
)  # fmt: skip


def make_record(
    checkpoint: Checkpoint,
    drafter: Drafter,
    files: Sequence[File],
    judged: Mapping[str, Any],
    smoke: Mapping[str, Any] | None,
) -> bytes:
    """eaglectl.json: what it says already, or where the drafter came from if it says nothing, with the output's digests.

    `judged` is what came of validation; `smoke` a checked document of `eaglectl smoke --json`.
    """
    listed = {
        file.name: {"size": file.size, "sha256": file.sha256}
        for file in sorted(files, key=lambda file: file.name)
        if file.name not in LATER
    }
    before = checkpoint.sidecars.get(RECORD)
    record = dict(before) if before else _first(checkpoint, drafter, listed)
    published: dict[str, Any] = {"eaglectl": eaglectl.__version__, "files": listed, "validation": dict(judged)}
    kept = record.get("published")
    kept = kept.get("smoke") if isinstance(kept, Mapping) else None
    if smoke is not None or kept is not None:
        published["smoke"] = _brief(smoke) if smoke is not None else kept
    return (json.dumps({**record, "published": published}, indent=2, ensure_ascii=False) + "\n").encode()


def make_sums(files: Sequence[File]) -> bytes:
    """SHA256SUMS over every file but itself and a signature, as `sha256sum` writes and checks it."""
    lines = sorted((file.name, file.sha256) for file in files if file.name not in (SUMS, SIGNATURE))
    return "".join(f"{digest}  {name}\n" for name, digest in lines).encode()


def read_smoke(path: str | Path) -> Mapping[str, Any]:
    """A document that `eaglectl smoke --json` wrote. Raises Unreadable, and Usage for another document or one that failed."""
    try:
        document = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise Unreadable(f"--smoke {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise Unreadable(f"--smoke {path} is not JSON; write it with `eaglectl smoke ... --json > FILE`") from None
    if not isinstance(document, dict) or document.get("schema") != "eaglectl/smoke/1":
        raise Usage(f"--smoke {path} is no document of `eaglectl smoke --json`")
    if missing := [key for key in (*SMOKE_KEYS, "engine") if key not in document]:
        raise Unreadable(f"--smoke {path} has no {missing[0]}; write it again with `eaglectl smoke ... --json`")
    if document["verdict"] != "pass":
        raise Usage(
            f"--smoke {path}: the verdict is {document['verdict']}, and a card that says so helps nobody; find out why first"
        )
    return document


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON document, whatever its order and spacing."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _brief(smoke: Mapping[str, Any]) -> dict[str, Any]:
    engine = smoke["engine"]
    return {**{key: smoke[key] for key in SMOKE_KEYS}, "engine": {key: engine[key] for key in ("name", "version", "device", "dtype", "proves")}}  # fmt: skip


def _first(checkpoint: Checkpoint, drafter: Drafter, listed: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a drafter that is published as its trainer wrote it."""
    boundaries = drafter.aux.boundaries
    return {
        "schema": RECORD_SCHEMA,
        "eaglectl": eaglectl.__version__,
        "source": {
            "name": checkpoint.source.label, "producer": drafter.producer, "evidence": drafter.evidence,
            "files": {name: listed[name] for name in checkpoint.weight_files if name in listed},
        },
        "previous": None, "eagle": drafter.version, "layout": drafter.producer,
        "boundaries": None if boundaries is None else list(boundaries), "tensors": [], "left": [], "notes": [],
    }  # fmt: skip
