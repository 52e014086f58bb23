"""The card: a block in README.md that eaglectl manages, between two marks, and the front matter completed; all else stays, byte for byte."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import eaglectl
from eaglectl.conversion.card import DEFINITION, gate_lines, table, upgrade_lines
from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.catalogue import launch_commands
from eaglectl.errors import Refused
from eaglectl.formats.catalogue import by_name
from eaglectl.publishing.plan import CARD
from eaglectl.publishing.results import said, sampling, with_results
from eaglectl.validation.release import front_matter

BEGIN = "<!-- eaglectl: begin. `eaglectl upload` writes this block again; text outside of it is kept. -->"
END = "<!-- eaglectl: end -->"
FIRST, LAST = "<!-- eaglectl: begin", "<!-- eaglectl: end -->"
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
LIBRARIES = ("vllm", "sglang")
MATTER = re.compile(r"\A(---[ \t]*\r?\n)(.*?)(^---[ \t]*(?:\r?\n|\Z))", re.DOTALL | re.MULTILINE)
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a card says. `served`: for each engine the releases that serve it as it was trained, in words.

    `record` is what eaglectl.json says, `smoke` a document of `eaglectl smoke --json`; `has_results`: it goes into the front matter too.
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
        """The target's name, where it is one of the Hub."""
        name = self.drafter.target.name
        return name if name and HUB_NAME.fullmatch(name) else None


def make_card(text: str, facts: Facts) -> str:
    """README.md with its block and front matter; `text` is what it was, empty where there is none. Raises Refused for broken marks."""
    newline = "\r\n" if "\r\n" in text else "\n"
    if not text.strip():
        text = f"# {facts.repo.rpartition('/')[2]}\n"
    block = newline.join([BEGIN, *_block(facts), END])
    start, end = text.find(FIRST), text.find(LAST)
    if text.count(FIRST) > 1 or text.count(LAST) > 1 or (start < 0) != (end < 0) or end < start:
        raise Refused(
            f"{CARD}: the marks of eaglectl's block do not come in one pair; remove them, and the block is added at the end"
        )
    if start >= 0:
        text = text[:start] + block + text[end + len(LAST) :]
    else:
        gap = newline * (1 if text.endswith(newline * 2) else 2 if text.endswith("\n") else 3)
        text += gap.removeprefix(newline) + block + newline
    return _with_front_matter(text, facts, newline)


def _with_front_matter(text: str, facts: Facts, newline: str) -> str:
    found = MATTER.match(text)
    if found is None:
        if re.match(r"---[ \t]*\r?\n", text):
            raise Refused(
                f"{CARD} begins with --- and its first block has no end; write --- on a line of its own after it"
            )
        text = f"---{newline}---{newline}{newline}{text}"
        found = MATTER.match(text)
        assert found is not None
    known = front_matter(text)
    inner = _with_tags(found[2], _tags(facts), newline)
    values = {"base_model": facts.base_model, "library_name": next((one for one in LIBRARIES if one in facts.served), None), "pipeline_tag": "text-generation"}  # fmt: skip
    for key, value in values.items():
        if key not in known and value:
            inner += f"{key}: {value}{newline}"
    name = facts.repo.rpartition("/")[2]
    inner = with_results(inner, name, facts.base_model, facts.smoke, newline, is_asked=facts.has_results)
    return text[: found.start(2)] + inner + text[found.start(3) :]


def _tags(facts: Facts) -> list[str]:
    version = facts.drafter.version
    return [
        "eagle3", *(["eagle-3.1"] if version.startswith("3.1") else []), "speculative-decoding", "draft-model",
        *(one for one in LIBRARIES if one in facts.served),
    ]  # fmt: skip


