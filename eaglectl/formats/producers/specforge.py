"""SpecForge: midlayer names, t2d always, nested output ids, and a norm_output that changed its meaning."""

from collections.abc import Iterable

from eaglectl.drafter.drafter import Choice, Feature, Note, question
from eaglectl.formats.format import (
    ALWAYS,
    NESTED_IDS,
    Answers,
    CheckpointSummary,
    ConfigSchema,
    Format,
    IdsPlace,
    Layout,
    rope_doubt,
    untrained_scaling,
)

# run with 0.2.0: with norm_output true, the second step is that of norm_output false here
_BEFORE_879 = (
    "SpecForge 0.2.0 and its sources before pull request 879 (September 2026) feed the state before the norm"
    " back with norm_output true, and have no last norm with false: train this start with newer sources, or"
    " use --for speculators"
)


# it pinned transformers 4.54.0 on 31 July 2025, 4.55.2 from August and 4.57.1 from 4 November on
_BEFORE_270 = "SpecForge before its pull request 270 of 30 October 2025"
_BEFORE_240 = (
    "config names no layers, and from 1 September to 20 October 2025 SpecForge's online training took the"
    " output of layer n//2 for the middle one, and not of n//2 - 1 (its pull request 240): pass --aux-layers"
    " with the boundaries 2, n//2 + 1 and n - 3 if this file is of then"
)
# 9a1c9803 (27 June) to 1712b656 (17 July 2026): the class asks for rope_theta, which transformers 5 has not
_BEFORE_702 = "SpecForge from 27 June 2026 to its pull request 702 of 24 July, with transformers 5,"

ERAS = (
    Choice("--source-semantics", "specforge=pre-879", "releases up to 0.2.0"),
    Choice("--source-semantics", "specforge=post-879", "its sources since"),
)


def _recognise(summary: CheckpointSummary) -> str | None:
    if any(
        summary.config.get(key) for key in ("norm_before_fc", "norm_before_residual", "num_aux_hidden_states")
    ):
        return None  # it trains none of these
    if (
        summary.architecture == "LlamaForCausalLMEagle3"
        and summary.has_any("midlayer.")
        and "t2d" in summary.names
    ):
        return "architecture LlamaForCausalLMEagle3 with midlayer names and t2d"
    return None


def _norm_output(summary: CheckpointSummary, from_config: bool | None, answers: Answers) -> bool | None:
    era = answers.semantics.get("specforge")
    if from_config is None and not summary.has_any("fc_norm.", "aux_norm_"):
        return False
    if era == "pre-879":
        return False
    return from_config if era == "post-879" else None


def _bases(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    """Yield the doubts on sources that rotated with base 10000; the transformers release dates them."""
    version = str(summary.config.get("transformers_version"))
    if version.startswith(("4.54.", "4.55.")):
        yield from rope_doubt(summary, answers, _BEFORE_270)
        scaling = summary.nested("rope_scaling")
        if scaling.get("rope_type", scaling.get("type")) == "llama3":
            yield untrained_scaling(answers, f"{_BEFORE_270} rotates plainly where the scaling is llama3")
        if version.startswith("4.55.") and not summary.nested("eagle_config") and not answers.aux_layers:
            yield Note("warning", "aux layers", _BEFORE_240, "aux-ids-doubted", is_open=True)
    # its exporter states the base at the top too since August 2026, after the base was read right again
    elif version.startswith("5.") and "rope_theta" not in summary.config:
        yield from rope_doubt(summary, answers, _BEFORE_702)


def _doubts(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    # norm_output means different networks before and after a change of the trainer: ask for its age
    yield from _bases(summary, answers)
    from_config = summary.config.get("norm_output")
    era = answers.semantics.get("specforge")
    if era == "pre-879" and from_config is False:
        yield Note(
            "problem",
            "norm_output",
            "norm_output: false from SpecForge before pull request 879 trained with no final norm at all; no"
            " engine can serve that: retrain",
            "training-unservable",
        )
    elif (
        era is None
        and "norm_output" not in answers.semantics
        and (from_config is not None or summary.has_any("fc_norm.", "aux_norm_"))
    ):
        about = "no norm_output" if from_config is None else f"norm_output: {str(from_config).lower()}"
        yield question(
            "norm_output",
            f"{about} in a SpecForge file means different networks before and after its pull request 879"
            " (September 2026)",
            "norm-output-unknown",
            ERAS,
        )


SPECFORGE = Format(
    "specforge",
    "SpecForge",
    _recognise,
    priority=90,
    is_signed=False,
    ids=(IdsPlace(NESTED_IDS, "output"),),
    aux_convention="output",
    answers={"specforge": ("pre-879", "post-879")},
    doubts=_doubts,
    norm_output=_norm_output,
    schema=ConfigSchema(
        keys=("fc_norm", "target_model_type", "mask_token_id", "norm_before_residual"),
        eagle_config=("use_aux_hidden_state",),
        own={
            "norm_output": {
                "type": "boolean",
                "description": "EAGLE-3.1's switch since pull request 879 (September 2026); before it, true"
                " trained EAGLE-3 and false a head without a last norm.",
            }
        },
    ),
    layout=Layout(
        {"llama": "LlamaForCausalLMEagle3"},
        {"llama": "llama"},
        ALWAYS
        | {
            Feature.FC_NORM,
            Feature.NORM_OUTPUT,
            Feature.AUX_LAYERS,
            Feature.ATTENTION_BIAS,
            Feature.OUTPUT_BIAS,
            Feature.SLIDING_WINDOW,
        },
        layer="midlayer",
        has_identity_map=True,
        cautions={Feature.FC_NORM: _BEFORE_879, Feature.NORM_OUTPUT: _BEFORE_879},
        training="model.draft_checkpoint_path=OUT and model.vocab_mapping_path=FILE with OUT's d2t and t2d,"
        " without which offline training makes a vocabulary from its data that lm_head does not fit; from"
        " pull request 879 (2026-09-15) on",
    ),
)
