"""Rotary settings: rope_theta and rope_scaling (transformers 4), rope_parameters (transformers 5)."""

from collections.abc import Mapping
from typing import Any

from eaglectl.drafter.drafter import Rope, Target
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.config_keys import Keys, at
from eaglectl.formats.format import Answers, RopeAnswer, rope_question

PART = "partial_rotary_factor"
TABLES = ("rope_scaling", "rope_parameters")


def rope_keys(keys: Keys) -> tuple[str, ...]:
    """The config keys that the rope is read from."""
    # SGLang reads the part that rotates at the top alone, where a copy stands of that in the object
    part = at(keys.config, PART)
    is_copied = part not in (None, 1) and any(at(keys.config, f"{name}.{PART}") == part for name in TABLES)
    return ("rope_theta", *TABLES, *((PART,) if is_copied else ()))


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
    answer, theta = RopeAnswer.of(answers), keys.get("rope_theta", float)
    tables = {name: keys.get(name, dict) or {} for name in TABLES}
    if any(isinstance(value, Mapping) for value in tables["rope_parameters"].values()):
        # settings of each layer type, as targets with sliding windows have them
        raise RefusedError(
            "config.json: rope_parameters differs by layer type, which no EAGLE-3 class reads; write one"
            " rope_theta and rope_scaling",
            "rope-values",
            "config.json:rope_parameters",
        )
    bases = {} if theta is None else {"rope_theta": theta}
    for name, table in tables.items():
        if (base := table.get("rope_theta")) is not None:
            _check_number(f"{name}.rope_theta", base, name)
            bases[f"{name}.rope_theta"] = base
    scalings = {name: scaling for name, table in tables.items() if (scaling := _scaling(table)) is not None}
    _ask(keys, answers, bases, scalings)
    text = "config has no rope_theta; every loader then uses 10000, and it is written so"
    keys.note(not bases, "note", "rope_theta", text)
    is_interleaved = is_mla and _is_interleaved(keys, answers.semantics.get("rope_interleave"))
    base, scaling = next(iter(bases.values()), 10000.0), next(iter(scalings.values()), None)
    own = target.rope if target else None
    if own is None and "target" in (answer.base, answer.scaling):
        found = "pass --target, whose config states its rope"
        if target and target.hidden is not None:
            found = "the target's config states no rope base, or several; pass rope=N with its base"
        raise UsageError(f"--source-semantics rope=target: {found}")
    if answer.base not in (None, "stored"):
        base = own.theta if own and answer.base == "target" else float(answer.base)
    if answer.scaling in ("plain", "target"):
        scaling = own.scaling if own and answer.scaling == "target" else None
    else:
        scaling = scalings.get(answer.scaling or "", scaling)
    return Rope(base, scaling, is_interleaved, has_mla_factors)


def _ask(
    keys: Keys, answers: Answers, bases: Mapping[str, float], scalings: Mapping[str, Mapping[str, Any]]
) -> None:
    """Ask what the answer to the rope leaves open where places state other bases, or other scalings."""
    answer = RopeAnswer.of(answers)
    if answer.base in (None, "stored") and len(set(bases.values())) > 1:
        listed = " and ".join(f"{place}: {base:g}" for place, base in bases.items())
        values = {f"{int(base)}": place for place, base in bases.items() if base == int(base)}
        why = f"config.json says {listed}"
        keys.notes.append(rope_question(answers, "rope_theta", why, "rope-spellings", values))
    is_contradiction = len(scalings) == 2 and scalings["rope_scaling"] != scalings["rope_parameters"]
    if answer.scaling in (None, "stored") and is_contradiction:
        listed = " and ".join(f"{name}: {dict(scaling)}" for name, scaling in scalings.items())
        values = {**dict.fromkeys(scalings, "as it stands there"), "plain": "none was trained"}
        why = f"config.json describes two scalings, {listed}"
        keys.notes.append(rope_question(answers, "rope_scaling", why, "rope-spellings", values))


def target_rope(config: Mapping[str, Any]) -> Rope | None:
    """The rope that a target's config states of its text model; None where it states no base of one kind."""
    keys = Keys(config)
    if all(at(config, place) is None for place in ("rope_theta", "rope_parameters.rope_theta")):
        return None
    try:
        rope = read_rope(keys, is_mla=False)
    except RefusedError:  # several bases, by layer type
        return None
    return None if any(note.level == "question" for note in keys.notes) else rope


def _check_number(what: str, value: object, place: str = "rope_scaling") -> None:
    if type(value) not in (int, float):
        text = f"config.json: {what} is {value!r}; a number was expected"
        raise RefusedError(text, "rope-values", f"config.json:{place}")


def _is_interleaved(keys: Keys, answer: str | None) -> bool:
    """Whether an MLA drafter's weights pair neighbouring dimensions, as all engines and most trainers do.

    The problem of dimensions that are paired by halves is noted.
    """
    stated = keys.get("rope_interleave", bool)
    is_interleaved = (stated is not False) if answer is None else answer == "true"
    who, others = "the rotary dimensions are paired by halves, as said", ""
    if answer is None:
        who = "config says rope_interleave: false"
        others = ", or --source-semantics rope_interleave=true if they are interleaved already"
    text = (
        f"{who}, and engines rotate MLA drafters interleaved; pass --rope-style interleaved to reorder the"
        f" rows{others}"
    )
    keys.note(not is_interleaved, "problem", "rope_interleave", text, "rope-pairing", names_option=True)
    return is_interleaved


def _scaling(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    kind = raw.get("rope_type", raw.get("type", "default"))
    if not isinstance(kind, str):
        text = f"config.json: rope_type is {kind!r}; a name was expected"
        raise RefusedError(text, "rope-values", "config.json:rope_scaling")
    _check_number("the rope scaling's factor", raw.get("factor", 1))
    _check_number(PART, raw.get(PART, 1))
    rest = {key: value for key, value in raw.items() if key not in ("rope_theta", "rope_type", "type")}
    # mrope says "default" and carries its sections beside it
    return None if kind == "default" and not rest else {"rope_type": kind, **rest}