def _with_tags(inner: str, tags: Sequence[str], newline: str) -> str:
    """The front matter with the tags that it lacks: after those it has, as it spells its list."""
    top = re.search(r"^tags:[ \t]*(.*?)[ \t]*$", inner.replace("\r", ""), re.MULTILINE)
    have = front_matter(f"---\n{inner}---\n").get("tags", [])
    lacking = [tag for tag in tags if tag not in have]
    if not lacking:
        return inner
    if top is None:
        return inner + f"tags:{newline}" + "".join(f"- {tag}{newline}" for tag in lacking)
    if top[1].startswith("[") and "]" in top[1]:
        start = re.search(r"^tags:[ \t]*\[", inner, re.MULTILINE)
        assert start is not None
        end = inner.index("]", start.end())
        body = inner[start.end() : end].rstrip()
        return inner[: start.end()] + ", ".join([*([body.rstrip(",")] if body else []), *lacking]) + inner[end:]
    items = re.search(r"^tags:[ \t]*(?:#[^\n]*)?\r?\n((?:[ \t]*-[ \t][^\n]*\n)+)", inner, re.MULTILINE)
    if items is None:
        return inner  # one word, or nothing: not ours to rewrite
    indent = re.match(r"[ \t]*", items[1])
    added = "".join(f"{indent[0] if indent else ''}- {tag}{newline}" for tag in lacking)
    return inner[: items.end(1)] + added + inner[items.end(1) :]


def _block(facts: Facts) -> list[str]:
    target = (
        f"[{facts.base_model}](https://huggingface.co/{facts.base_model})" if facts.base_model else "its target model"
    )
    return [
        "## The drafter",
        "",
        f"An EAGLE-{facts.drafter.version} draft model for speculative decoding with {target}: it proposes tokens and the target verifies"
        " them, so the output is the target's own. It does not run alone, nor with another target.",
        "",
        *table(("", ""), _facts(facts)),
        "",
        *upgrade_lines(facts.record),
        *_serving(facts),
        *_acceptance(facts),
    ]  # fmt: skip


def _facts(facts: Facts) -> list[tuple[str, str]]:
    drafter, dims = facts.drafter, facts.drafter.dims
    boundaries = drafter.aux.boundaries
    aux = "the engines' default" if boundaries is None else ", ".join(map(str, boundaries))
    reduced = (
        f"{dims.draft_vocab} of {dims.vocab} target tokens"
        if drafter.has_reduced_vocabulary
        else f"all {dims.vocab} target tokens"
    )
    return [
        ("version", f"EAGLE-{drafter.version}"),
        ("layout", by_name(drafter.producer).title),
        ("network", f"{dims.layers} layer{'s' * (dims.layers > 1)}, {dims.attention}, hidden size {dims.hidden}"),
        ("parameters", f"{facts.parameters:,} ({facts.nbytes:,} bytes, {', '.join(drafter.dtypes)})"),
        ("draft vocabulary", reduced),
        ("aux layers", f"{aux} (boundary b is the target's residual stream as it enters layer b, counted from 0)"),
        ("norms", f"fc_norm {_word(drafter.norms.fc_norm)}, norm_output {_word(drafter.norms.norm_output)}"),
    ]  # fmt: skip


def _word(flag: bool | None) -> str:
    return "unknown" if flag is None else "yes" if flag else "no"


def _serving(facts: Facts) -> list[str]:
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


def _acceptance(facts: Facts) -> list[str]:
    parts = [*(_of_smoke(facts.smoke) if facts.smoke else []), *gate_lines(facts.record)]
    return ["## Acceptance", "", DEFINITION, "", *parts] if parts else []


def _of_smoke(smoke: Mapping[str, Any]) -> list[str]:
    engine = smoke["engine"]
    low, high = smoke["interval"]
    is_lossless = smoke.get("lossless")
    lossless = (
        "" if is_lossless is None else f" {'Every' if is_lossless else 'Not every'} output equals plain decoding."
    )
    row = [str(smoke["k"]), f"{smoke['acceptance_length']:.3f} [{low:.3f}, {high:.3f}]", ", ".join(f"{one['value']:.1%}" for one in smoke["per_position"])]  # fmt: skip
    about = (
        f"Measured with {said(engine)}, {smoke['prompts']} prompts,"
        f" {smoke['drafts']} drafts{sampling(smoke)}.{lossless}"
    )
    return [about, "", *table(("k", "acceptance length", "accepted at each position"), [row]), ""]
