"""Rules on what is published with a drafter: its record, card, checksums, paths of a machine, and keys.

Also the launch commands of the card, and what they state of speculation that is not the drafter's.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from typing import Any

from msgspec import Struct

from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.data import load
from eaglectl.engines.registry import launch_commands
from eaglectl.errors import EaglectlError
from eaglectl.files.checkpoint import RECORD_SCHEMA, is_untrained
from eaglectl.files.front_matter import front_matter
from eaglectl.judge.rule import CannotLook, Match, rule
from eaglectl.judge.rules.files import PICKLE_SUFFIXES
from eaglectl.judge.secrets import check_searched, scan_file, scan_text
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
    leaks: list[Match] = []
    if subject.read_error is None:
        read, metadata = subject.checkpoint.weight_files, subject.checkpoint.metadata
        header = "\n".join((*metadata, *metadata.values(), *subject.checkpoint.tensors))
        yield from (
            Match(f"the header of {read[0]} holds {leak.kind}", read[0]) for leak in scan_text(header)
        )
    for name in subject.names:
        if name in read or name.lower().endswith(PICKLE_SUFFIXES):  # EGL002 reports pickles
            continue
        try:
            found = list(scan_file(name, subject.source.size(name), partial(subject.source.read, name)))
            leaks += [Match(f"{name} holds {leak.kind} ({leak.place})", name) for leak in found]
        except EaglectlError as reason:
            error = error or reason
    yield from leaks
    if error is not None and not leaks:
        raise CannotLook(str(error))


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a JSON value with its path, as "key.key[0]"."""
    if isinstance(value, str):
        yield place, value
    parts: Mapping[str, Any] = {}
    if isinstance(value, Mapping):
        parts = {f"{place}.{key}" if place else key: inner for key, inner in value.items()}
    elif isinstance(value, list):
        parts = {f"{place}[{index}]": inner for index, inner in enumerate(value)}
    for path, inner in parts.items():
        yield from _texts(inner, path)


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
    boundaries, own, steps = record.get("boundaries"), drafter.aux.boundaries, record.get("tensors")
    named = [
        step.get("name") for step in (steps if isinstance(steps, list) else ()) if isinstance(step, dict)
    ]
    missing = [str(name) for name in named if name is not None and name not in subject.checkpoint.tensors]
    if record.get("eagle") != drafter.version:
        text = f"EAGLE {record.get('eagle')!r} and the files are EAGLE {drafter.version}"
        yield Match(f"{RECORD} states {text}", RECORD)
    if boundaries and own is not None and list(own) != boundaries:
        yield Match(f"{RECORD} states boundaries {boundaries} and the files {list(own)}", RECORD)
    if missing:
        text = f"how {', '.join(missing[:3])} was made, and the weights have no such tensor"
        yield Match(f"{RECORD} records {text}", RECORD)


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
    if not any(command in _text(subject, CARD) for command in COMMANDS):
        yield Match(f"{CARD} has no launch command of vLLM or SGLang", CARD)


@rule("EGL909", "card-speculation", "warning")
def card_speculation(subject: Subject) -> Iterator[Match]:
    """The card's launch commands of vLLM and SGLang state the method, the drafter and the counts that serve
    this drafter.

    SGLang's EAGLE runs an EAGLE-3 drafter on one state in place of three: nothing is accepted, and no engine
    reports it. Whoever copies the command has that.

    Fix: copy the launch commands that `eaglectl inspect SOURCE` prints into README.md.
    """
    for words, right in (
        launch_faults(_text(subject, CARD), subject.drafter) if _has(subject, CARD, "EGL909") else ()
    ):
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
    weights = [name for name in subject.names if name.lower().endswith(".safetensors")]
    matches = [Match(f"line {number} of {SUMS} is no digest and name", SUMS) for number in sums.broken]
    matches += [Match(f"{name} is not in {SUMS}", name) for name in weights if name not in sums.digests]
    for name, digests in sums.digests.items():
        matches += _listed(subject, name, digests)
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
            check_searched(name, subject.source.size(name))
            if path := first_home(subject.source.read(name)):
                yield Match(f"{name} names {path}", name)


def first_home(text: bytes) -> str:
    """The first home folder in a text that is not a document's placeholder, or nothing."""
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
    if len(digests) > 1:
        yield Match(f"{SUMS} states {len(digests)} digests for {name}, and a file has one", SUMS)
    elif name not in subject.names:
        yield Match(f"{SUMS} lists {name}, and there is no such file", SUMS)
    elif not (subject.headers_only and name.endswith(".safetensors")):
        import hashlib  # late: it loads OpenSSL, and few checkpoints have a list of digests

        digest, size = hashlib.sha256(), subject.source.size(name)
        source = subject.source if size <= CHUNK_SIZE else subject.on_disk
        for start in range(0, size, CHUNK_SIZE):
            digest.update(source.read(name, start, min(start + CHUNK_SIZE, size)))
        if (found := digest.hexdigest()) != digests[0]:
            yield Match(f"{name} has SHA-256 {found[:12]}... and {SUMS} states {digests[0][:12]}...", name)


OPTION_CONFIG = "speculative-config"
ALGORITHM = ("speculative-algorithm", "speculative-algo")
DRAFTER = ("speculative-draft-model-path", "speculative-draft-model")
# vLLM's short options and the keys of its --speculative-config that they set
SHORT = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
LONGEST = 8192  # characters of a command


