"""Rules on private data in a checkpoint: paths of a machine, and keys."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from eaglectl.errors import EaglectlError
from eaglectl.validation.rule import CannotLook, Match, rule
from eaglectl.validation.rules.files import PICKLE_SUFFIXES
from eaglectl.validation.secrets.scan import scan_file, scan_text
from eaglectl.validation.subject import Subject

PATH = re.compile(
    r"(~|\.{1,2})/\S.*|[A-Za-z]:[\\/].+|\\\\.+|file:.+|s3://.+|gs://.+|/[\w.+@-]+(/[\w.+@ -]+)+/?"
    r"|/(home|root|Users|mnt|data|tmp|scratch|workspace|models?)/?"
)
TEXTS = (".json", ".md", ".txt", ".jinja", ".yaml", ".yml", ".toml", ".cfg", ".env")


@rule("EGL109", "local-path", "warning")
def local_path(subject: Subject) -> Iterator[Match]:
    """The config and the weights' metadata contain no path of one machine.

    A path reveals who made the checkpoint and where, and does not exist elsewhere: a checkpoint whose
    verifier is a path cannot be served as published.

    Fix: write the model's name on the Hub, or remove the key.
    """
    for place, value in _texts(subject.config):
        if PATH.fullmatch(value):
            yield Match(f"{place} is {value!r}, a path of one machine", f"config.json:{place}")
    if subject.read_error is None:
        for key, value in subject.checkpoint.metadata.items():
            if PATH.fullmatch(value):
                file = subject.checkpoint.weight_files[0]
                yield Match(f"the weights' metadata states {key}: {value!r}, a path of one machine", file)


@rule("EGL115", "leaked-secret", "error")
def secret(subject: Subject) -> Iterator[Match]:
    """No file holds a key, a token or a password.

    Everyone who downloads the checkpoint can use it. Whole files are searched, by the rules of gitleaks and
    some more, as UTF-8 and UTF-16 text and in the texts of PNG images; of weights the headers.

    Fix: revoke the key where it was issued, and remove it from the file and from the repository's history.
    """
    read: tuple[str, ...] = ()
    if subject.read_error is None:
        read = subject.checkpoint.weight_files
        metadata = subject.checkpoint.metadata
        header = "\n".join((*metadata, *metadata.values(), *subject.checkpoint.tensors))
        for leak in scan_text(header):
            yield Match(f"the header of {read[0]} holds {leak.kind}", read[0])
    yield from _file_secrets(subject, read)


def _file_secrets(subject: Subject, read: Sequence[str]) -> Iterator[Match]:
    """The secrets of files. Raises CannotLook where a file cannot be read and no other holds a secret."""
    error, is_clean = None, True
    for name in subject.names:
        if name in read or name.lower().endswith(PICKLE_SUFFIXES):  # EGL002 reports pickles
            continue
        try:
            leaks = list(scan_file(name, subject.source.size(name), partial(subject.source.read, name)))
        except EaglectlError as reason:
            error, leaks = error or reason, []
        for leak in leaks:
            is_clean = False
            yield Match(f"{name} holds {leak.kind} ({leak.place})", name)
    if error is not None and is_clean:
        raise CannotLook(str(error))


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a JSON value with its path, as "key.key[0]"."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, f"{place}[{index}]")
