"""EAGLE-3 to EAGLE-3.1 and, where it is exact, back (docs/upgrade.md).

Nothing here runs a model: measurements come as Statistics. The output has the 3.1 layout at EAGLE-3's
acceptance; only training with the two norms improves on that.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct, field
from msgspec.structs import replace

import eaglectl
from eaglectl.base import Result
from eaglectl.conversion.plan import TransformedDrafter, UpgradeRecipe
from eaglectl.conversion.rewriting import evaluate
from eaglectl.drafter.drafter import Drafter, Feature, Note
from eaglectl.drafter.floats import Array, rounded
from eaglectl.drafter.tensors import Computed, Tensor
from eaglectl.errors import OptionNeededError, RefusedError, UnreadableError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint, read_weight_file
from eaglectl.files.files import MIB, open_regular, read_small_file
from eaglectl.files.header import header_json, parse_json
from eaglectl.files.source import Source
from eaglectl.files.writer import STATISTICS, Folder, hashed

# of the ridge; 1e-3 gives the same within the intervals on the tiny pair
STRENGTH = 1e-2
# shrinking alone leaves about a tenth; in texts of a hundred tokens, the massive states of first tokens add a
# few hundredths, since no norm fits them
LARGE_RESIDUAL = 0.2
UNIFORM = 1e-3  # the largest spread of norm.weight, relative to its RMS, that counts as uniform
RESIDUAL_WRITER = re.compile(r"^fc\.(weight|bias)$|(self_attn\.o_proj|mlp\.down_proj)\.(weight|bias)$")
TOKENS_PER_INPUT = 4  # the fewest calibration tokens per input of fc for a refit
LARGE_SPREAD = 0.25  # a larger sd of log-ratios of the states' RMS is warned of: fc_norm removes these ratios
SMALL_RMS = 100.0  # squared and in units of eps: states below it change with eps
FAR_SIGMA = 0.15  # relative to all prompts together; 30 % cost 6 % of acceptance and more


FILE, MATRICES = "statistics.json", "statistics.safetensors"
MAX_STATISTICS = 64 * MIB
WRITES = "`eaglectl calibrate SOURCE -o calibration --target TARGET` writes"
UNSTATED = {"prompts", "matrices", "gate", "out", "trust_remote_code"}  # in eaglectl.json
ENDS, PIECE = 1 << 16, 8 << 20


class Matrices(Struct, frozen=True):
    """Sums of the refit, float64: `gram` [aux*target_hidden]*2 and `cross` [hidden, aux*target_hidden]."""

    gram: Array
    cross: Array


Matches = Annotated[int, Meta(ge=0, le=64)]  # of the tokens of one draft


class PromptMatches(Struct, frozen=True):
    """The gate's results on one prompt: its digest, the target's answer, and the matches at each position.

    `before` and `after` are the numbers of leading draft tokens that match the answer, of both drafters.
    """

    prompt: str
    tokens: tuple[int, ...]
    before: tuple[Matches, ...]
    after: tuple[Matches, ...]


class GateResults(Struct, frozen=True):
    """The results of an undecided gate, for a later gate to continue.

    `of` identifies them beside the statistics; `looks` counts the looks at its intervals.
    """

    of: str
    looks: Annotated[int, Meta(ge=0)]
    prompts: tuple[PromptMatches, ...]


class Statistics(Result, frozen=True):
    """Medians over calibration tokens, and the matrices if there were enough tokens to refit fc.

    `rms` is the median RMS of each aux state, `spread` the sd of its log against the layers' mean, `sigma`
    the median RMS of the first two fed-back states, `sigmas` the same by set of prompts. `digests` are of the
    drafter, the target and all prompts together, `prompts` of each prompt. `engine` is the engine that ran
    the target; empty if unknown. `measured` has the measured answers to open questions, as in eaglectl.json;
    `gate` the results of an undecided gate. `out` is the folder of the statistics. `trust_remote_code`: the
    target's own code was allowed to run.
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
    measured: tuple[Mapping[str, Any], ...] = ()
    gate: GateResults | None = None
    out: str | None = None
    trust_remote_code: bool = False

    def __fspath__(self) -> str:
        if self.out is None:
            raise UsageError("these statistics are not in a folder; pass `out` to calibrate")
        return self.out

    def described(self) -> dict[str, Any]:
        """Return the statistics as eaglectl.json stores them, without the matrices."""
        fields = msgspec.to_builtins(replace(self, matrices=None), enc_hook=str)
        empty = set() if fields["measured"] else {"measured"}
        return {key: value for key, value in fields.items() if key not in UNSTATED | empty}


