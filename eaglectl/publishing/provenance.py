"""What is published beside the weights so that others can check them: eaglectl.json with its output's digests, and SHA256SUMS."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import Refused, Unreadable, Usage
from eaglectl.publishing.plan import RECORD, SIGNATURE, SUMS, File
from eaglectl.validation.release import RECORD_SCHEMA

# what the record does not list: itself, and what is made after it
LATER = (RECORD, SUMS, SIGNATURE)
# what of a smoke document is published: no names of folders
SMOKE_KEYS = (
    "version", "verdict", "acceptance_length", "interval", "per_position", "drafts", "prompts", "lossless", "k", "max_tokens", "seed",
    "prompts_digest",
)  # fmt: skip
ENGINE_KEYS = ("name", "version", "device", "dtype")


def make_record(
    checkpoint: Checkpoint,
    drafter: Drafter,
    files: Sequence[File],
    judged: Mapping[str, Any],
    smoke: Mapping[str, Any] | None,
) -> bytes:
    """eaglectl.json: what it says already, or where the drafter came from if it says nothing, with the output's digests.

    `judged` is what came of validation; `smoke` a checked document of `eaglectl smoke --json`, or what was kept of one.
    """
    listed = {
        file.name: {"size": file.size, "sha256": file.sha256}
        for file in sorted(files, key=lambda file: file.name)
        if file.name not in LATER
    }
    before = checkpoint.sidecars.get(RECORD)
    record = dict(before) if before else _first(checkpoint, drafter, listed)
    published: dict[str, Any] = {"eaglectl": eaglectl.__version__, "files": listed, "validation": dict(judged)}
    if smoke is not None:
        published["smoke"] = _brief(smoke)
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
    _check_smoke(document, f"--smoke {path}")
    if not isinstance(document.get("files"), dict):
        raise Unreadable(
            f"--smoke {path} does not say which files were measured; write it again with `eaglectl smoke ... --json`"
        )
    if document["verdict"] != "pass":
        raise Usage(
            f"--smoke {path}: the verdict is {document['verdict']}, and a card that says so helps nobody; find out why first"
        )
    return document


def kept_smoke(record: Mapping[str, Any], files: Sequence[File]) -> Mapping[str, Any] | None:
    """What was measured when the drafter was published before, if it is of these weights and this config. Raises Unreadable."""
    published = record.get("published")
    smoke = published.get("smoke") if isinstance(published, Mapping) else None
    if not isinstance(published, Mapping) or not isinstance(smoke, Mapping):
        return None
    listed = published.get("files")
    then = {name: one.get("sha256") for name, one in listed.items() if _is_measured(name) and isinstance(one, Mapping)} if isinstance(listed, Mapping) else {}  # fmt: skip
    if then != _measured(files):
        return None
    _check_smoke(smoke, f"what {RECORD} says was measured")
    return smoke


def _measured(files: Sequence[File]) -> Mapping[str, str]:
    return {file.name: file.sha256 for file in files if _is_measured(file.name)}


def _is_measured(name: str) -> bool:
    return name == "config.json" or name.endswith(".safetensors")


def _check_smoke(document: Mapping[str, Any], where: str) -> None:
    """Raise Unreadable for a document that smoke did not write; all that is published of it is looked at."""
    if missing := [key for key in (*SMOKE_KEYS, "engine") if key not in document]:
        raise Unreadable(f"{where} has no {missing[0]}; write it again with `eaglectl smoke ... --json`")
    pairs = [(document["acceptance_length"], document["interval"])]
    try:
        pairs += [(one["value"], one["interval"]) for one in document["per_position"]]
        numbers = [number for value, (low, high) in pairs for number in (value, low, high)]
        counts = [document[key] for key in ("k", "drafts", "prompts", "max_tokens")]
        texts = [document["engine"][key] for key in (*ENGINE_KEYS, "proves")] + [document["prompts_digest"]]
        is_good = (
            all(type(one) in (int, float) and isfinite(one) for one in [*numbers, document.get("temperature") or 0.0])
            and all(type(one) is int for one in counts)
            and all(isinstance(one, str) for one in texts)
            and document["lossless"] in (True, False, None)
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        is_good = False
    if not is_good:
        raise Unreadable(f"{where} is not as `eaglectl smoke --json` writes it; write it again")


def check_measured(smoke: Mapping[str, Any], files: Sequence[File]) -> None:
    """Raise Refused where a document of `read_smoke` is about other files than those that are sent."""
    sent = _measured(files)
    if other := sorted(name for name in {*sent, *smoke["files"]} if sent.get(name) != smoke["files"].get(name)):
        raise Refused(
            f"--smoke: what was measured had another {other[0]}; run `eaglectl smoke DIR --target T --json > smoke.json` on the folder that"
            " is uploaded"
        )


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON document, whatever its order and spacing."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _brief(smoke: Mapping[str, Any]) -> dict[str, Any]:
    keys = (*SMOKE_KEYS, *(["temperature"] if "temperature" in smoke else []))
    return {**{key: smoke[key] for key in keys}, "engine": {key: smoke["engine"][key] for key in (*ENGINE_KEYS, "proves")}}  # fmt: skip


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
