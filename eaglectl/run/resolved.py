"""An engine's resolved settings of a drafter, read in the engine's own process: shared by vLLM and SGLang.

Also their differences from what the checkpoint means, and the recorder of a first draft.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any

from msgspec.json import decode, encode

from eaglectl.drafter.drafter import ENGINE_FACTORS, TRANSFORMERS_FACTORS, Drafter, Rope
from eaglectl.drafter.tensors import evenly_spaced
from eaglectl.errors import EaglectlError, error_text
from eaglectl.text import listed

# of a bfloat16 table of cosines; bases that differ by a tenth differ by more in the slower half
ROPE_TOLERANCE = 0.02
# tokens of the prompt after which a draft is recorded, its steps, and the most positions of the first step
RECORDED, STEPS, POSITIONS = 64, 3, 8


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
    """Return the same of the drafter's own training; None where the reference has no such scaling.

    "keys" are those of its scaling that set the factor.
    """
    is_mla = drafter.dims.attention == "MLA"
    dim = drafter.dims.qk_rope_head_dim if is_mla else drafter.dims.head_dim
    keys = [key for key in (*TRANSFORMERS_FACTORS, *ENGINE_FACTORS) if key in (drafter.rope.scaling or {})]
    with suppress(EaglectlError):
        frequencies, scale = _rotary(encode(drafter.rope), dim, is_mla)
        return {"frequencies": frequencies, "scale": scale, "keys": keys}
    return None


@cache
def _rotary(rope: bytes, dim: int, is_mla: bool) -> tuple[list[float], float]:
    # the reference's frequencies and factor; its scalings import transformers
    from eaglectl.reference.model import Rotary

    rotary = Rotary(decode(rope, type=Rope), dim, is_mla=is_mla, device="cpu")
    return rotary.frequencies.tolist(), rotary.scale


def same_frequencies(used: Mapping[str, Any], trained: Mapping[str, Any]) -> bool:
    """Whether two rotary embeddings turn alike, as far as a table of 8 bits shows."""
    if len(used["frequencies"]) != len(trained["frequencies"]):
        return False
    pairs = zip(used["frequencies"], trained["frequencies"], strict=True)
    return all(isclose(*pair, rel_tol=ROPE_TOLERANCE) for pair in pairs)


def score_factor(used: Mapping[str, Any] | None, trained: Mapping[str, Any] | None) -> float | None:
    """Return the factor on attention scores of a rotary embedding beside the trained one; None if unknown.

    Queries and keys both have the factor on cos and sin. It is 1 as far as a table of 8 bits shows.
    """
    if not used or not trained or isclose(used["scale"], trained["scale"], rel_tol=ROPE_TOLERANCE):
        return 1.0 if used and trained else None
    return float((used["scale"] / trained["scale"]) ** 2)


def _other_rope(title: str, used: Mapping[str, Any], trained: Mapping[str, Any]) -> Iterator[str]:
    # how an engine's rotary embedding differs from the trained one, if it does
    if not same_frequencies(used, trained):
        yield f"rope: {title} rotates with other frequencies than those of training"
    if (factor := score_factor(used, trained)) != 1:
        keys = listed(trained["keys"]) or "rope_scaling"
        yield f"rope: {title} has attention scores x {factor:.3g}: it does not read {keys} as training did"


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
                yield from _other_rope(title, used, value)
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


class Recorder:
    """Keeps what a drafter computes in one draft, in the engine's process; it changes nothing there.

    `tensors` are "states" [tokens, aux*hidden], and by step N "tokens.N", "positions.N" and "logits.N" [rows,
    vocabulary]: step 0 has the rows in "rows", the others have one. `gap` is why there are none.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self.undo: list[Callable[[], object]] = []
        self.steps, self.gap, self.is_on = 0, "", True

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Keep an error of ours as the gap; the engine goes on."""
        try:
            yield
        except Exception as error:
            self.gap, self.is_on = error_text(error), False

    def add_states(self, states: Any) -> None:
        """Keep the target's states at the beginning of a draft; a second one ends the record."""
        self.is_on = self.is_on and not self.steps
        if self.is_on:
            self.tensors["states"] = states.detach().cpu().clone()

    def add_step(
        self, tokens: Any, positions: Any, logits_of: Callable[[Any], Any], *, is_last_only: bool = False
    ) -> None:
        """Keep a step's tokens, positions and logits: `logits_of` returns those of rows, or of the last."""
        if not self.is_on or self.steps == STEPS or "states" not in self.tensors:
            return
        if tokens is None:  # a multimodal drafter's
            self.gap, self.is_on = "it takes embeddings in place of token ids", False
            return
        count = len(self.tensors["states"]) if self.steps == 0 else 1
        # text has the same position on all axes of mrope
        places = positions if positions.dim() == 1 else positions[0]
        rows = tokens.new_tensor([count - 1] if is_last_only else evenly_spaced(count, POSITIONS)).long()
        step = {"tokens": tokens[:count], "positions": places[:count], "logits": logits_of(rows)}
        self.tensors |= {f"{name}.{self.steps}": value.detach().cpu().clone() for name, value in step.items()}
        if self.steps == 0:
            self.tensors["rows"] = rows.cpu()
            self.gap = "" if len(tokens) == count else "it drafts several tokens in one step"
        self.steps += 1

    def write(self, path: str) -> dict[str, str]:
        """End the record, and write its tensors to a file; return the gap and the dtype of the states."""
        from safetensors.torch import save_file

        self.is_on = False
        for undo in self.undo:
            undo()
        if not self.steps:
            return {"gap": self.gap or "the engine's drafter was not called from Python", "dtype": ""}
        save_file({name: value.contiguous() for name, value in self.tensors.items()}, Path(path))
        return {"gap": self.gap, "dtype": str(self.tensors["states"].dtype).removeprefix("torch.")}
