"""Rules on what is published with a drafter: its record, card, checksums, paths of a machine, and keys."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from msgspec import Struct

from eaglectl.errors import EaglectlError
from eaglectl.files.checkpoint import RECORD_SCHEMA, is_untrained
from eaglectl.files.front_matter import front_matter
from eaglectl.judge.launch_lines import launch_faults
from eaglectl.judge.rule import CannotLook, Match, rule
from eaglectl.judge.rules.files import PICKLE_SUFFIXES
from eaglectl.judge.secrets import check_searched, overlapping, scan_file, scan_text
from eaglectl.judge.subject import Subject

PATH = re.compile(
    r"(~|\.{1,2})/\S.*|[A-Za-z]:[\\/].+|\\\\.+|file:.+|s3://.+|gs://.+|/[\w.+@-]+(/[\w.+@ -]+)+/?"
    r"|/(home|root|Users|mnt|data|tmp|scratch|workspace|models?)/?"
)
TEXTS = (".json", ".md", ".txt", ".jinja", ".yaml", ".yml", ".toml", ".cfg", ".env")
CARD, RECORD, SUMS = "README.md", "eaglectl.json", "SHA256SUMS"
COMMANDS = (
    "vllm serve",
    "--speculative-config",
    "--speculative-algorithm",
    "sglang.launch_server",
    "speculative_config",
)
HOME = re.compile(
    r"(?<![\w.~/-])(/home|/Users|[A-Za-z]:\\+Users)[/\\]+([A-Za-z0-9_][\w.-]*)|(?<![\w.~/-])/root/[\w.-]+"
)
# user names that documents use as placeholders
PLACEHOLDER_USERS = (
    "user",
    "you",
    "username",
    "me",
    "runner",
    "shared",
    "public",
    "name",
    "your_name",
    "yourname",
)
SUM = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")
CHUNK_SIZE = 1 << 22
# a card or a list that is longer is no text for people, and is not read
LARGEST_TEXT = 4_000_000


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
    """No file holds a key or a token.

    Everyone who downloads the checkpoint can use it. Whole files are searched by 15 patterns of secrets
    (Hugging Face, GitHub, GitLab, AWS, Google, Azure, OpenAI, Anthropic, Slack, npm, PyPI, W&B, private keys,
    bearer tokens), as UTF-8 and UTF-16 text; of weights the headers.

    Fix: revoke the key where it was issued, and remove it from the file and from the repository's history.
    """
    error: EaglectlError | None = None
    read: tuple[str, ...] = ()
    is_clean = True
    if subject.read_error is None:
        read, metadata = subject.checkpoint.weight_files, subject.checkpoint.metadata
        header = "\n".join((*metadata, *metadata.values(), *subject.checkpoint.tensors))
        for leak in scan_text(header):
            yield Match(f"the header of {read[0]} holds {leak.kind}", read[0])
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


@rule("EGL901", "record-agrees", "warning")
def record_agrees(subject: Subject) -> Iterator[Match]:
    """eaglectl.json, where it exists, describes the files beside it.

    The record states what was converted from what, and how; after an edit by hand, or with files of another
    export, it is wrong.

    Fix: convert the source again.
    """
    if not _has(subject, RECORD, "EGL901"):
        return
    record, drafter = subject.checkpoint.sidecars[RECORD], subject.drafter
    if record.get("schema") != RECORD_SCHEMA:
        yield Match(f"{RECORD} states schema {record.get('schema')!r}; {RECORD_SCHEMA!r} is known", RECORD)
        return
    if record.get("eagle") != drafter.version:
        yield Match(
            f"{RECORD} states EAGLE {record.get('eagle')!r} and the files are EAGLE {drafter.version}", RECORD
        )
    boundaries, own = record.get("boundaries"), drafter.aux.boundaries
    if boundaries and own is not None and list(own) != boundaries:
        yield Match(f"{RECORD} states boundaries {boundaries} and the files {list(own)}", RECORD)
    steps = record.get("tensors")
    named = [
        str(step["name"])
        for step in (steps if isinstance(steps, list) else ())
        if isinstance(step, dict) and "name" in step
    ]
    if missing := [name for name in named if name not in subject.checkpoint.tensors]:
        yield Match(
            f"{RECORD} records how {', '.join(missing[:3])} was made, and the weights have no such tensor",
            RECORD,
        )


@rule("EGL902", "card-facts", "note")
def card_facts(subject: Subject) -> Iterator[Match]:
    """The card names the licence and the base model.

    The Hub shows both from the card's front matter, and lists a drafter under the target that base_model
    names.

    Fix: begin README.md with a block between two lines of `---` that has `license:` and `base_model:`.
    """
    facts = front_matter(_text(subject, CARD))
    if missing := [key for key in ("license", "base_model") if not facts.get(key)]:
        yield Match(f"{CARD} names no {' and no '.join(missing)} in its first lines", CARD)


@rule("EGL903", "card-commands", "note")
def card_commands(subject: Subject) -> Iterator[Match]:
    """The card has a command that serves the drafter.

    A drafter is served with flags that are easily wrong, and a wrong one silently costs acceptance.

    Fix: copy the launch commands that `eaglectl inspect SOURCE` prints into README.md.
    """
    card = _text(subject, CARD)
    if not any(command in card for command in COMMANDS):
        yield Match(f"{CARD} has no launch command of vLLM or SGLang", CARD)


@rule("EGL909", "card-speculation", "warning")
def card_speculation(subject: Subject) -> Iterator[Match]:
    """The card's launch commands of vLLM and SGLang state the method, the drafter and the counts that serve
    this drafter.

    SGLang's EAGLE runs an EAGLE-3 drafter on one state in place of three: nothing is accepted, and no engine
    reports it. Whoever copies the command has that.

    Fix: copy the launch commands that `eaglectl inspect SOURCE` prints into README.md.
    """
    if not _has(subject, CARD, "EGL909"):
        return
    for words, right in launch_faults(_text(subject, CARD), subject.drafter):
        yield Match(f"a command of {CARD}: {words}", CARD, f"write `{right}`.")


@rule("EGL904", "checksums", "error")
def checksums(subject: Subject) -> Iterator[Match]:
    """SHA256SUMS, where it exists, agrees with the files.

    A user who checks the download finds it broken, and it may be.

    Fix: download the files again; if they are right, write the list again with `sha256sum * > SHA256SUMS`.
    """
    if not _has(subject, SUMS, "EGL904"):
        return
    sums = read_sums(_text(subject, SUMS))
    unlisted = [
        name for name in subject.names if name.lower().endswith(".safetensors") and name not in sums.digests
    ]
    matches = [
        *(Match(f"line {number} of {SUMS} is no digest and name", SUMS) for number in sums.broken),
        *(Match(f"{name} is not in {SUMS}", name) for name in unlisted),
        *(match for name, digests in sums.digests.items() for match in _listed(subject, name, digests)),
    ]
    yield from matches
    if subject.headers_only and not matches:
        raise CannotLook("the digests of weights need their data, and --headers-only leaves it closed")


@rule("EGL905", "home-path", "warning")
def home_path(subject: Subject) -> Iterator[Match]:
    """No text file contains the path of a home folder.

    It reveals a user name and the layout of a machine to everyone who downloads the checkpoint.

    Fix: remove the path from the file.
    """
    for name in subject.names:
        if name.endswith(TEXTS) and name not in ("config.json", "tokenizer.json"):  # EGL109's; words
            size = subject.source.size(name)
            check_searched(name, size)
            if path := first_home(size, partial(subject.source.read, name)):
                yield Match(f"{name} names {path}", name)


def first_home(size: int, read: Callable[[int, int], bytes]) -> str:
    """The first home folder in a file of `size` bytes that is not a document's placeholder, or nothing."""
    for text in overlapping(size, read):
        for match in HOME.finditer(text.decode("utf-8", "replace")):
            if (match[2] or "").lower() not in PLACEHOLDER_USERS:
                return match[0]
    return ""


