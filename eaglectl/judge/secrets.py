"""What a secret looks like, and scanning whole files for one.

Fifteen patterns, of what lies beside the release of a drafter: the Hub's tokens, those of clouds, code hosts,
model services and package indexes. Each has words that must be near, and some a least entropy, so that hashes
and vocabularies pass. For other issuers run gitleaks over the folder.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from eaglectl.errors import UnreadableError

# name = "value", in any of the spellings of config files
SET_TO = r"[\w.-]{0,20}[\"'\s\\]{0,4}(?:=>|:=|=|:)[\"'\s\\]{0,4}"
Read = Callable[[int, int], bytes]
# how much of a text before and after a keyword a rule reads
BEFORE, AFTER = 256, 2048
# of one file, which is read whole; weights but for their headers are not searched
MAX_SCANNED = 64 << 20
# of a header: 4,096 tensors, the most of a drafter, take a tenth of it
MAX_HEADER_SCANNED = 8 << 20


class SecretRule(Struct, frozen=True):
    """A kind of secret: `pattern` finds it near one of the `keywords`, which are in lower case.

    The secret is the first group with a text, else the whole match. It counts above an entropy (bits a
    character).
    """

    kind: str
    keywords: tuple[bytes, ...]
    pattern: str
    entropy: float = 0


def entropy(text: bytes) -> float:
    """Shannon's entropy in bits a character."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


SECRETS = (
    SecretRule("a Hugging Face token", (b"hf_", b"api_org_"), r"\b(?:hf|api_org)_[A-Za-z0-9]{30,}\b"),
    SecretRule(
        "a GitHub token",
        (b"gh", b"github_pat_"),
        r"(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,})\b",
        3,
    ),
    SecretRule("a GitLab token", (b"glpat-", b"glrt-"), r"\bgl(?:pat|rt)-[A-Za-z0-9_-]{20,}", 3),
    SecretRule(
        "an AWS key", (b"akia", b"asia", b"abia", b"acca"), r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"
    ),
    SecretRule(
        "an AWS secret key",
        (b"aws", b"secret"),
        rf"(?i:aws[\w.-]{{0,20}}(?:secret|key)|secret[_-]?access[_-]?key){SET_TO}"
        r"(?![0-9a-f]{40})([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        3.5,
    ),
    SecretRule("a Google key", (b"aiza",), r"\bAIza[0-9A-Za-z_-]{35}(?![0-9A-Za-z_-])"),
    SecretRule(
        "an Azure storage key",
        (b"accountkey", b"azure", b"storage"),
        rf"(?i:account[_-]?key|azure[\w.-]{{0,20}}key|storage[\w.-]{{0,20}}key){SET_TO}"
        r"([A-Za-z0-9/+]{86}==)",
        3.5,
    ),
    # of OpenAI, Anthropic and those who spell theirs alike; one part of 20 or more letters and digits: words
    # joined by dashes have none
    SecretRule(
        "an API key",
        (b"sk-",),
        r"\bsk-(?:[A-Za-z0-9]{1,20}[_-]){0,4}(?=[A-Za-z]{0,60}[0-9])(?=[0-9]{0,60}[A-Za-z])[A-Za-z0-9]{20}"
        r"[A-Za-z0-9_-]{4,}",
        3,
    ),
    SecretRule("a Slack token", (b"xox",), r"\bxox[abeoprs]-[A-Za-z0-9-]{20,}\b"),
    SecretRule("an npm token", (b"npm_",), r"\bnpm_[A-Za-z0-9]{36}\b", 2),
    SecretRule("a PyPI token", (b"pypi-",), r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,}", 3),
    SecretRule("a W&B key", (b"wandb_v",), r"\bwandb_v[0-9]_[A-Za-z0-9_]{40,}"),
    SecretRule(
        "a W&B key",
        (b"wandb",),
        rf"(?i:wandb[\w.-]{{0,20}}(?:key|token|secret){SET_TO}|wandb\s+login\s+(?:--\w+\s+)?)"
        r"((?:local-)?[0-9a-f]{40})(?![0-9A-Za-z])",
    ),
    SecretRule(
        "a private key",
        (b"begin", b"putty-user-key-file-"),
        r"-{4,5} ?BEGIN [A-Z0-9 ]{0,60}PRIVATE KEY(?: BLOCK)? ?-{4,5}"
        r"|PuTTY-User-Key-File-[0-9]{1,2}\s*:\s*\S",
    ),
    SecretRule(
        "a bearer token",
        (b"bearer",),
        rf"(?i:authorization{SET_TO}bearer)\s{{1,9}}"
        r"(?=[A-Za-z._~+/-]{0,100}[0-9])([A-Za-z0-9._~+/-]{20,})",
        3,
    ),
)


