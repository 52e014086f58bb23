"""Rules on what is published with a drafter: its record, card, checksums, local paths, and secrets.

They also compare the speculation options of the card's launch commands with the drafter. The patterns of
secrets cover tokens of the Hub, clouds, code hosts, model services and package indexes. Each pattern has
keywords that must be near, and some a least entropy, so that hashes and vocabularies pass. For other issuers
run gitleaks over the folder.
"""

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise
from typing import Any

from msgspec import Struct

from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.data import load
from eaglectl.engines.engine import start_options
from eaglectl.engines.registry import ENGINES, launch_commands, started
from eaglectl.errors import EaglectlError, UnreadableError, check
from eaglectl.files.budgets import (
    LARGEST_TEXT,
    LONGEST_COMMAND,
    MAX_COMMANDS,
    MAX_HEADER_SCANNED,
    MAX_PLACES,
    MAX_SCANNED,
)
from eaglectl.files.checkpoint import Checkpoint, is_untrained
from eaglectl.files.files import sha256
from eaglectl.files.front_matter import front_matter
from eaglectl.files.layout import CARD, RECORD, RECORD_SCHEMA, SUMS
from eaglectl.judge.judgement import Subject
from eaglectl.judge.rule import CannotLook, Match, make_rule, rule
from eaglectl.judge.rules.config import PICKLE_SUFFIXES

# name = "value", in any of the spellings of config files
SET_TO = r"[\w.-]{0,20}[\"'\s\\]{0,4}(?:=>|:=|=|:)[\"'\s\\]{0,4}"
# where a word begins, also behind an escape of JSON: \n, \u0022
BEGIN = r"(?:\b|(?<=\\[abfnrtv])|(?<=\\u[0-9a-fA-F]{4}))"
Read = Callable[[int, int], bytes]
# bytes of a text before and after a keyword that a rule reads
BEFORE, AFTER = 256, 2048


class SecretPattern(Struct, frozen=True):
    """A kind of secret: `pattern` finds it near one of the `keywords`, which are in lower case.

    The secret is the first group with a text, else the whole match. It counts above an entropy (bits a
    character).
    """

    kind: str
    keywords: tuple[bytes, ...]
    pattern: str
    entropy: float = 0


def _entropy(text: bytes) -> float:
    # Shannon's, in bits a character
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


