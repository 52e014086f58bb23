"""What a secret looks like: our own rules, and those of gitleaks (gitleaks.json, by tools/secret_rules.py).

gitleaks is the rule set that is kept: some 200 issuers, words that must be near, and a least entropy, so that
hashes and vocabularies pass. detect-secrets (1.5.0, the last release, of 2024) has 25 issuers, brings
requests, reads line by line and knows neither Hugging Face nor W&B.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

Regex = re.Pattern[bytes]
# name = "value", in any of the spellings of config files
SET_TO = r"[\w.-]{0,20}[\"'\s\\]{0,4}(?:=>|:=|=|:)[\"'\s\\]{0,4}"

GAP = r"(?:\s|\\[nrt]){1,9}"


class SecretRule(Struct, frozen=True):
    """A kind of secret: `pattern` finds it near one of the `keywords`, which are in lower case.

    The secret is `group`, else the first group with a text, else the whole match. It counts above an
    entropy (bits a character), and where no pattern of `allowed` matches it. Patterns are compiled where a
    keyword was found, as few are.
    """

    kind: str
    keywords: tuple[bytes, ...]
    pattern: str
    entropy: float = 0
    group: int = 0
    allowed: tuple[str, ...] = ()

    @property
    def regex(self) -> Regex:
        """The pattern, compiled."""
        return _regex(self.pattern)

    def is_secret(self, match: re.Match[bytes]) -> bool:
        """Whether a match is random enough to be a secret, and is no known placeholder."""
        secret = match[self.group] if self.group else next(filter(None, match.groups()), match[0])
        is_random = not self.entropy or entropy(secret) > self.entropy
        return is_random and not any(_regex(text).search(secret) for text in self.allowed)


def entropy(text: bytes) -> float:
    """Shannon's entropy in bits a character."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


def _own(kind: str, keywords: str, pattern: str, bits: float = 0) -> SecretRule:
    return SecretRule(kind, tuple(keywords.encode().split()), pattern, bits)


OWN = (
    _own("a Hugging Face token", "hf_ api_org_", r"\b(?:hf|api_org)_[A-Za-z0-9]{30,}\b"),
    _own(
        "a GitHub token", "gh github_pat_", r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,})\b"
    ),
    _own("an AWS key", "akia asia abia acca", r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"),
    _own(
        "an AWS secret key",
        "aws secret",
        rf"(?i:aws[\w.-]{{0,20}}(?:secret|key)|secret[_-]?access[_-]?key){SET_TO}"
        r"(?![0-9a-f]{40})([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        3.5,
    ),
    _own("a Google key", "aiza", r"\bAIza[0-9A-Za-z_-]{35}(?![0-9A-Za-z_-])"),
    # one part of 20 or more letters and digits: words joined by dashes have none
    _own(
        "an API key",
        "sk-",
        r"\bsk-(?:[A-Za-z0-9]{1,20}[_-]){0,4}(?=[A-Za-z]{0,60}[0-9])(?=[0-9]{0,60}[A-Za-z])[A-Za-z0-9]{20}"
        r"[A-Za-z0-9_-]{4,}",
        3,
    ),
    _own("a Slack token", "xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{20,}\b"),
    _own(
        "a JSON web token",
        "ey",
        r"\bey[A-Za-z0-9_-]{15,500}\.ey[A-Za-z0-9_-]{15,4000}\.[A-Za-z0-9_-]{10,}",
        3.5,
    ),
    _own("a W&B key", "wandb_v", r"\bwandb_v[0-9]_[A-Za-z0-9_]{40,}"),
    _own(
        "a W&B key",
        "wandb",
        rf"(?i:wandb[\w.-]{{0,20}}(?:key|token|secret){SET_TO}|wandb\s+login\s+(?:--\w+\s+)?)"
        r"((?:local-)?[0-9a-f]{40})(?![0-9A-Za-z])",
    ),
    _own(
        "a password of .netrc",
        "machine",
        rf"\bmachine{GAP}[\w.-]{{1,99}}{GAP}login{GAP}[^\s\\]{{1,99}}{GAP}password{GAP}([^\s\\\"]{{8,}})",
        2.5,
    ),
    _own(
        "a private key",
        "begin",
        r"-{4,5} ?BEGIN [A-Z0-9 ]{0,60}PRIVATE KEY(?: BLOCK)? ?-{4,5}",
    ),
    _own("a PuTTY private key", "putty-user-key-file-", r"PuTTY-User-Key-File-[0-9]{1,2}\s*:\s*\S"),
    # https://user:password@host; not <user>:<password>, ${USER}:${PASSWORD}, ***:***
    _own(
        "a password in a URL",
        "://",
        r"\b[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/?#:@\"'`<>{}$*\\|()\[\]]{0,100}:"
        r"(?!(?:[*.x]+|%s)@)[^\s/?#@\"'`<>{}$*\\|()\[\]]{3,200}@[A-Za-z0-9\[]",
    ),
)


@cache
def secret_rules() -> tuple[SecretRule, ...]:
    """Every rule, our own first."""
    text = Path(__file__).with_name("gitleaks.json").read_text(encoding="utf-8")
    document: Mapping[str, Any] = json.loads(text)
    allowed = (*document["allowed"], *map(re.escape, document["stopwords"]))
    return OWN + tuple(
        SecretRule(
            kind=f"a secret of the kind {rule['id']}",
            keywords=tuple(keyword.encode() for keyword in rule["keywords"]),
            pattern=rule["regex"],
            entropy=rule["entropy"],
            group=rule["group"],
            allowed=(*rule["allowed"], *allowed),
        )
        for rule in document["rules"]
    )


@cache
def _keywords() -> frozenset[bytes]:
    return frozenset(keyword for rule in secret_rules() for keyword in rule.keywords)


def rules_near(lower: bytes) -> tuple[SecretRule, ...]:
    """The rules, in order, of which a keyword is in a text in lower case."""
    found = {keyword for keyword in _keywords() if keyword in lower}
    return tuple(rule for rule in secret_rules() if not found.isdisjoint(rule.keywords))


@cache
def _regex(text: str) -> Regex:
    return re.compile(text.encode())
