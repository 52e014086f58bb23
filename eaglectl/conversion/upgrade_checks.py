"""What must hold before EAGLE-3 becomes 3.1, and warnings from statistics (docs/upgrade.md)."""

from collections.abc import Iterator

from eaglectl.conversion.calibration import Statistics
from eaglectl.conversion.request import UpgradeRecipe
from eaglectl.drafter.drafter import Drafter, Feature, Note
from eaglectl.errors import OptionNeededError, RefusedError, UsageError

TOKENS_PER_INPUT = 4  # the fewest calibration tokens per input of fc for a refit
LARGE_SPREAD = 0.25
SMALL_RMS = 100.0  # squared and in units of eps: states below it change with eps
FAR_SIGMA = 0.15  # relative to all prompts together; 30 % cost 6 % of acceptance and more


def check_upgrade(drafter: Drafter, recipe: UpgradeRecipe) -> None:
    """Raise RefusedError where the upgrade would break the drafter, UsageError for what is missing."""
    check_changeable(drafter)
    features = drafter.features()
    if recipe.fc_norm != "off" and Feature.NORM_BEFORE_FC in features:
        raise OptionNeededError(
            "this drafter norms the concatenated states already (norm_before_fc); two norms in a row are"
            " another network: pass --fc-norm off"
        )
    if Feature.QUANTISED in features and (recipe.fc_norm == "refit" or recipe.is_norm_output):
        raise OptionNeededError(
            "fc or lm_head would be rewritten and this drafter is quantised; convert the unquantised one, or"
            " pass --fc-norm calibrated --no-norm-output with a --calibration of any unquantised drafter of"
            " this target and these layers"
        )
    if recipe.is_start:
        return
    if recipe.fc_norm == "ones":
        raise UsageError(
            "--fc-norm ones changes what the drafter computes by the layers' scales and is only a trainer's"
            " start; pass --init-only with it"
        )
    if recipe.statistics is None and needs_statistics(drafter, recipe.fc_norm, recipe.is_norm_output):
        raise UsageError(
            "this is an EAGLE-3 drafter, and fc_norm and norm_output change what it computes unless they are"
            " set from its target's states; pass --target with the target's weights, or --calibration with"
            " the folder that `eaglectl calibrate SOURCE -o calibration --target TARGET` writes; --init-only"
            " gives a trainer's start without them"
        )


def needs_statistics(drafter: Drafter, fc_norm: str, is_norm_output: bool) -> bool:
    """Whether one of the two switches is set from the target's states."""
    return fc_norm in ("refit", "calibrated") or not is_output_free(drafter, is_norm_output)


def is_output_free(drafter: Drafter, is_norm_output: bool) -> bool:
    """Whether norm_output, as requested, needs no statistics: off, trained in, or exact."""
    norms = drafter.norms
    return not is_norm_output or bool(norms.norm_output) or norms.norm_before_residual


def check_changeable(drafter: Drafter) -> None:
    """Raise RefusedError for drafters that no recipe makes 3.1, whatever the target's states are."""
    if drafter.norms.fc_norm:
        raise RefusedError(
            "this drafter has fc_norm already, and nothing is to be calibrated; leave --to out"
        )
    if Feature.PARALLEL in drafter.features():
        raise RefusedError(
            "a parallel drafter's mask_hidden goes through fc like a state, and fc_norm would rescale it;"
            " P-EAGLE heads stay as they are"
        )
    if drafter.aux.order:
        raise RefusedError(
            "its layer ids are not in ascending order; convert it to vLLM's layout first, then that output"
            " --to 3.1"
        )


def refit_obstacle(statistics: Statistics, drafter: Drafter) -> Note | None:
    """A warning where the statistics are not enough to refit fc; None where they are."""
    needed = TOKENS_PER_INPUT * drafter.dims.aux * drafter.dims.target_hidden
    if statistics.matrices is None:
        why = "the calibration holds no matrices to refit fc with"
    elif statistics.tokens < needed:
        why = f"{statistics.tokens} calibration tokens are too few to refit fc ({needed} at least)"
    else:
        return None
    text = (
        f"{why}; the scales alone are set, as --fc-norm calibrated does: calibrate again, with more prompts"
    )
    return Note("warning", "fc.weight", text)


def state_warnings(statistics: Statistics) -> Iterator[Note]:
    """Warnings on the target's states."""
    if max(statistics.spread) > LARGE_SPREAD:
        yield Note(
            "warning",
            "aux layers",
            "the layers' sizes vary against each other from token to token (sd of log-ratios"
            f" {max(statistics.spread):.2f}); fc_norm distorts their mixture by as much",
        )
    sizes = zip(statistics.boundaries, statistics.rms, strict=True)
    small = [boundary for boundary, rms in sizes if rms**2 < SMALL_RMS * statistics.eps]
    if small:
        yield Note(
            "warning",
            "aux layers",
            f"the states at boundaries {small} are so small that rms_norm_eps {statistics.eps:g} shows in"
            " their norm",
        )


def sigma_warnings(statistics: Statistics) -> tuple[Note, ...]:
    """A warning where sets of prompts differ in sigma, of which the output has one."""
    far = {
        name: sigma
        for name, sigma in statistics.sigmas.items()
        if abs(sigma / statistics.sigma - 1) > FAR_SIGMA
    }
    if not far:
        return ()
    sets = ", ".join(f"{name} {sigma:.4g}" for name, sigma in sorted(far.items()))
    text = (
        f"what is fed back differs in size between sets of prompts ({sets}; all {statistics.sigma:.4g}), and"
        " norm_output gives it one size: calibrate on prompts like those in production, and see that the"
        " gate's are too"
    )
    return (Note("warning", "norm_output", text),)
