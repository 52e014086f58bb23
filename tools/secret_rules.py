"""Make gitleaks.json from a release of gitleaks: its config/gitleaks.toml in the syntax of Python's `re`.

Run `python -m tools.secret_rules gitleaks.toml VERSION`.
"""

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eaglectl.validation import secrets

OUT = Path(secrets.__file__).parent / "gitleaks.json"
LEFT_OUT: Mapping[str, str] = {
    "generic-api-key": "any word after `key:`; in vocabularies and prose that is mostly no secret",
    "private-key": "reads on from every BEGIN, so its time grows with the square of the file; ours does not",
    "gcp-api-key": "its list of exceptions holds keys that others' scans report; ours finds the same keys",
    "curl-auth-header": "tries every way to spread a command over six lines",
    "curl-auth-user": "tries every way to spread a command over six lines",
    "jwt": "ends at a quote or a space only; ours ends where the token does",
}


def converted(document: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The rules that look at contents, each with a regex that `re` compiles."""
    rules = [rule for rule in document["rules"] if "path" not in rule and rule["id"] not in LEFT_OUT]
    allowed = document["allowlist"]
    return {
        "source": "https://github.com/gitleaks/gitleaks, config/gitleaks.toml, MIT (LICENSE.gitleaks)",
        "version": version,
        "rules": [_rule(rule) for rule in sorted(rules, key=lambda rule: rule["id"])],
        "allowed": [python_regex(regex) for regex in allowed["regexes"]],
        "stopwords": allowed["stopwords"],
    }


def _rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    allowed = [regex for table in rule.get("allowlists", []) for regex in table.get("regexes", [])]
    return {
        "id": rule["id"],
        "regex": python_regex(rule["regex"]),
        "keywords": sorted(keyword.lower() for keyword in rule["keywords"]),
        "entropy": rule.get("entropy", 0),
        "group": rule.get("secretGroup", 0),
        "allowed": [python_regex(regex) for regex in allowed],
    }


def python_regex(regex: str) -> str:
    r"""The regex of RE2 in Python's syntax: `a(?i)b|c` is `a(?i:b)|(?i:c)`, `\z` is `\Z`."""
    # what may stand before the name changes no result of a search, and makes its time grow with the square
    regex = regex.replace(r"[\w.-]{0,50}?", "")
    out: list[str] = []
    groups = [False]  # whether each open group has an open `(?i:`
    for token in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?i\)|.", regex, re.DOTALL):
        match token:
            case "(?i)":
                out.append("" if groups[-1] else "(?i:")
                groups[-1] = True
            case "(":
                out.append(token)
                groups.append(False)
            case ")":
                out.append("))" if groups.pop() else ")")
            case "|":
                out.append(")|(?i:" if groups[-1] else "|")
            case r"\z":
                out.append(r"\Z")
            case _:
                is_class = token.startswith("[") and len(token) > 1
                out.append("[" + token[1:].replace("[", r"\[") if is_class else token)
    out.append(")" if groups[-1] else "")
    result = "".join(out)
    re.compile(result.encode())
    return result


if __name__ == "__main__":
    with Path(sys.argv[1]).open("rb") as toml:
        document = tomllib.load(toml)
    OUT.write_text(json.dumps(converted(document, sys.argv[2]), indent=1) + "\n", encoding="utf-8")
