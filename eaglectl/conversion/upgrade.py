"""EAGLE-3 to EAGLE-3.1 and, where it is exact, back (docs/upgrade.md).

Nothing here runs a model: what was measured on data comes as Statistics. The output has the 3.1 layout at
EAGLE-3's acceptance; only training with the two norms improves on that.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import sha256
from math import sqrt
from typing import Any

import numpy as np
from msgspec.structs import replace

from eaglectl.conversion.arithmetic import Array, decode, encode, evaluate
from eaglectl.conversion.calibration import Statistics
from eaglectl.conversion.plan import TransformedDrafter
from eaglectl.conversion.request import UpgradeRecipe
from eaglectl.drafter.drafter import Drafter, Feature, Note
from eaglectl.drafter.tensors import Computed, Tensor
from eaglectl.errors import OptionNeededError, RefusedError, check
from eaglectl.files.checkpoint import Checkpoint

STRENGTH = (
    1e-2  # of the ridge; 1e-3 does as well: on the tiny pair the two differ by less than their intervals
)
Refit = tuple[Array, Mapping[str, float]]
# the relative residual of all tokens, of the massive ones, and of the others
ALL, MASSIVE, OTHERS = "relative_residual", "relative_residual_massive", "relative_residual_others"
LARGE_RESIDUAL = 0.15  # the shrinking alone leaves about a tenth
UNIFORM = 1e-3  # the largest spread of norm.weight, relative to its RMS, that counts as uniform
ALREADY = (
    "this drafter is EAGLE-3.1 already: its layout alone changes, and nothing is calibrated, marked or"
    " measured for --to 3.1"
)
START = Note(
    "warning",
    "init_only",
    "this is a start for a trainer and not a drafter to serve; its acceptance was not looked at",
)
AT_ACCEPTANCE = Note(
    "note",
    "upgrade",
    "the 3.1 layout at EAGLE-3's acceptance; what 3.1 gains comes from training with it: fine-tune this"
    " output",
)
RESIDUAL_WRITERS = (
    "self_attn.o_proj.weight",
    "self_attn.o_proj.bias",
    "mlp.down_proj.weight",
    "mlp.down_proj.bias",
)
TOKENS_PER_INPUT = 4  # the fewest calibration tokens per input of fc for a refit
LARGE_SPREAD = 0.25
SMALL_RMS = 100.0  # squared and in units of eps: states below it change with eps
FAR_SIGMA = 0.15  # relative to all prompts together; 30 % cost 6 % of acceptance and more


def at_version(
    checkpoint: Checkpoint, drafter: Drafter, version: str | None, recipe: UpgradeRecipe, dtype: str | None
) -> TransformedDrafter:
    """The drafter in this EAGLE version, written in `dtype`; unchanged where no version is given."""
    if version == "3.1" and drafter.version in ("3.1", "3.1-joint"):
        return TransformedDrafter(drafter, (Note("warning", "upgrade", ALREADY),))
    if version in (None, drafter.version):
        return TransformedDrafter(drafter)
    if version == "3.1":
        return upgrade(checkpoint, drafter, dataclasses.replace(recipe, dtype=dtype))
    return downgrade(checkpoint, drafter)


def upgrade(checkpoint: Checkpoint, drafter: Drafter, recipe: UpgradeRecipe) -> TransformedDrafter:
    """EAGLE-3.1 from EAGLE-3. Raises RefusedError and UsageError (`check_upgrade`)."""
    check_upgrade(drafter, recipe)
    result = TransformedDrafter(drafter, record={"fc_norm": "off", "norm_output": "off"})
    if recipe.fc_norm != "off":
        result = result.then(_with_fc_norm(checkpoint, drafter, recipe))
    if recipe.is_norm_output:
        result = result.then(_with_norm_output(checkpoint, result.drafter, recipe))
    record = dict(result.record)
    if recipe.statistics is not None:
        record["calibration"] = recipe.statistics.described()
    if recipe.is_start:
        record["needs_finetune"] = True
    notes = (*result.notes, START if recipe.is_start else AT_ACCEPTANCE)
    return TransformedDrafter(result.drafter, notes, {"upgrade": record})


def _with_fc_norm(checkpoint: Checkpoint, drafter: Drafter, recipe: UpgradeRecipe) -> TransformedDrafter:
    statistics = recipe.statistics
    mode = recipe.fc_norm if statistics else "ones"
    scales = [1.0] * drafter.dims.aux
    if statistics and mode != "ones":
        written = recipe.dtype or drafter.tensors["norm.weight"].dtype
        scales = [rounded_to(rms, written) for rms in statistics.rms]
    dtype, size = drafter.tensors["norm.weight"].dtype, drafter.dims.target_hidden
    how = "ones" if mode == "ones" else "median RMS of the state, every channel"
    tensors = dict(drafter.tensors)
    for index, scale in enumerate(scales):
        name = f"fc_norm.{index}.weight"
        tensors[name] = Tensor(name, dtype, (size,), Computed(how, (), partial(np.full, size, scale)))
    notes = list(state_warnings(statistics)) if statistics else []
    record: dict[str, Any] = {}
    if statistics and mode == "refit":
        if obstacle := refit_obstacle(statistics, drafter):
            notes.append(obstacle)
            mode = "calibrated"
        else:
            prior = evaluate(drafter.tensors["fc.weight"], checkpoint)
            made, residuals = _refit(prior, np.repeat(scales, drafter.dims.target_hidden), recipe, statistics)
            # massive tokens are few, and no norm fits both them and the others
            if (residual := residuals.get(OTHERS, residuals[ALL])) > LARGE_RESIDUAL:
                text = (
                    f"the refit leaves {residual:.0%} of what fc made unexplained; see what the gate says, or"
                    " calibrate with more prompts"
                )
                notes.append(Note("warning", "fc.weight", text))
            fc = tensors["fc.weight"]
            how = "ridge refit to the normed states"
            tensors["fc.weight"] = replace(fc, origin=Computed(how, (fc,), lambda _: made))
            record["refit"] = {"strength": STRENGTH, **residuals}
    record |= {"fc_norm": mode, "scales": scales}
    result = replace(drafter, tensors=tensors, norms=replace(drafter.norms, fc_norm=True))
    return TransformedDrafter(result, tuple(notes), record)


def _refit(prior: Array, columns: Array, recipe: UpgradeRecipe, statistics: Statistics) -> Refit:
    """The refit fc [hidden, aux*target_hidden] and its relative residuals, solved once per recipe."""
    key = sha256(prior.data).digest() + columns.tobytes()
    if key not in recipe.refits:
        recipe.refits[key] = _solved(prior, columns, statistics)
    return recipe.refits[key]


def _solved(prior: Array, columns: Array, statistics: Statistics) -> Refit:
    """The refit fc and the share of the old one's output that it leaves unexplained (weighted as the fit).

    Of all tokens, and where some are massive, of those and of the others. It is fitted in units of each
    layer's scale (`columns`), so that the ridge does not depend on a layer's scale.
    """
    import torch

    from eaglectl.reference.collecting import solve_ridge

    assert statistics.matrices is not None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = prior * columns
    # copies: solve_ridge writes over gram
    gram, cross, first = (
        torch.tensor(part, device=device)
        for part in (statistics.matrices.gram, statistics.matrices.cross, start)
    )
    try:
        solved, lam = solve_ridge(gram, cross, first, STRENGTH)
    except torch.linalg.LinAlgError:
        raise OptionNeededError(
            "the calibration's matrix is singular; calibrate with more, and more different, prompts, or pass"
            " --fc-norm calibrated"
        ) from None
    made = solved.cpu().numpy()
    # sum q |W n - f|^2, with gram's part taken from the equation just solved:
    # made (gram + lam) = cross + lam start
    tokens = statistics.tokens
    left = float((made * (lam * (start - made) - statistics.matrices.cross)).sum()) + tokens
    residuals = {ALL: sqrt(max(left / tokens, 0.0))}
    states, outputs = statistics.matrices.massive_states, statistics.matrices.massive_outputs
    if states is not None and outputs is not None and len(states) < tokens:
        massive = float(((states @ made.T - outputs) ** 2).sum())
        residuals |= {
            MASSIVE: sqrt(massive / len(states)),
            OTHERS: sqrt(max(left - massive, 0.0) / (tokens - len(states))),
        }
    return made / columns, residuals


def _with_norm_output(checkpoint: Checkpoint, drafter: Drafter, recipe: UpgradeRecipe) -> TransformedDrafter:
    if drafter.norms.norm_output:  # trained in: its norm.weight is part of what is fed back
        return TransformedDrafter(drafter, record={"norm_output": "as trained"})
    statistics, is_exact = recipe.statistics, drafter.norms.norm_before_residual
    switched = replace(drafter, norms=replace(drafter.norms, norm_output=True))
    if statistics is None and not is_exact:
        return TransformedDrafter(switched, record={"norm_output": "flag"})
    weight = evaluate(drafter.tensors["norm.weight"], checkpoint)
    if "lm_head.weight" in drafter.tensors:
        transformed = _absorbed(switched, weight, recipe)
    else:
        transformed = _rescaled(switched, weight, statistics)
    if is_exact:
        text = (
            "norm_before_residual is true, so norm_output is the same function: nothing is lost and nothing"
            " gained by it"
        )
        return replace(transformed, notes=(Note("note", "norm_output", text),))
    return replace(transformed, notes=sigma_warnings(statistics) if statistics else ())


def _absorbed(drafter: Drafter, weight: Array, recipe: UpgradeRecipe) -> TransformedDrafter:
    """norm.weight is set to sigma in every channel, and lm_head takes what it was."""
    norm, head = drafter.tensors["norm.weight"], drafter.tensors["lm_head.weight"]
    is_exact = drafter.norms.norm_before_residual
    size = _rms(weight)
    if recipe.statistics and not is_exact:
        size = recipe.statistics.sigma
    sigma = rounded_to(size, recipe.dtype or norm.dtype)
    factors = weight / sigma
    uniform = Computed(f"sigma = {sigma:g}, every channel", (norm,), lambda _: np.full(norm.shape, sigma))
    scaled = Computed(
        "columns times norm.weight / sigma", (head,), lambda values: values * factors, by_rows=True
    )
    tensors = {
        **drafter.tensors,
        "norm.weight": replace(norm, origin=uniform),
        "lm_head.weight": replace(head, origin=scaled),
    }
    record = {"norm_output": "absorbed", "sigma": sigma, "is_exact": is_exact}
    return TransformedDrafter(replace(drafter, tensors=tensors), record=record)


def _rescaled(drafter: Drafter, weight: Array, statistics: Statistics | None) -> TransformedDrafter:
    """The residual stream is scaled so that its first state has the norm's RMS."""
    rms = _rms(weight)
    if drafter.norms.norm_before_residual:
        if float(np.ptp(weight)) > UNIFORM * rms:
            raise OptionNeededError(
                "norm_output cannot be kept exact: norm.weight is not uniform and there is no own lm_head to"
                " take it; pass --materialize-lm-head with --target, or --no-norm-output"
            )
        return TransformedDrafter(drafter, record={"norm_output": "flag", "is_exact": True})
    assert statistics is not None
    scale = rms / statistics.sigma
    tensors = dict(drafter.tensors)
    for name, tensor in drafter.tensors.items():
        if name in ("fc.weight", "fc.bias") or name.endswith(RESIDUAL_WRITERS):
            scaled = Computed(f"times {scale:g}", (tensor,), lambda values: values * scale, by_rows=True)
            tensors[name] = replace(tensor, origin=scaled)
    record = {"norm_output": "residual scaled", "scale": scale, "is_exact": False}
    return TransformedDrafter(replace(drafter, tensors=tensors), record=record)


