"""An engine's resolved settings of a drafter, read in the engine's own process: shared by vLLM and SGLang.

Also their differences from what the checkpoint means.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from math import isclose
from typing import Any

from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import EaglectlError
from eaglectl.text import listed

# of a bfloat16 table of cosines; bases that differ by a tenth differ by more in the slower half
ROPE_TOLERANCE = 0.02


Guard = Callable[[], AbstractContextManager[object]]


def load_over_nan(
    parameters: Iterable[tuple[str, Any]], load: Callable[[], object], guard: Guard = nullcontext
) -> dict[str, Any]:
    """Return the parameters by name that `load` leaves unfilled, at least in part; old values come back.

    Both ends of each row are NaN before `load`: loaders fill rows, or their first or last part. `guard` is
    around all but `load`.
    """
    marked, holes = dict[str, tuple[Any, Any]](), dict[str, Any]()
    with guard():
        _mark(parameters, marked)
    try:
        load()
    finally:
        with guard():
            holes = _unmark(marked)
    return holes


def _mark(parameters: Iterable[tuple[str, Any]], marked: dict[str, tuple[Any, Any]]) -> None:
    for name, parameter in parameters:
        if parameter.dtype.is_floating_point and not parameter.is_meta:
            marked[name] = (parameter, former := _marked(parameter).float().clone())
            # a number of 8 bits is not filled otherwise
            _marked(parameter).copy_(former.new_full(former.shape, float("nan")))


def _unmark(marked: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    # the parameters that still hold NaN, which loading did not fill; their old values come back
    holes = {}
    for name, (parameter, former) in marked.items():
        now = _marked(parameter)
        values = now.float()
        if values.shape == former.shape and bool((is_hole := values.isnan()).any()):
            now.copy_(former.where(is_hole, values))
            holes[name] = parameter
    return holes


def _marked(parameter: Any) -> Any:
    # the ends of each row, a view
    return parameter.data[..., :: max(1, parameter.shape[-1] - 1)] if parameter.dim() > 1 else parameter.data


def vocabulary_in(model: Any) -> list[int] | None:
    """Return the rows of an engine's head for drafts, and of the target's vocabulary; None if not shown."""
    rows = getattr(getattr(model, "lm_head", None), "org_vocab_size", None)
    whole = getattr(getattr(model, "config", None), "vocab_size", None)
    return None if rows is None or whole is None else [rows, whole]


def rope_in(layer: Any) -> dict[str, Any] | None:
    """Return the rotary embedding of an engine's layer: inverse frequencies, and the factor on cos and sin.

    Taken from the table that it rotates by, [positions, cos then sin]; None if the layer shows none.
    """
    tables = (getattr(module, "cos_sin_cache", None) for module in layer.modules())
    table = next((table for table in tables if table is not None), None)
    if table is None or len(table) < 2:
        return None
    cos, sin = table[1].float().chunk(2)
    return {"frequencies": sin.atan2(cos).tolist(), "scale": float(cos.hypot(sin).mean())}


def trained_rope(drafter: Drafter) -> dict[str, Any] | None:
    """Return the same of the drafter's own training; None where the reference has no such scaling."""
    from eaglectl.reference.model import Rotary

    is_mla = drafter.dims.attention == "MLA"
    dim = drafter.dims.qk_rope_head_dim if is_mla else drafter.dims.head_dim
    with suppress(EaglectlError):
        rotary = Rotary(drafter.rope, dim, is_mla=is_mla, device="cpu")
        return {"frequencies": rotary.frequencies.tolist(), "scale": rotary.scale}
    return None


def same_rope(used: Mapping[str, Any], trained: Mapping[str, Any]) -> bool:
    """Whether two rotary embeddings turn alike, as far as a table of 8 bits shows."""
    pairs = [(used["scale"], trained["scale"])]
    if len(used["frequencies"]) != len(trained["frequencies"]):
        return False
    pairs += zip(used["frequencies"], trained["frequencies"], strict=True)
    return all(isclose(*pair, rel_tol=ROPE_TOLERANCE) for pair in pairs)


def meant_settings(drafter: Drafter, tokens: Sequence[int] | None) -> dict[str, Any]:
    """Return what an engine should resolve, under the names of `resolved`; None where that is not known.

    `tokens` is the target token of each draft token.
    """
    norms, dims = drafter.norms, drafter.dims
    # in the order in which the stored fc takes them
    boundaries = drafter.aux.listed
    return {
        "aux_layers": None if boundaries is None else list(boundaries),
        "fc_norm": norms.fc_norm,
        "norm_output": norms.norm_output,
        "norm_before_fc": norms.norm_before_fc,
        "norm_before_residual": norms.norm_before_residual,
        "rope": trained_rope(drafter),
        "draft_tokens": None if tokens is None else list(tokens),
        "vocabulary": [dims.draft_vocab, dims.vocab],
        "unfilled": [],
    }


def unlike(title: str, resolved: Mapping[str, Any], meant: Mapping[str, Any]) -> Iterator[str]:
    """Yield where an engine's settings are not those that the checkpoint means."""
    for key, value in meant.items():
        used = resolved.get(key)
        if used is None or value is None or used == value:
            continue
        match key:
            case "rope":
                if not same_rope(used, value):
                    yield f"rope: {title} rotates with other frequencies than those of training"
            case "draft_tokens":
                yield _other_tokens(title, used, value)
            case "unfilled":
                yield f"{title} uses {listed(used)}, which neither the file nor the target fills"
            case _:
                yield f"{key}: {title} uses {used}, the checkpoint means {value}"


def _other_tokens(title: str, used: Sequence[int], meant: Sequence[int]) -> str:
    if len(used) != len(meant):
        return f"d2t: {title} uses {len(used)} draft tokens, the checkpoint has {len(meant)}"
    places = [place for place, pair in enumerate(zip(used, meant, strict=True)) if pair[0] != pair[1]]
    return f"d2t: {title} maps {len(places)} of {len(meant)} draft tokens differently, first {places[0]}"
