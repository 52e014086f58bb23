"""Switches, rope and settings: what config and tensors say, and what a missing key means."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from eaglectl.drafter.drafter import (
    DOUBLE_NORM,
    HIDDEN_NORM,
    TWICE,
    Choice,
    Norms,
    Note,
    Rope,
    Target,
    question,
)
from eaglectl.drafter.tensors import NORM, Dimensions, Tensor, is_quantised_part
from eaglectl.errors import RefusedError, UsageError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.layout import QUANTISATION
from eaglectl.formats.config_keys import CLASS_DEFAULTS, ROPE_TABLES, Keys, at
from eaglectl.formats.format import Answers, CheckpointSummary, Format, ModelClass, RopeAnswer, rope_question

# switches whose norms have tensors; an answer can only be that none was trained
TENSOR_FLAGS = ("fc_norm", "norm_before_fc")
# of biases
UNTRUE = (
    "config says {key}: true and the file has no such bias; vLLM would add uninitialised memory; convert"
    " writes false"
)
UNSTATED = (
    "the file has biases and config does not say {key}: true; vLLM drops them in silence; convert writes true"
)


def read_norms(
    keys: Keys,
    format: Format,
    summary: CheckpointSummary,
    answers: Answers,
    tensors: Mapping[str, Tensor],
    dims: Dimensions,
) -> Norms:
    """The four switches; norm_output is None where it must be asked."""
    norms = sum(1 for name in tensors if NORM.fullmatch(name))
    fc_norm = _read_tensor_flag(
        keys, answers, "fc_norm", f"{dims.aux} fc_norm.N.weight", found=norms, needed=dims.aux
    )
    joint = int("input_norm.weight" in tensors)
    before_fc = _read_tensor_flag(keys, answers, "norm_before_fc", "input_norm.weight", found=joint, needed=1)
    keys.note(
        fc_norm and before_fc,
        "warning",
        "norms",
        "both fc_norm and norm_before_fc are on; vLLM and SGLang apply both, TensorRT-LLM only fc_norm",
        "both-norms",
    )
    output = _read_norm_output(keys, format, summary, answers, has_fc_norm=fc_norm)
    residual = _read_residual(keys, format, answers)
    hidden = answers.semantics.get("hidden_norm")
    twice = format.hidden_twice(summary, answers) if hidden is None else hidden == "twice"
    return Norms(fc_norm, before_fc, output, residual, twice)


def norms_by_record(
    norms: Norms, format: Format, record: Mapping[str, Any]
) -> tuple[Norms, Mapping[str, list[Note]]]:
    """The switches with those of eaglectl.json: hidden_twice, and the norm_output of its EAGLE version.

    Only where the files leave it open; the version only where the record is of this layout. Beside them the
    topics of doubts that it settles, with the notes that take their place.
    """
    settled: dict[str, list[Note]] = {}
    twice = record.get("hidden_twice")
    if norms.hidden_twice is None and isinstance(twice, bool):
        norms = replace(norms, hidden_twice=twice)
        warning = Note("warning", HIDDEN_NORM, TWICE, DOUBLE_NORM, format.name, is_open=True)
        settled[DOUBLE_NORM] = [warning] if twice else []
    if norms.norm_output is None and record.get("layout") == format.name:
        choices = [replace(norms, norm_output=choice) for choice in (False, True)]
        fitting = [choice for choice in choices if choice.version == record.get("eagle")]
        if len(fitting) == 1:
            norms = fitting[0]
            settled["norm-output-unknown"] = []
    return norms, settled


def _read_norm_output(
    keys: Keys, format: Format, summary: CheckpointSummary, answers: Answers, *, has_fc_norm: bool
) -> bool | None:
    key = "norm_output"
    stated = _read_flag(keys, key, answers)
    if (answer := answers.semantics.get(key)) is not None:
        return answer == "true"
    if any(keys.contradiction(key)):  # it is asked
        return None
    if format.norm_output:
        return format.norm_output(summary, stated, answers)
    if stated is not None or not has_fc_norm:
        return bool(stated)
    choices = (
        Choice("--source-semantics", "norm_output=true", "EAGLE-3.1"),
        Choice("--source-semantics", "norm_output=false", "EAGLE-3 with fc_norm"),
    )
    keys.notes.append(
        question(key, "fc_norm is trained in and config has no norm_output", "norm-output-unknown", choices)
    )
    return None


def _read_residual(keys: Keys, format: Format, answers: Answers) -> bool:
    key, usual = "norm_before_residual", format.residual_default
    stated = _read_flag(keys, key, answers, usual)
    if (answer := answers.semantics.get(key)) is not None:
        return answer == "true"
    keys.note(
        stated is None and usual,
        "note",
        key,
        f"config has no {key}; in {format.title}'s files that means true",
    )
    return usual if stated is None else stated


def _read_flag(keys: Keys, key: str, answers: Answers, usual: bool | None = None) -> bool | None:
    """A switch that no tensor decides; None and a question where two places state it otherwise.

    `usual` is the producer's value where nothing is set; None: it has none.
    """
    contradiction, _ = keys.contradiction(key)
    if not contradiction:
        return keys.get(key, bool)
    if key not in answers.semantics:
        choices = [
            Choice("--source-semantics", f"{key}={str(value).lower()}", is_usual=value is usual)
            for value in (True, False)
        ]
        keys.notes.append(question(key, contradiction, "spellings-agree", choices))
    return None


def _read_tensor_flag(
    keys: Keys, answers: Answers, flag: str, tensor: str, *, found: int, needed: int
) -> bool:
    """A switch that has tensors, of which the file has `found`: they decide it, and it is asked without."""
    name, where = keys.spelling(flag), f"config.json:{keys.spelling(flag)}"
    if found and found != needed:
        raise RefusedError(
            f"the file has {found} of {needed} {flag} tensors; engines would fill the others with ones",
            "norm-tensor-missing",
            where,
        )
    answer = answers.semantics.get(flag)
    if answer and found:
        raise UsageError(f"--source-semantics {flag}={answer}: the file has {tensor}, which was trained")
    contradiction, _ = keys.contradiction(flag)
    if contradiction and found:
        return keys.disbelieved(flag, f"the file has {tensor}")
    if contradiction and not answer:
        meaning = "if none was trained; else restore the tensor from the trainer"
        choice = Choice("--source-semantics", f"{flag}=false", meaning)
        keys.notes.append(
            question(flag, f"{contradiction}, and the file has no {tensor}", "spellings-agree", [choice])
        )
    if contradiction or answer:
        return False
    stated = keys.get(flag, bool)
    if stated and not found:
        raise RefusedError(
            f"config says {name}: true and the file has no {tensor}; engines would use ones in silence:"
            " restore the tensor from the trainer",
            "norm-tensor-missing",
            where,
        )
    keys.note(
        found and stated is False,
        "problem",
        flag,
        f"config says {name}: false and the file has {tensor}; one of them is wrong",
        "norm-flag-missing",
    )
    keys.note(found and stated is None, "note", flag, f"config has no {name}; the file's tensors say true")
    return bool(found)


def read_settings(keys: Keys, tensors: Mapping[str, Tensor], family: ModelClass) -> Mapping[str, Any]:
    """The values that every layout states, absent ones as the config class defines them."""
    settings: dict[str, Any] = {
        "rms_norm_eps": keys.get("rms_norm_eps", float),
        "max_position_embeddings": keys.get("max_position_embeddings", int),
        "hidden_act": keys.value("hidden_act"),
    }
    for key, default in CLASS_DEFAULTS[family].items():
        if settings[key] is None:
            settings[key] = default
            text = f"config has no {key}; its class then means {default}, and it is written so"
            keys.note(key != "hidden_act", "note", key, text)
    for key, part in {"attention_bias": ".self_attn.", "mlp_bias": ".mlp."}.items():
        has = any(part in name and name.endswith(".bias") for name in tensors)
        text = (UNSTATED if has else UNTRUE).format(key=key)
        keys.note(bool(keys.get(key, bool)) != has, "warning", key, text, "bias-flag")
    return settings


def read_quantisation(keys: Keys, checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """The quantisation config when the file really holds quantised weights, else None."""
    key = "quantization_config"
    stated = keys.get(key, dict) or checkpoint.sidecars.get(QUANTISATION)
    inner = (stated or {}).get("quantization")
    table = inner if isinstance(inner, Mapping) else stated or {}
    # ModelOpt's null, which vLLM 0.33 and SGLang 0.5.23 read as no quantisation
    if "quant_algo" in table and table["quant_algo"] is None and not table.get("quant_method"):
        stated = None
    has_parts = any(is_quantised_part(name) for name in checkpoint.tensors)
    if has_parts == (stated is not None):
        return stated
    text = (
        "config has a quantization_config and the file has no quantised weight; engines would look for"
        " scales that are not there; convert leaves it out"
    )
    if has_parts:
        text = (
            "the file has quantisation scales and no quantization_config; engines would read the weights as"
            " they are"
        )
    keys.note(True, "warning", key, text, "quantisation-config")
    return {} if has_parts else None


PART = "partial_rotary_factor"


def rope_keys(keys: Keys) -> tuple[str, ...]:
    """The config keys that the rope is read from."""
    # SGLang reads the part that rotates at the top alone, where a copy stands of that in the object
    part = at(keys.config, PART)
    is_copied = part not in (None, 1) and any(
        at(keys.config, f"{name}.{PART}") == part for name in ROPE_TABLES
    )
    return ("rope_theta", *ROPE_TABLES, *((PART,) if is_copied else ()))


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
    tables = {name: keys.get(name, dict) or {} for name in ROPE_TABLES}
    if any(isinstance(value, Mapping) for value in tables["rope_parameters"].values()):
        # settings of each layer type, as targets with sliding windows have them
        raise RefusedError(
            "config.json: rope_parameters differs by layer type, which no EAGLE-3 class reads; write one"
            " rope_theta and rope_scaling",
            "rope-values",
            "config.json:rope_parameters",
        )
    bases = {"rope_theta": theta, **{f"{name}.rope_theta": at(tables[name], "rope_theta") for name in tables}}
    bases = {place: base for place, base in bases.items() if base is not None}
    for place, base in bases.items():
        _check_number(place, base, place.partition(".")[0])
    scalings = {name: scaling for name, table in tables.items() if (scaling := _scaling(table)) is not None}
    _ask(keys, answers, bases, scalings)
    keys.note(
        not bases,
        "note",
        "rope_theta",
        "config has no rope_theta; every loader then uses 10000, and it is written so",
    )
    is_interleaved = is_mla and _is_interleaved(keys, answers.semantics.get("rope_interleave"))
    base, scaling = next(iter(bases.values()), 10000.0), next(iter(scalings.values()), None)
    stored = Rope(base, scaling, is_interleaved, has_mla_factors)
    return _answered(stored, answer, scalings, target or Target())


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
    given = {"plain": None, "target": own.scaling if own else None, **scalings}
    return replace(rope, scaling=given.get(answer.scaling or "", rope.scaling))


def _ask(
    keys: Keys, answers: Answers, bases: Mapping[str, float], scalings: Mapping[str, Mapping[str, Any]]
) -> None:
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
        raise RefusedError(
            f"config.json: {what} is {value!r}; a number was expected", "rope-values", f"config.json:{place}"
        )


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
    keys.note(
        not is_interleaved,
        "problem",
        "rope_interleave",
        f"{who}, and engines rotate MLA drafters interleaved; pass --rope-style interleaved to reorder the"
        f" rows{others}",
        "rope-pairing",
        names_option=True,
    )
    return is_interleaved


def _scaling(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    kind = raw.get("rope_type", raw.get("type", "default"))
    if not isinstance(kind, str):
        raise RefusedError(
            f"config.json: rope_type is {kind!r}; a name was expected",
            "rope-values",
            "config.json:rope_scaling",
        )
    _check_number("the rope scaling's factor", raw.get("factor", 1))
    _check_number(PART, raw.get(PART, 1))
    rest = {key: value for key, value in raw.items() if key not in ("rope_theta", "rope_type", "type")}
    # mrope says "default" and carries its sections beside it
    return None if kind == "default" and not rest else {"rope_type": kind, **rest}
