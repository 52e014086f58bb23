"""Switches and settings: what the config says, what the tensors say, and what a missing key means."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from eaglectl.drafter.drafter import DOUBLE_NORM, HIDDEN_NORM, TWICE, Choice, Norms, Note, question
from eaglectl.drafter.tensors import NORM, Dimensions, Tensor, is_quantised_part
from eaglectl.errors import RefusedError, UsageError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.layout import QUANTISATION
from eaglectl.formats.config_keys import CLASS_DEFAULTS, Keys
from eaglectl.formats.format import Answers, CheckpointSummary, Format, ModelClass

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
    text = "both fc_norm and norm_before_fc are on; vLLM and SGLang apply both, TensorRT-LLM only fc_norm"
    keys.note(fc_norm and before_fc, "warning", "norms", text, "both-norms")
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
    why = "fc_norm is trained in and config has no norm_output"
    keys.notes.append(question(key, why, "norm-output-unknown", choices))
    return None


def _read_residual(keys: Keys, format: Format, answers: Answers) -> bool:
    key, usual = "norm_before_residual", format.residual_default
    stated = _read_flag(keys, key, answers, usual)
    if (answer := answers.semantics.get(key)) is not None:
        return answer == "true"
    text = f"config has no {key}; in {format.title}'s files that means true"
    keys.note(stated is None and usual, "note", key, text)
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
        text = f"the file has {found} of {needed} {flag} tensors; engines would fill the others with ones"
        raise RefusedError(text, "norm-tensor-missing", where)
    answer = answers.semantics.get(flag)
    if answer and found:
        raise UsageError(f"--source-semantics {flag}={answer}: the file has {tensor}, which was trained")
    contradiction, _ = keys.contradiction(flag)
    if contradiction and found:
        return keys.disbelieved(flag, f"the file has {tensor}")
    if contradiction and not answer:
        meaning = "if none was trained; else restore the tensor from the trainer"
        choice = Choice("--source-semantics", f"{flag}=false", meaning)
        why = f"{contradiction}, and the file has no {tensor}"
        keys.notes.append(question(flag, why, "spellings-agree", [choice]))
    if contradiction or answer:
        return False
    stated = keys.get(flag, bool)
    on, off = ("false", "true") if name == keys.own.get(flag) and flag in keys.inverted else ("true", "false")
    if stated and not found:
        raise RefusedError(
            f"config says {name}: {on} and the file has no {tensor}; engines would use ones in silence:"
            " restore the tensor from the trainer",
            "norm-tensor-missing",
            where,
        )
    text = f"config says {name}: {off} and the file has {tensor}; one of them is wrong"
    keys.note(found and stated is False, "problem", flag, text, "norm-flag-missing")
    text = f"config has no {name}; the file's tensors say true"
    keys.note(found and stated is None, "note", flag, text)
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
