"""EAGLE-3 to EAGLE-3.1 and, where it is exact, back (docs/upgrade.md).

Nothing here runs a model: what was measured on data comes as Statistics. The output has the 3.1 layout at
EAGLE-3's acceptance; only training with the two norms improves on that.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

import eaglectl
from eaglectl.base import Result
from eaglectl.conversion.arithmetic import Array, evaluate, rounded
from eaglectl.conversion.plan import TransformedDrafter
from eaglectl.conversion.request import UpgradeRecipe
from eaglectl.drafter.drafter import Drafter, Feature, Note
from eaglectl.drafter.tensors import Computed, Tensor
from eaglectl.errors import OptionNeededError, RefusedError, UnreadableError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint, read_weight_file
from eaglectl.files.digests import hashed
from eaglectl.files.files import MIB, open_regular, read_small_file
from eaglectl.files.header import header_json, parse_json
from eaglectl.files.source import Source
from eaglectl.files.writer import STATISTICS, Folder
from eaglectl.text import listed

# of the ridge; 1e-3 does as well: on the tiny pair the two differ by less than their intervals
STRENGTH = 1e-2
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


FILE, MATRICES = "statistics.json", "statistics.safetensors"
MAX_STATISTICS = 64 * MIB
WRITES = "`eaglectl calibrate SOURCE -o calibration --target TARGET` writes"
UNSTATED = {"prompts", "matrices", "out", "trust_remote_code"}  # in eaglectl.json
MOST_SHOWN = 6
ENDS, PIECE = 1 << 16, 8 << 20


class Matrices(Struct, frozen=True):
    """Sums of the refit, float64: `gram` [aux*target_hidden]*2 and `cross` [hidden, aux*target_hidden].

    `massive_states` [tokens, aux*target_hidden] and `massive_outputs` [tokens, hidden] are of massive tokens;
    None where those are not known, or too many.
    """

    gram: Array
    cross: Array
    massive_states: Array | None = None
    massive_outputs: Array | None = None


class MassiveTokens(Struct, frozen=True):
    """Tokens of which a state is ten times its layer's median: how many, at which positions.

    `channels` are those in which the states of each boundary are massive, `times` the largest RMS of such a
    state over the boundary's median; empty where it was not kept.
    """

    tokens: int
    positions: tuple[int, ...]
    channels: tuple[tuple[int, ...], ...]
    times: tuple[float, ...] = ()

    def described(self, boundaries: tuple[int, ...]) -> str:
        """How many there are, where, in which channels, and how many times the median, for people."""
        times = self.times or (0.0,) * len(boundaries)
        parts = [
            f"{listed(map(str, channels), most=MOST_SHOWN)} at boundary {boundary}"
            + (f" (up to {factor:.3g} times the median RMS)" if factor else "")
            for boundary, channels, factor in zip(boundaries, self.channels, times, strict=True)
            if channels
        ]
        places = listed(map(str, self.positions), most=MOST_SHOWN)
        return f"massive tokens: {self.tokens}, at positions {places}; channels {'; '.join(parts)}"


class Statistics(Result, frozen=True):
    """Medians over calibration tokens, and the matrices where there were tokens enough to refit fc.

    `rms` is the median RMS of each aux state, `spread` the sd of its log against the layers' mean, `sigma`
    the median RMS of the first two fed-back states, `sigmas` the same by set of prompts. `digests` are of the
    drafter, the target and all prompts together, `prompts` of each prompt. `engine` is what ran the target;
    empty where it is not known. `measured`: what the drafter's files left open and how it was answered, as
    eaglectl.json has it. `out` is the folder that holds them, `trust_remote_code`: the target's own code was
    allowed to run.
    """

    digests: Mapping[str, str]
    prompts: tuple[str, ...]
    boundaries: tuple[int, ...]
    eps: float = field(name="rms_norm_eps")
    tokens: int
    rms: tuple[float, ...]
    spread: tuple[float, ...] = field(name="log_ratio_sd")
    sigma: float
    sigmas: Mapping[str, float] = field(name="sigma_by_set")
    is_direction: bool
    matrices: Matrices | None = None
    engine: Mapping[str, str] = field(default_factory=dict)
    massive: MassiveTokens | None = None
    measured: tuple[Mapping[str, Any], ...] = ()
    out: str | None = None
    trust_remote_code: bool = False

    def __fspath__(self) -> str:
        if self.out is None:
            raise UsageError("these statistics are in no folder; calibrate writes one")
        return self.out

    def described(self) -> dict[str, Any]:
        """All of it but the matrices, as eaglectl.json stores it."""
        stated = msgspec.to_builtins(replace(self, matrices=None), enc_hook=str)
        empty = {key for key in ("massive", "measured") if not stated[key]}
        return {key: value for key, value in stated.items() if key not in UNSTATED | empty}


def drafter_digest(checkpoint: Checkpoint, drafter: Drafter) -> str:
    """SHA-256 over the float tensors by canonical name: the same for every layout of one drafter."""
    digest = hashlib.sha256()
    for name, tensor in sorted(drafter.tensors.items()):
        if name in ("d2t", "t2d") or not isinstance(tensor.origin, tuple):
            continue
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        for segment in tensor.origin:
            for start in range(segment.start, segment.stop, PIECE):
                digest.update(checkpoint.read(segment.stored, start, min(start + PIECE, segment.stop)))
    return digest.hexdigest()


def target_digest(source: Source) -> str:
    """SHA-256 of a target's config, and of the size, first and last 64 KiB of each weight file."""
    digest = hashlib.sha256()
    for name in source.names():
        if name == "config.json" or name.endswith((".safetensors", ".bin")):
            size = source.size(name)
            digest.update(f"{name} {size}\n".encode())
            for start in sorted({0, max(0, size - ENDS)}):
                digest.update(source.read(name, start, min(start + ENDS, size)))
    return digest.hexdigest()


