"""Rules on the files of a checkpoint: what is there, what must not be, and whether they can be read."""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from eaglectl.checkpoint.checkpoint import INDEX, JSON, NOT_WEIGHTS, PICKLES, SHARDS, SINGLE, WEIGHTS
from eaglectl.checkpoint.header import HEADER, LFS_POINTER, POINTER, parse_json
from eaglectl.checkpoint.source import UNSAFE
from eaglectl.errors import Unreadable
from eaglectl.validation.rule import CannotLook, Hit, rule
from eaglectl.validation.subject import Subject

UNPICKLED = (*PICKLES, ".pkl", ".pickle", ".ckpt", ".distcp", ".metadata")
CODE = (".py", ".pyc", ".so", ".sh", ".dll", ".dylib", ".exe")
POINTER_SIZE = 1024
# what a drafter's folder may hold; a policy's list of files adds to it
KNOWN = (
    "config.json", "*.safetensors", "model.safetensors.index.json", "generation_config.json", "hf_quant_config.json", "eaglectl.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "tiktoken.model", "chat_template.jinja", "chat_template.json", "preprocessor_config.json", "processor_config.json",
    "README*", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "CHANGELOG*", "SHA256SUMS", "*.sig", "*.png", "*.jpg", "*.svg",
    ".gitattributes", ".gitignore",
)  # fmt: skip
# names that Windows keeps for itself
DEVICES = re.compile(r"(con|prn|aux|nul|com[1-9]|lpt[1-9])(\..*)?", re.IGNORECASE)
PLAIN = re.compile(r"[A-Za-z0-9._+@=-][A-Za-z0-9._+@= -]*")


@rule("EGL001", "one-weight-source", "error")
def one_weight_source(subject: Subject) -> Iterator[Hit]:
    """The folder holds its weights exactly once: one safetensors file, or the shards of one index.

    Engines choose differently where there are more: vLLM loads every .safetensors file that no index leaves out, others
    only model.safetensors, so what is served depends on who serves it.

    Fix: keep the one file, or the index and its shards, that were exported last, and remove the others.
    """
    if _stopped(subject, WEIGHTS):
        yield _stop(subject)
        return
    files = subject.checkpoint.weight_files
    if subject.source.only is not None:
        return
    if INDEX not in subject.names:
        for name in _strays(subject):
            yield Hit(f"{name} lies beside {files[0]} and no {INDEX} says which one counts; vLLM loads both", name)
    elif SINGLE in files and (others := set(_weight_map(subject).values()) - {SINGLE}):
        names = ", ".join(sorted(map(str, others))[:3])
        yield Hit(f"{SINGLE} lies beside {INDEX}, which names other files ({names})", INDEX)


@rule("EGL002", "unsafe-file", "error")
def unsafe_file(subject: Subject) -> Iterator[Hit]:
    """No file of the checkpoint is a pickle, is code, or is a link that leaves the folder.

    Whoever opens a pickle runs what is in it; hubs scan for pickles and mark the repository, and engines that only read
    safetensors find no weights. Code beside weights asks to be run, and a link that leaves is empty for everybody else.

    Fix: run `eaglectl convert` and ship its output; remove pickles and code, put files in the place of links.
    """
    for name in subject.names:
        if name.endswith(UNPICKLED) or NOT_WEIGHTS.match(name):
            yield Hit(f"{name} is a pickle", name)
        elif name.endswith(CODE):
            yield Hit(f"{name} is code; a checkpoint is data", name)
        else:
            try:
                subject.source.path(name)
            except Unreadable as error:
                yield Hit(str(error), name)
    if subject.stop is not None and subject.stop.topic == UNSAFE and subject.stop.where not in subject.names:
        yield _stop(subject)


@rule("EGL003", "safetensors-header", "error")
def safetensors_header(subject: Subject) -> Iterator[Hit]:
    """Every weight file has a valid header whose tensors follow each other without holes and end where the file ends.

    A download or a copy that was cut short, or a disk that was full, leaves a file like this; so does a hostile one.

    Fix: fetch or export the file again, and compare its size and SHA-256 with the source's.
    """
    yield from _said(subject, HEADER)


@rule("EGL004", "shard-index", "error")
def shard_index(subject: Subject) -> Iterator[Hit]:
    """The index names exactly the tensors of its shards, each in the file that holds it.

    Engines load what the index names; a tensor that it leaves out keeps uninitialised memory, and no engine says so.

    Fix: export the checkpoint again, or run `eaglectl convert` on shards that are complete.
    """
    yield from _said(subject, SHARDS)
    if INDEX in subject.names and SINGLE in subject.names:
        yield from _index_beside_single(subject)