def downgrade(checkpoint: Checkpoint, drafter: Drafter) -> TransformedDrafter:
    """EAGLE-3 from 3.1, where that is the same function. Raises RefusedError with the reason elsewhere."""
    norms, weight = drafter.norms, evaluate(drafter.tensors["norm.weight"], checkpoint)
    check(
        (
            norms.fc_norm,
            "fc_norm divides every state by its own size, token by token, which no fc without it can do; this"
            " drafter stays EAGLE-3.1: leave --to out",
        ),
        (
            norms.norm_before_fc,
            "norm_before_fc divides the states by their size, token by token, which no fc without it can do;"
            " leave --to out",
        ),
        (
            not norms.norm_before_residual,
            "norm_output fixes the size of the fed-back state, and the residual keeps it; without it this is"
            " another function: leave --to out",
        ),
        (
            float(np.ptp(weight)) != 0.0,
            "norm_output feeds back a state multiplied by norm.weight, whose channels differ; without it this"
            " is another function: leave --to out",
        ),
        error=RefusedError,
    )
    text = "turned off: norm.weight is uniform and norm_before_residual true, so the function stays the same"
    return TransformedDrafter(
        replace(drafter, norms=replace(norms, norm_output=False)),
        (Note("note", "norm_output", text),),
        {"downgrade": {"norm_output": "off, exact"}},
    )


