"""Both runners: V2 drafts with `speculator`, V1 with `drafter`, and a coming V3 with neither."""

import os
from types import SimpleNamespace


class GPUModelRunner:
    def __init__(self, model):
        layers = SimpleNamespace(aux_hidden_state_layers=(2, 4, 5))
        self.target = SimpleNamespace(modules=lambda: [SimpleNamespace(), layers])
        proposer = None if model is None else SimpleNamespace(model=model)
        match os.environ.get("STAND_IN_RUNNER", "V1"):
            case "V2":
                self.speculator = proposer
            case "V1" if proposer is not None:
                self.drafter = proposer

    def get_model(self):
        return self.target


def make(model):
    if model is not None and os.environ.get("STAND_IN") == "does not multiply":
        model.combine_hidden_states(None)
    return GPUModelRunner(model)
