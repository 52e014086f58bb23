"""Rotary settings: rope_theta and rope_scaling (transformers 4), rope_parameters (transformers 5)."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from eaglectl.drafter.drafter import Note, Rope, Target
from eaglectl.errors import RefusedError, UsageError, check
from eaglectl.formats.config_keys import MISSING, Keys, Reading
from eaglectl.formats.format import Answers, RopeAnswer, rope_question

PART = "partial_rotary_factor"


def read_rope(
    keys: Keys,
    answers: Answers | None = None,
    target: Target | None = None,
    *,
    is_mla: bool,
    has_mla_factors: bool = True,
) -> Reading[Rope]:
    """The rope of a config, as the answers say it; an absent base is 10000 in every loader, not the target's.

    Raises RefusedError for values that are none, and UsageError where the target's rope is asked for and not
    known.
    """
    answers = answers or Answers()
    answer = RopeAnswer.of(answers)
    theta = keys.number("rope_theta")
    tables = {name: keys.table(name) or {} for name in ("rope_scaling", "rope_parameters")}
    if any(isinstance(value, Mapping) for value in tables["rope_parameters"].values()):
        # settings of each layer type, as targets with sliding windows have them
        raise RefusedError(
            "config.json: rope_parameters differs by layer type, which no EAGLE-3 class reads; write one"
            " rope_theta and rope_scaling",
            "rope-values",
            "config.json:rope_parameters",
        )
    bases = ({} if theta is None else {"rope_theta": theta}) | _inner_bases(tables)
    scalings = {name: scaling for name, table in tables.items() if (scaling := _scaling(table)) is not None}
    notes = list(_questions(answers, answer, bases, scalings))
    if not bases:
        text = "config has no rope_theta; every loader then uses 10000, and it is written so"
        notes.append(Note("note", "rope_theta", text))
    pairing = answers.semantics.get("rope_interleave")
    is_interleaved = is_mla and _is_interleaved(keys, pairing)
    if is_mla and not is_interleaved:
        notes.append(_pairing_problem(pairing))
    base, scaling = next(iter(bases.values()), 10000.0), next(iter(scalings.values()), None)
    stored = Rope(base, scaling, is_interleaved, has_mla_factors)
    rope = _answered(stored, answer, scalings, target or Target())
    # SGLang reads the part that rotates at the top alone, where a copy stands of that in the object
    is_copied = keys.at(PART) == stored.rotated_part != 1
    return Reading(rope, ("rope_theta", *tables, *((PART,) if is_copied else ())), tuple(notes))


def _answered(
    rope: Rope, answer: RopeAnswer, scalings: Mapping[str, Mapping[str, Any]], target: Target
) -> Rope:
    """The rope as --source-semantics rope= says it."""
    own = target.rope
    if own is None and "target" in (answer.base, answer.scaling):
        found = "pass --target, whose config states its rope"
        if target.hidden is not None:
            found = "the target's config states no rope base, or several; pass rope=N with its base"
        raise UsageError(f"--source-semantics rope=target: {found}")
    if answer.base not in (None, "stored"):
        rope = replace(rope, theta=own.theta if own and answer.base == "target" else float(answer.base))
    if answer.scaling == "plain":
        return replace(rope, scaling=None)
    if own and answer.scaling == "target":
        return replace(rope, scaling=own.scaling)
    return replace(rope, scaling=scalings.get(answer.scaling or "", rope.scaling))


def _questions(
    answers: Answers,
    answer: RopeAnswer,
    bases: Mapping[str, float],
    scalings: Mapping[str, Mapping[str, Any]],
) -> Iterator[Note]:
    """What the answer to the rope leaves open where places state other bases, or other scalings."""
    if answer.base in (None, "stored") and len(set(bases.values())) > 1:
        listed = " and ".join(f"{place}: {base:g}" for place, base in bases.items())
        values = {f"{int(base)}": place for place, base in bases.items() if base == int(base)}
        yield rope_question(answers, "rope_theta", f"config.json says {listed}", "rope-spellings", values)
    is_contradiction = len(scalings) == 2 and scalings["rope_scaling"] != scalings["rope_parameters"]
    if answer.scaling in (None, "stored") and is_contradiction:
        listed = " and ".join(f"{name}: {dict(scaling)}" for name, scaling in scalings.items())
        values = {**dict.fromkeys(scalings, "as it stands there"), "plain": "none was trained"}
        why = f"config.json describes two scalings, {listed}"
        yield rope_question(answers, "rope_scaling", why, "rope-spellings", values)


def target_rope(config: Mapping[str, Any]) -> Rope | None:
    """The rope that a target's config states of its text model; None where it states no base of one kind."""
    keys = Keys(config)
    if all(keys.at(place) is MISSING for place in ("rope_theta", "rope_parameters.rope_theta")):
        return None
    try:
        rope = read_rope(keys, is_mla=False)
    except RefusedError:  # several bases, by layer type
        return None
    return None if any(note.level == "question" for note in rope.notes) else rope.value


def _inner_bases(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The bases inside of the objects, by place."""
    found = {
        name: table["rope_theta"] for name, table in tables.items() if table.get("rope_theta") is not None
    }
    for name, base in found.items():
        if type(base) not in (int, float):
            raise RefusedError(
                f"config.json: {name}.rope_theta is {base!r}; a number was expected",
                "rope-values",
                f"config.json:{name}",
            )
    return {f"{name}.rope_theta": base for name, base in found.items()}


def _is_interleaved(keys: Keys, answer: str | None) -> bool:
    """Whether an MLA drafter's weights pair neighbouring dimensions, as all engines and most trainers do."""
    stated = keys.at("rope_interleave")
    if stated is not MISSING and not isinstance(stated, bool):
        raise RefusedError(
            f"config.json: rope_interleave is {stated!r}; true or false was expected",
            "value-types",
            "config.json:rope_interleave",
        )
    return (stated is not False) if answer is None else answer == "true"


def _pairing_problem(answer: str | None) -> Note:
    """The problem of dimensions that are paired by halves, as the config says, or an answer."""
    who, others = "the rotary dimensions are paired by halves, as said", ""
    if answer is None:
        who = "config says rope_interleave: false"
        others = ", or --source-semantics rope_interleave=true if they are interleaved already"
    text = (
        f"{who}, and engines rotate MLA drafters interleaved; pass --rope-style interleaved to reorder the"
        f" rows{others}"
    )
    return Note("problem", "rope_interleave", text, "rope-pairing", names_option=True)


def _scaling(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if not raw:
        return None
    kind = raw.get("rope_type", raw.get("type", "default"))
    place = "config.json:rope_scaling"
    check(
        (
            not isinstance(kind, str),
            f"config.json: rope_type is {kind!r}; a name was expected",
            "rope-values",
            place,
        ),
        (
            "factor" in raw and type(raw["factor"]) not in (int, float),
            f"config.json: the rope scaling's factor is {raw.get('factor')!r}; a number was expected",
            "rope-values",
            place,
        ),
        (
            type(raw.get(PART, 1)) not in (int, float),
            f"config.json: {PART} is {raw.get(PART)!r}; a number was expected",
            "rope-values",
            place,
        ),
        error=RefusedError,
    )
    rest = {key: value for key, value in raw.items() if key not in ("rope_theta", "rope_type", "type")}
    # mrope says "default" and carries its sections beside it
    return None if kind == "default" and not rest else {"rope_type": kind, **rest}
