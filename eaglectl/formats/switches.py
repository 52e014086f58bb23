"""Switches and settings: what the config says, what the tensors say, and what a missing key means."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.checkpoint.layout import QUANTISATION
from eaglectl.drafter.drafter import DOUBLE_NORM, HIDDEN_NORM, TWICE, Choice, Norms, Note
from eaglectl.drafter.tensors import NORM, Dimensions, Tensor, is_quantised_part
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.config_keys import CLASS_DEFAULTS, MISSING, Keys
from eaglectl.formats.format import Answers, CheckpointSummary, Format, ModelClass

# switches whose norms have tensors; an answer can only be that none was trained
TENSOR_FLAGS = ("fc_norm", "norm_before_fc")


def read_norms(
    keys: Keys,
    format: Format,
    summary: CheckpointSummary,
    answers: Answers,
    tensors: Mapping[str, Tensor],
    dims: Dimensions,
) -> Norms:
    """The four switches; norm_output is None where it must be asked."""
    fc_norm = _flag_and_tensor(
        keys,
        answers,
        "fc_norm",
        f"{dims.aux} fc_norm.N.weight",
        (sum(1 for n in tensors if NORM.fullmatch(n)), dims.aux),
    )
    before_fc = _flag_and_tensor(
        keys, answers, "norm_before_fc", "input_norm.weight", (int("input_norm.weight" in tensors), 1)
    )
    if fc_norm and before_fc:
        keys.add_note(
            "warning",
            "norms",
            "both fc_norm and norm_before_fc are on; vLLM and SGLang apply both, TensorRT-LLM only fc_norm",
            "both-norms",
        )
    stated, is_asked = _flag(keys, "norm_output", answers)
    answer = answers.semantics.get("norm_output")
    norm_output: bool | None
    if answer is not None:
        norm_output = answer == "true"
    elif is_asked:
        norm_output = None
    elif format.norm_output:
        norm_output = format.norm_output(summary, stated, answers)
    elif stated is None and fc_norm:
        norm_output = None
        keys.ask(
            "norm_output",
            "fc_norm is trained in and config has no norm_output",
            "norm-output-unknown",
            Choice("--source-semantics", "norm_output=true", "EAGLE-3.1"),
            Choice("--source-semantics", "norm_output=false", "EAGLE-3 with fc_norm"),
        )
    else:
        norm_output = bool(stated)
    hidden = answers.semantics.get("hidden_norm")
    twice = format.hidden_twice(summary, answers) if hidden is None else hidden == "twice"
    return Norms(fc_norm, before_fc, norm_output, _residual(keys, format, answers), twice)


def norms_by_record(keys: Keys, norms: Norms, format: Format, record: Mapping[str, Any]) -> Norms:
    """The switches with those of eaglectl.json: hidden_twice, and the norm_output of its EAGLE version.

    Only where the files leave it open; the version only where the record is of this layout.
    """
    twice = record.get("hidden_twice")
    if norms.hidden_twice is None and isinstance(twice, bool):
        norms = replace(norms, hidden_twice=twice)
        keys.notes[:] = [note for note in keys.notes if note.topic != DOUBLE_NORM]
        if twice:
            keys.notes.append(Note("warning", HIDDEN_NORM, TWICE, DOUBLE_NORM, format.name, is_open=True))
    if norms.norm_output is not None or record.get("layout") != format.name:
        return norms
    choices = [replace(norms, norm_output=value) for value in (False, True)]
    fitting = [choice for choice in choices if choice.version == record.get("eagle")]
    if len(fitting) != 1:
        return norms
    keys.notes[:] = [note for note in keys.notes if note.topic != "norm-output-unknown"]
    return fitting[0]


def _residual(keys: Keys, format: Format, answers: Answers) -> bool:
    residual, _ = _flag(keys, "norm_before_residual", answers, format.residual_default)
    if answer := answers.semantics.get("norm_before_residual"):
        return answer == "true"
    if residual is None and format.residual_default:
        keys.add_note(
            "note",
            "norm_before_residual",
            f"config has no norm_before_residual; in {format.title}'s files that means true",
        )
    return format.residual_default if residual is None else residual


def _flag(keys: Keys, key: str, answers: Answers, usual: bool | None = None) -> tuple[bool | None, bool]:
    """A switch that no tensor decides, and whether it is asked, as two places state it otherwise.

    `usual` is the producer's value where nothing is set; None: it has none.
    """
    contradiction = keys.contradiction(key)
    if not contradiction:
        return keys.take_bool(key), False
    keys.taken.update(keys.statements(key))
    if key in answers.semantics:
        return None, False
    choices = (
        Choice("--source-semantics", f"{key}={str(value).lower()}", is_usual=value is usual)
        for value in (True, False)
    )
    keys.ask(key, contradiction, "spellings-agree", *choices)
    return None, True


def _flag_and_tensor(keys: Keys, answers: Answers, flag: str, tensor: str, count: tuple[int, int]) -> bool:
    """A switch that has tensors; `count`: how many of them the file has, and how many it needs."""
    found, needed = count
    name = keys.spelling(flag)
    if found and found != needed:
        raise RefusedError(
            f"the file has {found} of {needed} {flag} tensors; engines would fill the others with ones",
            "norm-tensor-missing",
            f"config.json:{name}",
        )
    if keys.contradiction(flag) or flag in answers.semantics:
        return _contrary_flag(keys, answers, flag, tensor, has_tensor=bool(found))
    stated = keys.take_bool(flag)
    on, off = ("false", "true") if name == keys.own.get(flag) and flag in keys.inverted else ("true", "false")
    if stated and not found:
        raise RefusedError(
            f"config says {name}: {on} and the file has no {tensor}; engines would use ones in silence:"
            " restore the tensor from the trainer",
            "norm-tensor-missing",
            f"config.json:{name}",
        )
    if found and stated is False:
        keys.add_note(
            "problem",
            flag,
            f"config says {name}: {off} and the file has {tensor}; one of them is wrong",
            "norm-flag-missing",
        )
    elif found and stated is None:
        keys.add_note("note", flag, f"config has no {name}; the file's tensors say true")
    return bool(found)


def _contrary_flag(keys: Keys, answers: Answers, flag: str, tensor: str, *, has_tensor: bool) -> bool:
    """A switch that two places, or the user, state otherwise: its tensors show it; else it is asked."""
    contradiction, answer = keys.contradiction(flag), answers.semantics.get(flag)
    if answer and has_tensor:
        raise UsageError(f"--source-semantics {flag}={answer}: the file has {tensor}, which was trained")
    keys.believe(flag, True if has_tensor else None, f"the file has {tensor}")
    keys.taken.update(keys.places(flag), keys.statements(flag))
    if not has_tensor and not answer:
        meaning = "if none was trained; else restore the tensor from the trainer"
        choice = Choice("--source-semantics", f"{flag}=false", meaning)
        keys.ask(flag, f"{contradiction}, and the file has no {tensor}", "spellings-agree", choice)
    return has_tensor


def read_settings(keys: Keys, tensors: Mapping[str, Tensor], family: ModelClass) -> dict[str, Any]:
    """The values that every layout states, absent ones as the config class defines them."""
    defaults = CLASS_DEFAULTS[family]
    eps = keys.take_float("rms_norm_eps")
    positions = keys.take_int("max_position_embeddings")
    act = keys.take("hidden_act")
    given: Mapping[str, Any] = {
        "rms_norm_eps": eps,
        "max_position_embeddings": positions,
        "hidden_act": None if act is MISSING else act,
    }
    settings = {}
    for key, value in given.items():
        settings[key] = defaults[key] if value is None else value
        if value is None and key != "hidden_act":
            keys.add_note(
                "note",
                key,
                f"config has no {key}; its class then means {defaults[key]}, and it is written so",
            )
    for key, part in (("attention_bias", ".self_attn."), ("mlp_bias", ".mlp.")):
        stated, has = keys.take_bool(key), any(part in name and name.endswith(".bias") for name in tensors)
        if stated and not has:
            keys.add_note(
                "warning",
                key,
                f"config says {key}: true and the file has no such bias; vLLM would add uninitialised"
                " memory; convert writes false",
                "bias-flag",
            )
        elif has and not stated:
            keys.add_note(
                "warning",
                key,
                f"the file has biases and config does not say {key}: true; vLLM drops them in silence;"
                " convert writes true",
                "bias-flag",
            )
    return settings


def read_quantisation(checkpoint: Checkpoint, keys: Keys) -> Mapping[str, Any] | None:
    """The quantisation config when the file really holds quantised weights, else None."""
    stated = keys.take_mapping("quantization_config") or checkpoint.sidecars.get(QUANTISATION)
    if stated is not None and is_unquantised(stated):
        stated = None
    has_parts = any(is_quantised_part(name) for name in checkpoint.tensors)
    if has_parts and stated is None:
        keys.add_note(
            "warning",
            "quantization_config",
            "the file has quantisation scales and no quantization_config; engines would read the weights as"
            " they are",
            "quantisation-config",
        )
        return {}
    if stated is not None and not has_parts:
        keys.add_note(
            "warning",
            "quantization_config",
            "config has a quantization_config and the file has no quantised weight; engines would look for"
            " scales that are not there; convert leaves it out",
            "quantisation-config",
        )
        return None
    keys.taken.discard("quantization_config")  # carried over as it is
    return stated


def is_unquantised(config: Mapping[str, Any]) -> bool:
    """Whether a quantisation config says that nothing is quantised: ModelOpt's quant_algo is null.

    vLLM 0.33 and SGLang 0.5.23 read it so.
    """
    inner = config.get("quantization")
    table = inner if isinstance(inner, Mapping) else config
    return "quant_algo" in table and table["quant_algo"] is None and not config.get("quant_method")
