"""What two drafters mean, fact by fact; a fact that one file leaves open is never equal to a stated one.

Draft vocabularies are compared as target tokens, from offsets or absolute ids, in any order.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, get_args

from msgspec import Struct

from eaglectl.comparison.comparison import Fact, KeyPair, NamePair, Remark, SharedRows, Side, Spelling
from eaglectl.comparison.pairing import tensors_of
from eaglectl.drafter.boundaries import (
    TRAINING_DEFAULT,
    AuxLayers,
    Convention,
    sorted_order,
    to_boundaries,
)
from eaglectl.drafter.drafter import Drafter, Feature, Rope
from eaglectl.drafter.tensors import Dimensions, Tensor
from eaglectl.drafter.vocabulary import as_int64, numbers, read_vocabulary
from eaglectl.errors import RefusedError, UsageError
from eaglectl.files.layout import VOCABULARY_PICKLES
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.config_keys import Keys, mask_token
from eaglectl.text import listed
from eaglectl.verdicts import FactState

# defaults of a scaling (transformers 5.19 modeling_rope_utils.py, vLLM 0.32.0 yarn_scaling_rope.py)
YARN: Mapping[str, float] = {"beta_fast": 32, "beta_slow": 1}
SLIDING = ("sliding_window", "layer_types")
# facts that are left out where neither drafter has them, and those of MLA alone
OF_SOME = Dimensions.__struct_fields__
OF_MLA = ("rope_interleave", "rope_factors")
DEPTH = "the default depends on the target's depth; pass --target"
WRITTEN_ALIKE = "neither file says what {}, and both are written alike"
DRAFT_TOKENS = "draft_tokens"
CONVENTIONS = {"boundary": "boundaries", "output": "outputs of layers", None: "of unknown meaning"}


def compare_facts(a: Side, b: Side) -> Iterator[Fact]:
    """Every fact but the draft vocabulary, which is tensor data."""
    special = {
        "eagle": _version(a, b),
        "boundaries": _boundaries(a, b),
        "norm_output": _norm_output(a, b),
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


def stated_fact(name: str, a: Any, b: Any, why: str = "") -> Fact:
    """A fact that both sides state."""
    return Fact(name, a, b, FactState.EQUAL if a == b else FactState.DIFFERS, why)


def _version(a: Side, b: Side) -> Fact:
    versions = a.drafter.version, b.drafter.version
    if None in (a.drafter.norms.norm_output, b.drafter.norms.norm_output):
        return Fact("eagle", *versions, _norm_output(a, b).state, "norm_output decides it")
    return stated_fact("eagle", *versions)


def _norm_output(a: Side, b: Side) -> Fact:
    values = a.drafter.norms.norm_output, b.drafter.norms.norm_output
    if None not in values:
        return stated_fact("norm_output", *values)
    stated = [Keys(side.flat).value("norm_output") for side in (a, b)]
    is_alike = stated[0] == stated[1] and a.drafter.producer == b.drafter.producer
    if values[0] is values[1] and is_alike:
        return Fact("norm_output", *values, FactState.EQUAL, WRITTEN_ALIKE.format("was trained"))
    return Fact("norm_output", *values, FactState.UNKNOWN, "; ".join(questions(a, b, ("norm_output",))))


def questions(a: Side, b: Side, subjects: Collection[str]) -> Iterator[str]:
    """The open questions on `subjects`, each once, with the sides that have it."""
    sides: dict[str, list[str]] = {}
    for name, side in (("A", a), ("B", b)):
        for note in side.drafter.notes_at("question"):
            if note.about in subjects:
                sides.setdefault(note.text, []).append(name)
    return (f"{' and '.join(names)}: {text}" for text, names in sides.items())


def _boundaries(a: Side, b: Side) -> Fact:
    aux_a, aux_b = a.drafter.aux, b.drafter.aux
    values = _shown(aux_a), _shown(aux_b)
    if aux_a.boundaries is not None and aux_b.boundaries is not None:
        return stated_fact("boundaries", *values)
    if aux_a.is_default and aux_b.is_default:
        return Fact("boundaries", *values, FactState.EQUAL)
    is_one_default = aux_a.is_default == aux_b.is_default and aux_a.boundaries is aux_b.boundaries
    if a.drafter.producer == b.drafter.producer and is_one_default and aux_a.ids == aux_b.ids:
        return Fact("boundaries", *values, FactState.EQUAL, WRITTEN_ALIKE.format("its ids mean"))
    if not _may_agree(aux_a, aux_b):
        return Fact("boundaries", *values, FactState.DIFFERS, "in every way of reading them")
    reasons = [*questions(a, b, ("aux layers",)), *[DEPTH] * (aux_a.is_default or aux_b.is_default)]
    return Fact("boundaries", *values, FactState.UNKNOWN, "; ".join(reasons))


def _shown(aux: AuxLayers) -> Any:
    if aux.boundaries is not None:
        return list(aux.boundaries)
    if aux.is_default:
        return TRAINING_DEFAULT.terms
    return f"ids {', '.join(map(str, aux.ids))}, of unknown meaning" if aux.ids else "not stated"


def _may_agree(a: AuxLayers, b: AuxLayers) -> bool:
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


class VocabularyReading(Struct, frozen=True):
    """What d2t and t2d of one side may mean, as lists of target tokens.

    There is one list where the meaning is known, and none where the maps are broken. `how` explains that.
    `is_absent`: the files hold no map. `raw` are the stored integers as bytes.
    """

    lists: tuple[tuple[int, ...], ...]
    how: str
    raw: tuple[bytes | None, ...]
    is_absent: bool = False

    @property
    def tokens(self) -> tuple[int, ...] | None:
        """The target token of each draft token, where it is known."""
        return self.lists[0] if len(self.lists) == 1 else None


def read_tokens(side: Side, answer: str | None) -> VocabularyReading:
    """The draft vocabulary; `answer` ("offset", "absolute") decides a d2t that fits as both.

    Raises UnreadableError.
    """
    drafter, source = side.drafter, side.checkpoint.source
    maps = [drafter.tensors.get(name) for name in ("d2t", "t2d")]
    if not any(maps) and not drafter.has_reduced_vocabulary:
        every = tuple(range(drafter.dims.vocab))
        return VocabularyReading((every,), "no map: all tokens, in their order", (None, None))
    raw = tuple(None if tensor is None else side.checkpoint.read(tensor.stored[0]) for tensor in maps)
    if maps[0] is None and (maps[1] is None or by_name(drafter.producer).has_unordered_rows):
        # pickles beside the weights are compared as bytes
        beside = [name for name in VOCABULARY_PICKLES if name in source.names()]
        where = f"; {beside[0]} holds it, a pickle, which `convert` alone opens" if beside else ""
        pickles = map(source.read, beside)
        return VocabularyReading((), f"d2t is missing{where}", (*raw, *pickles), is_absent=True)
    try:
        return _from_maps(drafter, maps, raw, answer)
    except RefusedError as error:
        return VocabularyReading((), str(error), raw)


def _from_maps(
    drafter: Drafter, maps: Sequence[Tensor | None], raw: Sequence[bytes | None], answer: str | None
) -> VocabularyReading:
    """What d2t and t2d mean; two lists where d2t fits as both, and nobody answers. Raises RefusedError."""
    d2t, t2d = (
        None if tensor is None else numbers(tensor.name, tensor.dtype, data or b"")
        for tensor, data in zip(maps, raw, strict=True)
    )
    stored = tuple(None if value is None else as_int64(value) for value in (d2t, t2d))
    read_as = partial(read_vocabulary, d2t, t2d, drafter.dims.draft_vocab, drafter.dims.vocab)
    try:
        only = read_as(None)
    except UsageError as error:  # d2t fits as both
        if answer is None:
            both = tuple(read_as(meaning).targets for meaning in ("offset", "absolute"))
            return VocabularyReading(both, str(error), stored)
        only = read_as(answer)
    return VocabularyReading((only.targets,), only.how, stored)


def compare_tokens(a: VocabularyReading, b: VocabularyReading, sizes: tuple[int, int]) -> Fact:
    """Whether both propose the same tokens; `sizes` are the numbers of draft tokens."""
    if a.tokens is None or b.tokens is None:
        sides = (("A", a), ("B", b))
        why = "; ".join(f"{name}: {reading.how}" for name, reading in sides if reading.tokens is None)
        shown_a, shown_b = (
            f"{size} tokens{', not known which' * (reading.tokens is None)}"
            for size, reading in zip(sizes, (a, b), strict=True)
        )
        return Fact(DRAFT_TOKENS, shown_a, shown_b, _unknown_state(a, b), why)
    only_a, only_b = set(a.tokens) - set(b.tokens), set(b.tokens) - set(a.tokens)
    shown_a, shown_b = (f"{len(reading.tokens or ())} tokens" for reading in (a, b))
    if not only_a and not only_b:
        return Fact(DRAFT_TOKENS, shown_a, shown_b, FactState.EQUAL)
    shown_a, shown_b = f"{shown_a}, {len(only_a)} only here", f"{shown_b}, {len(only_b)} only here"
    return Fact(DRAFT_TOKENS, shown_a, shown_b, FactState.DIFFERS)


def _unknown_state(a: VocabularyReading, b: VocabularyReading) -> FactState:
    """The state of two readings of which one at least is not known."""
    if a.is_absent == b.is_absent and a.raw == b.raw:
        return FactState.EQUAL
    if a.is_absent or b.is_absent:
        t2d = a.raw[1], b.raw[1]
        return FactState.DIFFERS if None not in t2d and t2d[0] != t2d[1] else FactState.UNKNOWN
    return FactState.UNKNOWN if set(a.lists) & set(b.lists) else FactState.DIFFERS


def head_rows(a: VocabularyReading, b: VocabularyReading) -> SharedRows | None:
    """The rows of lm_head of shared tokens; None where the tokens are equal in their order, or not known."""
    if a.tokens is None or b.tokens is None or a.tokens == b.tokens:
        return None
    rows_b = {token: row for row, token in enumerate(b.tokens)}
    return [(row, rows_b[token]) for row, token in enumerate(a.tokens) if token in rows_b]


def token_remarks(a: VocabularyReading, b: VocabularyReading) -> Iterator[Remark]:
    """How the same tokens are written differently."""
    if a.tokens is None or b.tokens is None or set(a.tokens) != set(b.tokens):
        return
    words = [reading.how.removesuffix(", as t2d confirms") for reading in (a, b)]
    if words[0] != words[1]:
        yield Remark("d2t", *words)
    if a.tokens != b.tokens:
        orders = "lm_head's rows are in this one's order", "in another one; they are compared token by token"
        yield Remark("token order", *orders)


def compare_spelling(a: Side, b: Side) -> Spelling:
    """Every difference in how the files are written, but for the draft vocabulary's."""
    words_a, words_b = _words(a), _words(b)
    remarks = [
        Remark(about, text, words_b[about]) for about, text in words_a.items() if text != words_b[about]
    ]
    tensors_a, tensors_b = tensors_of(a), tensors_of(b)
    names = [
        NamePair(name, tensor.stored, tensors_b[name].stored)
        for name, tensor in tensors_a.items()
        if name in tensors_b and tensor.stored != tensors_b[name].stored
    ]
    keys_a, keys_b = dict(_flat(a.flat)), dict(_flat(b.flat))
    keys = [
        KeyPair(key, keys_a.get(key), keys_b.get(key))
        for key in dict.fromkeys((*keys_a, *keys_b))
        if keys_a.get(key) != keys_b.get(key)
    ]
    return Spelling(tuple(remarks), tuple(names), tuple(keys))


def _words(side: Side) -> dict[str, str]:
    drafter, aux = side.drafter, side.drafter.aux
    ids = f"{', '.join(map(str, aux.ids))} ({CONVENTIONS[aux.convention]})" if aux.ids else "none"
    return {
        "producer": by_name(drafter.producer).title,
        "layer ids": ids,
        "files": listed(side.checkpoint.weight_files),
        "target": drafter.target.name or "not named",
        "strays": listed(drafter.strays) or "none",
    }


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys as "object.key"; null is left out, as it means the same as an absent key."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value
