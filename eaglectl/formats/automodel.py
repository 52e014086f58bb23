"""NVIDIA NeMo Automodel: `model.` names, the target's config with the drafter's keys added, ids left out."""

from collections.abc import Iterable

from eaglectl.drafter.drafter import Feature, Note
from eaglectl.formats.format import ALWAYS, Answers, Format, Layout, Sighting


def _recognise(sighting: Sighting) -> str | None:
    if sighting.architecture.endswith("Eagle3DraftModel"):
        return f"architecture {sighting.architecture}"
    return "names begin with model.layers.0.hidden_norm" if sighting.has("model.layers.0.hidden_norm") else None


def _mscale(sighting: Sighting, answers: Answers) -> Iterable[Note]:
    scaling = sighting.nested("rope_scaling") or sighting.nested("rope_parameters")
    is_scaled = scaling.get("rope_type", scaling.get("type")) == "yarn" and scaling.get("factor", 1) != 1
    if sighting.has("kv_a_proj_with_mqa") and is_scaled:
        yield Note(
            "problem",
            "rope_scaling",
            "NeMo trains MLA heads without YaRN's mscale, by which engines multiply the softmax scale; convert divides"
            " q_b_proj by it",
            "training-unservable",
        )


AUTOMODEL = Format(
    "automodel", "NeMo Automodel", _recognise, doubts=_mscale, has_mla_factors=False,
    layout=Layout(
        {"llama": "LlamaEagle3DraftModel"}, {"llama": "llama"}, ALWAYS | {Feature.FC_NORM, Feature.NORM_OUTPUT, Feature.AUX_COUNT, Feature.PARALLEL},
        prefix="model.",
    ),
)  # fmt: skip
