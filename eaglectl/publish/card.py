"""The card: README.md with a block and front matter that eaglectl manages; all other text stays as it is."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from eaglectl.errors import RefusedError, UsageError
from eaglectl.files.front_matter import MATTER, front_matter
from eaglectl.files.hub_cache import is_repo_name
from eaglectl.files.layout import CARD
from eaglectl.publish.card_block import CardFacts, card_block
from eaglectl.publish.request import CardAnswers
from eaglectl.publish.training import hub_datasets, read_training

BEGIN = "<!-- eaglectl: begin. The command upload writes this block again; text outside of it is kept. -->"
END = "<!-- eaglectl: end -->"
FIRST, LAST = "<!-- eaglectl: begin", "<!-- eaglectl: end -->"
# the model-index that earlier versions wrote: its figures may be of other weights
OLD_RESULTS = re.compile(r"^# eaglectl: begin.*?^# eaglectl: end[^\n]*(\n|\Z)", re.DOTALL | re.MULTILINE)
LIBRARIES = ("vllm", "sglang")
# a list in brackets on one line, without brackets in it
FLOW = re.compile(r"\[[^\[\]]*\][ \t]*(?:#.*)?")
KEY = re.compile(r"^([A-Za-z_][\w-]*):", re.MULTILINE)
# line breaks to YAML, and not to those who split at line feeds
ODD_BREAK = re.compile("\r(?!\n)|[\x85\u2028\u2029]")
TAGS = re.compile(r"^tags:[ \t]*(?:#[^\n]*)?\r?\n((?:[ \t]*-[ \t][^\n]*\n)+)", re.MULTILINE)


def with_answers(facts: CardFacts, text: str, answers: CardAnswers) -> CardFacts:
    """The facts with the user's answers, or with what the old card `text` states in its front matter.

    Raises UsageError where the answers and the card contradict each other, and for a bad file on the
    training.
    """
    known = front_matter(text)
    # comments below a key are read as more values of it
    licences, models = (
        known.get("license", [])[:1],
        [name for name in known.get("base_model", []) if is_repo_name(name)],
    )
    for option, answer, stated in (
        ("--license", answers.licence, licences),
        ("--base-model", answers.base_model, models),
    ):
        if answer is not None and stated and answer not in stated:
            stated_names = ", ".join(stated)
            raise UsageError(f"{option} {answer} and {CARD} ({stated_names}) differ; leave one of them out")
    base_model = answers.base_model or facts.base_model
    if base_model is None and len(models) == 1:
        base_model = models[0]
    drafter = facts.drafter
    if base_model is not None:
        drafter = replace(drafter, target=replace(drafter.target, name=base_model))
    return replace(
        facts,
        drafter=drafter,
        licence=answers.licence or next(iter(licences), None),
        training=read_training(answers.training) if answers.training is not None else {},
    )


def make_card(text: str, facts: CardFacts) -> str:
    """README.md with its block and front matter; `text` is the old README.md, empty where there is none.

    Raises RefusedError for marks that do not come in one pair.
    """
    newline = "\r\n" if text.partition("\n")[0].endswith("\r") and "\n" in text else "\n"
    if not text.strip():
        text = f"# {facts.repo.rpartition('/')[2]}\n"
    return _with_front_matter(_with_block(text, facts, newline), facts, newline)


def _with_block(text: str, facts: CardFacts, newline: str) -> str:
    """The text with its block replaced, or with the block added at the end."""
    block = newline.join([BEGIN, *card_block(facts), END])
    start, end = text.find(FIRST), text.find(LAST)
    if text.count(FIRST) > 1 or text.count(LAST) > 1 or (start < 0) != (end < 0) or end < start:
        raise RefusedError(
            f"{CARD}: the marks of eaglectl's block do not come in one pair; remove them, and the block"
            " is added"
            " at the end"
        )
    if start >= 0:
        return text[:start] + block + text[end + len(LAST) :]
    # one empty line before the block
    if not text.endswith("\n"):
        text += newline
    if not text.endswith(newline * 2):
        text += newline
    return text + block + newline


def _with_front_matter(text: str, facts: CardFacts, newline: str) -> str:
    match = MATTER.match(text)
    if match is None:
        if re.match(r"---[ \t]*\r?\n", text):
            raise RefusedError(
                f"{CARD} begins with --- and its first block has no end; write --- on a line of its own"
                " after it"
            )
        text = f"---{newline}---{newline}{newline}{text}"
        match = MATTER.match(text)
        assert match is not None
    if ODD_BREAK.search(match[2]):
        raise RefusedError(
            f"{CARD}: its front matter has a line break that only some readers take for one (a lone carriage"
            " return, or Unicode's); end its lines with a line feed"
        )
    _check_keys(match[2])
    known = front_matter(text)
    _check_stated(known, facts)
    inner = match[2]
    values: dict[str, str | Sequence[str] | None] = {
        "license": facts.licence,
        "base_model": facts.base_model,
        "datasets": hub_datasets(facts.training),
        # in quotes: YAML reads Norwegian as "false"
        "language": [f'"{code}"' for code in facts.training.get("language", ())],
        "library_name": next((library for library in LIBRARIES if library in facts.served), None),
        "pipeline_tag": "text-generation",
    }
    for key, value in values.items():
        if key not in known and value:
            inner += _yaml(key, value, newline)
    inner = _with_tags(inner, _tags(facts), newline)
    return text[: match.start(2)] + OLD_RESULTS.sub("", inner) + text[match.start(3) :]


def _yaml(key: str, value: str | Sequence[str], newline: str) -> str:
    """A key of the front matter with its value: a plain word, or a list of such."""
    if isinstance(value, str):
        return f"{key}: {value}{newline}"
    return f"{key}:{newline}" + "".join(f"- {item}{newline}" for item in value)


def _check_stated(known: Mapping[str, Sequence[str]], facts: CardFacts) -> None:
    """Raise UsageError where the licence or the base model is stated nowhere."""
    missing = []
    if not (known.get("license") or facts.licence):
        missing.append("a licence: pass --license ID, like apache-2.0 (unknown, if nobody has decided)")
    if not facts.base_model:
        missing.append("the target that it was trained for: pass --base-model ORG/NAME")
    if missing:
        keys = " and ".join(key for key in ("license", "base_model") if key in known and not known[key])
        about = f" {CARD} has {keys} without a value: write it there." if keys else ""
        raise UsageError(f"the card needs {', and '.join(missing)}; or state it in {CARD}.{about}")


def _check_keys(inner: str) -> None:
    """Raise RefusedError for a top key that is there twice: which of the two counts, no reader agrees on."""
    for key, count in Counter(KEY.findall(inner)).items():
        if count > 1:
            raise RefusedError(f"{CARD}: its front matter has {key} {count} times; keep one of them")


def _tags(facts: CardFacts) -> list[str]:
    tags = ["eagle3"]
    if facts.drafter.version.startswith("3.1"):
        tags.append("eagle-3.1")
    return [
        *tags,
        "speculative-decoding",
        "draft-model",
        *(library for library in LIBRARIES if library in facts.served),
        *(f"arxiv:{number}" for number, _ in facts.papers),
    ]


def _with_tags(inner: str, tags: Sequence[str], newline: str) -> str:
    """The front matter with its missing tags added, in the notation of its list."""
    old = front_matter(f"---\n{inner}---\n").get("tags", [])
    missing = [tag for tag in tags if tag not in old]
    if not missing:
        return inner
    top = re.search(r"^tags:[ \t]*(.*?)[ \t]*$", inner.replace("\r", ""), re.MULTILINE)
    if top is None:
        return inner + f"tags:{newline}" + "".join(f"- {tag}{newline}" for tag in missing)
    if FLOW.fullmatch(top[1]):
        return _with_flow_tags(inner, missing)
    items = TAGS.search(inner)
    if items is None:
        return inner  # a scalar or nothing, which is not rewritten
    indent = items[1][: len(items[1]) - len(items[1].lstrip(" \t"))]
    added = "".join(f"{indent}- {tag}{newline}" for tag in missing)
    return inner[: items.end(1)] + added + inner[items.end(1) :]


def _with_flow_tags(inner: str, missing: Sequence[str]) -> str:
    """The front matter with tags added to a list in brackets."""
    start = re.search(r"^tags:[ \t]*\[", inner, re.MULTILINE)
    assert start is not None
    end = inner.index("]", start.end())
    body = inner[start.end() : end].rstrip().rstrip(",")
    return inner[: start.end()] + ", ".join([body, *missing] if body else missing) + inner[end:]
