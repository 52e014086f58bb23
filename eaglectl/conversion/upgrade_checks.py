"""What must hold before EAGLE-3 becomes 3.1, and what to say of the statistics (eagle3-to-3.1.md, 4.3 and 4.4)."""

from typing import TYPE_CHECKING

from eaglectl.conversion.calibration import Statistics
from eaglectl.drafter.drafter import Drafter, Feature, Note
from eaglectl.errors import Refused, Usage

if TYPE_CHECKING:
    from eaglectl.conversion.recipe import Recipe

TOKENS_PER_INPUT = 4  # the least calibration tokens for each input of fc that a refit is made from
LARGE_SPREAD, SMALL_RMS = 0.25, 100.0
FAR_SIGMA = 0.15  # from the one of all prompts; 30 % cost 6 % of acceptance and more


def check_upgrade(drafter: Drafter, recipe: "Recipe") -> None:
    """Raise Refused for drafters that fc_norm or norm_output would break, Usage for what is still to be given."""
    check_changeable(drafter)
    features = drafter.features()
    if recipe.fc_norm != "off" and Feature.NORM_BEFORE_FC in features:
        raise Refused(
            "this drafter norms the concatenated states already (norm_before_fc); two norms in a row are another network: pass --fc-norm off"
        )
    if Feature.QUANTISED in features and (recipe.fc_norm == "refit" or recipe.is_norm_output):
        raise Refused(
            "fc or lm_head would be rewritten and this drafter is quantised; convert the unquantised one, or pass --fc-norm calibrated --no-norm-output"
            " with a --calibration of any unquantised drafter of this target and these layers"
        )
    if recipe.fc_norm == "ones" and not recipe.is_start:
        raise Usage(
            "--fc-norm ones changes what the drafter computes by the layers' scales and is only a trainer's start; pass --init-only with it"
        )
    needs_data = recipe.fc_norm in ("refit", "calibrated") or (
        recipe.is_norm_output and not drafter.norms.norm_output and not drafter.norms.norm_before_residual
    )
    if needs_data and recipe.statistics is None and not recipe.is_start:
        raise Usage(
            "this is an EAGLE-3 drafter, and fc_norm and norm_output change what it computes unless they are set from its target's states; pass --target with"
            " the target's weights, or --calibration with what `eaglectl calibrate` wrote; --init-only gives a trainer's start without them"
        )


def check_changeable(drafter: Drafter) -> None:
    """Raise Refused for drafters that no recipe makes 3.1, whatever is known of the target's states."""
    if drafter.norms.fc_norm:
        raise Refused("this drafter has fc_norm already, and nothing is to be calibrated; leave --to out")
    if Feature.PARALLEL in drafter.features():
        raise Refused(
            "a parallel drafter's mask_hidden goes through fc like a state, and fc_norm would rescale it; P-EAGLE heads stay as they are"
        )
    if drafter.aux.order:
        raise Refused(
            "its layer ids are not in ascending order; convert it to vLLM's layout first, then that output --to 3.1"
        )


def may_refit(known: Statistics, drafter: Drafter, notes: list[Note]) -> bool:
    """Whether there were tokens enough to fit fc again; a warning is added where not."""
    needed = TOKENS_PER_INPUT * drafter.dims.aux * drafter.dims.target_hidden
    if known.matrices is not None and known.tokens >= needed:
        return True
    why = (
        f"{known.tokens} calibration tokens are too few to refit fc ({needed} at least)"
        if known.matrices
        else "the calibration holds no matrices to refit fc with"
    )
    notes.append(
        Note("warning", "fc.weight", f"{why}; the scales alone are set, as --fc-norm calibrated does: calibrate again, with more prompts")
    )  # fmt: skip
    return False


def doubts(known: Statistics) -> list[Note]:
    """Warnings on the states themselves."""
    found = []
    if max(known.spread) > LARGE_SPREAD:
        found.append(
            Note("warning", "aux layers", f"the layers' sizes vary against each other from token to token (sd of log-ratios {max(known.spread):.2f}); fc_norm distorts their mixture by as much")
        )  # fmt: skip
    small = [b for b, rms in zip(known.boundaries, known.rms, strict=True) if rms**2 < SMALL_RMS * known.eps]
    if small:
        found.append(
            Note(
                "warning",
                "aux layers",
                f"the states at boundaries {small} are so small that rms_norm_eps {known.eps:g} shows in their norm",
            )
        )
    return found


def doubt_sigma(known: Statistics) -> list[Note]:
    """A warning where sets of prompts want another sigma each."""
    far = {name: sigma for name, sigma in known.sigmas.items() if abs(sigma / known.sigma - 1) > FAR_SIGMA}
    if not far:
        return []
    sets = ", ".join(f"{name} {sigma:.4g}" for name, sigma in sorted(far.items()))
    return [
        Note(
            "warning",
            "norm_output",
            f"what is fed back differs in size between sets of prompts ({sets}; all {known.sigma:.4g}), and norm_output gives it one size: calibrate on"
            " prompts like those in production, and see that the gate's are too",
        )
    ]