@rule("EGL906", "init-only", "warning")
def init_only(subject: Subject) -> Iterator[Match]:
    """The drafter is not an untrained initialisation that eaglectl wrote for a trainer.

    `convert --to 3.1 --init-only` adds norms that are not trained; served without training, acceptance
    falls.

    Fix: train it, or convert with `--calibration` or `--prompts` and serve that.
    """
    if RECORD in subject.names and is_untrained(subject.checkpoint.sidecars[RECORD]):
        yield Match(f"{RECORD} records that this is an untrained start (--init-only)", RECORD)


@rule("EGL907", "allowed-licence", "error")
def allowed_licence(subject: Subject) -> Iterator[Match]:
    """The licence is one that the policy allows.

    Reports nothing without `licences` in the policy's [allow].

    Fix: name the licence in README.md, or add it to the policy after reviewing it.
    """
    yield from _allowed(subject, "licences", "license")


@rule("EGL908", "allowed-base-model", "error")
def allowed_base_model(subject: Subject) -> Iterator[Match]:
    """The base model is one that the policy allows.

    Reports nothing without `base-models` in the policy's [allow].

    Fix: name the base model in README.md, or add it to the policy.
    """
    yield from _allowed(subject, "base-models", "base_model")


def _allowed(subject: Subject, key: str, fact: str) -> Iterator[Match]:
    allowed = subject.policy.allowed.get(key)
    if allowed is None:
        return
    values = front_matter(_text(subject, CARD) if CARD in subject.names else "").get(fact, [])
    if not values:
        yield Match(f"no {fact} is named, and the policy allows {', '.join(allowed) or 'none'}", CARD)
    for value in values:
        if not any(fnmatchcase(value.lower(), pattern.lower()) for pattern in allowed):
            yield Match(f"{fact} {value} is not among {', '.join(allowed) or 'none'}", CARD)


