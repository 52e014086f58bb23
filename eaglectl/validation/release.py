"""Rules on what is published with a drafter: its record, its card, its checksums, and what a machine left in it."""

import hashlib
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from eaglectl.checkpoint.record import is_untrained
from eaglectl.errors import EaglectlError
from eaglectl.validation.leaks import LARGEST_TEXT, TEXTS
from eaglectl.validation.rule import CannotLook, Hit, rule
from eaglectl.validation.subject import Subject

CARD, RECORD, SUMS = "README.md", "eaglectl.json", "SHA256SUMS"
RECORD_SCHEMA = "eaglectl/provenance/1"
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
# names that documents use for anybody's home
ANYBODY = ("user", "you", "username", "me", "runner", "shared", "public", "name", "your_name", "yourname")
SUM = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")
CHUNK = 1 << 22


@rule("EGL901", "record-agrees", "warning")
def record_agrees(subject: Subject) -> Iterator[Hit]:
    """eaglectl.json, where there is one, describes the files that it lies beside.

    The record says what was converted from what, and how; after an edit by hand, or with files of another export, it
    vouches for something else.

    Fix: run `eaglectl convert` again on the source, or remove eaglectl.json.
    """
    if not _has(subject, RECORD, "EGL901"):
        return
    record, drafter = subject.checkpoint.sidecars[RECORD], subject.drafter
    if record.get("schema") != RECORD_SCHEMA:
        yield Hit(f"{RECORD} says schema {record.get('schema')!r}; {RECORD_SCHEMA!r} is known", RECORD)
        return
    if record.get("eagle") != drafter.version:
        yield Hit(f"{RECORD} says EAGLE {record.get('eagle')!r} and the files are EAGLE {drafter.version}", RECORD)
    recorded = record.get("boundaries")
    if recorded and drafter.aux.boundaries is not None and list(drafter.aux.boundaries) != recorded:
        yield Hit(f"{RECORD} says boundaries {recorded} and the files {list(drafter.aux.boundaries)}", RECORD)
    steps = record.get("tensors")
    names = (
        [str(step["name"]) for step in steps if isinstance(step, dict) and "name" in step]
        if isinstance(steps, list)
        else []
    )
    if gone := [name for name in names if name not in subject.checkpoint.tensors]:
        yield Hit(f"{RECORD} says how {', '.join(gone[:3])} was made, and the weights have no such tensor", RECORD)


@rule("EGL902", "card-facts", "note")
def card_facts(subject: Subject) -> Iterator[Hit]:
    """The card names the licence and the base model.

    The Hub shows both from the card's first lines, and finds a drafter by the target that its base_model names.

    Fix: begin README.md with a block between two lines of `---` that has `license:` and `base_model:`.
    """
    facts = front_matter(_card(subject))
    if missing := [key for key in ("license", "base_model") if not facts.get(key)]:
        yield Hit(f"{CARD} names no {' and no '.join(missing)} in its first lines", CARD)


@rule("EGL903", "card-commands", "note")
def card_commands(subject: Subject) -> Iterator[Hit]:
    """The card has a command that serves the drafter.

    A drafter is served by flags that are easily wrong, and a wrong one costs acceptance in silence.

    Fix: copy the launch commands that `eaglectl inspect` prints into README.md.
    """
    card = _card(subject)
    if not any(command in card for command in COMMANDS):
        yield Hit(f"{CARD} has no launch command of vLLM or SGLang", CARD)


@rule("EGL904", "checksums", "error")
def checksums(subject: Subject) -> Iterator[Hit]:
    """SHA256SUMS, where there is one, agrees with the files.

    Whoever checks the download is told that it is broken, and it may be.

    Fix: fetch the files again; if they are right, write the list again with `sha256sum * > SHA256SUMS`.
    """
    if not _has(subject, SUMS, "EGL904"):
        return
    hits = list(_sums(subject, _text(subject, SUMS)))
    yield from hits
    if subject.headers_only and not hits:
        raise CannotLook("the digests of weights need their data, and --headers-only leaves it closed")


@rule("EGL905", "home-path", "warning")
def home_path(subject: Subject) -> Iterator[Hit]:
    """No text file names somebody's home folder.

    It tells the name of a user and the shape of a machine to everybody who downloads the checkpoint.

    Fix: remove the path from the file.
    """
    for name in subject.names:
        if name.endswith(TEXTS) and name not in ("config.json", "tokenizer.json"):  # EGL109's, and too large
            for found in HOME.finditer(_text(subject, name)):
                if (found[2] or "").lower() not in ANYBODY:
                    yield Hit(f"{name} names {found[0]}", name)
                    break


