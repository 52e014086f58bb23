"""EAGLE-3 to EAGLE-3.1 and, where it is exact, back: which tensors change and how (eagle3-to-3.1.md, sections 2 and 4).

Nothing here runs a model: what data has to say comes as Statistics. The 3.1 layout at EAGLE-3's acceptance is what this
gives; what training with the two norms buys, only training gives.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from math import sqrt
from typing import Any

import numpy as np

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.conversion.arithmetic import Array, decode, encode, evaluate
from eaglectl.conversion.calibration import Statistics
from eaglectl.conversion.plan import Wish
from eaglectl.conversion.recipe import Recipe
from eaglectl.conversion.upgrade_checks import check_upgrade, doubt_sigma, doubts, may_refit
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import Computed, Tensor
from eaglectl.errors import Refused

STRENGTH = 1e-2  # 1e-3 in the study; on the tiny pair the two differ by less than their intervals
LARGE_RESIDUAL = 0.15  # the shrinking alone leaves about a tenth
ALREADY = "this drafter is EAGLE-3.1 already: its layout alone changes, and nothing is calibrated, marked or measured for --to 3.1"
WRITERS = ("self_attn.o_proj.weight", "self_attn.o_proj.bias", "mlp.down_proj.weight", "mlp.down_proj.bias")


@dataclass(frozen=True, slots=True)
class Changed:
    """The drafter in another version, what to tell, and what eaglectl.json keeps of it."""

    drafter: Drafter
    notes: tuple[Note, ...]
    record: Mapping[str, Any]


def at_version(checkpoint: Checkpoint, drafter: Drafter, wish: Wish) -> Changed:
    """The drafter in the version asked for; as it is where none is."""
    have = drafter.version
    if wish.version == "3.1" and have in ("3.1", "3.1-joint"):
        return Changed(drafter, (Note("warning", "upgrade", ALREADY),), {})
    if wish.version is None or wish.version == have:
        return Changed(drafter, (), {})
    return (
        upgrade(checkpoint, drafter, replace(wish.recipe or Recipe(), dtype=wish.dtype))
        if wish.version == "3.1"
        else downgrade(checkpoint, drafter)
    )


def upgrade(checkpoint: Checkpoint, drafter: Drafter, recipe: Recipe) -> Changed:
    """EAGLE-3.1 from EAGLE-3. Raises Refused and Usage as section 4.3 has it."""
    check_upgrade(drafter, recipe)
    notes: list[Note] = []
    record: dict[str, Any] = {"fc_norm": "off", "norm_output": "off"}
    result = drafter
    if recipe.fc_norm != "off":
        result = _with_fc_norm(checkpoint, drafter, recipe, notes, record)
    if recipe.is_norm_output:
        result = _with_norm_output(checkpoint, drafter, result, recipe, notes, record)
    if recipe.statistics is not None:
        record["calibration"] = recipe.statistics.described()
    if recipe.is_start:
        record["needs_finetune"] = True
        notes.append(
            Note(
                "warning",
                "init_only",
                "this is a start for a trainer and not a drafter to serve; its acceptance was not looked at",
            )
        )
    else:
        notes.append(
            Note(
                "note",
                "upgrade",
                "the 3.1 layout at EAGLE-3's acceptance; what 3.1 gains comes from training with it: fine-tune this output",
            )
        )
    return Changed(result, tuple(notes), {"upgrade": record})


def _with_fc_norm(
    checkpoint: Checkpoint, drafter: Drafter, recipe: Recipe, notes: list[Note], record: dict[str, Any]
) -> Drafter:
    dims, dtype, known = drafter.dims, drafter.tensors["norm.weight"].dtype, recipe.statistics
    is_known = known is not None and recipe.fc_norm != "ones"
    scales = [held(c, recipe.dtype or dtype) for c in known.rms] if known and is_known else [1.0] * dims.aux
    mode = "ones" if known is None else recipe.fc_norm
    tensors = dict(drafter.tensors)
    for index, scale in enumerate(scales):
        name = f"fc_norm.{index}.weight"
        how = "ones" if mode == "ones" else "median RMS of the state, every channel"
        tensors[name] = Tensor(
            name, dtype, (dims.target_hidden,), Computed(how, (), _constant(scale, dims.target_hidden))
        )
    if known is not None:
        notes += doubts(known)
    if mode == "refit" and known is not None and may_refit(known, drafter, notes):
        columns = np.repeat(scales, dims.target_hidden)
        prior = evaluate(drafter.tensors["fc.weight"], checkpoint)
        key = sha256(prior.data).digest() + columns.tobytes()
        if key not in recipe.solved:
            recipe.solved[key] = _refitted(prior, columns, known)
        made, residual = recipe.solved[key]
        if residual > LARGE_RESIDUAL:
            notes.append(
                Note(
                    "warning",
                    "fc.weight",
                    f"the refit leaves {residual:.0%} of what fc made unexplained; see what the gate says, or calibrate with more prompts",
                )
            )
        fc = tensors["fc.weight"]
        tensors["fc.weight"] = replace(fc, origin=Computed("ridge refit to the normed states", (fc,), lambda _: made))
        record["refit"] = {"strength": STRENGTH, "relative_residual": residual}
    elif mode == "refit":
        mode = "calibrated"
    record |= {"fc_norm": mode, "scales": scales}
    return replace(drafter, tensors=tensors, norms=replace(drafter.norms, fc_norm=True))


def _refitted(prior: Array, columns: Array, known: Statistics) -> tuple[Array, float]:
    """The refit fc and the share of what the old one made that it leaves (relative, weighted as the fit).

    It is fitted in units of each layer's size (`columns`), so that a layer's scale, which fc undoes, is nothing to the ridge.
    """
    import torch

    from eaglectl.reference.collecting import solve_ridge

    assert known.matrices is not None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = prior * columns
    # copies: solve_ridge writes over gram
    gram, cross, first = (
        torch.tensor(part, device=device) for part in (known.matrices.gram, known.matrices.cross, start)
    )
    try:
        solved, lam = solve_ridge(gram, cross, first, STRENGTH)
    except torch.linalg.LinAlgError:
        raise Refused(
            "the calibration's matrix is singular; calibrate with more, and more different, prompts, or pass --fc-norm"
            " calibrated"
        ) from None
    made = solved.cpu().numpy()
    # sum q |W n - f|^2, with gram's part taken from the equation just solved: made (gram + lam) = cross + lam start
    left = float((made * (lam * (start - made) - known.matrices.cross)).sum()) / known.tokens + 1
    return made / columns, sqrt(max(left, 0.0))


def _with_norm_output(
    checkpoint: Checkpoint, drafter: Drafter, result: Drafter, recipe: Recipe, notes: list[Note], record: dict[str, Any]
) -> Drafter:
    if drafter.norms.norm_output:  # trained in: its norm.weight is part of what is fed back
        record["norm_output"] = "as trained"
        return result
    norm, head = drafter.tensors["norm.weight"], drafter.tensors.get("lm_head.weight")
    norms = replace(result.norms, norm_output=True)
    known, is_exact = recipe.statistics, drafter.norms.norm_before_residual
    if known is None and not is_exact:
        record["norm_output"] = "flag"
        return replace(result, norms=norms)
    weight = evaluate(norm, checkpoint)
    mean = sqrt(float((weight**2).mean()))
    if is_exact:
        notes.append(
            Note(
                "note",
                "norm_output",
                "norm_before_residual is true, so norm_output is the same function: nothing is lost and nothing gained by it",
            )
        )
    if known is not None and not is_exact:
        notes += doubt_sigma(known)
    if head is None:
        return _rescaled(drafter, replace(result, norms=norms), weight, mean, known, record)
    sigma = held(mean if is_exact or known is None else known.sigma, recipe.dtype or norm.dtype)
    factors = weight / sigma
    tensors = dict(result.tensors)
    tensors["norm.weight"] = replace(
        norm, origin=Computed(f"sigma = {sigma:g}, every channel", (norm,), lambda _: np.full(norm.shape, sigma))
    )
    tensors["lm_head.weight"] = replace(
        head,
        origin=Computed("columns times norm.weight / sigma", (head,), lambda values: values * factors, by_rows=True),
    )
    record |= {"norm_output": "absorbed", "sigma": sigma, "is_exact": is_exact}
    return replace(result, tensors=tensors, norms=norms)


def _rescaled(
    drafter: Drafter, result: Drafter, weight: Array, mean: float, known: Statistics | None, record: dict[str, Any]
) -> Drafter:
    """Without a head of its own nothing can be absorbed: the residual stream is scaled so that its first state has the norm's RMS."""
    if drafter.norms.norm_before_residual:
        if float(np.ptp(weight)) > 1e-3 * mean:
            raise Refused(
                "norm_output cannot be kept exact: norm.weight is not uniform and there is no own lm_head to take it; pass --materialize-lm-head with --target, or --no-norm-output"
            )
        record |= {"norm_output": "flag", "is_exact": True}
        return result
    assert known is not None
    scale = mean / known.sigma
    tensors = dict(result.tensors)
    for name, tensor in result.tensors.items():
        if name in ("fc.weight", "fc.bias") or name.endswith(WRITERS):
            tensors[name] = replace(tensor, origin=Computed(f"times {scale:g}", (tensor,), _times(scale), by_rows=True))
    record |= {"norm_output": "residual scaled", "scale": scale, "is_exact": False}
    return replace(result, tensors=tensors)


