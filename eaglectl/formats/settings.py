"""Reading the settings that every layout states."""

from collections.abc import Mapping
from typing import Any

from eaglectl.drafter.drafter import Choice, Rope, question
from eaglectl.drafter.tensors import Tensor
from eaglectl.formats.config_keys import CLASS_EPS, POSITIONS, Keys
from eaglectl.formats.format import Answers, Format

# of biases
UNTRUE = (
    "config says {key}: true and the file has no such bias; vLLM would add uninitialised memory; convert"
    " writes false"
)
UNSTATED = (
    "the file has biases and config does not say {key}: true; vLLM silently drops them; convert writes true"
)


def _absent_eps(keys: Keys, format: Format, answers: Answers) -> float:
    # the trainer's epsilon for a config without one; a question where the producer has none
    key = "rms_norm_eps"
    about, answer = f"config has no {key}", answers.semantics.get(key)
    if answer is None and not format.has_config_class:
        meanings = {"1e-06": "of the config class", "1e-05": "of Llama 3 and Mistral"}
        choices = [
            Choice("--source-semantics", f"{key}={value}", meaning, is_usual=value == "1e-06")
            for value, meaning in meanings.items()
        ]
        keys.notes.append(question(key, f"{about}, and the trainer is unknown", "absent-epsilon", choices))
        return CLASS_EPS
    who = "the answer is" if answer else f"the default of {format.title}'s config class is"
    value = float(answer or CLASS_EPS)
    keys.note(True, "note", key, f"{about}; {who} {value:g}, which is written")
    return value


# where the biases of a key are, and whose tensors' engines read no such key: MLA's and Qwen3's (vLLM 0.32.0
# deepseek_v2.py, qwen3.py; run)
BIASES = {"attention_bias": (".self_attn.", ".kv_a_proj"), "mlp_bias": (".mlp.", ".q_norm.")}


def read_settings(
    keys: Keys, format: Format, answers: Answers, tensors: Mapping[str, Tensor], rope: Rope
) -> Mapping[str, Any]:
    """Read the values that every layout states.

    An absent one is what the trainer's code means by its absence. Positions that no scaling implies are None
    and are left out.
    """
    settings: dict[str, Any] = {
        "rms_norm_eps": keys.get("rms_norm_eps", float),
        "max_position_embeddings": keys.get("max_position_embeddings", int),
        "hidden_act": keys.value("hidden_act"),
    }
    if settings[POSITIONS] is None:
        settings[POSITIONS] = rope.positions
        what = "the trained number is unknown, so it is left out and engines use the default of their class"
        if rope.positions is not None:
            what = f"the rope scaling implies {rope.positions}, which is written"
        keys.note(True, "note", POSITIONS, f"config has no {POSITIONS}; {what}")
    if settings["hidden_act"] is None:  # the one that every trainer of EAGLE-3 and every engine takes
        settings["hidden_act"] = "silu"
    if settings["rms_norm_eps"] is None:
        settings["rms_norm_eps"] = _absent_eps(keys, format, answers)
    for key, (part, mark) in BIASES.items():
        has = any(part in name and name.endswith(".bias") for name in tensors)
        is_read = has or not any(mark in name for name in tensors)
        keys.note(
            is_read and bool(keys.get(key, bool)) != has,
            "warning",
            key,
            (UNSTATED if has else UNTRUE).format(key=key),
            "bias-flag",
        )
    return settings
