"""Rules on the files of a checkpoint: which exist, which must not, and whether they can be read."""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from msgspec.structs import replace

from eaglectl.errors import UnreadableError
from eaglectl.files.header import HEADER, JSON, LFS_POINTER, POINTER, SHARDS, UNSAFE, WEIGHTS, parse_json
from eaglectl.files.layout import INDEX, NOT_WEIGHTS, PICKLES, SINGLE, is_openvino_weights
from eaglectl.judge.rule import CannotLook, Match, rule
from eaglectl.judge.subject import Subject

PICKLE_SUFFIXES = (*PICKLES, ".pkl", ".pickle", ".ckpt", ".distcp", ".metadata")
CODE = (".py", ".pyc", ".so", ".sh", ".dll", ".dylib", ".exe")
POINTER_SIZE = 1024
NO_WEIGHTS = "put the weight files beside config.json: download or export them again; or name their folder."
# the files that belong in a drafter's folder; a policy's list of files adds to it
KNOWN = (
    "config.json", "*.safetensors", "model.safetensors.index.json", "generation_config.json",
    "hf_quant_config.json", "eaglectl.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt",
    "tiktoken.model", "chat_template.jinja", "chat_template.json", "preprocessor_config.json",
    "processor_config.json",
    "README*", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "CHANGELOG*", "SHA256SUMS",
    "*.sig", "*.intoto.json*", "*.cdx.json",
    "*.png", "*.jpg", "*.svg",
    ".gitattributes", ".gitignore",
)  # fmt: skip
# names that Windows reserves
DEVICES = re.compile(r"(con|prn|aux|nul|com[1-9]|lpt[1-9])(\..*)?", re.IGNORECASE)
PLAIN = re.compile(r"[A-Za-z0-9._+@=-][A-Za-z0-9._+@= -]*")


@rule("EGL001", "one-weight-source", "error")
def one_weight_source(subject: Subject) -> Iterator[Match]:
    """The folder holds its weights exactly once: one safetensors file, or the shards of one index.

    Engines choose differently among several: vLLM loads every .safetensors file that no index excludes,
    others only model.safetensors, so engines serve different weights.

    Fix: keep the file, or the index and its shards, that were exported last, and remove the others.
    """
    if subject.ended_on(WEIGHTS):
        has_weights = any(name.endswith(".safetensors") for name in subject.names)
        yield replace(_read_error(subject), fix="" if has_weights else NO_WEIGHTS)
        return
    if subject.source.only is not None:
        return
    files = subject.checkpoint.weight_files
    if INDEX not in subject.names:
        for name in _strays(subject):
            yield Match(
                f"{name} is beside {files[0]} and no {INDEX} states which one counts; vLLM loads both", name
            )
    elif SINGLE in files and (others := set(_weight_map(subject).values()) - {SINGLE}):
        names = ", ".join(sorted(map(str, others))[:3])
        yield Match(f"{SINGLE} is beside {INDEX}, which names other files ({names})", INDEX)


@rule("EGL002", "unsafe-file", "error")
def unsafe_file(subject: Subject) -> Iterator[Match]:
    """No file of the checkpoint is a pickle, is code, or is a link that leaves the folder.

    Loading a pickle runs the code in it; the Hub scans for pickles and marks the repository, and engines
    that read only safetensors find no weights. Code has no use beside weights, and a link that leaves the
    folder is broken for everyone else.

    Fix: run `eaglectl convert SOURCE` and publish its output; remove pickles and code, replace links with
    files.
    """
    for name in subject.names:
        if _is_pickle(subject, name):
            yield Match(f"{name} is a pickle", name)
        elif name.endswith(CODE):
            yield Match(f"{name} is code; a checkpoint is data", name)
        else:
            try:
                subject.source.path(name)
            except UnreadableError as error:
                yield Match(str(error), name, fix="put the file itself there.")
    if subject.ended_on(UNSAFE) and _read_error(subject).where not in subject.names:
        yield _read_error(subject)


@rule("EGL003", "safetensors-header", "error")
def safetensors_header(subject: Subject) -> Iterator[Match]:
    """Every weight file has a valid header whose tensors follow each other without gaps and end where the
    file ends.

    A download or copy that was cut short, or a full disk, leaves such a file; so does an attacker.

    Fix: download or export the file again, and compare its size and SHA-256 with the source's.
    """
    yield from _reported(subject, HEADER)


@rule("EGL004", "shard-index", "error")
def shard_index(subject: Subject) -> Iterator[Match]:
    """The index names exactly the tensors of its shards, each in the file that holds it.

    Engines load what the index names; a tensor that it omits keeps uninitialised memory, and no engine
    reports it.

    Fix: export the checkpoint again, or convert one whose shards are complete.
    """
    yield from _reported(subject, SHARDS)
    if not {INDEX, SINGLE} <= set(subject.names):
        return
    # of an index beside model.safetensors, which reading ignores and engines do not
    try:
        parse_json(INDEX, subject.source.read(INDEX))
    except UnreadableError as error:
        if error.topic != POINTER:
            yield Match(str(error), INDEX)
        return
    weight_map = _weight_map(subject)
    if not weight_map:
        yield Match(f'{INDEX} needs a "weight_map" object from tensor to file', INDEX)
        return
    different = set(weight_map) ^ set(subject.checkpoint.tensors)
    if different and set(map(str, weight_map.values())) == {SINGLE}:
        yield Match(f"{INDEX} and {SINGLE} differ in {', '.join(sorted(different)[:3])}", INDEX)