def downgrade(checkpoint: Checkpoint, drafter: Drafter) -> Changed:
    """EAGLE-3 from 3.1, where that is the same function. Raises Refused with the reason elsewhere."""
    norms = drafter.norms
    if norms.fc_norm:
        raise Refused(
            "fc_norm divides every state by its own size, token by token, which no fc without it can do; this drafter stays EAGLE-3.1: leave --to out"
        )
    if norms.norm_before_fc:
        raise Refused(
            "norm_before_fc divides the states by their size, token by token, which no fc without it can do; leave --to out"
        )
    weight = evaluate(drafter.tensors["norm.weight"], checkpoint)
    if not norms.norm_before_residual:
        raise Refused(
            "norm_output fixes the size of the fed-back state, and the residual keeps it; without it this is another function: leave --to out"
        )
    if float(np.ptp(weight)) != 0.0:
        raise Refused(
            "norm_output feeds back a state multiplied by norm.weight, whose channels differ; without it this is another function: leave --to out"
        )
    note = Note(
        "note",
        "norm_output",
        "turned off: norm.weight is uniform and norm_before_residual true, so the function stays the same",
    )
    return Changed(
        replace(drafter, norms=replace(norms, norm_output=False)), (note,), {"downgrade": {"norm_output": "off, exact"}}
    )


def held(value: float, dtype: str) -> float:
    """A number as `dtype` holds it: what is computed from it must use this one."""
    return float(decode(encode(np.array([value]), dtype, "scale"), dtype, "scale")[0])


def _constant(value: float, size: int) -> Callable[[], Array]:
    return lambda: np.full(size, value)


def _times(scale: float) -> Callable[[Array], Array]:
    return lambda values: values * scale
