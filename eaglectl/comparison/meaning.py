"""What two drafters mean, fact by fact; a fact that a file leaves open is never called equal to one that another states."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from eaglectl.comparison.comparison import Fact, FactState, Side
from eaglectl.drafter.boundaries import AuxLayers, Convention, may_be_default, sorted_order, to_boundaries
from eaglectl.drafter.drafter import Drafter, Feature, Rope
from eaglectl.drafter.tensors import Dimensions
from eaglectl.formats.keys import MISSING, Keys
from eaglectl.formats.reading import MASK_KEYS

# what a scaling means where it is silent (transformers 5.19 modeling_rope_utils.py, vLLM 0.32.0 yarn_scaling_rope.py)
YARN: Mapping[str, float] = {"beta_fast": 32, "beta_slow": 1}
SLIDING = ("sliding_window", "layer_types")
DEPTH = "the default depends on the target's depth; pass --target"


def facts(a: Side, b: Side) -> Iterator[Fact]:
    """Every fact but the draft vocabulary, which is tensor data."""
    one, other = a.drafter, b.drafter
    output = _norm_output(a, b)
    yield fact("kind", one.kind, other.kind)
    yield _version(one, other, output.state)
    yield _boundaries(a, b)
    yield fact("fc_norm", one.norms.fc_norm, other.norms.fc_norm)
    yield output
    yield fact("norm_before_fc", one.norms.norm_before_fc, other.norms.norm_before_fc)
    yield fact("norm_before_residual", one.norms.norm_before_residual, other.norms.norm_before_residual)
    yield fact("attention", one.dims.attention, other.dims.attention)
    for name in Dimensions.__dataclass_fields__:
        mine, theirs = getattr(one.dims, name), getattr(other.dims, name)
        if mine or theirs:
            yield fact(name, mine or None, theirs or None)
    yield from _rope(one, other)
    for key in one.settings:
        yield fact(key, one.settings[key], other.settings.get(key))
    yield fact("sliding_window", _sliding(one), _sliding(other))
    yield fact("mask_token_id", _mask_token(one), _mask_token(other))
    yield fact("logit_scale", _carried(one, "logit_scale", 1.0), _carried(other, "logit_scale", 1.0))
    yield fact("quantisation", one.quantisation, other.quantisation)


def fact(name: str, a: Any, b: Any, why: str = "") -> Fact:
    """A fact that both sides state."""
    return Fact(name, a, b, "equal" if a == b else "differs", why)


def _version(one: Drafter, other: Drafter, output: FactState) -> Fact:
    if one.norms.norm_output is None or other.norms.norm_output is None:
        return Fact("eagle", one.version, other.version, output, "norm_output decides it")
    return fact("eagle", one.version, other.version)


def _norm_output(a: Side, b: Side) -> Fact:
    one, other = a.drafter.norms.norm_output, b.drafter.norms.norm_output
    if one is not None and other is not None:
        return fact("norm_output", one, other)
    said = [Keys(side.flat).take("norm_output") for side in (a, b)]
    if one is other and said[0] == said[1] and a.drafter.producer == b.drafter.producer:
        why = "neither file says what was trained, and both are written alike"
        return Fact("norm_output", one, other, "equal", why)
    return Fact("norm_output", one, other, "unknown", _question(a, b, "norm_output"))


def _question(a: Side, b: Side, about: str) -> str:
    """What the sides ask on a subject, once where both ask the same."""
    asked: dict[str, list[str]] = {}
    for name, side in (("A", a), ("B", b)):
        for note in side.drafter.told("question"):
            if note.about == about:
                asked.setdefault(note.text, []).append(name)
    return "; ".join(f"{' and '.join(names)}: {text}" for text, names in asked.items())


def _boundaries(a: Side, b: Side) -> Fact:
    one, other = a.drafter.aux, b.drafter.aux
    values = _shown(one), _shown(other)
    if one.boundaries is not None and other.boundaries is not None:
        return fact("boundaries", *values)
    if one.is_default and other.is_default:
        return Fact("boundaries", *values, "equal")
    is_alike = a.drafter.producer == b.drafter.producer and one.is_default == other.is_default
    if is_alike and one.ids == other.ids and one.boundaries is other.boundaries:
        return Fact("boundaries", *values, "equal", "neither file says what its ids mean, and both are written alike")
    if not _may_agree(one, other):
        return Fact("boundaries", *values, "differs", "in every way of reading them")
    asks = [_question(a, b, "aux layers")] + [DEPTH] * (one.is_default or other.is_default)
    return Fact("boundaries", *values, "unknown", "; ".join(filter(None, asks)))


def _shown(aux: AuxLayers) -> Any:
    if aux.boundaries is not None:
        return list(aux.boundaries)
    if aux.is_default:
        return "2, n//2, n-3"
    return f"ids {', '.join(map(str, aux.ids))}, of unknown meaning" if aux.ids else "not stated"


def _may_agree(one: AuxLayers, other: AuxLayers) -> bool:
    mine, theirs = _readings(one), _readings(other)
    if mine is not None and theirs is not None:
        return bool(mine & theirs)
    known = theirs if mine is None else mine
    default = one.is_default if mine is None else other.is_default
    return known is None or not default or any(map(may_be_default, known))


def _readings(aux: AuxLayers) -> frozenset[tuple[int, ...]] | None:
    """The boundaries that a drafter may mean; None where there is no end of them."""
    if aux.boundaries is not None:
        return frozenset({aux.boundaries})
    if aux.ids is None:
        return None
    return frozenset(sorted_order(to_boundaries(aux.ids, convention))[0] for convention in get_args(Convention))


def _rope(one: Drafter, other: Drafter) -> Iterator[Fact]:
    yield fact("rope_theta", one.rope.theta, other.rope.theta)
    yield fact("rope_scaling", _scaling(one.rope), _scaling(other.rope))
    if one.dims.attention == "MLA" or other.dims.attention == "MLA":
        yield fact("rope_interleave", one.rope.is_interleaved, other.rope.is_interleaved)
        yield fact("rope_factors", list(one.rope.mla_factors), list(other.rope.mla_factors))
    yield fact("partial_rotary_factor", _share(one), _share(other))


def _scaling(rope: Rope) -> Mapping[str, Any] | None:
    """The scaling with what it means where it is silent."""
    stated = {key: value for key, value in (rope.scaling or {}).items() if value is not None and key != "partial_rotary_factor"}  # fmt: skip
    if stated.get("rope_type", "default") == "default" and len(stated) <= 1:
        return None
    return {**YARN, **stated} if stated.get("rope_type") == "yarn" else stated


def _share(drafter: Drafter) -> Any:
    return (drafter.rope.scaling or {}).get("partial_rotary_factor") or _carried(drafter, "partial_rotary_factor", 1.0)


def _sliding(drafter: Drafter) -> Mapping[str, Any] | None:
    if Feature.SLIDING_WINDOW not in drafter.features():
        return None
    return {key: drafter.carried.get(key) for key in SLIDING}


def _mask_token(drafter: Drafter) -> Any:
    found = [Keys(drafter.carried).at(key) for key in MASK_KEYS] if Feature.PARALLEL in drafter.features() else []
    return next((value for value in found if value is not MISSING), None)


def _carried(drafter: Drafter, key: str, absent: Any) -> Any:
    value = drafter.carried.get(key)
    return absent if value is None else value
