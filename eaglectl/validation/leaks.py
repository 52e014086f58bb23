"""Rules on what a checkpoint tells that nobody meant to tell: paths of a machine, and keys."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.errors import EaglectlError
from eaglectl.validation.rule import CannotLook, Hit, rule
from eaglectl.validation.subject import Subject

PATH = re.compile(
    r"(~|\.{1,2})/\S.*|[A-Za-z]:[\\/].+|\\\\.+|file:.+|s3://.+|gs://.+|/[\w.+@-]+(/[\w.+@ -]+)+/?"
    r"|/(home|root|Users|mnt|data|tmp|scratch|workspace|models?)/?"
)
KEYS: Mapping[str, re.Pattern[bytes]] = {
    "a Hugging Face token": re.compile(rb"\bhf_[A-Za-z0-9]{30,}\b"),
    "a GitHub token":       re.compile(rb"\b(gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,})\b"),
    "an AWS key":           re.compile(rb"\b(AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a Google key":         re.compile(rb"\bAIza[0-9A-Za-z_-]{35}\b"),
    "an API key":           re.compile(rb"\bsk-[A-Za-z0-9_-]{32,}\b"),
    "a Slack token":        re.compile(rb"\bxox[abprs]-[A-Za-z0-9-]{20,}\b"),
    "a private key":        re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
}  # fmt: skip
TEXTS = (".json", ".md", ".txt", ".jinja", ".yaml", ".yml", ".toml", ".cfg", ".env")
LARGEST_TEXT = 1_000_000


@rule("EGL109", "local-path", "warning")
def local_path(subject: Subject) -> Iterator[Hit]:
    """The config and the weights' metadata name no path of one machine.

    A path says who made the checkpoint and where, and nobody else can follow it: a verifier that is a path cannot be served
    as published.

    Fix: write the model's name on the Hub, or remove the key.
    """
    for place, value in _texts(subject.config):
        if PATH.fullmatch(value):
            yield Hit(f"{place} is {value!r}, a path of one machine", f"config.json:{place}")
    if subject.stop is None:
        for key, value in subject.checkpoint.metadata.items():
            if PATH.fullmatch(value):
                file = subject.checkpoint.weight_files[0]
                yield Hit(f"the weights' metadata says {key}: {value!r}, a path of one machine", file)


@rule("EGL115", "leaked-secret", "error")
def secret(subject: Subject) -> Iterator[Hit]:
    """No text file holds a key or a token.

    Whoever downloads the checkpoint can use it.

    Fix: withdraw the key where it was issued, remove it from the file, and from the repository's history.
    """
    for name in subject.names:
        if name.endswith(TEXTS):
            yield from _keys(name, _raw(subject, name))
    if subject.stop is None:
        said = "\n".join(subject.checkpoint.metadata.values()).encode()
        yield from _keys(subject.checkpoint.weight_files[0], said)


def _keys(name: str, raw: bytes) -> Iterator[Hit]:
    for what, pattern in KEYS.items():
        if found := pattern.search(raw):
            yield Hit(f"{name} holds {what} ({found[0][:7].decode()}...)", name)


def _raw(subject: Subject, name: str) -> bytes:
    try:
        size = subject.source.size(name)
        return subject.source.read(name, 0, min(size, LARGEST_TEXT))
    except EaglectlError as error:
        raise CannotLook(str(error)) from None


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a JSON value with its place, as "key.key[0]"."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, f"{place}[{index}]")
