"""Arguments of an engine that the user gives with --engine-arg, and those that a measurement cannot take."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from eaglectl.errors import UsageError
from eaglectl.shell import without_secrets
from eaglectl.text import listed

NAME = re.compile(r"[a-z][a-z0-9_]*")
# of values that are no JSON: what a shell passes of a string without its quotes
TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_.:/-]*")
NOT_JSON = ("True", "False", "None", "nan", "NaN", "Infinity", "inf")

# arguments of vLLM 0.32.0's EngineArgs and of SGLang 0.5.23's ServerArgs, by the reason to refuse them
NAMES_BY_REASON: Mapping[str, str] = {
    "it changes the target; pass another --target": (
        "model model_path model_weights hf_config_path config_format revision code_revision tokenizer"
        " tokenizer_path tokenizer_revision tokenizer_mode skip_tokenizer_init model_checksum"
        " decrypted_config_file decrypted_draft_config_file modelopt_checkpoint_restore_path is_embedding"
        " runner convert"
    ),
    "it changes the config that is tested; change the files": (
        "hf_overrides json_model_override_args model_config_parser"
    ),
    "eaglectl sets how it drafts; use -k, or another SOURCE": (
        "spec_method spec_model spec_tokens enable_multi_layer_eagle diffusion_config dllm_algorithm"
        " dllm_algorithm_config"
    ),
    "it changes which tokens are taken; use --temperature and --seed": (
        "seed random_seed generation_config override_generation_config logits_processors sampling_defaults"
        " preferred_sampling_params enable_watermark rl_on_policy_target enable_custom_logit_processor"
    ),
    "eaglectl needs its own value to count and to compare": (
        "disable_log_stats kv_transfer_config stream_interval incremental_streaming_output encoder_only"
        " enable_mis allow_auto_truncate prefill_only_disable_kv_cache"
    ),
    "it puts other code where the engine's is measured": (
        "scheduler_cls worker_cls worker_extension_cls model_class_overrides forward_hooks"
        " custom_weight_loader custom_sigquit_handler"
    ),
    "it would be printed; set it in the environment": (
        "hf_token api_key admin_api_key ssl_keyfile_password watermark_key watermark_key_b"
    ),
    "replicas would answer for each other; use --tensor-parallel-size": (
        "data_parallel_size dp_size node_rank disaggregation_mode"
    ),
    "use --trust-remote-code": "trust_remote_code",
    "use --tensor-parallel-size": "tensor_parallel_size tp_size",
    "use --device": "device",
}
REFUSED = {name: reason for reason, names in NAMES_BY_REASON.items() for name in names.split()}
PREFIXES = {
    "speculative_": REFUSED["spec_method"],
    "watermark_": REFUSED["seed"],
    "disaggregation_": REFUSED["disaggregation_mode"],
}
# names whose values are secrets
SECRET = re.compile(r"(?:^|_)(?:token|key|secret|password|credential|authorization)s?(?:_|$)", re.IGNORECASE)
# of calibration alone: what takes the hidden states out
CALIBRATION = (
    "enable_prefix_caching",
    "max_num_seqs",
    "kv_cache_dtype",  # hidden states are kept in that cache
    "kv_cache_dtype_skip_layers",
    "kv_events_config",
    "ec_transfer_config",
)


def parse_engine_arguments(texts: Sequence[str], *, is_calibration: bool = False) -> dict[str, Any]:
    """The arguments in texts "KEY=VALUE", with VALUE in JSON or a plain word. Raises UsageError."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.strip().lstrip("-").replace("-", "_")
        if not equals:
            raise UsageError(f"--engine-arg {text}: KEY=VALUE was expected")
        if name in found:
            raise UsageError(f"--engine-arg {name} is given twice; give it once")
        found[name] = _value(name, value.strip())
    check_engine_arguments(found, is_calibration=is_calibration)
    return found


def check_engine_arguments(
    arguments: Mapping[str, Any], ranks: int = 1, *, is_calibration: bool = False
) -> None:
    """Raise UsageError for an argument that would fake acceptance, or change what is tested.

    `ranks` is --tensor-parallel-size.
    """
    if ranks < 1:
        raise UsageError("--tensor-parallel-size needs to be at least 1")
    for name, value in arguments.items():
        if not NAME.fullmatch(name):
            raise UsageError(f"--engine-arg {name}: a name of small letters, digits and _ was expected")
        by_prefix = (why for prefix, why in PREFIXES.items() if name.startswith(prefix))
        reason = REFUSED.get(name) or next(by_prefix, None)
        if is_calibration and name in CALIBRATION:
            reason = "calibration needs its own value, to get the hidden states of every token as they are"
        if name == "load_format" and value in ("dummy", "remote", "remote_instance"):
            reason = "the weights would not be those of --target"
        if reason:
            raise UsageError(f"--engine-arg {name}: {reason}")


def shown_arguments(arguments: Any, name: str = "") -> Any:
    """The arguments as results keep them: without values whose names say that they are secrets."""
    match arguments:
        case Mapping():
            return {key: shown_arguments(value, str(key)) for key, value in arguments.items()}
        case list() | tuple():
            return [shown_arguments(value, name) for value in arguments]
        case str():
            return "***" if SECRET.search(name) else without_secrets(arguments)
    return arguments


def unknown_argument(title: str, answer: Mapping[str, Any]) -> UsageError:
    """The error for an argument that the engine does not have: its own words, and the nearest names."""
    near: list[str] = answer["nearest"]
    more = f"; the nearest names are {listed(near)}" if near else ""
    version = f"{title} {answer.get('version', '')}".strip()
    return UsageError(f"--engine-arg {answer['unknown']}: {version} says {answer['error']}{more}")


def _value(name: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda constant: _refuse(name, constant))
    except json.JSONDecodeError:
        if TEXT.fullmatch(text) and text not in NOT_JSON:
            return text
        return _refuse(name, text)


def _refuse(name: str, text: str) -> NoReturn:
    raise UsageError(
        f"--engine-arg {name}={shown_arguments(text, name)}: the value is no JSON; write true, null, 0.9, a"
        f" word, '\"text\"' or '{{\"key\": 1}}'"
    )