def rounded_to(value: float, dtype: str) -> float:
    """A number as `dtype` stores it: what is computed from it must use the stored value."""
    return float(decode(encode(np.array([value]), dtype, "scale"), dtype, "scale")[0])


def _rms(weight: Array) -> float:
    return sqrt(float((weight**2).mean()))


def check_upgrade(drafter: Drafter, recipe: UpgradeRecipe) -> None:
    """Raise RefusedError where the upgrade would break the drafter, UsageError for what is missing."""
    check_changeable(drafter)
    features, is_refit = drafter.features(), recipe.fc_norm == "refit"
    check(
        (
            recipe.fc_norm != "off" and Feature.NORM_BEFORE_FC in features,
            "this drafter norms the concatenated states already (norm_before_fc); two norms in a row are"
            " another network: pass --fc-norm off",
        ),
        (
            Feature.QUANTISED in features and (is_refit or recipe.is_norm_output),
            "fc or lm_head would be rewritten and this drafter is quantised; convert the unquantised one, or"
            " pass --fc-norm calibrated --no-norm-output with a --calibration of any unquantised drafter of"
            " this target and these layers",
        ),
        error=OptionNeededError,
    )
    is_needed = needs_statistics(drafter, recipe.fc_norm, recipe.is_norm_output)
    check(
        (
            not recipe.is_start and recipe.fc_norm == "ones",
            "--fc-norm ones changes what the drafter computes by the layers' scales and is only a trainer's"
            " start; pass --init-only with it",
        ),
        (
            not recipe.is_start and recipe.statistics is None and is_needed,
            "this is an EAGLE-3 drafter, and fc_norm and norm_output change what it computes unless they are"
            " set from its target's states; pass --target with the target's weights, or --calibration with"
            " the folder that `eaglectl calibrate SOURCE -o calibration --target TARGET` writes; --init-only"
            " gives a trainer's start without them",
        ),
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
    check(
        (
            drafter.norms.fc_norm,
            "this drafter has fc_norm already, and nothing is to be calibrated; leave --to out",
        ),
        (
            Feature.PARALLEL in drafter.features(),
            "a parallel drafter's mask_hidden goes through fc like a state, and fc_norm would rescale it;"
            " P-EAGLE heads stay as they are",
        ),
        (
            drafter.aux.order,
            "its layer ids are not in ascending order; convert it to vLLM's layout first, then that output"
            " --to 3.1",
        ),
        error=RefusedError,
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
