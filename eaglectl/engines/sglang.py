"""What SGLang 0.5.23 does with a checkpoint as it lies (formats.md, 3.2)."""

from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.engines.engine import Outcome, Verdict, aux_readings

RELEASE = "0.5.23"
ARCHITECTURES = {True: "Eagle3DeepseekV2ForCausalLM", False: "LlamaForCausalLMEagle3"}
LACKS: Mapping[Feature, tuple[Outcome, str]] = {
    Feature.QK_NORM: ("differs", "has no q/k norms and skips their tensors in silence"),
    Feature.NORM_BEFORE_RESIDUAL: ("differs", "does not know norm_before_residual"),
    Feature.ATTENTION_BIAS: ("differs", "has no biases on q, k, v and skips them in silence"),
    Feature.PARALLEL: ("fails", "has no parallel drafting"),
}


def verdict(drafter: Drafter, config: Mapping[str, Any], names: tuple[str, ...]) -> Verdict:
    """What SGLang does with the checkpoint."""
    reasons = list(_reasons(drafter, config, names))
    for outcome in ("fails", "differs", "unknown"):
        if any(kind == outcome for kind, _ in reasons):
            return Verdict(
                "sglang", RELEASE, outcome, tuple(dict.fromkeys(text for kind, text in reasons if kind == outcome))
            )
    return Verdict("sglang", RELEASE, "as trained", ())


def _reasons(drafter: Drafter, config: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[Outcome, str]]:
    for note in drafter.told("problem"):
        yield "differs", note.text
    for note in drafter.told("question"):
        yield "unknown", note.text
    is_mla = drafter.dims.attention == "MLA"
    if "speculators_model_type" in config:
        yield "fails", "does not read the speculators format"
        return
    architectures = config.get("architectures")
    wanted = ARCHITECTURES[is_mla]
    if not isinstance(architectures, list) or wanted not in architectures:
        yield "fails", f"needs the architecture {wanted}"
    yield from (LACKS[feature] for feature in sorted(drafter.features() & set(LACKS)))
    yield from _by_key(drafter, config, names, is_mla=is_mla)
    reading = next(r for r in aux_readings(config, drafter.target) if r.engine == "SGLang")
    read = (
        f"boundaries {list(reading.boundaries)}"
        if reading.boundaries
        else "its default layers"
        if reading.is_default
        else f"ids {list(reading.ids or ())}"
    )
    match reading.same_as(drafter.aux):
        case False:
            yield "differs", f"captures other layers than were trained on ({read})"
        case None if drafter.aux.boundaries is not None:
            yield "unknown", f"captures {read}; what that is depends on the target: pass --target"


def _by_key(
    drafter: Drafter, config: Mapping[str, Any], names: tuple[str, ...], *, is_mla: bool
) -> Iterator[tuple[Outcome, str]]:
    if not is_mla and "draft_vocab_size" not in config:
        yield "fails", "needs the key draft_vocab_size"
    if config.get("tie_word_embeddings") and "lm_head.weight" in names:
        yield "differs", "uses the embedding as lm_head, because tie_word_embeddings says true"
    if drafter.has_reduced_vocabulary and "d2t" not in drafter.tensors:
        yield "differs", "finds no d2t and proposes the first tokens of the target's vocabulary"
    stated = config.get("num_hidden_layers")
    if isinstance(stated, int) and stated > drafter.dims.layers:
        yield "differs", f"builds {stated} layers and leaves all but {drafter.dims.layers} uninitialised"
    if is_mla and any(name.startswith("model.") for name in names):
        yield "differs", "skips every tensor whose name begins with model."
    later = any(
        name.startswith(("layers.", "model.layers."))
        and not name.split("layers.")[1].startswith("0.")
        and "input_layernorm" in name
        for name in names
    )
    if later:
        yield "differs", "looks for hidden_norm in layers after the first and skips input_layernorm"
    for flag, trained in (("norm_output", drafter.norms.norm_output), ("fc_norm", drafter.norms.fc_norm)):
        seen = bool(config.get(flag) or (flag == "fc_norm" and config.get("use_aux_norm")))
        if trained is not None and seen != trained:
            yield (
                "differs",
                f"reads {flag} as {str(seen).lower()}, and the drafter was trained with {str(trained).lower()}",
            )
    nested = config.get("eagle_config")
    before_fc = config.get("norm_before_fc") or (isinstance(nested, Mapping) and nested.get("norm_before_fc"))
    if drafter.norms.norm_before_fc and not before_fc:
        yield "differs", "skips input_norm, because no norm_before_fc says true"
    if Feature.SLIDING_WINDOW in drafter.features():
        yield (
            "differs",
            (
                "ignores layer_types; start it with --speculative-draft-sliding-window"
                f" {drafter.carried.get('sliding_window')}"
            ),
        )
