"""How far an engine's draft logits are from a float64 reference of the network that was trained."""

from collections.abc import Sequence
from math import floor, isfinite, log10

import torch

from eaglectl.run.logits import BOUNDS

# steps of a draft that are compared
STEPS = 3
# vLLM in float32 is at most 3e-5 off where a drafter runs as trained, and 0.05 at the least where it does not
BOUND = BOUNDS["float32"]

# of each prompt, the logits [vocab] of the draft steps after it, -inf where the drafter has no token
Drafts = Sequence[Sequence[torch.Tensor]]


def difference(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the largest difference of the finite logits of one step, over the largest of the reference.

    Infinite where other tokens have a finite logit, and where no logit of the reference is other than 0.
    """
    finite = torch.isfinite(reference)
    if not torch.equal(torch.isfinite(logits), finite) or not reference[finite].any():
        return float("inf")
    return float((logits[finite].double() - reference[finite]).abs().max() / reference[finite].abs().max())


def largest_difference(logits: Drafts, reference: Drafts) -> float:
    """Return the largest difference of the first STEPS draft steps, over all prompts.

    Infinite where one of the two has fewer prompts or steps, or none.
    """
    if len(logits) != len(reference) or not reference:
        return float("inf")
    pairs = [(ours[:STEPS], theirs[:STEPS]) for ours, theirs in zip(logits, reference, strict=True)]
    if not all(theirs and len(ours) == len(theirs) for ours, theirs in pairs):
        return float("inf")
    return max(difference(*step) for steps in pairs for step in zip(*steps, strict=True))


def rounded(value: float) -> float:
    """Return a difference with one figure: 1.24e-06 as 1e-06."""
    if not value or not isfinite(value):
        return value
    return round(value, -floor(log10(value)))