def write_statistics(statistics: Statistics, out: Path, *, force: bool) -> None:
    """Write a folder, all or nothing.

    Raises UsageError where it exists, UnreadableError where nothing can be written.
    """
    document = {
        "schema": STATISTICS.schema,
        "eaglectl": eaglectl.__version__,
        **statistics.described(),
        "prompts": list(statistics.prompts),
        "matrices": None,
    }
    with Folder(out, force=force, kind=STATISTICS) as folder:
        if statistics.matrices is not None:
            digest = hashlib.sha256()
            folder.write(MATRICES, hashed(_stored(statistics.matrices), digest))
            document["matrices"] = {"sha256": digest.hexdigest()}
        folder.write(FILE, [(json.dumps(document, indent=2) + "\n").encode()])
        folder.publish()


def _stored(matrices: Matrices) -> Iterator[bytes]:
    stored = {name: part for name, part in msgspec.structs.asdict(matrices).items() if part is not None}
    arrays = {name: np.ascontiguousarray(array, "<f8") for name, array in stored.items()}
    entries = ((name, "F64", array.shape, array.nbytes) for name, array in arrays.items())
    raw = header_json({"format": "np"}, entries)
    yield len(raw).to_bytes(8, "little") + raw
    for array in arrays.values():
        view = array.reshape(-1).data.cast("B")
        yield from (bytes(view[start : start + PIECE]) for start in range(0, len(view), PIECE))


def read_statistics(folder: Path) -> Statistics:
    """The statistics in a folder that `calibrate` wrote, every number checked.

    Raises UnreadableError for anything else.
    """
    try:
        value = parse_json(FILE, read_small_file(folder / FILE, MAX_STATISTICS, "--calibration"))
        if not isinstance(value, dict) or value.get("schema") != STATISTICS.schema:
            raise UnreadableError(f"{FILE} is not what this version of it writes")
        statistics = msgspec.convert({**value, "matrices": None}, Statistics)
        statistics = replace(statistics, matrices=_matrices(folder, value))
        if fault := next(_faults(statistics), None):
            raise UnreadableError(f"{FILE} is not as it was written: {fault}")
    except OSError as error:
        raise UnreadableError(
            f"--calibration {error.filename or folder}: {error.strerror}; give the folder that {WRITES}"
        ) from None
    except (UnreadableError, ValueError, KeyError, TypeError) as error:
        what = f"{MATRICES} has no {error}" if isinstance(error, KeyError) else str(error)
        raise UnreadableError(
            f"--calibration {folder}: not a folder that calibrate wrote ({what}); give the one that {WRITES}"
        ) from None
    return statistics