class Secret(Struct, frozen=True):
    """A secret's kind and where it begins, never the secret; `place` is like "line 3"."""

    kind: str
    place: str


def scan_file(name: str, size: int, read: Read, token: str | None = None) -> Iterator[Secret]:
    """The secrets of a file of `size` bytes, the first of each kind; `token` is one more secret.

    Of .safetensors files only the header is read. Raises UnreadableError where `read` does, or for a
    larger file than is searched.
    """
    if name.lower().endswith(".safetensors"):
        size = min(size, 8 + int.from_bytes(read(0, min(size, 8)), "little"))  # checked by other rules
        check_searched(f"the header of {name}", size, MAX_HEADER_SCANNED)
    check_searched(name, size)
    yield from _scan(read(0, size), token)


def check_searched(name: str, size: int, most: int = MAX_SCANNED) -> None:
    """Raise UnreadableError for a file, or a header, that is too large to be searched."""
    if size > most:
        raise UnreadableError(f"{name} has {size} bytes; at most {most} are searched")


def scan_text(text: str, token: str | None = None) -> Iterator[Secret]:
    """The secrets of a text, the first of each kind."""
    yield from _scan(text.encode("utf-8", "replace"), token)


def _scan(data: bytes, token: str | None) -> Iterator[Secret]:
    """The secrets in bytes, and without the zeros that UTF-16 has between them."""
    seen = set()
    for start, kind in find_secrets(data, token):
        if kind not in seen:
            seen.add(kind)
            line = 1 + data.count(b"\n", 0, start)
            yield Secret(kind, f"line {line}")
    if b"\0" in data:
        others = {kind for _, kind in find_secrets(data.replace(b"\0", b""), token)} - seen
        yield from (Secret(kind, "text with two or four bytes a character") for kind in sorted(others))


def find_secrets(text: bytes, token: str | None = None) -> Iterator[tuple[int, str]]:
    """Where secrets begin in a text, and their kinds; of two that overlap the first rule's."""
    if token and (start := text.find(token.encode())) >= 0:
        yield start, "the token that this call uses"
    lower, taken = text.lower(), bytearray(len(text))
    for rule in SECRETS:
        for start, stop in _spans(text, lower, rule):
            if not any(taken[start:stop]):
                taken[start:stop] = b"\1" * (stop - start)
                yield start, rule.kind


def _spans(text: bytes, lower: bytes, rule: SecretRule) -> Iterator[tuple[int, int]]:
    regex = re.compile(rule.pattern.encode())
    for start, stop in _windows(lower, rule.keywords):
        for match in regex.finditer(text, start, stop):
            # a match that the window cuts off: in the whole text it may go on, or be none
            whole = regex.match(text, match.start()) if match.end() == stop < len(text) else match
            secret = next(filter(None, whole.groups()), whole[0]) if whole else b""
            if whole and (not rule.entropy or entropy(secret) > rule.entropy):
                yield whole.span()


def _windows(lower: bytes, keywords: Iterable[bytes]) -> Iterator[tuple[int, int]]:
    """The parts of a text near a keyword, in order, those that touch joined."""
    matches = (match for keyword in keywords for match in re.finditer(re.escape(keyword), lower))
    start = stop = -1
    for place in sorted({match.start() for match in matches}):
        if place - BEFORE > stop:
            if stop >= 0:
                yield start, min(stop, len(lower))
            start = max(0, place - BEFORE)
        stop = place + AFTER
    if stop >= 0:
        yield start, min(stop, len(lower))
