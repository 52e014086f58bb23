"""What two drafters mean, fact by fact; a fact that one file leaves open is never equal to a stated one."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, get_args

from msgspec.structs import replace

from eaglectl.comparison.comparison import Fact, Side, TensorPair, TensorSide
from eaglectl.drafter.boundaries import (
    TRAINING_DEFAULT,
    AuxLayers,
    Convention,
    sorted_order,
    to_boundaries,
)
from eaglectl.drafter.drafter import Drafter, Feature, Rope
from eaglectl.drafter.tensors import Dimensions
from eaglectl.files.checkpoint import Checkpoint, history
from eaglectl.formats.config_keys import Keys, mask_token
from eaglectl.formats.settling import RECORDED, is_config_edited
from eaglectl.verdicts import FactState

# defaults of a scaling (transformers 5.19 modeling_rope_utils.py, vLLM 0.32.0 yarn_scaling_rope.py)
YARN: Mapping[str, float] = {"beta_fast": 32, "beta_slow": 1}
SLIDING = ("sliding_window", "layer_types")
# facts that are left out where neither drafter has them, and those of MLA alone
OF_SOME = Dimensions.__struct_fields__
OF_MLA = ("rope_interleave", "rope_factors")
DEPTH = "the default depends on the target's depth; pass --target"


def compare_facts(a: Side, b: Side) -> Iterator[Fact]:
    """Every fact but the draft vocabulary, which is tensor data."""
    output = _norm_output(a, b)
    special = {
        "eagle": _version(a.drafter, b.drafter, output.state),
        "boundaries": _boundaries(a, b),
        "norm_output": output,
        "rope_scaling": stated_fact("rope_scaling", _scaling(a.drafter.rope), _scaling(b.drafter.rope)),
    }
    values_b, is_mla = _values(b.drafter), "MLA" in (a.drafter.dims.attention, b.drafter.dims.attention)
    for name, value in _values(a.drafter).items():
        is_of_both = name not in OF_SOME or (value, values_b[name]) != (None, None)
        if is_of_both and (is_mla or name not in OF_MLA):
            yield special.get(name) or stated_fact(name, value, values_b[name])


def _values(drafter: Drafter) -> dict[str, Any]:
    """The value of each fact that a drafter states, in the order in which facts are listed."""
    dims, norms, rope = drafter.dims, drafter.norms, drafter.rope
    carried = {key: value for key, value in drafter.carried.items() if value is not None}
    is_sliding = Feature.SLIDING_WINDOW in drafter.features()
    return {
        "kind": drafter.kind,
        "eagle": drafter.version,
        "boundaries": _shown(drafter.aux),
        "fc_norm": norms.fc_norm,
        "norm_output": norms.norm_output,
        "norm_before_fc": norms.norm_before_fc,
        "norm_before_residual": norms.norm_before_residual,
        "attention": dims.attention,
        **{name: getattr(dims, name) or None for name in OF_SOME},
        "rope_theta": rope.theta,
        "rope_scaling": _scaling(rope),
        "rope_interleave": rope.is_interleaved,
        "rope_factors": list(rope.mla_factors),
        "partial_rotary_factor": (rope.scaling or {}).get("partial_rotary_factor")
        or carried.get("partial_rotary_factor", 1.0),
        **drafter.settings,
        "sliding_window": {key: carried.get(key) for key in SLIDING} if is_sliding else None,
        "mask_token_id": mask_token(carried) if Feature.PARALLEL in drafter.features() else None,
        "logit_scale": carried.get("logit_scale", 1.0),
        "quantisation": drafter.quantisation,
    }


def stated_fact(name: str, a: Any, b: Any, why: str = "") -> Fact:
    """A fact that both sides state."""
    return Fact(name, a, b, FactState.EQUAL if a == b else FactState.DIFFERS, why)


def _version(a: Drafter, b: Drafter, output: FactState) -> Fact:
    if a.norms.norm_output is None or b.norms.norm_output is None:
        return Fact("eagle", a.version, b.version, output, "norm_output decides it")
    return stated_fact("eagle", a.version, b.version)


def _norm_output(a: Side, b: Side) -> Fact:
    value_a, value_b = a.drafter.norms.norm_output, b.drafter.norms.norm_output
    if value_a is not None and value_b is not None:
        return stated_fact("norm_output", value_a, value_b)
    stated = [Keys(side.flat).value("norm_output") for side in (a, b)]
    is_alike = stated[0] == stated[1] and a.drafter.producer == b.drafter.producer
    if value_a is value_b and is_alike:
        why = "neither file says what was trained, and both are written alike"
        return Fact("norm_output", value_a, value_b, FactState.EQUAL, why)
    return Fact("norm_output", value_a, value_b, FactState.UNKNOWN, _question(a, b, "norm_output"))


def questions(a: Side, b: Side, subjects: Collection[str]) -> Iterator[str]:
    """The open questions on `subjects`, each once, with the sides that have it."""
    sides: dict[str, list[str]] = {}
    for name, side in (("A", a), ("B", b)):
        for note in side.drafter.notes_at("question"):
            if note.about in subjects:
                sides.setdefault(note.text, []).append(name)
    return (f"{' and '.join(names)}: {text}" for text, names in sides.items())


def _question(a: Side, b: Side, subject: str) -> str:
    return "; ".join(questions(a, b, (subject,)))


def _boundaries(a: Side, b: Side) -> Fact:
    aux_a, aux_b = a.drafter.aux, b.drafter.aux
    values = _shown(aux_a), _shown(aux_b)
    if aux_a.boundaries is not None and aux_b.boundaries is not None:
        return stated_fact("boundaries", *values)
    if aux_a.is_default and aux_b.is_default:
        return Fact("boundaries", *values, FactState.EQUAL)
    is_one_default = aux_a.is_default == aux_b.is_default and aux_a.boundaries is aux_b.boundaries
    if a.drafter.producer == b.drafter.producer and is_one_default and aux_a.ids == aux_b.ids:
        why = "neither file says what its ids mean, and both are written alike"
        return Fact("boundaries", *values, FactState.EQUAL, why)
    if not _may_agree(aux_a, aux_b):
        return Fact("boundaries", *values, FactState.DIFFERS, "in every way of reading them")
    reasons = [_question(a, b, "aux layers")] + [DEPTH] * (aux_a.is_default or aux_b.is_default)
    return Fact("boundaries", *values, FactState.UNKNOWN, "; ".join(filter(None, reasons)))


def by_record(fact: Fact, a: Side, b: Side, pairs: Sequence[TensorPair]) -> Fact:
    """The fact of boundaries, settled where one side is the other's conversion by its default layers.

    The side's eaglectl.json names the other's tensors by digest, and its layers by the default that the other
    means. That is no evidence of the layers, which both have from one reading of the same files.
    """
    if fact.state != FactState.UNKNOWN or any(pair.differs for pair in pairs):
        return fact
    for name, source, other, out in (("A", a, "B", b), ("B", b, "A", a)):
        default = source.drafter.aux
        sides = [side for pair in pairs if (side := pair.a if source is a else pair.b)]
        is_of_default = default.is_default and out.drafter.aux.how == f"{RECORDED}{default.how}"
        if not is_of_default or not _is_made_of(out.checkpoint, sides):
            continue
        why = (
            f"{other}'s eaglectl.json: {name}'s tensors with {name}'s own default, for the target given then"
        )
        return replace(fact, state=FactState.EQUAL, why=why)
    return fact


def _is_made_of(checkpoint: Checkpoint, sides: Collection[TensorSide]) -> bool:
    """Whether the record of a conversion, or one before it, names these tensors' data as its source."""
    if not sides or is_config_edited(checkpoint):
        return False
    for entry in history(checkpoint.record):
        match entry:
            case {"source": {"files": Mapping() as files}}:
                stated = [file.get("tensors") for file in files.values() if isinstance(file, Mapping)]
                named = {
                    str(text)
                    for tensors in stated
                    if isinstance(tensors, Mapping)
                    for text in tensors.values()
                }
                if all(side.sha256 in named or side.blake3 in named for side in sides):
                    return True
    return False


