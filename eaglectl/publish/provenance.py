"""eaglectl.json with the digests of the published files, and SHA256SUMS, so that others can verify them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import RefusedError, UnreadableError, UsageError
from eaglectl.files.checkpoint import RECORD_SCHEMA, Checkpoint
from eaglectl.files.files import MIB, read_small_file
from eaglectl.files.layout import RECORD, SIGNATURE, SUMS
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.format import CheckpointSummary
from eaglectl.formats.settling import doubt_entries, fact_record
from eaglectl.publish.upload_files import UploadFile
from eaglectl.verdicts import CheckVerdict

MAX_SMOKE = 64 * MIB
# how a measurement for a card is made
MEASURE = "`eaglectl smoke SOURCE --json --target TARGET > smoke.json`"
# files that the record does not list: itself, and what is written after it
UNLISTED = (RECORD, SUMS, SIGNATURE)
# keys of a smoke document that are published: no names of folders
SMOKE_KEYS = (
    "version",
    "verdict",
    "acceptance_length",
    "interval",
    "per_position",
    "drafts",
    "prompts",
    "lossless",
    "k",
    "max_tokens",
    "seed",
    "prompts_digest",
)
# and those that documents of older releases do not have
LATER_KEYS = ("temperature", "tokens", "sets", "seconds", "speed")
SPEED_TEXTS = ("text", "how", "device", "card")
ENGINE_KEYS = ("name", "version", "device", "dtype")


def make_record(
    checkpoint: Checkpoint,
    drafter: Drafter,
    files: Sequence[UploadFile],
    validation: Mapping[str, Any],
    smoke: Mapping[str, Any] | None,
) -> bytes:
    """eaglectl.json: the record that is there, or one of the drafter's origin, with the digests of `files`.

    `validation` is the outcome of `validate`, `smoke` a document of `eaglectl smoke --json`, or what an
    earlier record keeps of one.
    """
    listed = {
        file.name: {"size": file.size, "sha256": file.sha256}
        for file in sorted(files, key=lambda file: file.name)
        if file.name not in UNLISTED
    }
    before = checkpoint.sidecars.get(RECORD)
    record = dict(before) if before else _new_record(checkpoint, drafter, listed)
    published: dict[str, Any] = {
        "eaglectl": eaglectl.__version__,
        "files": listed,
        "validation": dict(validation),
    }
    if smoke is not None:
        keys = (*SMOKE_KEYS, *(key for key in LATER_KEYS if key in smoke))
        engine = {key: smoke["engine"][key] for key in (*ENGINE_KEYS, "proves")}
        published["smoke"] = {**{key: smoke[key] for key in keys}, "engine": engine}
    return (json.dumps({**record, "published": published}, indent=2, ensure_ascii=False) + "\n").encode()


def make_sums(files: Sequence[UploadFile]) -> bytes:
    """SHA256SUMS over every file but itself and what is made after it, as `sha256sum` writes it."""
    lines = sorted((file.name, file.sha256) for file in files if file.name not in (SUMS, SIGNATURE))
    return "".join(f"{digest}  {name}\n" for name, digest in lines).encode()


def read_smoke(path: str | Path) -> Mapping[str, Any]:
    """Read a document of `eaglectl smoke --json`.

    Raises UnreadableError, and UsageError for another document or a failed measurement.
    """
    try:
        document = json.loads(read_small_file(Path(path), MAX_SMOKE, "--smoke"))
    except (ValueError, RecursionError):
        raise UnreadableError(f"--smoke {path} is not JSON; write it by {MEASURE}") from None
    if not isinstance(document, dict) or document.get("schema") != "eaglectl/smoke/1":
        raise UsageError(f"--smoke {path} is no document of smoke; write one by {MEASURE}")
    _check_smoke(document, f"--smoke {path}")
    if not isinstance(document.get("files"), dict):
        raise UnreadableError(
            f"--smoke {path} does not say which files were measured; write it again by {MEASURE}"
        )
    if document["verdict"] != CheckVerdict.PASS:
        raise UsageError(
            f"--smoke {path}: the verdict is {document['verdict']}, and a card that says so helps nobody;"
            " find out why first"
        )
    return document


def kept_smoke(record: Mapping[str, Any], files: Sequence[UploadFile]) -> Mapping[str, Any] | None:
    """The measurement in the record, if it is of these weights and this config. Raises UnreadableError."""
    match record:
        case {"published": {"smoke": Mapping() as smoke, "files": Mapping() as listed}}:
            named = ((name, file) for name, file in listed.items() if isinstance(file, Mapping))
            recorded = {name: file.get("sha256") for name, file in named if _is_measured(name)}
            if recorded == _measured(files):
                _check_smoke(smoke, f"what {RECORD} says was measured")
                return smoke
    return None


def _measured(files: Sequence[UploadFile]) -> Mapping[str, str]:
    return {file.name: file.sha256 for file in files if _is_measured(file.name)}


def _is_measured(name: str) -> bool:
    return name == "config.json" or name.endswith(".safetensors")


def _check_smoke(document: Mapping[str, Any], where: str) -> None:
    """Raise UnreadableError for a document that `smoke` did not write; every published value is checked."""
    if missing := [key for key in (*SMOKE_KEYS, "engine") if key not in document]:
        raise UnreadableError(f"{where} has no {missing[0]}; write it again by {MEASURE}")
    try:
        is_good = _has_good_values(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        is_good = False
    if not is_good:
        raise UnreadableError(f"{where} is not as smoke writes it; write it again by {MEASURE}")


def _has_good_values(document: Mapping[str, Any]) -> bool:
    """Whether the published values have their types. Raises what a lookup in another document raises."""
    sets = (document.get("sets") or {}).values()
    numbers = [number for measured in (document, *sets) for number in _estimated(measured)]
    numbers.append(document.get("temperature") or 0.0)
    counts = [document[key] for key in ("k", "drafts", "max_tokens")]
    counts += [measured["prompts"] for measured in (document, *sets)]
    texts = [document["engine"][key] for key in (*ENGINE_KEYS, "proves")]
    texts.append(document["prompts_digest"])
    if seconds := document.get("seconds"):
        numbers += [seconds["drafted"], seconds["plain"] or 0.0]
        counts.append(document["tokens"])
        texts.append(seconds["meaning"])
    texts += _speed_texts(document.get("speed"))
    return (
        all(map(_is_finite, numbers))
        and {type(count) for count in counts} == {int}
        and {type(text) for text in texts} == {str}
        and document["lossless"] in (True, False, None)
    )


def _speed_texts(speed: Mapping[str, Any] | None) -> list[Any]:
    """What a card shows of --speed, as texts."""
    return [*(speed[key] for key in SPEED_TEXTS), f"{speed['repeats']:d}"] if speed else []


def _estimated(measured: Mapping[str, Any]) -> list[Any]:
    """The numbers of a measurement: its length and positions, with their intervals."""
    estimates = [(measured["acceptance_length"], measured["interval"])]
    estimates += [(position["value"], position["interval"]) for position in measured["per_position"]]
    return [number for value, (low, high) in estimates for number in (value, low, high)]


def _is_finite(number: object) -> bool:
    return isinstance(number, int | float) and type(number) is not bool and isfinite(number)


def check_measured(smoke: Mapping[str, Any], files: Sequence[UploadFile]) -> None:
    """Raise RefusedError where a document of `read_smoke` is about other files than `files`."""
    sent, measured = _measured(files), smoke["files"]
    different = sorted(name for name in {*sent, *measured} if sent.get(name) != measured.get(name))
    if different:
        raise RefusedError(
            f"--smoke: what was measured had another {different[0]} than the folder that is uploaded; run"
            f" {MEASURE}"
        )


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON document, independent of its order and spacing."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _new_record(checkpoint: Checkpoint, drafter: Drafter, listed: Mapping[str, Any]) -> dict[str, Any]:
    """A record for a drafter that is published as its trainer wrote it."""
    config = by_name(drafter.producer).flat(checkpoint.config)
    summary = CheckpointSummary(config, tuple(checkpoint.tensors), checkpoint.metadata)
    return {
        "schema": RECORD_SCHEMA,
        "eaglectl": eaglectl.__version__,
        "source": {
            "name": checkpoint.source.label,
            "producer": drafter.producer,
            "evidence": drafter.evidence,
            "files": {name: listed[name] for name in checkpoint.weight_files if name in listed},
        },
        "previous": None,
        "eagle": drafter.version,
        "layout": drafter.producer,
        **fact_record(drafter),
        "doubts": doubt_entries(drafter.doubts, summary),
        "tensors": [],
        "left": [],
        "notes": [],
    }
