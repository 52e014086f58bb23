"""The cases that both of vLLM's runners run: all that may tell them apart, and a draw of the others."""

import random

from tests.engine.agreement.bases import BASES
from tests.engine.agreement.cases import CASES, IN_PARALLEL
from tests.engine.releases.shown import VLLM

LAYERS = ("aux id", "target_layer_ids", "num_aux_hidden_states", "use_aux_hidden_state")
NORMS = ("norm_output", "fc_norm", "norm_before")
DRAWN = 30


def _chosen() -> tuple[str, ...]:
    """Every base, every fact's case, all on aux layers and norm switches, and DRAWN of the others."""
    named = {f"{base}/none" for base in BASES}
    named |= {*VLLM.values()}
    named |= {name for name in CASES if any(part in name for part in (*LAYERS, *NORMS))}
    rest = sorted(set(CASES) - named)
    named |= set(random.Random("both runners").sample(rest, DRAWN))
    # what drafts in parallel has no runner but V1
    return tuple(name for name in CASES if name in named and CASES[name].options != IN_PARALLEL)


CHOSEN = _chosen()
