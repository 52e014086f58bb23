"""SafeAILab EAGLE and the files that copy its spelling (nebius): midlayer names, no flags, fixed aux layers."""

from eaglectl.drafter.drafter import Feature
from eaglectl.formats.format import ALWAYS, Format, Layout, Sighting


def _eagle(sighting: Sighting) -> str | None:
    if sighting.architecture == "LlamaForCausalLM" and sighting.has("midlayer."):
        return "architecture LlamaForCausalLM with midlayer names"
    return None


def _nebius(sighting: Sighting) -> str | None:
    return "config has truncated_vocab_size" if "truncated_vocab_size" in sighting.config else None


_LAYOUT = Layout(
    architectures={"llama": "LlamaForCausalLM"},
    model_types={"llama": "llama"},
    expresses=ALWAYS | {Feature.SLIDING_WINDOW},
    layer="midlayer",
)

EAGLE = Format("eagle", "SafeAILab EAGLE", _eagle, layout=_LAYOUT)
NEBIUS = Format("nebius", "nebius", _nebius, retires=("truncated_vocab_size",), layout=_LAYOUT)
