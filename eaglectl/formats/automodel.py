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
    if sighting.has("kv_a_proj_with_mqa") and scaling.get("mscale_all_dim"):
        yield Note(
            "problem",
            "rope_scaling",
            "NeMo trains MLA heads without YaRN's mscale squared, which engines apply; folding it into q_b_proj is"
            " arithmetic that this version does not do",
            "training-unservable",
        )


AUTOMODEL = Format(
    "automodel", "NeMo Automodel", _recognise, doubts=_mscale,
    layout=Layout(
        {"llama": "LlamaEagle3DraftModel"}, {"llama": "llama"}, ALWAYS | {Feature.FC_NORM, Feature.NORM_OUTPUT, Feature.AUX_COUNT, Feature.PARALLEL},
        prefix="model.",
    ),
)  # fmt: skip