def _matrices(folder: Path, document: Mapping[str, Any]) -> Matrices | None:
    """The matrices beside the document, which has their digest.

    Raises UnreadableError where they differ or are truncated.
    """
    stated, path = document.get("matrices"), folder / MATRICES
    if not stated:
        return None
    file = read_weight_file(path)
    with open_regular(path, "--calibration") as opened:
        if hashlib.file_digest(opened, "sha256").hexdigest() != stated["sha256"]:
            raise UnreadableError(f"{MATRICES} is not the file that was written with {FILE}")
    if any(tensor.dtype != "F64" for tensor in file.tensors.values()):
        raise UnreadableError(f"{MATRICES} is not float64")
    arrays = {
        name: np.memmap(path, "<f8", "r", tensor.start, tensor.shape) for name, tensor in file.tensors.items()
    }
    return Matrices(
        arrays["gram"], arrays["cross"], arrays.get("massive_states"), arrays.get("massive_outputs")
    )


def _faults(statistics: Statistics) -> Iterator[str]:
    """What no calibration gives."""
    count, matrices = len(statistics.boundaries), statistics.matrices
    if not count or {len(statistics.rms), len(statistics.spread)} != {count}:
        yield "boundaries, rms and log_ratio_sd differ in length"
    sizes = (*statistics.rms, *statistics.sigmas.values(), statistics.eps, statistics.sigma)
    if not all(size > 0 for size in (*sizes, statistics.tokens)):
        yield "a size is not above 0"
    if matrices is not None:
        yield from _matrix_faults(matrices, max(count, 1))


def _matrix_faults(matrices: Matrices, layers: int) -> Iterator[str]:
    gram, cross = matrices.gram, matrices.cross
    with np.errstate(invalid="ignore", over="ignore"):
        are_finite = bool(np.isfinite(gram.sum()) and np.isfinite(cross.sum()))
    is_fitting = gram.ndim == 2 and cross.ndim == 2 and gram.shape == (cross.shape[1],) * 2
    if not is_fitting or len(gram) % layers:
        yield f"gram {list(gram.shape)} and cross {list(cross.shape)} do not fit together"
    elif not are_finite:
        yield "the matrices are not finite"
    states, outputs = matrices.massive_states, matrices.massive_outputs
    shapes = [None if part is None else (len(part), *part.shape[1:]) for part in (states, outputs)]
    tokens = 0 if states is None else len(states)
    if shapes not in ([None, None], [(tokens, *gram.shape[1:]), (tokens, *cross.shape[:1])]):
        yield "the states of massive tokens do not fit the matrices"


def check_statistics(
    statistics: Statistics,
    checkpoint: Checkpoint,
    drafter: Drafter,
    target: Source | None,
    *,
    is_of_states: bool = False,
) -> None:
    """Raise RefusedError unless they were made with this drafter, these aux layers and this target.

    `is_of_states`: only the scales of the target's states are used, which every drafter of these layers
    shares.
    """
    made, has = statistics.is_direction, drafter.norms.norm_before_residual
    eps, boundaries = float(drafter.settings["rms_norm_eps"]), drafter.aux.boundaries
    is_of_drafter, count = not is_of_states, len(statistics.boundaries)
    ours, theirs = list(boundaries or ()), list(statistics.boundaries)
    differences = (
        (
            is_of_drafter and statistics.digests.get("drafter") != drafter_digest(checkpoint, drafter),
            "was made with another drafter",
        ),
        (
            is_of_drafter and made != has,
            f"was made with norm_before_residual {str(made).lower()}, and this drafter says"
            f" {str(has).lower()}",
        ),
        (
            is_of_drafter and statistics.eps != eps,
            f"was made with rms_norm_eps {statistics.eps:g}, and this drafter has {eps:g}",
        ),
        (count != drafter.dims.aux, f"is of {count} layers and this drafter takes {drafter.dims.aux}"),
        (
            boundaries is not None and theirs != ours,
            f"is of boundaries {theirs} and this drafter takes {ours}",
        ),
        (
            target is not None and statistics.digests.get("target") != target_digest(target),
            "was made with another target",
        ),
    )
    for is_there, difference in differences:
        if is_there:
            raise RefusedError(f"the calibration {difference}; give --calibration the folder that {WRITES}")
    if is_of_states and boundaries is None:
        raise UsageError(
            f"whether this drafter takes the calibration's boundaries {theirs} is not known; pass --target or"
            " --aux-layers"
        )