@rule("EGL005", "unknown-file", "warning")
def unknown_file(subject: Subject) -> Iterator[Match]:
    """Every file is of a kind that belongs in a drafter's folder.

    Other files of a training folder (logs, optimizer states, data) would be published with it.

    Fix: remove the file, or allow its name by `files` in the policy.
    """
    allowed = (*KNOWN, *subject.policy.allowed.get("files", ()))
    for name in subject.names:
        if _is_pickle(subject, name) or name.endswith(CODE):
            continue  # EGL002 reports it
        if not any(fnmatchcase(name, pattern) for pattern in allowed):
            yield Match(f"{name} is no file that a drafter's folder has a use for", name)
    if INDEX in subject.names and subject.read_error is None:
        for name in _strays(subject):
            yield Match(f"{name} holds weights that {INDEX} does not name", name)


@rule("EGL006", "portable-names", "warning")
def portable_names(subject: Subject) -> Iterator[Match]:
    """File names mean the same on every system.

    Names that differ only in case overwrite each other on macOS and Windows, accented letters have two
    encodings in Unicode, and some names cannot exist on Windows.

    Fix: rename the file to plain letters, digits, dots and dashes.
    """
    earlier: dict[str, str] = {}
    for name in subject.names:
        base = name.rpartition("/")[2]
        folded = unicodedata.normalize("NFC", name).casefold()
        if folded in earlier:
            yield Match(
                f"{name!a} and {earlier[folded]!a} are one file where case or accents do not count", name
            )
        elif not PLAIN.fullmatch(base) or DEVICES.fullmatch(base) or base.endswith((".", " ")):
            yield Match(f"{name!a} cannot be the name of a file everywhere", name)
        earlier.setdefault(folded, name)


@rule("EGL007", "lfs-pointer", "error")
def lfs_pointer(subject: Subject) -> Iterator[Match]:
    """No file is a Git LFS pointer in place of its content.

    A clone without Git LFS, or an upload of such a clone, holds a few lines of text where the weights
    should be; engines then report a corrupt file.

    Fix: run `git lfs install` and `git lfs pull` in the repository, or download the files with `hf download`.
    """
    for name in subject.names:
        size = _size(subject, name)
        if size is not None and size < POINTER_SIZE and subject.source.read(name).startswith(LFS_POINTER):
            yield Match(
                f"{name} is a pointer of {size} bytes, not the file; run `git lfs pull` in its repository",
                name,
            )


@rule("EGL008", "readable-json", "error")
def readable_json(subject: Subject) -> Iterator[Match]:
    """config.json exists and is one JSON object without duplicate keys; so are the other JSON files that
    are read.

    Loaders disagree about which value of a duplicate key counts, and NaN or a comment stops only the strict
    ones.

    Fix: correct the file at the place that the message names.
    """
    if subject.ended_on(JSON):
        yield _read_error(subject)
    else:
        _ = subject.config
    for name in ("generation_config.json", "tokenizer_config.json"):
        size = _size(subject, name)
        if size is not None and not subject.source.read(name, 0, min(40, size)).startswith(LFS_POINTER):
            try:
                parse_json(name, subject.source.read(name))
            except UnreadableError as error:
                yield Match(str(error), name)


@rule("EGL009", "distributed-checkpoint", "error")
def distributed_checkpoint(subject: Subject) -> Iterator[Match]:
    """The weights are in files that engines load, and not a distributed checkpoint of torch.

    A trainer that shards by rank writes `.distcp` files and a pickled table of them; no engine reads those
    as a drafter's weights.

    Fix: run `eaglectl convert SOURCE`, which writes them as safetensors.
    """
    files = subject.checkpoint.weight_files if subject.read_error is None else ()
    for name in [name for name in files if name.endswith(".distcp")][:1]:
        yield Match(f"{name} is a shard of a distributed checkpoint, which no engine loads", name)


def _is_pickle(subject: Subject, name: str) -> bool:
    is_pickle = name.endswith(PICKLE_SUFFIXES) or NOT_WEIGHTS.match(name) is not None
    return is_pickle and not is_openvino_weights(name, subject.names)


def _size(subject: Subject, name: str) -> int | None:
    """The size of a file in bytes; None where it does not exist, or where EGL002 reports it."""
    try:
        return subject.source.size(name) if name in subject.names else None
    except UnreadableError:
        return None


def _read_error(subject: Subject) -> Match:
    assert subject.read_error is not None
    return Match(str(subject.read_error), subject.read_error.where)


def _reported(subject: Subject, topic: str) -> Iterator[Match]:
    """The error that ended reading, if it is on this topic. Raises CannotLook where there are no tensors."""
    if subject.ended_on(topic):
        yield _read_error(subject)
    elif not subject.checkpoint.tensors:
        raise CannotLook("there are no tensors")


def _strays(subject: Subject) -> list[str]:
    """The weight files that neither reading nor the index uses."""
    counted = {*subject.checkpoint.weight_files, *_weight_map(subject).values()}
    return [name for name in subject.names if name.endswith(".safetensors") and name not in counted]


def _weight_map(subject: Subject) -> Mapping[str, Any]:
    """The index's map from tensor to file; empty where it is missing or unreadable, which EGL004 reports."""
    try:
        index = parse_json(INDEX, subject.source.read(INDEX)) if INDEX in subject.names else {}
    except UnreadableError:
        return {}
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    return weight_map if isinstance(weight_map, dict) else {}