def _has(subject: Subject, name: str, id: str) -> bool:
    """Whether an optional file exists. Raises CannotLook where the policy requires its rule and it does
    not.
    """
    if name not in subject.names and id in subject.policy.required:
        raise CannotLook(f"there is no {name}")
    return name in subject.names


def _text(subject: Subject, name: str) -> str:
    """A text for people. Raises CannotLook where there is none, or it is too long to be one."""
    if name not in subject.names:
        raise CannotLook(f"there is no {name}")
    if (size := subject.source.size(name)) > LARGEST_TEXT:
        raise CannotLook(f"{name} has {size} bytes, and at most {LARGEST_TEXT} of a text are read")
    return subject.source.read(name).decode("utf-8", "replace")


class Sums(Struct, frozen=True):
    """A list by `sha256sum`: the digests that it states by file name, and numbers of lines that are no entry.

    A name has several digests where lines contradict each other.
    """

    digests: Mapping[str, tuple[str, ...]]
    broken: tuple[int, ...]


def read_sums(text: str) -> Sums:
    """Read a list by `sha256sum`."""
    digests: dict[str, tuple[str, ...]] = {}
    broken = []
    for number, line in enumerate(text.split("\n"), 1):
        if entry := SUM.fullmatch(line.removesuffix("\r")):
            name, digest = entry[2].removeprefix("./"), entry[1].lower()
            digests[name] = tuple(dict.fromkeys((*digests.get(name, ()), digest)))
        elif line.strip():
            broken.append(number)
    return Sums(digests, tuple(broken))


def _listed(subject: Subject, name: str, digests: Sequence[str]) -> Iterator[Match]:
    """How a file differs from the digests that the list states for it."""
    if len(digests) > 1:
        yield Match(f"{SUMS} states {len(digests)} digests for {name}, and a file has one", SUMS)
    elif name not in subject.names:
        yield Match(f"{SUMS} lists {name}, and there is no such file", SUMS)
    elif subject.headers_only and name.endswith(".safetensors"):
        return
    elif (digest := _digest(subject, name)) != digests[0]:
        yield Match(f"{name} has SHA-256 {digest[:12]}... and {SUMS} states {digests[0][:12]}...", name)


def _digest(subject: Subject, name: str) -> str:
    import hashlib  # late: it loads OpenSSL, and few checkpoints have a list of digests

    digest, size = hashlib.sha256(), subject.source.size(name)
    source = subject.source if size <= CHUNK_SIZE else subject.on_disk
    for start in range(0, size, CHUNK_SIZE):
        digest.update(source.read(name, start, min(start + CHUNK_SIZE, size)))
    return digest.hexdigest()