@rule("EGL906", "init-only", "warning")
def init_only(subject: Subject) -> Iterator[Hit]:
    """The drafter is not one that eaglectl wrote as a start for a trainer.

    `convert --to 3.1 --init-only` adds norms that nobody has trained; served as it is, acceptance falls.

    Fix: train it, or convert with `--calibration` or `--prompts` and serve that.
    """
    if RECORD in subject.names and is_untrained(subject.checkpoint.sidecars[RECORD]):
        yield Hit(f"{RECORD} says that this is an untrained start (--init-only)", RECORD)


@rule("EGL907", "allowed-licence", "error")
def allowed_licence(subject: Subject) -> Iterator[Hit]:
    """The licence is one that the policy allows.

    Silent without `licences` in the policy's [allow].

    Fix: name the licence in README.md, or add it to the policy once it was looked at.
    """
    yield from _allowed(subject, "licences", "license")


@rule("EGL908", "allowed-base-model", "error")
def allowed_base_model(subject: Subject) -> Iterator[Hit]:
    """The base model is one that the policy allows.

    Silent without `base-models` in the policy's [allow].

    Fix: name the base model in README.md, or add it to the policy.
    """
    yield from _allowed(subject, "base-models", "base_model")


def _allowed(subject: Subject, key: str, fact: str) -> Iterator[Hit]:
    allowed = subject.policy.allowed.get(key)
    if allowed is None:
        return
    values = front_matter(_text(subject, CARD) if CARD in subject.names else "").get(fact, [])
    if not values:
        yield Hit(f"no {fact} is named, and the policy allows {', '.join(allowed) or 'none'}", CARD)
    for value in values:
        if not any(fnmatchcase(value.lower(), pattern.lower()) for pattern in allowed):
            yield Hit(f"{fact} {value} is not among {', '.join(allowed) or 'none'}", CARD)


def _has(subject: Subject, name: str, id: str) -> bool:
    """Whether an optional file is there; a policy that requires the rule requires the file."""
    if name not in subject.names and id in subject.policy.required:
        raise CannotLook(f"there is no {name}")
    return name in subject.names


def _card(subject: Subject) -> str:
    if CARD not in subject.names:
        raise CannotLook(f"there is no {CARD}")
    return _text(subject, CARD)


def _text(subject: Subject, name: str) -> str:
    try:
        raw = subject.source.read(name, 0, min(subject.source.size(name), LARGEST_TEXT))
    except EaglectlError as error:
        raise CannotLook(str(error)) from None
    return raw.decode("utf-8", "replace")


def front_matter(card: str) -> dict[str, list[str]]:
    """The top keys of a card's YAML block with their texts: of `key: text`, `key: [text]` and lists below the key."""
    found = re.match(r"---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|$)", card, re.DOTALL)
    facts: dict[str, list[str]] = {}
    key = ""
    for line in found[1].splitlines() if found else []:
        if top := re.match(r"([A-Za-z_][\w-]*):(.*)", line):
            key, line = top[1], top[2]
            facts[key] = []
        item = line.strip()
        for text in item[1:-1].split(",") if item.startswith("[") else [item.removeprefix("- ")]:
            if key and (value := text.split(" #")[0].strip().strip("\"'")):
                facts[key].append(value)
    return facts


def read_sums(text: str) -> tuple[dict[str, str], list[int]]:
    """Names and digests of a list that `sha256sum` writes, and the numbers of the lines that are neither."""
    sums: dict[str, str] = {}
    broken = []
    for number, line in enumerate(text.splitlines(), 1):
        if found := SUM.fullmatch(line.strip()):
            sums[found[2].removeprefix("./")] = found[1].lower()
        elif line.strip():
            broken.append(number)
    return sums, broken


def _sums(subject: Subject, text: str) -> Iterator[Hit]:
    sums, broken = read_sums(text)
    for number in broken:
        yield Hit(f"line {number} of {SUMS} is no digest and name", SUMS)
    for name in subject.names:
        if name.endswith(".safetensors") and name not in sums:
            yield Hit(f"{name} is not in {SUMS}", name)
    for name, stated in sums.items():
        if name not in subject.names:
            yield Hit(f"{SUMS} lists {name}, and there is no such file", SUMS)
        elif (
            not (subject.headers_only and name.endswith(".safetensors"))
            and (digest := _digest(subject, name)) != stated
        ):
            yield Hit(f"{name} has SHA-256 {digest[:12]}... and {SUMS} says {stated[:12]}...", name)


def _digest(subject: Subject, name: str) -> str:
    digest: Any = hashlib.sha256()
    try:
        size = subject.source.size(name)
        source = subject.source if size <= CHUNK else subject.on_disk
        for start in range(0, size, CHUNK):
            digest.update(source.read(name, start, min(start + CHUNK, size)))
    except EaglectlError as error:
        raise CannotLook(str(error)) from None
    return str(digest.hexdigest())
