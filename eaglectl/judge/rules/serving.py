"""Rules on what engine releases do with a checkpoint: one for each fact of the engines' files."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.engines.behaviour import IDS, Fact, ranges
from eaglectl.engines.engine import Engine
from eaglectl.engines.registry import ENGINES
from eaglectl.engines.view import View
from eaglectl.formats.commands import read_fix
from eaglectl.formats.config_keys import POSITIONS, mask_token
from eaglectl.judge.judgement import Subject
from eaglectl.judge.rule import CannotLook, Check, Match, Rule
from eaglectl.verdicts import ServedAs

# the key of config.json that a fact is about, where its remedy does not name it
ABOUT = {
    "architecture": "architectures",
    "class-mismatch": "architectures",
    "aux-layers": IDS,
    "aux-unknown": IDS,
    "aux-runner": IDS,
    "ids-unsorted": IDS,
    "rope-base": "rope_theta",
    "positions": POSITIONS,
    "hidden-act": "hidden_act",
    "layer-model-type": "transformer_layer_config",
    "speculators": "speculators_model_type",
    "sliding-window": "layer_types",
}
# the values that every engine reads as intended
MODEL_TYPES = {"llama": "llama", "qwen3": "qwen3", "mla": "deepseek_v2"}
ARCHITECTURES = {
    "llama": "LlamaForCausalLMEagle3",
    "qwen3": "Eagle3Qwen3ForCausalLM",
    "mla": "Eagle3DeepseekV2ForCausalLM",
}
# rope scalings of which max_position_embeddings sizes the table alone (config/speculative.py 0.33.0:104)
SIZING_ONLY = ("default", "linear", "llama3")
TARGET_FACTS = ("target-lacks", "target-unlisted")
NOT_CAPTURED = (*TARGET_FACTS, "target-unknown", "target-state")


def edits(fact: Fact, view: View) -> Mapping[str, Any]:
    """Return the keys and values to write into config.json so that the fact no longer holds.

    Empty if writing keys does not suffice, or for a speculators config, where engines do not read them.
    """
    if isinstance(fact.remedy, str) or "speculators_model_type" in view.config:
        return {}
    if POSITIONS in fact.remedy and view.reach[1] not in SIZING_ONLY:
        return {}
    dims, norms = view.drafter.dims, view.drafter.norms
    best = ARCHITECTURES[view.model_class]
    values: Mapping[str, Any] = {
        "{architecture_value}": [
            # for releases that do not know the name that most engines do
            "Eagle3LlamaForCausalLM" if view.architecture == best and view.model_class == "llama" else best
        ],
        "{aux}": dims.aux,
        "{layers}": dims.layers,
        "{head_dim}": dims.head_dim,
        "{draft_vocab}": dims.draft_vocab,
        "{target_hidden}": dims.target_hidden,
        "{residual}": norms.norm_before_residual,
        "{model_type_value}": MODEL_TYPES[view.model_class],
        "{mask_token}": mask_token(view.config),
        "{theta}": view.drafter.rope.theta,
        "{rope_scaling}": view.drafter.rope.scaling,
        "{share}": view.drafter.rope.rotated_part,
        "{norm_output_value}": norms.norm_output,
        "{target_positions}": view.target_positions,
        "{fc_norm_value}": norms.fc_norm,
    }
    return {key: values[value] if isinstance(value, str) else value for key, value in fact.remedy.items()}


def spelled(keys: Mapping[str, Any]) -> str:
    """Write keys and values as config.json has them: `fc_norm: true`."""
    return ", ".join(f"{key}: {json.dumps(value)}" for key, value in keys.items())


def _check(engine: Engine, fact: Fact) -> Check:
    # the check of a fact: it reports the requested releases for which the fact holds
    def check(subject: Subject) -> Iterator[Match]:
        if not any(request.engine == engine.name for request in subject.requests):
            raise CannotLook(f"no release of {engine.title} is requested; pass --engine {engine.name}")
        yield from _mended(engine, fact, subject)
        if not (releases := subject.releases_by_text.get((engine.name, fact.rule))):
            return
        message = "; ".join(
            f"{engine.title} {ranges(named, engine.releases)} {text}" for text, named in releases.items()
        )
        if fact.outcome == ServedAs.UNKNOWN:
            raise CannotLook(message)
        view = subject.view(engine.name)
        written = edits(fact, view)
        concerned = {release for named in releases.values() for release in named}
        yield Match(
            message,
            _place(fact, view),
            f"write {spelled(written)} into config.json." if written else _other_fix(fact, subject),
            tuple(f"{engine.name}=={release}" for release in engine.releases if release in concerned),
        )

    return check


def _place(fact: Fact, view: View) -> str:
    keys = (ABOUT.get(fact.id, ""), *(() if isinstance(fact.remedy, str) else fact.remedy))
    return next((f"config.json:{key}" for key in keys if key in view.config), "")


def _mended(engine: Engine, fact: Fact, subject: Subject) -> Iterator[Match]:
    # the releases that run the checkpoint as trained with an option: notes, unless the policy refuses it
    if fact.option is None:
        return
    options = [
        (applied.text, applied.option, release)
        for (name, release), facts in subject.applied_facts.items()
        for applied in facts
        if name == engine.name and applied.fact.id == fact.id and applied.option is not None
    ]
    for text, option in dict.fromkeys((text, option) for text, option, _ in options):
        releases = [release for *need, release in options if need == [text, option]]
        refusal = subject.policy.refusal("start-options", option.name)
        why = f", and the policy refuses it: {option.name} {refusal}" if refusal else ""
        yield Match(
            f"{engine.title} {ranges(releases, engine.releases)} {text}, unless it is started with"
            f" {option.words}{why}",
            _place(fact, subject.view(engine.name)),
            fact.fix if refusal else f"start it with {option.words}; else {fact.fix}",
            tuple(f"{engine.name}=={release}" for release in releases),
            severity=None if refusal else "note",
        )


def _other_fix(fact: Fact, subject: Subject) -> str:
    if fact.id not in TARGET_FACTS:
        return ""
    capturing = {engine.title: _capturing(engine, subject.view(name)) for name, engine in ENGINES.items()}
    spans = [f"{title} {span}" for title, span in capturing.items() if span]
    if not spans:
        return f"no release of {', '.join(capturing)} is known to capture this target."
    return f"serve it with {' or '.join(spans)}: no other release is known to capture this target."


def _capturing(engine: Engine, view: View) -> str:
    # the releases that capture aux states of this target
    capturing = [
        release
        for release in engine.releases
        if not any(
            engine.conditions[fact.id](engine.case(view, release))
            for fact in engine.facts_of(release)
            if fact.id in NOT_CAPTURED
        )
    ]
    return ranges(capturing, engine.releases)


def _rule(engine: Engine, fact: Fact) -> Rule:
    # the rule that an engine's fact declares
    return Rule(
        fact.rule,
        f"{engine.name}-{fact.id}",
        "error",
        fact.summary,
        fact.why,
        fact.fix,
        _check(engine, fact),
        f"{engine.name}{fact.releases}",
        fact.reported_by,
        read_fix(fact.fix, "anew" if fact.remedy == "anew" else "serve"),
    )


RULES = tuple(_rule(engine, fact) for engine in ENGINES.values() for fact in engine.facts)