SECRETS = (
    SecretPattern(
        "a Hugging Face token",
        (b"hf_", b"api_org_"),
        BEGIN + r"(?:hf|api_org)_[A-Za-z0-9]{30,}\b",
    ),
    SecretPattern(
        "a GitHub token",
        (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_"),
        r"(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,})\b",
        3,
    ),
    SecretPattern("a GitLab token", (b"glpat-", b"glrt-"), BEGIN + r"gl(?:pat|rt)-[A-Za-z0-9_-]{20,}", 3),
    SecretPattern(
        "an AWS key", (b"akia", b"asia", b"abia", b"acca"), BEGIN + r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"
    ),
    SecretPattern(
        "an AWS secret key",
        (b"aws", b"secret"),
        rf"(?i:aws[\w.-]{{0,20}}(?:secret|key)|secret[_-]?access[_-]?key){SET_TO}"
        r"(?![0-9a-f]{40})([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        3.5,
    ),
    SecretPattern("a Google key", (b"aiza",), BEGIN + r"AIza[0-9A-Za-z_-]{35}(?![0-9A-Za-z_-])"),
    SecretPattern(
        "an Azure storage key",
        (b"accountkey", b"azure", b"storage"),
        rf"(?i:account[_-]?key|azure[\w.-]{{0,20}}key|storage[\w.-]{{0,20}}key){SET_TO}"
        r"([A-Za-z0-9/+]{86}==)",
        3.5,
    ),
    # of OpenAI, Anthropic and others with the same form; one part has 20 or more letters and digits, which
    # words joined by dashes lack
    SecretPattern(
        "an API key",
        (b"sk-",),
        rf"{BEGIN}sk-(?:[A-Za-z0-9]{{1,20}}[_-]){{0,4}}"
        r"(?=[A-Za-z]{0,60}[0-9])(?=[0-9]{0,60}[A-Za-z])[A-Za-z0-9]{20}"
        r"[A-Za-z0-9_-]{4,}",
        3,
    ),
    SecretPattern("a Slack token", (b"xox",), BEGIN + r"xox[abeoprs]-[A-Za-z0-9-]{20,}\b"),
    SecretPattern("an npm token", (b"npm_",), BEGIN + r"npm_[A-Za-z0-9]{36}\b", 2),
    SecretPattern("a PyPI token", (b"pypi-",), BEGIN + r"pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,}", 3),
    SecretPattern("a W&B key", (b"wandb_v",), BEGIN + r"wandb_v[0-9]_[A-Za-z0-9_]{40,}"),
    SecretPattern(
        "a W&B key",
        (b"wandb",),
        rf"(?i:wandb[\w.-]{{0,20}}(?:key|token|secret){SET_TO}|wandb\s+login\s+(?:--\w+\s+)?)"
        r"((?:local-)?[0-9a-f]{40})(?![0-9A-Za-z])",
    ),
    SecretPattern(
        "a private key",
        (b"begin", b"putty-user-key-file-"),
        r"-{4,5} ?BEGIN [A-Z0-9 ]{0,60}PRIVATE KEY(?: BLOCK)? ?-{4,5}"
        r"|PuTTY-User-Key-File-[0-9]{1,2}\s*:\s*\S",
    ),
    SecretPattern(
        "a bearer token",
        (b"bearer",),
        rf"(?i:authorization{SET_TO}bearer)\s{{1,9}}"
        r"(?=[A-Za-z._~+/-]{0,100}[0-9])([A-Za-z0-9._~+/-]{20,})",
        3,
    ),
    # placeholders are no passwords: <password>, ${TOKEN}, ***
    SecretPattern(
        "a password in a URL",
        (b"://",),
        r"://[^\s/:@\"'<>]{0,64}:(?!(?i:pass(?:word|wd)?|pw|token|api_?key|x+|your\W?\w+)@)"
        r"([^\s/:@$<>{}*\"'`]{3,100})@[A-Za-z0-9\[]",
    ),
)


# a secret's kind and where it begins, like "line 3"; never the secret
Secret = tuple[str, str]


def scan_file(name: str, size: int, read: Read, token: str | None = None) -> Iterator[Secret]:
    """Find the secrets of a file of `size` bytes, the first of each kind; `token` is one more secret.

    Of .safetensors files only the header is read. Raises UnreadableError if `read` does, or if the file is
    too large to be searched.
    """
    if name.lower().endswith(".safetensors"):
        size = min(size, 8 + int.from_bytes(read(0, min(size, 8)), "little"))  # checked by other rules
        check_searched(f"the header of {name}", size, MAX_HEADER_SCANNED)
    check_searched(name, size)
    yield from scan_bytes(read(0, size), token)


def check_searched(name: str, size: int, most: int = MAX_SCANNED) -> None:
    """Raise UnreadableError for a file, or a header, that is too large to be searched."""
    if size > most:
        raise UnreadableError(f"{name} has {size} bytes; at most {most} are searched")


def scan_text(text: str, token: str | None = None) -> Iterator[Secret]:
    """Find the secrets of a text, the first of each kind."""
    return scan_bytes(text.encode("utf-8", "replace"), token)


def scan_bytes(data: bytes, token: str | None) -> Iterator[Secret]:
    """Find the secrets in bytes, as they are and without zero bytes (UTF-16 and UTF-32)."""
    seen: dict[str, int] = {}
    for start, kind in _find_secrets(data, token):
        seen.setdefault(kind, start)
    for kind, start in seen.items():
        number = 1 + data.count(b"\n", 0, start)
        yield kind, f"line {number}"
    others = {kind for _, kind in _find_secrets(data.replace(b"\0", b""), token)} if b"\0" in data else set()
    for kind in sorted(others - seen.keys()):
        yield kind, "text with two or four bytes a character"


def _find_secrets(text: bytes, token: str | None = None) -> Iterator[tuple[int, str]]:
    # of two secrets that overlap, the first pattern's
    if token and (start := text.find(token.encode())) >= 0:
        yield start, "the token that this call uses"
    lower, taken = text.lower(), bytearray(len(text))
    for secret_pattern in SECRETS:
        for start, stop in _spans(text, lower, secret_pattern):
            if not any(taken[start:stop]):
                taken[start:stop] = b"\1" * (stop - start)
                yield start, secret_pattern.kind


def _spans(text: bytes, lower: bytes, secret_pattern: SecretPattern) -> Iterator[tuple[int, int]]:
    # where secrets of one pattern begin and end; `lower` is the text in lower case
    regex = re.compile(secret_pattern.pattern.encode())
    for start, stop in _windows(lower, secret_pattern.keywords):
        for match in regex.finditer(text, start, stop):
            # match again where the window ends within the match: with more text it may be longer, or fail
            is_cut = match.end() == stop < len(text)
            whole = regex.match(text, match.start(), stop + AFTER) if is_cut else match
            secret = next(filter(None, whole.groups()), whole[0]) if whole else b""
            if whole and (not secret_pattern.entropy or _entropy(secret) > secret_pattern.entropy):
                yield whole.span()


def _windows(lower: bytes, keywords: Iterable[bytes]) -> Iterator[tuple[int, int]]:
    # the parts of a text near a keyword, in order; overlapping parts are joined
    matches = (match for keyword in keywords for match in re.finditer(re.escape(keyword), lower))
    windows: list[list[int]] = []
    places = sorted({match.start() for match in islice(matches, MAX_PLACES + 1)})
    words = f"it has more than {MAX_PLACES} possible places of one kind of secret, the most that are searched"
    check((len(places) > MAX_PLACES, words), error=UnreadableError)
    for place in places:
        if not windows or place - BEFORE > windows[-1][1]:
            windows.append([max(0, place - BEFORE), 0])
        windows[-1][1] = place + AFTER
    return ((start, min(stop, len(lower))) for start, stop in windows)


PATH = re.compile(
    r"(~|\.{1,2})/\S.*|[A-Za-z]:[\\/].+|\\\\.+|file:.+|s3://.+|gs://.+|/[\w.+@-]+(/[\w.+@ -]+)+/?"
    r"|/(home|root|Users|mnt|data|tmp|scratch|workspace|models?)/?"
)
TEXTS = (".json", ".md", ".txt", ".jinja", ".yaml", ".yml", ".toml", ".cfg", ".env")
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


@rule("EGL109", "local-path", "warning")
def local_path(subject: Subject) -> Iterator[Match]:
    """The config and the weights' metadata contain no local path.

    A path reveals who made the checkpoint and where, and does not exist elsewhere: a checkpoint whose
    verifier is a path cannot be served as published.

    Fix: write the model's name on the Hub, or remove the key.
    """
    for place, value in _texts(subject.config):
        if PATH.fullmatch(value):
            yield Match(f"{place} is {value!r}, a local path", f"config.json:{place}")
    if subject.read_error is None:
        for key, value in subject.checkpoint.metadata.items():
            if PATH.fullmatch(value):
                yield Match(
                    f"the weights' metadata has {key}: {value!r}, a local path",
                    subject.checkpoint.weight_files[0],
                )


@rule("EGL115", "leaked-secret", "error")
def secret(subject: Subject) -> Iterator[Match]:
    """No file holds a key or a token.

    Everyone who downloads the checkpoint can use it. Files are searched completely for 16 patterns of secrets
    (Hugging Face, GitHub, GitLab, AWS, Google, Azure, OpenAI, Anthropic, Slack, npm, PyPI, W&B, private keys,
    bearer tokens, passwords in URLs), as UTF-8 and UTF-16 text; in weight files, only the headers.

    Fix: revoke the key at its issuer, and remove it from the file and from the repository's history.
    """
    errors, leaks, read = list[EaglectlError](), list[Match](), tuple[str, ...]()
    if subject.read_error is None:
        read, metadata = subject.checkpoint.weight_files, subject.checkpoint.metadata
        for kind, _ in scan_text("\n".join((*metadata, *metadata.values(), *subject.checkpoint.tensors))):
            yield Match(f"the header of {read[0]} holds {kind}", read[0])
    # EGL002 reports pickles
    for name in (name for name in subject.names if not name.lower().endswith(PICKLE_SUFFIXES)):
        try:
            size = 0 if name in read else subject.source.size(name)
            for kind, place in scan_file(name, size, partial(subject.source.read, name)) if size else ():
                leaks.append(Match(f"{name} holds {kind} ({place})", name))
        except EaglectlError as error:
            errors.append(error)
    yield from leaks
    if errors and not leaks:
        raise CannotLook(str(errors[0]))


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    # every text in a JSON value, with its place
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
    """If eaglectl.json exists, it describes the files next to it.

    The record states the source, the output and the steps of the conversion; after a manual edit, or with
    files of another export, it is wrong. Config and weights are compared with its digests.

    Fix: convert the source again.
    """
    if not _has(subject, RECORD, "EGL901"):
        return
    record, drafter = subject.checkpoint.sidecars[RECORD], subject.drafter
    if subject.checkpoint.distrust and {"output", "published"} & record.keys():  # else it is of no files
        yield Match(f"{RECORD} {subject.checkpoint.distrust}", RECORD)
    if record.get("schema") != RECORD_SCHEMA:
        yield Match(f"{RECORD} states schema {record.get('schema')!r}; expected {RECORD_SCHEMA!r}", RECORD)
        return
    yield from _differences(record, drafter, subject.checkpoint)
    if unread := subject.checkpoint.unread:
        raise CannotLook(f"of the weights only {unread} were compared with {RECORD}, and not their bytes")


def _differences(record: Mapping[str, Any], drafter: Drafter, checkpoint: Checkpoint) -> Iterator[Match]:
    # what a record states of the drafter, and the files do not
    boundaries, actual, steps = record.get("boundaries"), drafter.aux.boundaries, record.get("tensors")
    listed = steps if isinstance(steps, list) else []
    named = [step.get("name") for step in listed if isinstance(step, dict)]
    missing = [str(name) for name in named if name is not None and str(name) not in checkpoint.tensors]
    if record.get("eagle") != drafter.version:
        text = f"EAGLE {record.get('eagle')!r}, but the files are EAGLE {drafter.version}"
        yield Match(f"{RECORD} states {text}", RECORD)
    if boundaries and actual is not None and list(actual) != boundaries:
        yield Match(f"{RECORD} states boundaries {boundaries}, but the files {list(actual)}", RECORD)
    if missing:
        names = ", ".join(missing[:3])
        yield Match(f"{RECORD} records {names}, but the weights have no such tensor", RECORD)


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


@rule("EGL903", "card-commands", "note", "measure")
def card_commands(subject: Subject) -> Iterator[Match]:
    """The card has a command that serves the drafter.

    A drafter is served with flags that are easily wrong, and a wrong one silently costs acceptance.

    Fix: copy the launch commands that `eaglectl inspect SOURCE` prints into README.md.
    """
    if not any(command in _text(subject, CARD) for command in COMMANDS):
        yield Match(f"{CARD} has no launch command of vLLM or SGLang", CARD)


@rule("EGL909", "card-speculation", "warning", "measure")
def card_speculation(subject: Subject) -> Iterator[Match]:
    """The card's launch commands of vLLM and SGLang state the method, the drafter and the counts that serve
    this drafter.

    SGLang's method EAGLE runs an EAGLE-3 drafter on one state instead of three: no draft token is accepted,
    and no engine reports it. Everyone who copies the command is affected.

    Fix: copy the launch commands that `eaglectl inspect SOURCE` prints into README.md.
    """
    if _has(subject, CARD, "EGL909"):
        for faults, corrected in _launch_faults(_text(subject, CARD), subject):
            yield Match(f"a command of {CARD}: {faults}", CARD, f"write `{corrected}`.")


@rule("EGL904", "checksums", "error")
def checksums(subject: Subject) -> Iterator[Match]:
    """If SHA256SUMS exists, it agrees with the files.

    A user who verifies the download gets an error, and the files may be corrupt.

    Fix: download the files again; if they are right, write the list again with `sha256sum * > SHA256SUMS`.
    """
    if not _has(subject, SUMS, "EGL904"):
        return
    sums, broken = read_sums(_text(subject, SUMS))
    weights = [name for name in subject.names if name.lower().endswith(".safetensors")]
    matches = [Match(f"line {number} of {SUMS} is not a digest and a name", SUMS) for number in broken]
    matches += [Match(f"{name} is not in {SUMS}", name) for name in weights if name not in sums]
    for name, digests in sums.items():
        matches += _listed(subject, name, digests)
    yield from matches
    if subject.headers_only and not matches:
        raise CannotLook("the digests of weights need their data, which --headers-only does not read")


@rule("EGL905", "home-path", "warning")
def home_path(subject: Subject) -> Iterator[Match]:
    """No text file contains the path of a home folder.

    It reveals a user name and the layout of a machine to everyone who downloads the checkpoint.

    Fix: remove the path from the file.
    """
    for name in subject.names:
        if name.endswith(TEXTS) and name not in ("config.json", "tokenizer.json"):  # EGL109's; words
            check_searched(name, subject.source.size(name))
            if path := first_home(subject.source.read(name)):
                yield Match(f"{name} names {path}", name)


def first_home(text: bytes) -> str:
    """Return the first home folder in a text, without the placeholders of documents; "" if none."""
    homes = HOME.finditer(text.decode("utf-8", "replace"))
    return next((home[0] for home in homes if (home[2] or "").lower() not in PLACEHOLDER_USERS), "")


@rule("EGL906", "init-only", "warning")
def init_only(subject: Subject) -> Iterator[Match]:
    """The drafter is not an untrained initialisation that eaglectl wrote for a trainer.

    `convert --to 3.1 --init-only` adds norms that are not trained; served without training, acceptance
    falls.

    Fix: train it, or convert with `--calibration` or `--prompts` and serve that.
    """
    if RECORD in subject.names and is_untrained(subject.checkpoint.sidecars[RECORD]):
        yield Match(f"{RECORD} records an untrained initialisation (--init-only)", RECORD)


def _allowed(subject: Subject, key: str, fact: str) -> Iterator[Match]:
    # the card's values of a fact that the policy does not allow
    if (allowed := subject.policy.allowed.get(key)) is None:
        return
    values = front_matter(_text(subject, CARD) if CARD in subject.names else "").get(fact, [])
    if not values:
        yield Match(f"{CARD} names no {fact}, and the policy allows {', '.join(allowed) or 'none'}", CARD)
    for value in values:
        if words := subject.policy.refusal(key, value.lower(), str.lower):
            yield Match(f"{fact} {value} {words}", CARD)


def _has(subject: Subject, name: str, id: str) -> bool:
    if name not in subject.names and id in subject.policy.required:
        raise CannotLook(f"there is no {name}")
    return name in subject.names


def _text(subject: Subject, name: str) -> str:
    if name not in subject.names:
        raise CannotLook(f"there is no {name}")
    if (size := subject.source.size(name)) > LARGEST_TEXT:
        raise CannotLook(f"{name} has {size} bytes; at most {LARGEST_TEXT} of a text file are read")
    return subject.source.read(name).decode("utf-8", "replace")


def read_sums(text: str) -> tuple[Mapping[str, tuple[str, ...]], Sequence[int]]:
    """Read a list by `sha256sum`: digests by file name, and the numbers of lines that are no entry.

    A name has several digests if lines contradict each other.
    """
    digests: dict[str, dict[str, None]] = {}
    broken = []
    for number, line in enumerate(text.split("\n"), 1):
        if entry := SUM.fullmatch(line.removesuffix("\r")):
            digests.setdefault(entry[2].removeprefix("./"), {})[entry[1].lower()] = None
        elif line.strip():
            broken.append(number)
    return {name: tuple(values) for name, values in digests.items()}, broken


def _listed(subject: Subject, name: str, digests: Sequence[str]) -> Iterator[Match]:
    # compare one entry of the checksums with its file
    if len(digests) > 1:
        yield Match(f"{SUMS} states {len(digests)} digests for {name}", SUMS)
    elif name not in subject.names:
        yield Match(f"{SUMS} lists {name}, which does not exist", SUMS)
    elif not (subject.headers_only and name.endswith(".safetensors")):
        digest, size = sha256(), subject.source.size(name)
        source = subject.source if size <= CHUNK_SIZE else subject.on_disk
        for start in range(0, size, CHUNK_SIZE):
            digest.update(source.read(name, start, min(start + CHUNK_SIZE, size)))
        if (computed := digest.hexdigest()) != digests[0]:
            yield Match(f"{name} has SHA-256 {computed[:12]}..., but {SUMS} {digests[0][:12]}...", name)


OPTION_CONFIG = "speculative-config"
# SGLang's options that name the drafter
SGLANG_DRAFTER_OPTIONS = ("speculative-draft-model-path", "speculative-draft-model")
# vLLM's short options and the keys of its --speculative-config that they set
SHORT = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
# what begins or ends a quotation, or escapes
QUOTING = re.compile(r"\\.|['\"]")


def _launch_faults(card: str, subject: Subject) -> Iterator[tuple[str, str]]:
    # Yield (faults, corrected command) for each launch command of the card that has faults. The corrected one
    # keeps the command's target, drafter and number of draft tokens; without a number it has 3, the default
    # of `launch_commands`.
    drafter = subject.drafter
    for number, words in enumerate(_commands(card)):
        if number == MAX_COMMANDS:
            raise CannotLook(f"{CARD} has more than {MAX_COMMANDS} commands; the others were not checked")
        options = dict(_options(words))
        config = _vllm_config(options)
        if config or any("vllm" in word for word in words):
            engine, path, tokens = "vllm", config.get("model"), config.get("num_speculative_tokens")
            faults = "; ".join(_vllm_faults(config, options, drafter))
        else:
            engine, path, tokens = (
                "sglang",
                _first(options, SGLANG_DRAFTER_OPTIONS),
                _number(options, "speculative-num-steps"),
            )
            faults = "; ".join(_sglang_faults(options, drafter))
        if faults:
            served = next((word for before, word in pairwise(words) if before == "serve"), None)
            target = served or options.get("model-path") or options.get("model") or None
            count = tokens if isinstance(tokens, int) and tokens > 0 else 3
            commands = launch_commands(drafter, str(path or "DRAFTER"), count, target_text=target)
            facts = ENGINES[engine].applied(subject.view(engine), ENGINES[engine].releases[-1])
            yield faults, started(commands[engine], start_options(facts))


def _commands(card: str) -> Iterator[Sequence[str]]:
    # Yield the words of each command with speculation options. A command is a line, and further lines while a
    # quotation is open; an empty line or a code fence ends it, and so does a length over the limit or a first
    # line without such options. Raises CannotLook for a longer one with such options.
    lines, length, quote = list[str](), 0, ""
    for line in re.sub(r"\\\r?\n", " ", card).splitlines():
        if not line.strip() or line.startswith("```"):
            quote = ""
            continue
        if not quote:
            lines, length = [], 0
        lines.append(line)
        length, quote = length + len(line), _open_quote(line, quote)
        if quote:
            quote = quote if "--spec" in lines[0] and length <= LONGEST_COMMAND else ""
            continue
        if "--speculative" in (command := "\n".join(lines)) or ("vllm" in command and "--spec-" in command):
            yield from _split(command)


def _split(command: str) -> Iterator[Sequence[str]]:
    if len(command) > LONGEST_COMMAND:  # shlex takes the square of a word's length
        raise CannotLook(f"{CARD} has a command of {len(command)} characters; at most {LONGEST_COMMAND}")
    with suppress(ValueError):  # it ends in a backslash
        yield shlex.split(command)


def _open_quote(line: str, quote: str) -> str:
    """Return the quotation mark that is open after a line that begins within `quote`; "" if none."""
    for mark in QUOTING.findall(line):
        if quote != "'" and len(mark) == 2:
            continue
        if not quote:
            quote = mark
        elif mark.endswith(quote):
            quote = ""
    return quote


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word, following in zip(words, (*words[1:], "--"), strict=True):
        if match := OPTION.fullmatch(word):
            value = following if match[2] is None and not following.startswith("-") else match[2]
            yield match[1].replace("_", "-"), value or ""


def _vllm_config(options: Mapping[str, str]) -> Mapping[str, Any]:
    # vLLM's speculative config, by its JSON and by single options, which override the JSON
    try:
        config = json.loads(options.get(OPTION_CONFIG) or options.get("sc") or "{}")
    except (ValueError, RecursionError):
        return {}
    keys = {
        SHORT.get(name, name.removeprefix(f"{OPTION_CONFIG}.")).replace("-", "_"): (
            int(value) if value.isdecimal() and len(value) < 10 else value
        )
        for name, value in options.items()
        if name in SHORT or name.startswith(f"{OPTION_CONFIG}.")
    }
    return {**config, **keys} if isinstance(config, dict) else {}


def _vllm_faults(config: Mapping[str, Any], options: Mapping[str, str], drafter: Drafter) -> Iterator[str]:
    # why vLLM refuses the command, or does not serve the drafter as trained
    for name in options:
        if name.startswith(("speculative-", "num-speculative-")) and not name.startswith(OPTION_CONFIG):
            yield f"vLLM has no --{name} since its V1 engine; use --speculative-config"
    if not config:
        return
    supported = load("vllm")["speculative_options"]
    for key in (key for key in config if key.partition(".")[0] not in supported["names"]):
        yield f"--speculative-config has {json.dumps(key)}, which vLLM {supported['release']} refuses"
    method = config.get("method", "eagle3")
    if method != "eagle3":
        yield f'--speculative-config has "method": {json.dumps(method)}, but this drafter\'s is "eagle3"'
    if drafter.kind == "peagle" and config.get("parallel_drafting") not in (True, "true"):
        yield '--speculative-config has no "parallel_drafting": true, without which vLLM drafts one by one'
    if type(config.get("num_speculative_tokens")) is not int:
        yield "--speculative-config has no num_speculative_tokens, without which vLLM does not start"


def _sglang_faults(options: Mapping[str, str], drafter: Drafter) -> Iterator[str]:
    # why SGLang refuses the command, or does not serve the drafter as trained
    name = next((name for name in ("speculative-algorithm", "speculative-algo") if name in options), "")
    if not name:
        return
    if options[name].upper() != "EAGLE3":
        yield (
            f"--{name} {options[name]} gives the drafter only the target's last state, but this drafter needs"
            " EAGLE3: the acceptance length is 1.00 (sglang 21272)"
        )
    if not _first(options, SGLANG_DRAFTER_OPTIONS):
        yield f"--{name} needs --speculative-draft-model-path, which names the drafter"
    topk, steps, tokens = (
        _number(options, name)
        for name in ("speculative-eagle-topk", "speculative-num-steps", "speculative-num-draft-tokens")
    )
    # with a top-k of 1, SGLang verifies a chain: one token for each step, and the target's own
    if topk == 1 and None not in (steps, tokens) and tokens != (steps or 0) + 1:
        yield (
            f"{steps} steps with --speculative-eagle-topk 1 are {(steps or 0) + 1} draft tokens, but"
            f" --speculative-num-draft-tokens is {tokens}"
        )
    yield from _unknown_to_sglang(options)
    method, key = options.get("quantization", "unquant"), "speculative-draft-model-quantization"
    if method != "unquant" and key not in options and drafter.quantisation is None:
        yield (
            f"SGLang applies --quantization {method} to the drafter too, whose weights are not quantised;"
            " add --speculative-draft-model-quantization unquant (sglang 28196)"
        )


def _unknown_to_sglang(options: Mapping[str, str]) -> Iterator[str]:
    supported = load("sglang")["speculative_options"]
    for option in [option for option in options if option.startswith("speculative-")]:
        completions = [name for name in supported["names"] if f"speculative-{name}".startswith(option)]
        if option.removeprefix("speculative-") not in supported["names"] and len(completions) != 1:
            yield f"SGLang {supported['release']} has no --{option}, and does not start"


def _first(options: Mapping[str, str], names: Sequence[str]) -> str:
    return next((options[name] for name in names if options.get(name)), "")


def _number(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name, "")
    return int(value) if value.isdecimal() and len(value) < 10 else None


# what reading reports on the topic of a rule's name, and rules of one call
RULES = (
    make_rule(
        "EGL907",
        "allowed-licence",
        "error",
        lambda subject: _allowed(subject, "licences", "license"),
        """The licence is one that the policy allows.

    Without `licences` in the policy's [allow], this rule reports nothing.

    Fix: name the licence in README.md, or add it to the policy after reviewing it.
    """,
    ),
    make_rule(
        "EGL908",
        "allowed-base-model",
        "error",
        lambda subject: _allowed(subject, "base-models", "base_model"),
        """The base model is one that the policy allows.

    Without `base-models` in the policy's [allow], this rule reports nothing.

    Fix: name the base model in README.md, or add it to the policy.
    """,
    ),
)
