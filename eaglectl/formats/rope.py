"""Rotary settings: rope_theta and rope_scaling (transformers 4), rope_parameters (transformers 5)."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from eaglectl.drafter.drafter import Rope, Target
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.config_keys import MISSING, Keys
from eaglectl.formats.format import Answers, RopeAnswer, rope_question


def read_rope(
    keys: Keys,
    answers: Answers | None = None,
    target: Target | None = None,
    *,
    is_mla: bool,
    has_mla_factors: bool = True,
) -> Rope:
    """The rope of a config, as the answers say it; an absent base is 10000 in every loader, not the target's.

    Raises RefusedError for values that are none, and UsageError where the target's rope is asked for and not
    known.
    """
    answers = answers or Answers()
    answer = RopeAnswer.of(answers)
    theta = keys.take_float("rope_theta")
    tables = {name: keys.take_mapping(name) or {} for name in ("rope_scaling", "rope_parameters")}
    _check_layer_types(tables["rope_parameters"])
    bases = ({} if theta is None else {"rope_theta": theta}) | _inner_bases(tables)
    scalings = {name: scaling for name, table in tables.items() if (scaling := _scaling(table)) is not None}
    if answer.base in (None, "stored") and len(set(bases.values())) > 1:
        _ask_base(keys, answers, bases)
    is_contradiction = len(scalings) == 2 and scalings["rope_scaling"] != scalings["rope_parameters"]
    if answer.scaling in (None, "stored") and is_contradiction:
        _ask_scaling(keys, answers, scalings)
    if not bases:
        keys.add_note(
            "note",
            "rope_theta",
            "config has no rope_theta; every loader then uses 10000, and it is written so",
        )
    rope = Rope(
        next(iter(bases.values()), 10000.0),
        next(iter(scalings.values()), None),
        is_mla and _is_interleaved(keys, answers.semantics.get("rope_interleave")),
        has_mla_factors,
    )
    return _answered(rope, answer, scalings, target or Target())


def _check_layer_types(parameters: Mapping[str, Any]) -> None:
    """Raise RefusedError for settings of each layer type, as targets with sliding windows have them."""
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise RefusedError(
            "config.json: rope_parameters differs by layer type, which no EAGLE-3 class reads; write one"
            " rope_theta and rope_scaling",
            "rope-values",
            "config.json:rope_parameters",
        )


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


def _ask_base(keys: Keys, answers: Answers, bases: Mapping[str, float]) -> None:
    listed = " and ".join(f"{place}: {base:g}" for place, base in bases.items())
    values = {f"{int(base)}": place for place, base in bases.items() if base == int(base)}
    why = f"config.json says {listed}"
    keys.notes.append(rope_question(answers, "rope_theta", why, "rope-spellings", values))


def _ask_scaling(keys: Keys, answers: Answers, scalings: Mapping[str, Mapping[str, Any]]) -> None:
    listed = " and ".join(f"{name}: {dict(scaling)}" for name, scaling in scalings.items())
    values = {**dict.fromkeys(scalings, "as it stands there"), "plain": "none was trained"}
    why = f"config.json describes two scalings, {listed}"
    keys.notes.append(rope_question(answers, "rope_scaling", why, "rope-spellings", values))


def target_rope(config: Mapping[str, Any]) -> Rope | None:
    """The rope that a target's config states of its text model; None where it states no base of one kind."""
    keys = Keys(config)
    if all(keys.at(place) is MISSING for place in ("rope_theta", "rope_parameters.rope_theta")):
        return None
    try:
        rope = read_rope(keys, is_mla=False)
    except RefusedError:  # several bases, by layer type
        return None
    return None if any(note.level == "question" for note in keys.notes) else rope


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
    if (stated is not False) if answer is None else answer == "true":
        return True
    who = (
        "config says rope_interleave: false"
        if answer is None
        else "the rotary dimensions are paired by halves, as said"
    )
    keys.add_note(
        "problem",
        "rope_interleave",
        f"{who}, and engines rotate MLA drafters interleaved; pass --rope-style interleaved to reorder the"
        " rows"
        + (
            ", or --source-semantics rope_interleave=true if they are interleaved already"
            if answer is None
            else ""
        ),
        "rope-pairing",
        names_option=True,
    )
    return False


def _scaling(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if not raw:
        return None
    kind = raw.get("rope_type", raw.get("type", "default"))
    if not isinstance(kind, str):
        raise RefusedError(
            f"config.json: rope_type is {kind!r}; a name was expected",
            "rope-values",
            "config.json:rope_scaling",
        )
    if "factor" in raw and type(raw["factor"]) not in (int, float):
        raise RefusedError(
            f"config.json: the rope scaling's factor is {raw['factor']!r}; a number was expected",
            "rope-values",
            "config.json:rope_scaling",
        )
    rest = {key: value for key, value in raw.items() if key not in ("rope_theta", "rope_type", "type")}
    # mrope says "default" and carries its sections beside it
    return None if kind == "default" and not rest else {"rope_type": kind, **rest}