@rule("EGL005", "unknown-file", "warning")
def unknown_file(subject: Subject) -> Iterator[Hit]:
    """Every file is of a kind that a drafter's folder has a use for.

    What else lies in a training folder (logs, optimizer states, other people's data) is published with it.

    Fix: remove the file, or allow its name by `files` in the policy.
    """
    allowed = (*KNOWN, *subject.policy.allowed.get("files", ()))
    for name in subject.names:
        if name.endswith((*UNPICKLED, *CODE)) or NOT_WEIGHTS.match(name):
            continue  # EGL002's
        if not any(fnmatchcase(name, pattern) for pattern in allowed):
            yield Hit(f"{name} is no file that a drafter's folder has a use for", name)
    if INDEX in subject.names and subject.stop is None:
        for name in _strays(subject):
            yield Hit(f"{name} holds weights that {INDEX} does not name", name)


@rule("EGL006", "portable-names", "warning")
def portable_names(subject: Subject) -> Iterator[Hit]:
    """The names of the files mean the same on every system.

    Names that differ in case only overwrite each other on macOS and Windows, accents have two spellings in Unicode, and
    some names cannot exist on Windows at all.

    Fix: rename the file to plain letters, digits, dots and dashes.
    """
    seen: dict[str, str] = {}
    for name in subject.names:
        base = name.rpartition("/")[2]
        folded = unicodedata.normalize("NFC", name).casefold()
        if folded in seen:
            yield Hit(f"{name!a} and {seen[folded]!a} are one file where case or accents do not count", name)
        elif not PLAIN.fullmatch(base) or DEVICES.fullmatch(base) or base.endswith((".", " ")):
            yield Hit(f"{name!a} cannot be the name of a file everywhere", name)
        seen.setdefault(folded, name)


@rule("EGL007", "lfs-pointer", "error")
def lfs_pointer(subject: Subject) -> Iterator[Hit]:
    """No file is a Git LFS pointer in the place of the file itself.

    A clone without Git LFS, or an upload of such a clone, holds a few lines of text where the weights should be; engines
    then say that the file is corrupt.

    Fix: run `git lfs install` and `git lfs pull` in the repository, or download the files with `hf download`.
    """
    for name in subject.names:
        size = _size(subject, name)
        if size is None or size >= POINTER_SIZE:
            continue
        if subject.source.read(name).startswith(LFS_POINTER):
            yield Hit(f"{name} is a pointer of {size} bytes, not the file; run `git lfs pull` in its repository", name)


@rule("EGL008", "readable-json", "error")
def readable_json(subject: Subject) -> Iterator[Hit]:
    """config.json is there and is one JSON object, without a key twice; so are the other JSON files that are read.

    Of a key that stands twice every loader takes another one, and NaN or a comment stops the strict ones only.

    Fix: correct the file at the place that the message names.
    """
    if _stopped(subject, JSON):
        yield _stop(subject)
    else:
        _ = subject.config
    for name in ("generation_config.json", "tokenizer_config.json"):
        size = _size(subject, name)
        if size is not None and not subject.source.read(name, 0, min(40, size)).startswith(LFS_POINTER):
            try:
                parse_json(name, subject.source.read(name))
            except Unreadable as error:
                yield Hit(str(error), name)


def _size(subject: Subject, name: str) -> int | None:
    """Bytes of a file of the checkpoint; None where there is none, or where it is EGL002's."""
    try:
        return subject.source.size(name) if name in subject.names else None
    except Unreadable:
        return None


def _stopped(subject: Subject, topic: str) -> bool:
    return subject.stop is not None and subject.stop.topic == topic


def _stop(subject: Subject) -> Hit:
    assert subject.stop is not None
    return Hit(str(subject.stop), subject.stop.where)


def _said(subject: Subject, topic: str) -> Iterator[Hit]:
    """The fault that ended reading, if it is of this topic; else the headers must have been read."""
    if _stopped(subject, topic):
        yield _stop(subject)
    elif not subject.checkpoint.tensors:
        raise CannotLook("there are no tensors")


def _strays(subject: Subject) -> list[str]:
    """Weight files that neither reading nor the index counts in."""
    counted = {*subject.checkpoint.weight_files, *_weight_map(subject).values()}
    return [name for name in subject.names if name.endswith(".safetensors") and name not in counted]


def _weight_map(subject: Subject) -> Mapping[str, Any]:
    """The index's table; empty where there is none, or none that can be read, which EGL004 says."""
    try:
        index = parse_json(INDEX, subject.source.read(INDEX)) if INDEX in subject.names else {}
    except Unreadable:
        return {}
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    return weight_map if isinstance(weight_map, dict) else {}


def _index_beside_single(subject: Subject) -> Iterator[Hit]:
    """Faults of an index beside model.safetensors, which reading passes by and engines do not."""
    try:
        parse_json(INDEX, subject.source.read(INDEX))
    except Unreadable as error:
        if error.topic != POINTER:
            yield Hit(str(error), INDEX)
        return
    weight_map = _weight_map(subject)
    if not weight_map:
        yield Hit(f'{INDEX} needs a "weight_map" object from tensor to file', INDEX)
    elif set(map(str, weight_map.values())) == {SINGLE} and (
        apart := set(weight_map) ^ set(subject.checkpoint.tensors)
    ):
        yield Hit(f"{INDEX} and {SINGLE} differ in {', '.join(sorted(apart)[:3])}", INDEX)
