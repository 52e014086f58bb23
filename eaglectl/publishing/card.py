"""The card: README.md with a block and front matter that eaglectl manages; all other text stays as it is."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import eaglectl
from eaglectl.checkpoint.hub_names import is_repo_name
from eaglectl.checkpoint.layout import CARD
from eaglectl.conversion.card import DEFINITION, gate_lines, table, upgrade_lines
from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.catalogue import launch_commands
from eaglectl.errors import RefusedError
from eaglectl.formats.catalogue import by_name
from eaglectl.publishing.model_index import measured_with, sampling, with_results
from eaglectl.text import as_markdown
from eaglectl.validation.rules.release import MATTER, front_matter

BEGIN = "<!-- eaglectl: begin. `eaglectl upload` writes this block again; text outside of it is kept. -->"
END = "<!-- eaglectl: end -->"
FIRST, LAST = "<!-- eaglectl: begin", "<!-- eaglectl: end -->"
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
LIBRARIES = ("vllm", "sglang")
WORDS = {True: "yes", False: "no", None: "unknown"}
# a list in brackets on one line, without brackets in it
FLOW = re.compile(r"\[[^\[\]]*\][ \t]*(?:#.*)?")
KEY = re.compile(r"^([A-Za-z_][\w-]*):", re.MULTILINE)
# line breaks to YAML, and not to those who split at line feeds
ODD_BREAK = re.compile("\r(?!\n)|[\x85\u2028\u2029]")
TAGS = re.compile(r"^tags:[ \t]*(?:#[^\n]*)?\r?\n((?:[ \t]*-[ \t][^\n]*\n)+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CardFacts:
    """The contents of a card.

    `served`: engine -> the releases that serve the drafter as it was trained, in words. `record` is
    eaglectl.json, `smoke` a document of `eaglectl smoke --json`; `has_results`: it goes into the front
    matter.
    """

    repo: str
    drafter: Drafter
    parameters: int
    nbytes: int
    served: Mapping[str, str]
    record: Mapping[str, Any] = field(default_factory=dict)
    smoke: Mapping[str, Any] | None = None
    has_results: bool = False

    @property
    def base_model(self) -> str | None:
        """The target's name, where it is a repository on the Hub."""
        name = self.drafter.target.name
        return name if name and is_repo_name(name) else None


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
    block = newline.join([BEGIN, *_block(facts), END])
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
    inner = _with_tags(match[2], _tags(facts), newline)
    values = {
        "base_model": facts.base_model,
        "library_name": next((library for library in LIBRARIES if library in facts.served), None),
        "pipeline_tag": "text-generation",
    }
    for key, value in values.items():
        if key not in known and value:
            inner += f"{key}: {value}{newline}"
    name = facts.repo.rpartition("/")[2]
    inner = with_results(inner, name, facts.base_model, facts.smoke, newline, is_requested=facts.has_results)
    return text[: match.start(2)] + inner + text[match.start(3) :]


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


def _block(facts: CardFacts) -> list[str]:
    target = "its target model"
    if facts.base_model:
        target = f"[{facts.base_model}](https://huggingface.co/{facts.base_model})"
    return [
        "## The drafter",
        "",
        f"An EAGLE-{facts.drafter.version} draft model for speculative decoding with {target}: it"
        " proposes tokens"
        " and the target verifies them, so the output is the target's own. It does not run alone, nor with"
        " another target.",
        "",
        *table(("", ""), _facts(facts)),
        "",
        *upgrade_lines(facts.record),
        *_serving(facts),
        *_acceptance(facts),
    ]


def _facts(facts: CardFacts) -> list[tuple[str, str]]:
    drafter, dims = facts.drafter, facts.drafter.dims
    boundaries = drafter.aux.boundaries
    aux = "the engines' default" if boundaries is None else ", ".join(map(str, boundaries))
    tokens = f"all {dims.vocab} target tokens"
    if drafter.has_reduced_vocabulary:
        tokens = f"{dims.draft_vocab} of {dims.vocab} target tokens"
    return [
        ("version", f"EAGLE-{drafter.version}"),
        ("layout", by_name(drafter.producer).title),
        (
            "network",
            f"{dims.layers} layer{'s' * (dims.layers > 1)}, {dims.attention}, hidden size {dims.hidden}",
        ),
        ("parameters", f"{facts.parameters:,} ({facts.nbytes:,} bytes, {', '.join(drafter.dtypes)})"),
        ("draft vocabulary", tokens),
        (
            "aux layers",
            f"{aux} (boundary b is the target's residual stream as it enters layer b, counted from 0)",
        ),
        ("norms", f"fc_norm {WORDS[drafter.norms.fc_norm]}, norm_output {WORDS[drafter.norms.norm_output]}"),
    ]


def _serving(facts: CardFacts) -> list[str]:
    if not facts.served:
        return []
    commands = launch_commands(facts.drafter, facts.repo)
    lines = [
        "## Serving",
        "",
        f"By the rules of eaglectl {eaglectl.__version__}, these releases serve it as it was trained:",
        "",
    ]
    for engine, releases in facts.served.items():
        lines += [f"{TITLES.get(engine, engine)} {releases}", "", "```bash", commands[engine], "```", ""]
    return lines


def _acceptance(facts: CardFacts) -> list[str]:
    parts = [*(_measurement(facts.smoke) if facts.smoke else []), *gate_lines(facts.record)]
    return ["## Acceptance", "", DEFINITION, "", *parts] if parts else []


def _measurement(smoke: Mapping[str, Any]) -> list[str]:
    low, high = smoke["interval"]
    row = [
        str(smoke["k"]),
        f"{smoke['acceptance_length']:.3f} [{low:.3f}, {high:.3f}]",
        ", ".join(f"{position['value']:.1%}" for position in smoke["per_position"]),
    ]
    about = (
        f"Measured with {as_markdown(measured_with(smoke['engine']))}, {smoke['prompts']} prompts,"
        f" {smoke['drafts']} drafts{sampling(smoke)}.{_lossless(smoke.get('lossless'))}"
    )
    return [about, "", *table(("k", "acceptance length", "accepted at each position"), [row]), ""]


def _lossless(is_lossless: bool | None) -> str:
    if is_lossless is None:
        return ""
    return f" {'Every' if is_lossless else 'Not every'} output equals plain decoding."
