"""Acceptance in the Hub's format for results: `model-index` in the card's front matter, between two marks.

The newer `.eval_results/*.yaml` is not written: each result there names a task of a dataset that the Hub
knows as a benchmark, and no benchmark is about drafters.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.acceptance.prompts import builtin_prompts, digest_prompts
from eaglectl.checkpoint.layout import CARD
from eaglectl.conversion.card import DEFINITION
from eaglectl.errors import RefusedError
from eaglectl.publishing.provenance import MEASURE
from eaglectl.text import printable

BEGIN = "# eaglectl: begin. What `eaglectl smoke` measured; `eaglectl upload` writes it again."
FIRST, LAST = "# eaglectl: begin", "# eaglectl: end"
BLOCK = re.compile(rf"^{FIRST}.*?^{LAST}[^\n]*(\n|\Z)", re.DOTALL | re.MULTILINE)
OWN = re.compile(r"^[\"']?model-index[\"']?[ \t]*:", re.MULTILINE)


def with_results(
    inner: str,
    name: str,
    base_model: str | None,
    smoke: Mapping[str, Any] | None,
    newline: str,
    *,
    is_requested: bool,
) -> str:
    """The front matter with what `smoke` measured, where that is requested or was written before.

    `inner` is the text between the two lines of ---, `name` the model's. Raises RefusedError.
    """
    rest, count = BLOCK.subn("", inner)
    if FIRST in rest or LAST in rest or count > 1:
        raise RefusedError(
            f"{CARD}: the marks of eaglectl's results in the front matter do not come in one pair; remove"
            " them"
        )
    if not (is_requested or count):
        return inner
    if smoke is None:
        raise nothing_measured(
            "" if is_requested else f"{CARD} holds results, and they are not of these weights: "
        )
    if OWN.search(rest):
        raise RefusedError(
            f"{CARD} has a model-index of its own, which eaglectl does not rewrite; remove it, or leave"
            " --eval-results out"
        )
    return rest + newline.join([BEGIN, *_model_index(name, base_model, smoke), LAST, ""])


def nothing_measured(why: str = "") -> RefusedError:
    """The error for results that are requested and were not measured."""
    return RefusedError(
        f"{why or '--eval-results: '}nothing is measured of this drafter; run {MEASURE}, then upload with"
        " --smoke smoke.json"
    )


def measured_with(engine: Mapping[str, Any]) -> str:
    """Engine, device and dtype of a measurement, in words."""
    return printable(f"{engine['name']} {engine['version']} on {engine['device']} in {engine['dtype']}")


def sampling(smoke: Mapping[str, Any]) -> str:
    """How tokens were sampled, where the document states it."""
    if (temperature := smoke.get("temperature")) is None:
        return ""
    return f", temperature {temperature:g}" if temperature else ", greedy"


def _model_index(name: str, base_model: str | None, smoke: Mapping[str, Any]) -> Iterator[str]:
    """The lines that huggingface_hub's `model_index_to_eval_results` reads back."""
    is_builtin = smoke["prompts_digest"] == digest_prompts(builtin_prompts())
    prompts = (
        "eaglectl's built-in prompts" if is_builtin else f"prompts of digest {smoke['prompts_digest'][:12]}"
    )
    task = f"speculative decoding with {base_model}" if base_model else "speculative decoding"
    arguments = {
        "prompts": smoke["prompts"],
        "digest": smoke["prompts_digest"],
        "max_tokens": smoke["max_tokens"],
    }
    yield from (
        "model-index:",
        f"- name: {_text(name)}",
        "  results:",
        "  - task:",
        "      type: text-generation",
        f"      name: {_text(task)}",
        "    dataset:",
        "      type: custom",
        f"      name: {_text(prompts)}",
        f"      args: {_flow(arguments)}",
        "    metrics:",
    )
    setting = {
        "num_speculative_tokens": smoke["k"],
        "drafts": smoke["drafts"],
        "engine": measured_with(smoke["engine"]),
    }
    if smoke.get("temperature") is not None:
        setting["temperature"] = smoke["temperature"]
    yield from _metric(
        "acceptance_length",
        f"acceptance length, {smoke['k']} drafted tokens a step",
        smoke["acceptance_length"],
        {**setting, "interval_95": smoke["interval"], "definition": DEFINITION},
    )
    for number, position in enumerate(smoke["per_position"], 1):
        about = f"share of steps in which drafted token {number} is accepted"
        yield from _metric(
            f"acceptance_rate_{number}",
            about,
            position["value"],
            {**setting, "interval_95": position["interval"]},
        )


def _metric(kind: str, name: str, value: float, arguments: Mapping[str, Any]) -> Iterator[str]:
    yield f"    - type: {kind}"
    yield f"      value: {json.dumps(value)}"
    yield f"      name: {_text(name)}"
    yield f"      args: {_flow(arguments)}"


def _text(value: str) -> str:
    return json.dumps(printable(value), ensure_ascii=False)


def _flow(value: Mapping[str, Any]) -> str:
    """A mapping as JSON, which is YAML too."""
    return json.dumps(value, ensure_ascii=False)
