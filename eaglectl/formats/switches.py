"""Switches and settings: what the config says, what the tensors say, and what a missing key means."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from eaglectl.drafter.drafter import DOUBLE_NORM, HIDDEN_NORM, TWICE, Choice, Norms, Note, question
from eaglectl.drafter.tensors import NORM, Dimensions, Tensor, is_quantised_part
from eaglectl.errors import RefusedError, UsageError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.layout import QUANTISATION
from eaglectl.formats.config_keys import CLASS_DEFAULTS, MISSING, Keys, Reading
from eaglectl.formats.format import Answers, CheckpointSummary, Format, ModelClass

# switches whose norms have tensors; an answer can only be that none was trained
TENSOR_FLAGS = ("fc_norm", "norm_before_fc")
UNKNOWN_OUTPUT = "norm-output-unknown"  # the topic of questions on norm_output
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
) -> Reading[Norms]:
    """The four switches; norm_output is None where it must be asked."""
    count = sum(1 for name in tensors if NORM.fullmatch(name))
    fc_norm = _read_tensor_flag(
        keys, answers, "fc_norm", f"{dims.aux} fc_norm.N.weight", found=count, needed=dims.aux
    )
    count = int("input_norm.weight" in tensors)
    before_fc = _read_tensor_flag(keys, answers, "norm_before_fc", "input_norm.weight", found=count, needed=1)
    text = "both fc_norm and norm_before_fc are on; vLLM and SGLang apply both, TensorRT-LLM only fc_norm"
    has_both = fc_norm.value and before_fc.value
    before_fc = before_fc.with_notes((has_both, Note("warning", "norms", text, "both-norms")))
    output = _read_norm_output(keys, format, summary, answers, has_fc_norm=fc_norm.value)
    residual = _read_residual(keys, format, answers)
    hidden = answers.semantics.get("hidden_norm")
    twice = format.hidden_twice(summary, answers) if hidden is None else hidden == "twice"
    norms = Norms(fc_norm.value, before_fc.value, output.value, residual.value, twice)
    return Reading.of(norms, fc_norm, before_fc, output, residual)


def norms_by_record(
    norms: Reading[Norms], format: Format, record: Mapping[str, Any]
) -> tuple[Reading[Norms], Mapping[str, Sequence[Note]]]:
    """The switches with those of eaglectl.json: hidden_twice, and the norm_output of its EAGLE version.

    Only where the files leave it open; the version only where the record is of this layout. Beside them the
    topics of doubts that it settles, with the notes that take their place.
    """
    settled: dict[str, Sequence[Note]] = {}
    value, twice = norms.value, record.get("hidden_twice")
    if value.hidden_twice is None and isinstance(twice, bool):
        value = replace(value, hidden_twice=twice)
        warning = Note("warning", HIDDEN_NORM, TWICE, DOUBLE_NORM, format.name, is_open=True)
        settled[DOUBLE_NORM] = [warning] if twice else []
    if value.norm_output is None and record.get("layout") == format.name:
        choices = [replace(value, norm_output=choice) for choice in (False, True)]
        fitting = [choice for choice in choices if choice.version == record.get("eagle")]
        if len(fitting) == 1:
            value = fitting[0]
            settled[UNKNOWN_OUTPUT] = []
    notes = tuple(note for note in norms.notes if note.topic not in settled)
    return Reading(value, norms.taken, notes), settled


def _read_norm_output(
    keys: Keys, format: Format, summary: CheckpointSummary, answers: Answers, *, has_fc_norm: bool
) -> Reading[bool | None]:
    key = "norm_output"
    flag = _read_flag(keys, key, answers)
    if (answer := answers.semantics.get(key)) is not None:
        return Reading(answer == "true", flag.taken)
    if flag.notes:  # it is asked
        return flag
    if format.norm_output:
        return Reading(format.norm_output(summary, flag.value, answers), flag.taken)
    if flag.value is not None or not has_fc_norm:
        return Reading(bool(flag.value), flag.taken)
    choices = (
        Choice("--source-semantics", "norm_output=true", "EAGLE-3.1"),
        Choice("--source-semantics", "norm_output=false", "EAGLE-3 with fc_norm"),
    )
    why = "fc_norm is trained in and config has no norm_output"
    return replace(flag, notes=(question(key, why, UNKNOWN_OUTPUT, choices),))


def _read_residual(keys: Keys, format: Format, answers: Answers) -> Reading[bool]:
    key, usual = "norm_before_residual", format.residual_default
    flag = _read_flag(keys, key, answers, usual)
    answer = answers.semantics.get(key)
    value = bool(flag.value) if answer is None else answer == "true"
    is_assumed = answer is None and flag.value is None and usual
    note = Note("note", key, f"config has no {key}; in {format.title}'s files that means true")
    return Reading(value or is_assumed, flag.taken, flag.notes).with_notes((is_assumed, note))


def _read_flag(keys: Keys, key: str, answers: Answers, usual: bool | None = None) -> Reading[bool | None]:
    """A switch that no tensor decides; None and a question where two places state it otherwise.

    `usual` is the producer's value where nothing is set; None: it has none.
    """
    if not (contradiction := keys.contradiction(key)):
        return Reading(keys.flag(key), (key,))
    choices = [
        Choice("--source-semantics", f"{key}={str(value).lower()}", is_usual=value is usual)
        for value in (True, False)
    ]
    asked = (question(key, contradiction, "spellings-agree", choices),)
    return Reading(None, (key,), () if key in answers.semantics else asked)


def _read_tensor_flag(
    keys: Keys, answers: Answers, flag: str, tensor: str, *, found: int, needed: int
) -> Reading[bool]:
    """A switch that has tensors, of which the file has `found`."""
    name = keys.spelling(flag)
    if found and found != needed:
        raise RefusedError(
            f"the file has {found} of {needed} {flag} tensors; engines would fill the others with ones",
            "norm-tensor-missing",
            f"config.json:{name}",
        )
    if keys.contradiction(flag) or flag in answers.semantics:
        return _read_contrary_flag(keys, answers, flag, tensor, has_tensor=bool(found))
    stated = keys.flag(flag)
    on, off = ("false", "true") if name == keys.own.get(flag) and flag in keys.inverted else ("true", "false")
    if stated and not found:
        raise RefusedError(
            f"config says {name}: {on} and the file has no {tensor}; engines would use ones in silence:"
            " restore the tensor from the trainer",
            "norm-tensor-missing",
            f"config.json:{name}",
        )
    text = f"config says {name}: {off} and the file has {tensor}; one of them is wrong"
    return Reading(bool(found), (flag,)).with_notes(
        (found and stated is False, Note("problem", flag, text, "norm-flag-missing")),
        (
            found and stated is None,
            Note("note", flag, f"config has no {name}; the file's tensors say true"),
        ),
    )


def _read_contrary_flag(
    keys: Keys, answers: Answers, flag: str, tensor: str, *, has_tensor: bool
) -> Reading[bool]:
    """A switch that two places, or the user, state otherwise: its tensors show it; else it is asked."""
    answer = answers.semantics.get(flag)
    if answer and has_tensor:
        raise UsageError(f"--source-semantics {flag}={answer}: the file has {tensor}, which was trained")
    if has_tensor:
        return Reading(True, (flag,), keys.disbelieved(flag, f"the file has {tensor}"))
    meaning = "if none was trained; else restore the tensor from the trainer"
    choice = Choice("--source-semantics", f"{flag}=false", meaning)
    why = f"{keys.contradiction(flag)}, and the file has no {tensor}"
    asked = (question(flag, why, "spellings-agree", [choice]),)
    return Reading(False, (flag,), () if answer else asked)


def read_settings(
    keys: Keys, tensors: Mapping[str, Tensor], family: ModelClass
) -> Reading[Mapping[str, Any]]:
    """The values that every layout states, absent ones as the config class defines them."""
    defaults, act = CLASS_DEFAULTS[family], keys.value("hidden_act")
    given: Mapping[str, Any] = {
        "rms_norm_eps": keys.number("rms_norm_eps"),
        "max_position_embeddings": keys.count("max_position_embeddings"),
        "hidden_act": None if act is MISSING else act,
    }
    absent = [key for key, value in given.items() if value is None and key != "hidden_act"]
    assumed = "config has no {key}; its class then means {value}, and it is written so"
    notes = [Note("note", key, assumed.format(key=key, value=defaults[key])) for key in absent]
    biases = {"attention_bias": ".self_attn.", "mlp_bias": ".mlp."}
    for key, part in biases.items():
        stated, has = keys.flag(key), any(part in name and name.endswith(".bias") for name in tensors)
        if bool(stated) != has:
            notes.append(Note("warning", key, (UNSTATED if has else UNTRUE).format(key=key), "bias-flag"))
    settings = {key: defaults[key] if value is None else value for key, value in given.items()}
    return Reading(settings, (*given, *biases), tuple(notes))


def read_quantisation(keys: Keys, checkpoint: Checkpoint) -> Reading[Mapping[str, Any] | None]:
    """The quantisation config when the file really holds quantised weights, else None."""
    key = "quantization_config"
    stated = keys.table(key) or checkpoint.sidecars.get(QUANTISATION)
    inner = (stated or {}).get("quantization")
    table = inner if isinstance(inner, Mapping) else stated or {}
    # ModelOpt's null, which vLLM 0.33 and SGLang 0.5.23 read as no quantisation
    if "quant_algo" in table and table["quant_algo"] is None and not table.get("quant_method"):
        stated = None
    has_parts = any(is_quantised_part(name) for name in checkpoint.tensors)
    if has_parts and stated is None:
        text = (
            "the file has quantisation scales and no quantization_config; engines would read the weights as"
            " they are"
        )
        return Reading({}, (key,), (Note("warning", key, text, "quantisation-config"),))
    if stated is not None and not has_parts:
        text = (
            "config has a quantization_config and the file has no quantised weight; engines would look for"
            " scales that are not there; convert leaves it out"
        )
        return Reading(None, (key,), (Note("warning", key, text, "quantisation-config"),))
    return Reading(stated)  # the key is carried over as it is
