"""Rules on what engine releases do with a checkpoint: one for each fact of the engines' files."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from eaglectl.engines.catalogue import ENGINES, view_for
from eaglectl.engines.engine import IDS
from eaglectl.engines.facts import Applied, Engine, Fact, ranges
from eaglectl.engines.view import View
from eaglectl.validation.rule import CannotLook, Check, Hit, Rule
from eaglectl.validation.subject import Subject

# the key of config.json that a fact is about, where the way out does not name it
ABOUT = {
    "architecture": "architectures", "class-mismatch": "architectures", "aux-layers": IDS, "aux-unknown": IDS, "aux-runner": IDS,
    "ids-unsorted": IDS, "rope-base": "rope_theta", "positions": "max_position_embeddings", "hidden-act": "hidden_act",
    "layer-model-type": "transformer_layer_config", "speculators": "speculators_model_type", "sliding-window": "layer_types",
}  # fmt: skip
# what a drafter's config may say that no engine turns into something else
MODEL_TYPES = {"llama": "llama", "qwen3": "qwen3", "mla": "deepseek_v2"}
ARCHITECTURES = {
    "llama": "LlamaForCausalLMEagle3",
    "qwen3": "Eagle3Qwen3ForCausalLM",
    "mla": "Eagle3DeepseekV2ForCausalLM",
}
OLDEST = "Eagle3LlamaForCausalLM"  # for releases that do not know the name that most engines do
Facts = Mapping[tuple[str, str], tuple[Applied, ...]]


def view(subject: Subject, engine: str) -> View:
    """The checkpoint as an engine meets it. Raises CannotLook."""
    names = tuple(subject.checkpoint.tensors)
    return view_for(engine, subject.drafter, subject.config, subject.flat, names, subject.target.config)


@lru_cache(maxsize=8)
def applied(subject: Subject) -> Facts:
    """The facts that hold, for each engine release asked for. Raises CannotLook."""
    asked = [(one.engine, release) for one in subject.wanted if one.engine in ENGINES for release in one.releases]
    views = {engine: view(subject, engine) for engine, _ in asked}
    return {
        (engine, release): ENGINES[engine].applied(views[engine], release) for engine, release in dict.fromkeys(asked)
    }


def edits(fact: Fact, view: View) -> Mapping[str, Any]:
    """The keys of config.json that make the fact hold no longer; none where that takes more, or where they are not read."""
    if isinstance(fact.way, str) or "speculators_model_type" in view.config:
        return {}
    dims, norms = view.drafter.dims, view.drafter.norms
    best = ARCHITECTURES[view.family]
    values: Mapping[str, Any] = {
        "{architecture_value}": [OLDEST if view.architecture == best and view.family == "llama" else best],
        "{aux}": dims.aux, "{layers}": dims.layers, "{head_dim}": dims.head_dim, "{draft_vocab}": dims.draft_vocab,
        "{target_hidden}": dims.target_hidden, "{residual}": norms.norm_before_residual,
        "{model_type_value}": MODEL_TYPES[view.family], "{theta}": view.drafter.rope.theta, "{rope_scaling}": view.drafter.rope.scaling, "{norm_output_value}": norms.norm_output, "{fc_norm_value}": norms.fc_norm,
    }  # fmt: skip
    return {key: values[value] if isinstance(value, str) else value for key, value in fact.way.items()}


def spelled(keys: Mapping[str, Any]) -> str:
    """Keys and values as they are written: `fc_norm: true`."""
    return ", ".join(f"{key}: {json.dumps(value)}" for key, value in keys.items())


def _check(engine: Engine, fact: Fact) -> Check:
    def check(subject: Subject) -> Iterator[Hit]:
        if not any(one.engine == engine.name for one in subject.wanted):
            raise CannotLook(f"no release of {engine.title} is asked for; pass --engine {engine.name}")
        found: dict[str, list[str]] = {}
        for (name, release), facts in applied(subject).items():
            for one in facts:
                if name == engine.name and one.fact is fact:
                    found.setdefault(one.text, []).append(release)
        if not found:
            return
        message = "; ".join(f"{engine.title} {ranges(each, engine.releases)} {text}" for text, each in found.items())
        if fact.outcome == "unknown":
            raise CannotLook(message)
        releases = [release for release in engine.releases if any(release in each for each in found.values())]
        seen = view(subject, engine.name)
        written = edits(fact, seen)
        yield Hit(
            message, _place(fact, seen), f"write {spelled(written)} into config.json." if written else "",
            tuple(f"{engine.name}=={release}" for release in releases),
        )  # fmt: skip

    return check


def _place(fact: Fact, view: View) -> str:
    keys = [ABOUT.get(fact.id, ""), *(fact.way if not isinstance(fact.way, str) else ())]
    return next((f"config.json:{key}" for key in keys if key in view.config), "")


def _rule(engine: Engine, fact: Fact) -> Rule:
    concerns = f"{engine.name}{fact.releases}"
    return Rule(
        fact.rule, f"{engine.name}-{fact.id}", "error", fact.sentence, fact.why, fact.fix, _check(engine, fact), concerns, fact.said_by,
    )  # fmt: skip


RULES = tuple(_rule(engine, fact) for engine in ENGINES.values() for fact in engine.facts)