def _shown(aux: AuxLayers) -> Any:
    if aux.boundaries is not None:
        return list(aux.boundaries)
    if aux.is_default:
        return TRAINING_DEFAULT.terms
    return f"ids {', '.join(map(str, aux.ids))}, of unknown meaning" if aux.ids else "not stated"


def _may_agree(a: AuxLayers, b: AuxLayers) -> bool:
    """Whether the two may mean the same boundaries."""
    readings_a, readings_b = _readings(a), _readings(b)
    if readings_a is not None and readings_b is not None:
        return bool(readings_a & readings_b)
    known, is_default = (readings_b, a.is_default) if readings_a is None else (readings_a, b.is_default)
    return known is None or not is_default or any(map(TRAINING_DEFAULT.may_be, known))


def _readings(aux: AuxLayers) -> frozenset[tuple[int, ...]] | None:
    """The boundaries that a drafter may mean; None where any are possible."""
    if aux.boundaries is not None:
        return frozenset({aux.boundaries})
    if aux.ids is None:
        return None
    return frozenset(
        sorted_order(to_boundaries(aux.ids, convention))[0] for convention in get_args(Convention)
    )


def _scaling(rope: Rope) -> Mapping[str, Any] | None:
    """The scaling with the defaults of the keys that it lacks."""
    stated = {
        key: value
        for key, value in (rope.scaling or {}).items()
        if value is not None and key != "partial_rotary_factor"
    }
    if stated.get("rope_type", "default") == "default" and len(stated) <= 1:
        return None
    return {**YARN, **stated} if stated.get("rope_type") == "yarn" else stated