def at_version(
    checkpoint: Checkpoint, drafter: Drafter, version: str | None, recipe: UpgradeRecipe
) -> TransformedDrafter:
    """The drafter in this EAGLE version; unchanged where no version is given."""
    if version == "3.1" and drafter.version in ("3.1", "3.1-joint"):
        return TransformedDrafter(drafter, (Note("warning", "upgrade", ALREADY),))
    if version in (None, drafter.version):
        return TransformedDrafter(drafter)
    return upgrade(checkpoint, drafter, recipe) if version == "3.1" else downgrade(checkpoint, drafter)


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
    statistics, dtype = recipe.statistics, drafter.tensors["norm.weight"].dtype
    mode, how = recipe.fc_norm, "median RMS of the state, every channel"
    scales, notes = [1.0] * drafter.dims.aux, list(state_warnings(statistics)) if statistics else []
    if not statistics or mode == "ones":
        mode, how = "ones", "ones"
    else:
        scales = rounded(np.array(statistics.rms), recipe.dtype or dtype).tolist()
    tensors, size = dict(drafter.tensors), drafter.dims.target_hidden
    for index, scale in enumerate(scales):
        name = f"fc_norm.{index}.weight"
        tensors[name] = Tensor(name, dtype, (size,), Computed(how, (), partial(np.full, size, scale)))
    record: dict[str, Any] = {}
    if statistics and mode == "refit" and (obstacle := refit_obstacle(statistics, drafter)):
        notes.append(obstacle)
        mode = "calibrated"
    elif statistics and mode == "refit":
        fc = tensors["fc.weight"]
        made, residuals = _refit(evaluate(fc, checkpoint), np.repeat(scales, size), recipe, statistics)
        # massive tokens are few, and no norm fits both them and the others
        if (residual := residuals.get(OTHERS, residuals[ALL])) > LARGE_RESIDUAL:
            notes.append(
                Note(
                    "warning",
                    "fc.weight",
                    f"the refit leaves {residual:.0%} of what fc made unexplained; see what the gate says, or"
                    " calibrate with more prompts",
                )
            )
        refit = Computed("ridge refit to the normed states", (fc,), lambda _: made)
        tensors["fc.weight"] = replace(fc, origin=refit)
        record["refit"] = {"strength": STRENGTH, **residuals}
    record |= {"fc_norm": mode, "scales": scales}
    result = replace(drafter, tensors=tensors, norms=replace(drafter.norms, fc_norm=True))
    return TransformedDrafter(result, tuple(notes), record)


