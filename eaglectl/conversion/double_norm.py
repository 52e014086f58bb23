"""Two norms of the hidden state written as one, which is all that engines have a place for.

RMSNorm by w, then by v, is v * w * h over the RMS of w * h. One norm by v * w / c gives the same direction,
and the two differ by one factor for each state, RMS(w * h) / (c * RMS(h)), which lies between the smallest
and the largest |w| over c. c is the RMS of w, which is right for a state of even channels.
"""

import numpy as np
from msgspec.structs import replace

from eaglectl.conversion.arithmetic import Array, evaluate
from eaglectl.conversion.plan import TransformedDrafter
from eaglectl.drafter.drafter import DOUBLE_NORM, HIDDEN_NORM, JOINED_NORMS, Drafter, Note
from eaglectl.drafter.tensors import Computed
from eaglectl.errors import RefusedError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.formats.format import Layout

INNER, OUTER = "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"
ROUNDING = 2.0**-8  # of bfloat16: a factor nearer to one is none


def with_one_norm(checkpoint: Checkpoint, drafter: Drafter, layout: Layout) -> TransformedDrafter:
    """The drafter with the product of both norms as hidden_norm, unless the layout's trainer norms twice.

    The doubt stays with the size that may differ, unless that is rounding. Raises RefusedError for an
    input_layernorm of no finite size.
    """
    if not drafter.norms.hidden_twice or layout.norms_twice:
        return TransformedDrafter(drafter)
    inner, outer = drafter.tensors[INNER], drafter.tensors[OUTER]
    sizes = np.abs(evaluate(inner, checkpoint))
    scale = float(np.sqrt((sizes**2).mean()))
    if not np.isfinite(scale) or scale == 0:
        raise RefusedError(f"{INNER} has no finite size; no norm replaces it and hidden_norm")

    def product(second: Array, first: Array) -> Array:
        return second * first / scale

    computed = Computed("input_layernorm and hidden_norm as one", (outer, inner), product)
    low, high = float(sizes.min()) / scale - 1, float(sizes.max()) / scale - 1
    text = (
        "trained with the hidden state normed twice; one norm was written for both: the direction is exact,"
        f" the size may differ by {low:+.0%} to {high:+.0%}"
    )
    doubt = Note("warning", HIDDEN_NORM, text, JOINED_NORMS, drafter.producer, is_open=True)
    if max(high, -low) < ROUNDING:
        doubt = Note("note", HIDDEN_NORM, text)
    return TransformedDrafter(
        replace(
            drafter,
            norms=replace(drafter.norms, hidden_twice=False),
            tensors={**drafter.tensors, OUTER: replace(outer, origin=computed)},
            notes=(*(note for note in drafter.notes if note.topic != DOUBLE_NORM), doubt),
        ),
        record={"norms_joined": {"scale": scale, "size_differs": [low, high]}},
    )
