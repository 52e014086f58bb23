"""Acceptance in the Hub's own format for results: the `model-index` of the card's front matter, between two marks.

The newer `.eval_results/*.yaml` is not written: each result there names a task of a dataset that the Hub knows as a benchmark,
and none of them is about drafters.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.acceptance.prompts import builtin_prompts, digest
from eaglectl.conversion.card import DEFINITION
from eaglectl.errors import Refused, printable
from eaglectl.publishing.plan import CARD

BEGIN = "# eaglectl: begin. What `eaglectl smoke` measured; `eaglectl upload` writes it again."
FIRST, LAST = "# eaglectl: begin", "# eaglectl: end"
BLOCK = re.compile(rf"^{FIRST}.*?^{LAST}[^\n]*(\n|\Z)", re.DOTALL | re.MULTILINE)
OWN = re.compile(r"^[\"']?model-index[\"']?[ \t]*:", re.MULTILINE)


def with_results(
    inner: str, name: str, base_model: str | None, smoke: Mapping[str, Any] | None, newline: str, *, is_asked: bool
) -> str:
    """The front matter with what `smoke` measured, where that is asked for or was written before. Raises Refused.

    `inner` is the text between the two lines of ---, `name` the model's.
    """
    rest, count = BLOCK.subn("", inner)
    if FIRST in rest or LAST in rest or count > 1:
        raise Refused(
            f"{CARD}: the marks of eaglectl's results in the front matter do not come in one pair; remove them"
        )
    if not (is_asked or count):
        return inner
    if smoke is None:
        raise nothing_measured("" if is_asked else f"{CARD} holds results, and they are not of these weights: ")
    if OWN.search(rest):
        raise Refused(
            f"{CARD} has a model-index of its own, which eaglectl does not rewrite; remove it, or leave --eval-results out"
        )
    return rest + newline.join([BEGIN, *_model_index(name, base_model, smoke), LAST, ""])


def nothing_measured(why: str = "") -> Refused:
    """That there is nothing to publish, and what to run."""
    return Refused(
        f"{why or '--eval-results: '}nothing is measured of this drafter; run `eaglectl smoke DIR --target T --json > smoke.json`, then upload"
        " with --smoke smoke.json"
    )


def said(engine: Mapping[str, Any]) -> str:
    """What measured, in words."""
    return printable(f"{engine['name']} {engine['version']} on {engine['device']} in {engine['dtype']}")


def sampling(smoke: Mapping[str, Any]) -> str:
    """How tokens were chosen, where the document says it."""
    if (temperature := smoke.get("temperature")) is None:
        return ""
    return f", temperature {temperature:g}" if temperature else ", greedy"


def _model_index(name: str, base_model: str | None, smoke: Mapping[str, Any]) -> Iterator[str]:
    """The lines that huggingface_hub's `model_index_to_eval_results` reads back."""
    is_builtin = smoke["prompts_digest"] == digest(builtin_prompts())
    prompts = "eaglectl's built-in prompts" if is_builtin else f"prompts of digest {smoke['prompts_digest'][:12]}"
    yield from (
        "model-index:",
        f"- name: {_text(name)}",
        "  results:",
        "  - task:",
        "      type: text-generation",
        f"      name: {_text(f'speculative decoding with {base_model}' if base_model else 'speculative decoding')}",
        "    dataset:",
        "      type: custom",
        f"      name: {_text(prompts)}",
        f"      args: {_flow({'prompts': smoke['prompts'], 'digest': smoke['prompts_digest'], 'max_tokens': smoke['max_tokens']})}",
        "    metrics:",
    )
    setting = {"num_speculative_tokens": smoke["k"], "drafts": smoke["drafts"], "engine": said(smoke["engine"])}
    if smoke.get("temperature") is not None:
        setting["temperature"] = smoke["temperature"]
    yield from _metric("acceptance_length", f"acceptance length, {smoke['k']} drafted tokens a step", smoke["acceptance_length"], {**setting, "interval_95": smoke["interval"], "definition": DEFINITION})  # fmt: skip
    for number, position in enumerate(smoke["per_position"], 1):
        about = f"share of steps in which drafted token {number} is accepted"
        yield from _metric(
            f"acceptance_rate_{number}", about, position["value"], {**setting, "interval_95": position["interval"]}
        )


def _metric(kind: str, name: str, value: float, arguments: Mapping[str, Any]) -> Iterator[str]:
    yield f"    - type: {kind}"
    yield f"      value: {json.dumps(value)}"
    yield f"      name: {_text(name)}"
    yield f"      args: {_flow(arguments)}"


def _text(value: str) -> str:
    return json.dumps(printable(value), ensure_ascii=False)


def _flow(value: Mapping[str, Any]) -> str:
    """A mapping as JSON, which YAML reads as one of its own."""
    return json.dumps(value, ensure_ascii=False)
