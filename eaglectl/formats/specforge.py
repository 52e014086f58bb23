"""SpecForge: midlayer names, t2d always, ids nested as outputs of layers, and a norm_output that changed its meaning."""

from collections.abc import Iterable

from eaglectl.drafter.drafter import Feature, Note
from eaglectl.formats.format import ALWAYS, LLAMA, LLAMA_TYPE, Answers, Format, Layout, Sighting


def _recognise(sighting: Sighting) -> str | None:
    if any(sighting.config.get(key) for key in ("norm_before_fc", "norm_before_residual", "num_aux_hidden_states")):
        return None  # it trains none of these
    if sighting.architecture == "LlamaForCausalLMEagle3" and sighting.has("midlayer.") and "t2d" in sighting.names:
        return "architecture LlamaForCausalLMEagle3 with midlayer names and t2d"
    return None


def _norm_output(sighting: Sighting, stated: bool | None, answers: Answers) -> bool | None:
    """What was trained, given what is stored: pull request 879 (September 2026) changed the meaning (formats.md, 5.2)."""
    era = answers.semantics.get("specforge")
    if stated is None and not sighting.has("fc_norm.", "aux_norm_"):
        return False
    if era == "pre-879":
        return False
    return stated if era == "post-879" else None


def _doubts(sighting: Sighting, answers: Answers) -> Iterable[Note]:
    stated = sighting.config.get("norm_output")
    era = answers.semantics.get("specforge")
    if era == "pre-879" and stated is False:
        yield Note(
            "problem",
            "norm_output",
            "norm_output: false from SpecForge before pull request 879 trained with no final norm at all; no engine can"
            " serve that: retrain",
            "training-unservable",
        )
    elif (
        era is None
        and "norm_output" not in answers.semantics
        and (stated is not None or sighting.has("fc_norm.", "aux_norm_"))
    ):
        found = "no norm_output" if stated is None else f"norm_output: {str(stated).lower()}"
        yield Note(
            "question",
            "norm_output",
            f"{found} in a SpecForge file means different networks before and after its pull request 879 (September"
            " 2026); pass --source-semantics specforge=pre-879 or post-879",
            "norm-output-unknown",
        )


SPECFORGE = Format(
    "specforge", "SpecForge", _recognise, aux_convention="output", is_signed=False, doubts=_doubts, norm_output=_norm_output,
    layout=Layout(
        LLAMA, LLAMA_TYPE, ALWAYS | {Feature.FC_NORM, Feature.NORM_OUTPUT, Feature.AUX_LAYERS, Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS, Feature.SLIDING_WINDOW},
        layer="midlayer", nested_ids="output", has_identity_map=True,
    ),
)  # fmt: skip
