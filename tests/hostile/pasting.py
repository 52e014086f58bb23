"""What a person pastes: the commands in a text, and what a real bash makes of them."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.printed import strings, text_of_page

PROGRAMS = ("eaglectl", "vllm", "python", "llama-server", "git", "hf", "rm", "pip")
START = rf"(?:{'|'.join(PROGRAMS)}) (?![\d ])"
# between backticks, and bare: alone on a line, behind a label, behind words that end in a colon
QUOTED = re.compile(rf"`({START}[^`\n]*)`")
BARE = re.compile(rf"(?:^ *|  |: )({START}[^`]*)$", re.MULTILINE)
STUB = """#!/bin/bash
printf '%s\\0' "${0##*/}" "$@" $'\\1' >> "$RECORD"
"""
# commands about no checkpoint
GENERIC = ("engines", "rules")
# what `touch` in a name would make
MARK = "PWNED"

# names of folders; none has a slash
NAMES = {
    "blank": "a b  c",
    "apostrophe": "it's",
    "quotation mark": 'say "x"',
    "command": "$(touch${IFS}PWNED)",
    "command and query": "$(touch${IFS}PWNED)?token=x",
    "backticks": "`touch PWNED`",
    "forged command": "x`eaglectl inspect a;touch${IFS}PWNED`y",
    "semicolon": "x;touch${IFS}PWNED;",
    "key": "x;key=1;touch PWNED",
    "ampersand": "a&touch PWNED&b",
    "bar": "a|touch PWNED",
    "redirects": "a>PWNED<b",
    "line break": "a\ntouch PWNED\nb",
    "carriage return": "a\rtouch PWNED",
    "tab": "a\tb",
    "dash": "-q",
    "option": "--force",
    "letters and quotes": "a" * 188 + "'\"'\"'$(touch PWNED)" + "b" * 30,
    "escape": "a\x1b[2K\x07b",
    "right to left": "a\u202etxt\u200b",
    "half a character": os.fsdecode(b"a\xff\xe9"),
    "other letters": "Entwürfe 草稿",
    "home": "~",
    "comment": "#touch PWNED",
    "history": "!touch !! !-1 PWNED",
    "globs": "*?[a-z]",
    "braces": "{a,b}$HOME${PATH}",
    "backslash": "a\\",
    "ansi": "$'\\n'",
    "equals": "=ls",
    "caret": "^a^b^",
    "CI": "##[error]x ::error::y",
    "header": "Authorization: Basic x",
    "secret in a path": "a&x-api-key=b'c",
}
# more than 300 characters, in folders of which none may have more than 255 bytes
LONG = "/".join(["x" * 200 + " '\"$(touch PWNED)"] * 3)


def commands_in(text: str, paths: Sequence[str] = ()) -> list[str]:
    """What a reader would copy from a page, text, or a document, in which values may be `paths`."""
    parts = [text]
    if text[:14].upper() == "<!DOCTYPE HTML":
        parts = [text_of_page(text)]
    elif text.startswith("{\n"):
        parts = [part for part in strings(json.loads(text)) if part not in paths]
    return [line for part in parts for line in _in_text(part)]


def _in_text(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        # a cell of a table in Markdown
        line = line.replace("\\|", "|") if line.startswith("| ") else line
        yield from QUOTED.findall(line)
        yield from BARE.findall(QUOTED.sub("", line))


def paste(lines: Sequence[str], folder: Path) -> list[list[str]]:
    """The arguments that programs get when an interactive bash is given the lines, one after another."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name in PROGRAMS:
        (programs / name).write_text(STUB)
        (programs / name).chmod(0o755)
    place, record = folder / "pasted here", folder / "record"
    place.mkdir(exist_ok=True)
    record.write_bytes(b"")
    path = f"{programs}:/usr/bin:/bin"
    env = {"PATH": path, "RECORD": str(record), "HOME": str(place), "LC_ALL": "C.UTF-8"}
    text = "set -o history -o histexpand\n" + "".join(f"{line}\n" for line in lines)
    shell = ["bash", "--noprofile", "--norc", "-i"]
    subprocess.run(shell, input=os.fsencode(text), cwd=place, env=env, capture_output=True, timeout=60)
    assert not (place / MARK).exists(), lines
    calls = os.fsdecode(record.read_bytes()).split("\x01\0")[:-1]
    return [arguments.split("\0")[:-1] for arguments in calls]


def fault(call: Sequence[str], given: Sequence[str]) -> str:
    """What of a call is not as meant, or "": its odd arguments are those given, whole."""
    for word in call:
        value = json.loads(word)["model"] if word.startswith('{"method"') else word
        if re.fullmatch(r"[\w@%+=:,./-]+", value, re.ASCII) or value in given:
            continue
        return f"{word!r} of {call}"
    if call[0] == "eaglectl" and call[1] not in GENERIC and not set(call) & set(given):
        return f"{call} names nothing that was given"
    return ""
