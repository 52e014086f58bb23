"""Reading the rope: its base, its scaling and the part of a head that it rotates."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from eaglectl.drafter.drafter import Note, Rope, Target
from eaglectl.errors import RefusedError, UsageError, check
from eaglectl.formats.config_keys import MAX_NUMBER, POSITIONS, ROPE_TABLES, Keys, at
from eaglectl.formats.format import STORED, Answers, RopeAnswer, rope_question

PART = "partial_rotary_factor"


def rope_keys(keys: Keys, answers: Answers) -> tuple[str, ...]:
    """Return the config keys that the rope is read from."""
    # SGLang reads the part that rotates at the top alone, where a copy stands of that in the object
    part = at(keys.config, PART)
    is_copied = part not in (None, 1) and any(
        at(keys.config, f"{name}.{PART}") == part for name in ROPE_TABLES
    )
    is_read = is_copied or _top_part(keys.config, answers) is not None
    return ("rope_theta", *ROPE_TABLES, *((PART,) if is_read else ()))


def _top_part(config: Mapping[str, Any], answers: Answers) -> float | None:
    # the rotated part that the top of a config states, if an answer says what was trained
    part, answer = config.get(PART), RopeAnswer.of(answers).scaling
    return part if answer in ("stored", "plain") and type(part) is float and 0 < part < 1 else None


def _with_part(scaling: Mapping[str, Any] | None, part: float | None) -> Mapping[str, Any] | None:
    # a rope scaling with this rotated part, unless it states one itself
    return scaling if part is None else {"rope_type": "default", PART: part, **(scaling or {})}


def read_rope(
    keys: Keys,
    answers: Answers | None = None,
    target: Target | None = None,
    *,
    is_mla: bool,
    has_mla_factors: bool = True,
) -> Rope:
    """Read the rope of a config with the user's answers; every loader takes an absent base as 10000.

    Raises RefusedError for impossible values, and UsageError if the target's rope is chosen and unknown.
    """
    answers = answers or Answers()
    answer, theta = RopeAnswer.of(answers), keys.get("rope_theta", float)
    tables = {name: keys.get(name, dict) or {} for name in ROPE_TABLES}
    if any(isinstance(value, Mapping) for value in tables["rope_parameters"].values()):
        # settings of each layer type, as targets with sliding windows have them
        raise RefusedError(
            "config.json: rope_parameters differs by layer type, and no EAGLE-3 class reads that; write one"
            " rope_theta and rope_scaling",
            "rope-values",
            "config.json:rope_parameters",
        )
    bases = {"rope_theta": theta, **{f"{name}.rope_theta": at(tables[name], "rope_theta") for name in tables}}
    bases = {place: base for place, base in bases.items() if base is not None}
    for place, base in bases.items():
        _check_number(place, base, place.partition(".")[0])
    scalings = {
        name: scaling for name, table in tables.items() if (scaling := _checked_scaling(table)) is not None
    }
    _ask_contradictions(keys, answers, bases, scalings)
    keys.note(
        not bases,
        "note",
        "rope_theta",
        "config has no rope_theta; every loader then uses 10000, which is written",
    )
    base, scaling = next(iter(bases.values()), 10000.0), next(iter(scalings.values()), None)
    scaling = _with_part(scaling, _top_part(keys.config, answers))
    is_interleaved = is_mla and _is_interleaved(keys, answers.semantics.get("rope_interleave"))
    rope = Rope(base, scaling, is_interleaved, has_mla_factors)
    positions = keys.config.get(POSITIONS)
    return _with_answers(
        rope, answer, {"llama3": _as_llama3(scaling, positions), **scalings}, target or Target()
    )


def partial_rotary(config: Mapping[str, Any], answers: Answers) -> Iterator[Note]:
    """Yield a question if the config states that a part of each head is rotated.

    speculators since pull 733 (0.7.0) keeps the key with --no-draft-mrope-full-head-hack and trains so
    (rotary_partial.py); its older releases and all other trainers of EAGLE-3 rotate whole heads.
    """
    tables = [table for name in ROPE_TABLES if isinstance(table := config.get(name), Mapping)]
    shares = [table.get(PART, 1) for table in tables if table.get("rope_type") != "proportional"]
    shares.append(_top_part(config, answers) or 1)
    if not (parts := [share for share in shares if share != 1]):
        return
    about = (
        f"config states {PART} {parts[0]}: speculators since 0.7.0 keeps it if it trained that part of each"
        " head (--no-draft-mrope-full-head-hack); other trainers and its older releases copied it from the"
        " target and rotated whole heads; vLLM rotates that part"
    )
    if (answer := RopeAnswer.of(answers).scaling) is None:
        values = {"stored": STORED, "plain": "whole heads were rotated"}
        yield rope_question(answers, "rope_scaling", about, "partial-rotary", values)
    else:
        outcome = "no scaling is written" if answer == "plain" else "the key is kept"
        yield Note("note", "rope_scaling", f"{about}; {outcome}", "partial-rotary")


def _as_llama3(scaling: Mapping[str, Any] | None, positions: Any) -> Mapping[str, Any]:
    # llama3's schedule with the numbers of another scaling, as Automodel's LlamaRotaryEmbedding had it
    defaults = {"factor": 1.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    numbers = {**defaults, "original_max_position_embeddings": positions} | dict(scaling or {})
    names = (*defaults, "original_max_position_embeddings")
    return {"rope_type": "llama3", **{name: numbers[name] for name in names}}


def _with_answers(
    rope: Rope, answer: RopeAnswer, scalings: Mapping[str, Mapping[str, Any]], target: Target
) -> Rope:
    # the rope with the user's base and scaling in the place of the file's
    target_rotary = target.rope
    if target_rotary is None and "target" in (answer.base, answer.scaling):
        advice = "pass --target to read its rope"
        if target.hidden is not None:
            advice = "the target's config states no rope base, or several; pass rope=N with its base"
        raise UsageError(f"--source-semantics rope=target: {advice}", options=("--source-semantics",))
    if answer.base not in (None, "stored"):
        rope = replace(
            rope,
            theta=target_rotary.theta if target_rotary and answer.base == "target" else float(answer.base),
        )
    scalings_by_answer = {
        "plain": None,
        "target": target_rotary.scaling if target_rotary else None,
        **scalings,
    }
    return replace(rope, scaling=scalings_by_answer.get(answer.scaling or "", rope.scaling))


def _ask_contradictions(
    keys: Keys, answers: Answers, bases: Mapping[str, float], scalings: Mapping[str, Mapping[str, Any]]
) -> None:
    # ask about bases and scalings that config.json states twice, and differently
    answer = RopeAnswer.of(answers)
    if answer.base in (None, "stored") and len(set(bases.values())) > 1:
        listed = " and ".join(f"{place}: {base:g}" for place, base in bases.items())
        values = {f"{int(base)}": place for place, base in bases.items() if base == int(base)}
        keys.notes.append(
            rope_question(answers, "rope_theta", f"config.json says {listed}", "rope-spellings", values)
        )
    is_contradiction = len(scalings) == 2 and scalings["rope_scaling"] != scalings["rope_parameters"]
    if answer.scaling in (None, "stored") and is_contradiction:
        listed = " and ".join(f"{name}: {dict(scaling)}" for name, scaling in scalings.items())
        values = {**dict.fromkeys(scalings, "as it stands there"), "plain": "none was trained"}
        keys.notes.append(
            rope_question(
                answers,
                "rope_scaling",
                f"config.json describes two scalings, {listed}",
                "rope-spellings",
                values,
            )
        )


def target_rope(config: Mapping[str, Any]) -> Rope | None:
    """Return the rope of a target's text model; None if its config states no base or several, or leaves a
    question on it open.
    """
    keys = Keys(config)
    if all(at(config, place) is None for place in ("rope_theta", "rope_parameters.rope_theta")):
        return None
    try:
        rope = read_rope(keys, is_mla=False)
    except RefusedError:  # several bases, by layer type
        return None
    return None if any(note.level == "question" for note in keys.notes) else rope


def _check_number(what: str, value: object, place: str = "rope_scaling") -> None:
    check(
        (
            type(value) not in (int, float),
            f"config.json: {what} is {value!r}; a number was expected",
            "rope-values",
            f"config.json:{place}",
        ),
        error=RefusedError,
    )


def _is_interleaved(keys: Keys, answer: str | None) -> bool:
    """Whether an MLA drafter's weights pair neighbouring dimensions, as all engines and most trainers do.

    The problem of dimensions that are paired by halves is noted.
    """
    from_config = keys.get("rope_interleave", bool)
    is_interleaved = from_config is not False if answer is None else answer == "true"
    who, others = "the rotary dimensions are paired by halves, as answered", ""
    remedies: tuple[str, ...] = ("--rope-style interleaved",)
    if answer is None:
        who = "config says rope_interleave: false"
        others = ", or --source-semantics rope_interleave=true if they are interleaved already"
        remedies += ("--source-semantics",)
    keys.note(
        not is_interleaved,
        "problem",
        "rope_interleave",
        f"{who}, and engines rotate MLA drafters interleaved",
        "rope-pairing",
        f"; pass --rope-style interleaved to reorder the rows{others}",
        remedies,
    )
    return is_interleaved


def _checked_scaling(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    # the scaling with one name for its type; None for the default, which scales nothing
    kind = raw.get("rope_type", raw.get("type", "default"))
    check(
        (
            not isinstance(kind, str),
            f"config.json: rope_type is {kind!r}; a name was expected",
            "rope-values",
            "config.json:rope_scaling",
        ),
        error=RefusedError,
    )
    _check_number("the rope scaling's factor", raw.get("factor", 1))
    _check_number(PART, raw.get(PART, 1))
    rest = {key: value for key, value in raw.items() if key not in ("rope_theta", "rope_type", "type")}
    if kind == "linear" and 0 < rest.get("factor", 0) < MAX_NUMBER:
        rest["factor"] = float(rest["factor"])  # vLLM takes no int (linear_scaling_rope.py 0.32.0:70)
    # mrope says "default" and carries its sections beside it
    return None if kind == "default" and not rest else {"rope_type": kind, **rest}