def drafter_digest(checkpoint: Checkpoint, drafter: Drafter) -> str:
    """Return the SHA-256 over the float tensors by canonical name: the same for every layout."""
    digest = hashlib.sha256()
    for name, tensor in sorted(drafter.tensors.items()):
        if name not in ("d2t", "t2d") and isinstance(tensor.origin, tuple):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            for segment in tensor.origin:
                for start in range(segment.start, segment.stop, PIECE):
                    digest.update(checkpoint.read(segment.stored, start, min(start + PIECE, segment.stop)))
    return digest.hexdigest()


def target_digest(source: Source) -> str:
    """Return the SHA-256 of a target's config, and of the size, first and last 64 KiB of each weight file."""
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

    Raises UsageError if it exists, UnreadableError if it cannot be written.
    """
    document = {
        "schema": STATISTICS.schema,
        "eaglectl": eaglectl.__version__,
        **statistics.described(),
        "prompts": list(statistics.prompts),
        "matrices": None,
    }
    if statistics.gate is not None:
        document["gate"] = msgspec.to_builtins(statistics.gate)
    with Folder(out, force=force, kind=STATISTICS) as folder:
        if statistics.matrices is not None:
            digest = hashlib.sha256()
            folder.write(MATRICES, hashed(_as_safetensors(statistics.matrices), digest))
            document["matrices"] = {"sha256": digest.hexdigest()}
        folder.write(FILE, [(json.dumps(document, indent=2) + "\n").encode()])
        folder.publish()


def _as_safetensors(matrices: Matrices) -> Iterator[bytes]:
    # the bytes of a safetensors file of the matrices, piece by piece, as they may be large
    arrays = {
        name: np.ascontiguousarray(array, "<f8") for name, array in msgspec.structs.asdict(matrices).items()
    }
    raw = header_json(
        {"format": "np"}, ((name, "F64", array.shape, array.nbytes) for name, array in arrays.items())
    )
    yield len(raw).to_bytes(8, "little") + raw
    for array in arrays.values():
        view = array.reshape(-1).data.cast("B")
        yield from (bytes(view[start : start + PIECE]) for start in range(0, len(view), PIECE))


def read_statistics(folder: Path) -> Statistics:
    """Read the statistics in a folder that `calibrate` wrote; every number is checked.

    Raises UnreadableError for anything else.
    """
    try:
        value = parse_json(FILE, read_small_file(folder / FILE, MAX_STATISTICS, "--calibration"))
        if not isinstance(value, dict) or value.get("schema") != STATISTICS.schema:
            raise UnreadableError(f"{FILE} has another schema than this version of eaglectl writes")
        statistics = msgspec.convert({**value, "matrices": None}, Statistics)
        statistics = replace(statistics, matrices=_matrices(folder, value))
        _check_numbers(statistics)
        if statistics.matrices is not None:
            _check_matrices(statistics.matrices, len(statistics.boundaries))
    except OSError as error:
        raise UnreadableError(
            f"--calibration {error.filename or folder}: {error.strerror}; pass the folder that {WRITES}",
            options=("--calibration",),
        ) from None
    except (UnreadableError, ValueError, KeyError, TypeError) as error:
        what = f"{MATRICES} has no {error}" if isinstance(error, KeyError) else str(error)
        raise UnreadableError(
            f"--calibration {folder}: not a folder that calibrate wrote ({what}); pass the one that {WRITES}",
            options=("--calibration",),
        ) from None
    return statistics


def _matrices(folder: Path, document: Mapping[str, Any]) -> Matrices | None:
    """Read the matrices beside the document, which has their digest.

    Raises UnreadableError if they differ or are truncated.
    """
    entry, path = document.get("matrices"), folder / MATRICES
    if not entry:
        return None
    file = read_weight_file(path)
    with open_regular(path, "--calibration") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    are_floats = all(tensor.dtype == "F64" for tensor in file.tensors.values())
    check(
        (digest != entry["sha256"], f"{MATRICES} is not the file that was written with {FILE}"),
        (not are_floats, f"{MATRICES} is not float64"),
        error=UnreadableError,
    )
    gram, cross = (
        np.memmap(path, "<f8", "r", file.tensors[name].start, file.tensors[name].shape)
        for name in ("gram", "cross")
    )
    return Matrices(gram, cross)


def _check_numbers(statistics: Statistics) -> None:
    # refuse statistics that no calibration writes: the file may be edited
    sizes = (*statistics.rms, *statistics.sigmas.values(), statistics.eps, statistics.sigma)
    lengths = {len(statistics.rms), len(statistics.spread), len(statistics.boundaries)}
    measured = statistics.gate.prompts if statistics.gate else ()
    check(
        (
            any(len(prompt.before) != len(prompt.after) for prompt in measured),
            "the gate's drafts before and after differ in number",
        ),
        (0 in lengths or len(lengths) > 1, "boundaries, rms and log_ratio_sd differ in length"),
        (not all(size > 0 for size in (*sizes, statistics.tokens)), "a number is not above 0"),
        error=_not_as_written,
    )


def _check_matrices(matrices: Matrices, layers: int) -> None:
    # refuse matrices for the refit that are not finite or do not fit together
    gram, cross = matrices.gram, matrices.cross
    with np.errstate(invalid="ignore", over="ignore"):
        are_finite = bool(np.isfinite(gram.sum()) and np.isfinite(cross.sum()))
    is_fitting = gram.ndim == 2 and cross.ndim == 2 and gram.shape == (cross.shape[1],) * 2
    check(
        (
            not is_fitting or len(gram) % layers,
            f"gram {list(gram.shape)} and cross {list(cross.shape)} do not fit together",
        ),
        (not are_finite, "the matrices are not finite"),
        error=_not_as_written,
    )


def _not_as_written(fault: str, **fields: Any) -> UnreadableError:
    return UnreadableError(f"{FILE} is damaged: {fault}", **fields)


def check_statistics(
    statistics: Statistics,
    checkpoint: Checkpoint,
    drafter: Drafter,
    target: Source | None,
    *,
    is_of_states: bool = False,
) -> None:
    """Raise RefusedError unless the statistics are of this drafter, its aux layers and this target.

    `is_of_states`: only the scales of the target's states are used, which drafters of the same layers share.
    """
    had_norm_before, has_norm_before = statistics.is_direction, drafter.norms.norm_before_residual
    eps, is_of_drafter = float(drafter.settings["rms_norm_eps"]), not is_of_states
    count, theirs, ours = len(statistics.boundaries), list(statistics.boundaries), drafter.aux.boundaries
    differences = (
        (
            is_of_drafter and statistics.digests.get("drafter") != drafter_digest(checkpoint, drafter),
            "is of another drafter",
        ),
        (
            is_of_drafter and had_norm_before != has_norm_before,
            f"has norm_before_residual {str(had_norm_before).lower()}, and this drafter"
            f" {str(has_norm_before).lower()}",
        ),
        (
            is_of_drafter and statistics.eps != eps,
            f"has rms_norm_eps {statistics.eps:g}, and this drafter {eps:g}",
        ),
        (count != drafter.dims.aux, f"is of {count} layers, and this drafter takes {drafter.dims.aux}"),
        (
            ours is not None and theirs != list(ours),
            f"is of boundaries {theirs}, and this drafter takes {list(ours or ())}",
        ),
        (
            target is not None and statistics.digests.get("target") != target_digest(target),
            "is of another target",
        ),
    )
    for is_present, difference in differences:
        if is_present:
            raise RefusedError(
                f"the calibration {difference}; --calibration needs the folder that {WRITES}",
                options=("--calibration",),
            )
    unknown = f"it is unknown whether this drafter takes the calibration's boundaries {theirs}"
    check((is_of_states and ours is None, f"{unknown}; pass --target or --aux-layers", ("--target",)))


def at_version(
    checkpoint: Checkpoint, drafter: Drafter, version: str | None, recipe: UpgradeRecipe
) -> TransformedDrafter:
    """Return the drafter in this EAGLE version; unchanged without a version."""
    if version == "3.1" and drafter.version in ("3.1", "3.1-joint"):
        already = Note(
            "warning",
            "upgrade",
            "this drafter is EAGLE-3.1 already: only its layout changes, and --to 3.1 calibrates and measures"
            " nothing",
        )
        return TransformedDrafter(drafter, (already,))
    if version in (None, drafter.version):
        return TransformedDrafter(drafter)
    return upgrade(checkpoint, drafter, recipe) if version == "3.1" else downgrade(checkpoint, drafter)


def upgrade(checkpoint: Checkpoint, drafter: Drafter, recipe: UpgradeRecipe) -> TransformedDrafter:
    """Return the EAGLE-3.1 drafter of an EAGLE-3 one.

    Raises RefusedError if that would break the drafter, UsageError for missing options.
    """
    check_upgrade(drafter, recipe)
    check(
        (
            not recipe.is_start
            and recipe.statistics is None
            and needs_statistics(drafter, recipe.fc_norm, recipe.is_norm_output),
            "--to 3.1 computes fc_norm and norm_output from the target's hidden states; pass --target with"
            " the target's weights, or --calibration with the folder that `eaglectl calibrate SOURCE -o"
            " calibration --target TARGET` writes; --init-only writes a starting point for training without"
            " them",
            ("--to", "--target"),
        )
    )
    result = TransformedDrafter(drafter, record={"fc_norm": "off", "norm_output": "off"})
    if recipe.fc_norm != "off":
        result = result.then(_with_fc_norm(checkpoint, drafter, recipe))
    if recipe.is_norm_output:
        result = result.then(_with_norm_output(checkpoint, result.drafter, recipe))
    record = dict(result.record)
    if recipe.statistics is not None:
        record["calibration"] = recipe.statistics.described()
    note = Note(
        "note",
        "upgrade",
        "this is the 3.1 layout at EAGLE-3's acceptance; fine-tune this output to gain from 3.1",
    )
    if recipe.is_start:
        record["needs_finetune"] = True
        note = Note(
            "warning",
            "init_only",
            "this is a starting point for training: do not serve it; its acceptance was not measured",
        )
    return TransformedDrafter(result.drafter, (*result.notes, note), {"upgrade": record})


def _with_fc_norm(checkpoint: Checkpoint, drafter: Drafter, recipe: UpgradeRecipe) -> TransformedDrafter:
    # add fc_norm, with weights of ones, of each state's size, or with fc refit to the normed states
    statistics, mode, how = recipe.statistics, "ones", "ones"
    tensors, size, fc = dict(drafter.tensors), drafter.dims.target_hidden, drafter.tensors["fc.weight"]
    scales, dtype = [1.0] * drafter.dims.aux, drafter.tensors["norm.weight"].dtype
    notes, record = list(state_warnings(statistics)) if statistics else [], dict[str, Any]()
    if statistics and recipe.fc_norm != "ones":
        mode, how = recipe.fc_norm, "median RMS of the state, every channel"
        scales = rounded(np.array(statistics.rms), recipe.dtype or dtype).tolist()
    for index, scale in enumerate(scales):
        name = f"fc_norm.{index}.weight"
        tensors[name] = Tensor(name, dtype, (size,), Computed(how, (), partial(np.full, size, scale)))
    needed = refit_tokens(drafter)
    if mode == "refit" and (statistics.matrices is None or statistics.tokens < needed):
        mode, why = "calibrated", "the calibration has no matrices to refit fc"
        if statistics.matrices is not None:
            why = f"{statistics.tokens} calibration tokens are too few to refit fc ({needed} at least)"
        text = (
            f"{why}; only the scales are set, as with --fc-norm calibrated: calibrate again with more prompts"
        )
        notes.append(Note("warning", "fc.weight", text))
    elif mode == "refit":
        refit_fc, residual = _refit(evaluate(fc, checkpoint), np.repeat(scales, size), statistics)
        if residual > LARGE_RESIDUAL:
            text = (
                f"the refit leaves {residual:.0%} of fc's output unexplained; check the gate's result, or"
                " calibrate with more prompts"
            )
            notes.append(Note("warning", "fc.weight", text))
        tensors["fc.weight"] = replace(
            fc, origin=Computed("ridge refit to the normed states", (fc,), lambda _: refit_fc)
        )
        record["refit"] = {"strength": STRENGTH, "relative_residual": residual}
    record |= {"fc_norm": mode, "scales": scales}
    return TransformedDrafter(
        replace(drafter, tensors=tensors, norms=replace(drafter.norms, fc_norm=True)), tuple(notes), record
    )


def refit_tokens(drafter: Drafter) -> int:
    """Return the fewest calibration tokens that fc can be fitted again from."""
    return TOKENS_PER_INPUT * drafter.dims.aux * drafter.dims.target_hidden


def _refit(prior: Array, columns: Array, statistics: Statistics) -> tuple[Array, float]:
    """Return the refit fc [hidden, aux*target_hidden], and the unexplained share of the old fc's output.

    The share is in units of each layer's scale (`columns`), like the fit, so that the ridge does not depend
    on a layer's scale.
    """
    import torch

    from eaglectl.reference.states import solve_ridge

    matrices, start = statistics.matrices, prior * columns
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
            "the calibration's matrix is singular; calibrate with more and more diverse prompts, or pass"
            " --fc-norm calibrated",
            options=("--fc-norm",),
        ) from None
    refit_fc = solved.cpu().numpy()
    # sum q |W n - f|^2, with gram's part taken from the equation just solved:
    # refit_fc (gram + lam) = cross + lam start
    left = float((refit_fc * (lam * (start - refit_fc) - matrices.cross)).sum()) / statistics.tokens + 1
    return refit_fc / columns, sqrt(max(left, 0.0))


def _with_norm_output(checkpoint: Checkpoint, drafter: Drafter, recipe: UpgradeRecipe) -> TransformedDrafter:
    # set norm_output so that the state that is fed back keeps its size: lm_head absorbs the change if there
    # is one, else the residual stream is scaled
    norms, statistics = drafter.norms, recipe.statistics
    if norms.norm_output:  # trained in: its norm.weight is part of what is fed back
        return TransformedDrafter(drafter, record={"norm_output": "as trained"})
    switched, is_exact = replace(drafter, norms=replace(norms, norm_output=True)), norms.norm_before_residual
    if statistics is None and not is_exact:
        return TransformedDrafter(switched, record={"norm_output": "flag"})
    weight = evaluate(drafter.tensors["norm.weight"], checkpoint)
    rms, notes = sqrt(float((weight**2).mean())), sigma_warnings(statistics) if statistics else ()
    # the size of what is fed back
    size = rms if is_exact or statistics is None else statistics.sigma
    if "lm_head.weight" in drafter.tensors:
        tensors, record = _with_size_in_head(switched, weight, size, recipe.dtype)
    else:
        tensors, record = _rescaled(switched, weight, rms, size)
    if is_exact:
        text = (
            "norm_before_residual is true, so norm_output does not change the function: nothing is lost or"
            " gained"
        )
        notes = (Note("note", "norm_output", text),)
    switched = replace(switched, tensors={**drafter.tensors, **tensors})
    return TransformedDrafter(switched, notes, {**record, "is_exact": is_exact})


def _with_size_in_head(
    drafter: Drafter, weight: Array, size: float, dtype: str | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return norm.weight with the size in every channel, and lm_head times its former weights."""
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
    drafter: Drafter, weight: Array, rms: float, size: float
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors that write the residual stream, scaled so that the state fed back keeps its size.

    None has to change if the norm comes before the residual and is uniform.
    """
    if drafter.norms.norm_before_residual:
        if float(np.ptp(weight)) > UNIFORM * rms:
            raise OptionNeededError(
                "norm_output would not be exact: norm.weight is not uniform, and the drafter has no own"
                " lm_head to absorb it; pass --materialize-lm-head with --target, or --no-norm-output",
                options=("--materialize-lm-head",),
            )
        return {}, {"norm_output": "flag"}
    scale = rms / size
    tensors = {}
    for name in filter(RESIDUAL_WRITER.search, drafter.tensors):
        tensor = drafter.tensors[name]
        tensors[name] = replace(
            tensor,
            origin=Computed(f"times {scale:g}", (tensor,), lambda values: values * scale, by_rows=True),
        )
    return tensors, {"norm_output": "residual scaled", "scale": scale}


def downgrade(checkpoint: Checkpoint, drafter: Drafter) -> TransformedDrafter:
    """Return the EAGLE-3 drafter of a 3.1 one, if it is the same function. Raises RefusedError otherwise."""
    norms, weight = drafter.norms, evaluate(drafter.tensors["norm.weight"], checkpoint)
    check(
        (
            norms.fc_norm,
            "fc_norm divides every state by its RMS, token by token, and fc cannot replace that; this drafter"
            " stays EAGLE-3.1: leave --to out",
            ("--to",),
        ),
        (
            norms.norm_before_fc,
            "norm_before_fc divides the states by their RMS, token by token, and fc cannot replace that;"
            " leave --to out",
            ("--to",),
        ),
        (
            not norms.norm_before_residual,
            "norm_output fixes the RMS of the fed-back state, and the residual keeps it; without it the"
            " function changes: leave --to out",
            ("--to",),
        ),
        (
            float(np.ptp(weight)) != 0.0,
            "norm_output feeds back a state multiplied by norm.weight, which is not uniform; without it the"
            " function changes: leave --to out",
            ("--to",),
        ),
        error=RefusedError,
    )
    text = "turned off: norm.weight is uniform and norm_before_residual true, so the function does not change"
    return TransformedDrafter(
        replace(drafter, norms=replace(norms, norm_output=False)),
        (Note("note", "norm_output", text),),
        {"downgrade": {"norm_output": "off, exact"}},
    )


def check_upgrade(drafter: Drafter, recipe: UpgradeRecipe) -> None:
    """Raise RefusedError or UsageError if this recipe cannot make the drafter 3.1, whatever the target."""
    check_changeable(drafter)
    is_rewritten = recipe.fc_norm == "refit" or recipe.is_norm_output
    check(
        (
            recipe.fc_norm != "off" and Feature.NORM_BEFORE_FC in drafter.features(),
            "this drafter norms the concatenated states already (norm_before_fc), and a second norm would"
            " change the network: pass --fc-norm off",
            ("--fc-norm",),
        ),
        (
            is_rewritten and drafter.quantisation is not None,
            "--to 3.1 would rewrite fc or lm_head, and this drafter is quantised; convert the unquantised"
            " drafter, or pass --fc-norm calibrated --no-norm-output with a --calibration of any unquantised"
            " drafter of this target and these layers",
            ("--fc-norm",),
        ),
        error=OptionNeededError,
    )
    check(
        (
            not recipe.is_start and recipe.fc_norm == "ones",
            "--fc-norm ones changes the network by the layers' scales and is only a starting point for"
            " training; pass --init-only with it",
            ("--fc-norm",),
        )
    )


def needs_statistics(drafter: Drafter, fc_norm: str, is_norm_output: bool) -> bool:
    """Whether one of the two switches is set from the target's states."""
    # norm_output needs none where it is off, trained in, or exact
    is_free = not is_norm_output or bool(drafter.norms.norm_output) or drafter.norms.norm_before_residual
    return fc_norm in ("refit", "calibrated") or not is_free