def _refit(
    prior: Array, columns: Array, recipe: UpgradeRecipe, statistics: Statistics
) -> tuple[Array, Mapping[str, float]]:
    """The refit fc [hidden, aux*target_hidden], and the share of the old one's output that is unexplained.

    That is weighted as the fit: of all tokens, and where some are massive, of those and of the others. It is
    fitted in units of each layer's scale (`columns`), so that the ridge does not depend on a layer's scale.
    Solved once per recipe.
    """
    import torch

    from eaglectl.reference.collecting import solve_ridge

    key = hashlib.sha256(prior.data).digest() + columns.tobytes()
    if key in recipe.refits:
        return recipe.refits[key]
    matrices, tokens, start = statistics.matrices, statistics.tokens, prior * columns
    assert matrices is not None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # copies: solve_ridge writes over gram
    gram, cross, first = (
        torch.tensor(part, device=device) for part in (matrices.gram, matrices.cross, start)
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
    left = float((made * (lam * (start - made) - matrices.cross)).sum()) + tokens
    residuals = {ALL: sqrt(max(left / tokens, 0.0))}
    states, outputs = matrices.massive_states, matrices.massive_outputs
    if states is not None and outputs is not None and len(states) < tokens:
        massive = float(((states @ made.T - outputs) ** 2).sum())
        residuals[MASSIVE] = sqrt(massive / len(states))
        residuals[OTHERS] = sqrt(max(left - massive, 0.0) / (tokens - len(states)))
    recipe.refits[key] = made / columns, residuals
    return recipe.refits[key]


def _with_norm_output(checkpoint: Checkpoint, drafter: Drafter, recipe: UpgradeRecipe) -> TransformedDrafter:
    norms, statistics = drafter.norms, recipe.statistics
    if norms.norm_output:  # trained in: its norm.weight is part of what is fed back
        return TransformedDrafter(drafter, record={"norm_output": "as trained"})
    switched, is_exact = replace(drafter, norms=replace(norms, norm_output=True)), norms.norm_before_residual
    if statistics is None and not is_exact:
        return TransformedDrafter(switched, record={"norm_output": "flag"})
    weight = evaluate(drafter.tensors["norm.weight"], checkpoint)
    # the size of what is fed back
    size = _rms(weight) if is_exact or statistics is None else statistics.sigma
    changed = _absorbed if "lm_head.weight" in drafter.tensors else _rescaled
    tensors, record = changed(switched, weight, size, recipe.dtype)
    notes = sigma_warnings(statistics) if statistics else ()
    if is_exact:
        notes = (
            Note(
                "note",
                "norm_output",
                "norm_before_residual is true, so norm_output is the same function: nothing is lost and"
                " nothing gained by it",
            ),
        )
    return TransformedDrafter(
        replace(switched, tensors={**drafter.tensors, **tensors}), notes, {**record, "is_exact": is_exact}
    )


def _absorbed(
    drafter: Drafter, weight: Array, size: float, dtype: str | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """norm.weight is set to the size in every channel, and lm_head takes what it was."""
    norm, head = drafter.tensors["norm.weight"], drafter.tensors["lm_head.weight"]
    sigma = float(rounded(np.array(size), dtype or norm.dtype))
    factors = weight / sigma
    uniform = Computed(f"sigma = {sigma:g}, every channel", (norm,), lambda _: np.full(norm.shape, sigma))
    scaled = Computed(
        "columns times norm.weight / sigma", (head,), lambda values: values * factors, by_rows=True
    )
    tensors = {"norm.weight": replace(norm, origin=uniform), "lm_head.weight": replace(head, origin=scaled)}
    return tensors, {"norm_output": "absorbed", "sigma": sigma}


def _rescaled(
    drafter: Drafter, weight: Array, size: float, _: str | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The residual stream is scaled so that its first state has the norm's RMS."""
    rms = _rms(weight)
    if drafter.norms.norm_before_residual:
        if float(np.ptp(weight)) > UNIFORM * rms:
            raise OptionNeededError(
                "norm_output cannot be kept exact: norm.weight is not uniform and there is no own lm_head to"
                " take it; pass --materialize-lm-head with --target, or --no-norm-output"
            )
        return {}, {"norm_output": "flag"}
    scale = rms / size
    tensors = {}
    for name, tensor in drafter.tensors.items():
        if name in ("fc.weight", "fc.bias") or name.endswith(RESIDUAL_WRITERS):
            scaled = Computed(f"times {scale:g}", (tensor,), lambda values: values * scale, by_rows=True)
            tensors[name] = replace(tensor, origin=scaled)
    return tensors, {"norm_output": "residual scaled", "scale": scale}


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
    return TransformedDrafter(
        replace(drafter, norms=replace(norms, norm_output=False)),
        (
            Note(
                "note",
                "norm_output",
                "turned off: norm.weight is uniform and norm_before_residual true, so the function stays"
                " the same",
            ),
        ),
        {"downgrade": {"norm_output": "off, exact"}},
    )


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
    return not is_norm_output or bool(drafter.norms.norm_output) or drafter.norms.norm_before_residual


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
    if statistics.matrices is not None and statistics.tokens >= needed:
        return None
    why = f"{statistics.tokens} calibration tokens are too few to refit fc ({needed} at least)"
    if statistics.matrices is None:
        why = "the calibration holds no matrices to refit fc with"
    return Note(
        "warning",
        "fc.weight",
        f"{why}; the scales alone are set, as --fc-norm calibrated does: calibrate again, with more prompts",
    )


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
    sigmas = sorted(statistics.sigmas.items())
    far = [f"{name} {sigma:.4g}" for name, sigma in sigmas if abs(sigma / statistics.sigma - 1) > FAR_SIGMA]
    if not far:
        return ()
    return (
        Note(
            "warning",
            "norm_output",
            f"what is fed back differs in size between sets of prompts ({', '.join(far)}; all"
            f" {statistics.sigma:.4g}), and norm_output gives it one size: calibrate on prompts like those in"
            " production, and see that the gate's are too",
        ),
    )
