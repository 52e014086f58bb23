"""Rotary settings: rope_theta and rope_scaling (transformers 4), rope_parameters (transformers 5)."""

from collections.abc import Mapping
from typing import Any

from eaglectl.drafter.drafter import Rope
from eaglectl.errors import RefusedError
from eaglectl.formats.config_keys import MISSING, Keys


def read_rope(keys: Keys, *, is_mla: bool, has_mla_factors: bool = True, answer: str | None = None) -> Rope:
    """The rope of a config. An absent base means 10000 in every loader, never the target's.

    `answer` is what the user says of rope_interleave, "true" or "false".
    """
    theta = keys.take_float("rope_theta")
    scaling = keys.take_mapping("rope_scaling")
    parameters = keys.take_mapping("rope_parameters")
    if parameters and any(isinstance(value, Mapping) for value in parameters.values()):
        raise RefusedError(
            "config.json: rope_parameters differs by layer type, which no EAGLE-3 class reads; write one"
            " rope_theta and rope_scaling",
            "rope-values",
            "config.json:rope_parameters",
        )
    theta = _base(theta, {"rope_parameters": parameters or {}, "rope_scaling": scaling or {}})
    forms = [form for form in (_scaling(scaling), _scaling(parameters)) if form is not None]
    if len(forms) == 2 and forms[0] != forms[1]:
        raise RefusedError(
            "config.json: rope_scaling and rope_parameters describe different scalings; keep the one that"
            " was trained",
            "rope-spellings",
            "config.json:rope_parameters",
        )
    if theta is None:
        keys.add_note(
            "note",
            "rope_theta",
            "config has no rope_theta; every loader then uses 10000, and it is written so",
        )
    is_interleaved = is_mla and _is_interleaved(keys, answer)
    return Rope(
        10000.0 if theta is None else theta, forms[0] if forms else None, is_interleaved, has_mla_factors
    )


def target_rope(config: Mapping[str, Any]) -> Rope | None:
    """The rope that a target's config states of its text model; None where it states no base of one kind."""
    keys = Keys(config)
    if all(keys.at(place) is MISSING for place in ("rope_theta", "rope_parameters.rope_theta")):
        return None
    try:
        return read_rope(keys, is_mla=False)
    except RefusedError:  # several bases, by layer type
        return None


def _base(theta: float | None, objects: Mapping[str, Mapping[str, Any]]) -> float | None:
    """The base at the top level or in one of the objects. Raises RefusedError where two differ."""
    for where, source in objects.items():
        inner = source.get("rope_theta")
        if inner is None:
            continue
        if type(inner) not in (int, float):
            raise RefusedError(
                f"config.json: {where}.rope_theta is {inner!r}; a number was expected",
                "rope-values",
                f"config.json:{where}",
            )
        if theta is not None and inner != theta:
            raise RefusedError(
                f"config.json says rope_theta: {theta:g} and {where}.rope_theta: {inner:g}; make them agree",
                "rope-spellings",
                f"config.json:{where}",
            )
        theta = inner
    return theta


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


def _scaling(raw: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
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