def check_changeable(drafter: Drafter) -> None:
    """Raise RefusedError for drafters that no recipe can make 3.1."""
    check(
        (
            drafter.norms.fc_norm,
            "this drafter has fc_norm already and needs no calibration; leave --to out",
            ("--to",),
        ),
        (
            Feature.PARALLEL in drafter.features(),
            "a parallel drafter's mask_hidden goes through fc like a state, and fc_norm would rescale it;"
            " P-EAGLE drafters cannot become 3.1",
        ),
        (
            drafter.aux.order,
            "the layer ids are not in ascending order; convert to vLLM's layout first, then that output"
            " --to 3.1",
            ("--to",),
        ),
        error=RefusedError,
    )


def state_warnings(statistics: Statistics) -> Iterator[Note]:
    """Yield warnings on the target's states."""
    if (spread := max(statistics.spread)) > LARGE_SPREAD:
        yield Note(
            "warning",
            "aux layers",
            "the RMS of the layers' states varies from token to token, relative to each other (sd of"
            f" log-ratios {spread:.2f}); fc_norm distorts their mixture by as much",
        )
    sizes = zip(statistics.boundaries, statistics.rms, strict=True)
    if small := [boundary for boundary, rms in sizes if rms**2 < SMALL_RMS * statistics.eps]:
        yield Note(
            "warning",
            "aux layers",
            f"the states at boundaries {small} are so small that rms_norm_eps {statistics.eps:g} changes"
            " their norm",
        )


def sigma_warnings(statistics: Statistics) -> tuple[Note, ...]:
    """Return a warning if sets of prompts differ in sigma; the output has one sigma."""
    sigmas = sorted(statistics.sigmas.items())
    far = [f"{name} {sigma:.4g}" for name, sigma in sigmas if abs(sigma / statistics.sigma - 1) > FAR_SIGMA]
    text = (
        f"the RMS of fed-back states differs between sets of prompts ({', '.join(far)}; all"
        f" {statistics.sigma:.4g}), and norm_output gives them one: calibrate on prompts like those in"
        " production, and use such prompts for the gate too"
    )
    return (Note("warning", "norm_output", text),) if far else ()