def launch_faults(card: str, drafter: Drafter) -> Iterator[tuple[str, str]]:
    """What is wrong in each launch command of `card`, and the command in its place.

    Those of vLLM and of SGLang with options of speculation are read; a command that no shell splits is not.
    """
    for words in _commands(card):
        options = dict(_options(words))
        given = _vllm_config(options)
        tokens = given.get("num_speculative_tokens")
        if given or any("vllm" in word for word in words):
            engine, faults, path = (
                "vllm",
                "; ".join(_vllm_faults(given, options, drafter)),
                given.get("model"),
            )
        else:
            engine, faults = "sglang", "; ".join(_sglang_faults(options, drafter))
            path, tokens = _first(options, DRAFTER), _number(options, "num-steps")
        if faults:
            served = next((word for before, word in pairwise(words) if before == "serve"), None)
            target = served or options.get("model-path") or options.get("model") or None
            number = tokens if isinstance(tokens, int) and tokens > 0 else 3
            yield faults, launch_commands(drafter, str(path or "DRAFTER"), number, target_text=target)[engine]


def _commands(card: str) -> Iterator[Sequence[str]]:
    """The words of each command that states speculation; quotes may go on in the lines that follow."""
    kept = ""
    for line in re.sub(r"\\\r?\n", " ", card).splitlines():
        is_end = not line.strip() or line.startswith("```")
        kept = "" if is_end else f"{kept}\n{line}".lstrip("\n")
        try:
            words = shlex.split(kept)
        except ValueError:
            kept = kept if "--spec" in kept and len(kept) <= LONGEST else ""
            continue
        if "--speculative" in kept or ("vllm" in kept and "--spec-" in kept):
            yield words
        kept = ""


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word, following in zip(words, (*words[1:], "--"), strict=True):
        if match := OPTION.fullmatch(word):
            value = "" if following.startswith("-") else following
            yield match[1].replace("_", "-"), value if match[2] is None else match[2]


def _vllm_config(options: Mapping[str, str]) -> Mapping[str, Any]:
    """What --speculative-config states, as JSON or by dotted keys; nothing where it is not read."""
    keys = {
        SHORT.get(name, name.removeprefix(f"{OPTION_CONFIG}.")).replace("-", "_"): value
        for name, value in options.items()
        if name in SHORT or name.startswith(f"{OPTION_CONFIG}.")
    }
    try:
        stated = json.loads(options.get(OPTION_CONFIG) or options.get("sc") or "{}")
    except ValueError:
        return {}
    numbers = {name: int(value) if value.isdecimal() else value for name, value in keys.items()}
    return {**stated, **numbers} if isinstance(stated, dict) else {}


def _vllm_faults(given: Mapping[str, Any], options: Mapping[str, str], drafter: Drafter) -> Iterator[str]:
    for name in options:
        if name.startswith(("speculative-", "num-speculative-")) and not name.startswith(OPTION_CONFIG):
            yield f"vLLM has no --{name} since its V1 engine; --speculative-config states it"
    if not given:
        return
    known = load("vllm")["speculative_options"]
    for key in given:
        if key.partition(".")[0] not in known["names"]:
            yield f"--speculative-config has {json.dumps(key)}, which vLLM {known['release']} refuses"
    method = given.get("method", "eagle3")
    if method != "eagle3":
        yield f'--speculative-config has "method": {json.dumps(method)}, and this drafter\'s is "eagle3"'
    if drafter.kind == "peagle" and given.get("parallel_drafting") not in (True, "true"):
        yield '--speculative-config has no "parallel_drafting": true, without which vLLM drafts one by one'
    if type(given.get("num_speculative_tokens")) is not int:
        yield "--speculative-config has no num_speculative_tokens, without which vLLM does not start"


def _sglang_faults(options: Mapping[str, str], drafter: Drafter) -> Iterator[str]:
    name = next((name for name in ALGORITHM if name in options), "")
    if not name:
        return
    if options[name].upper() != "EAGLE3":
        yield (
            f"--{name} {options[name]} hands the drafter the target's last state alone, and this drafter is"
            " EAGLE3's: the acceptance length is 1.00 (sglang 21272)"
        )
    if not _first(options, DRAFTER):
        yield f"--{name} without --speculative-draft-model-path names no drafter"
    steps, tokens = _number(options, "num-steps"), _number(options, "num-draft-tokens")
    if _number(options, "eagle-topk") == 1 and None not in (steps, tokens) and tokens != (steps or 0) + 1:
        yield (
            f"{steps} steps with --speculative-eagle-topk 1 are {(steps or 0) + 1} draft tokens, and"
            f" --speculative-num-draft-tokens is {tokens}"
        )
    yield from _unknown_to_sglang(options)
    method = options.get("quantization", "unquant")
    own = "speculative-draft-model-quantization" in options
    if method != "unquant" and not own and drafter.quantisation is None:
        yield (
            f"--quantization {method} is taken over by the drafter, whose weights are not quantised, unless"
            " --speculative-draft-model-quantization unquant stands beside it (sglang 28196)"
        )


def _unknown_to_sglang(options: Mapping[str, str]) -> Iterator[str]:
    """What SGLang's parser does not know; the beginning of one name stands for it."""
    known = load("sglang")["speculative_options"]
    for option in [option for option in options if option.startswith("speculative-")]:
        begins = [each for each in known["names"] if f"speculative-{each}".startswith(option)]
        if option.removeprefix("speculative-") not in known["names"] and len(begins) != 1:
            yield f"SGLang {known['release']} has no --{option}, and does not start"


def _first(options: Mapping[str, str], names: Sequence[str]) -> str:
    return next((options[name] for name in names if options.get(name)), "")


def _number(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(f"speculative-{name}", "")
    return int(value) if value.isdecimal() and len(value) < 10 else None
