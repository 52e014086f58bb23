"""Rules on quantised drafters: a config and scales that agree, and methods that engines know."""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from eaglectl.drafter.tensors import QUANTISED
from eaglectl.files.layout import QUANTISATION
from eaglectl.formats.names import canonical_name
from eaglectl.judge.rule import CannotLook, Match, note_rule, rule
from eaglectl.judge.subject import Subject, key_place

# targets of compressed-tensors that are classes of modules
CLASSES = ("Linear", "LMHead", "ParallelLMHead", "Embedding", "Attention")
KEY = "quantization_config"
# the values of quant_method in vLLM 0.32, and ModelOpt's algorithms (layers/quantization/__init__.py and
# modelopt.py there)
METHODS = (
    "awq", "auto_awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4", "modelopt_mxfp8",
    "modelopt_mixed", "auto_gptq",
    "gptq", "gptq_marlin", "awq_marlin", "humming", "compressed-tensors", "experts_int8", "quark",
    "moe_wna16", "torchao", "inc", "mxfp4",
    "gpt_oss_mxfp4", "deepseek_v4_fp8", "online", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel",
    "int8_per_channel_weight_only",
    "nvfp4_per_token", "mxfp8",
)  # fmt: skip
ALGORITHMS = (
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "FP8_PB_WO",
    "NVFP4",
    "W4A16_NVFP4",
    "MXFP8",
    "MIXED_PRECISION",
)
# the keys under which quantisers list the modules that they exclude
EXCLUDE_KEYS = ("ignore", "exclude_modules", "exclude", "ignored_layers", "modules_to_not_convert")
# scales of the KV cache and of activations, not of weights
NOT_OF_WEIGHTS = ("k_scale", "v_scale", "q_scale", "output_scale", "input_scale", "pre_quant_scale")


quantisation_config = note_rule(
    "EGL801",
    "quantisation-config",
    "error",
    """A quantisation config and the scales of quantised weights are both present, or neither is.

    With the config alone, which drafters inherit from a quantised target, engines look for scales that do
    not exist; with the scales alone they read quantised numbers as weights.

    Fix: remove quantization_config from a drafter that is not quantised; else restore what is missing from
    the trainer.
    """,
)


@rule("EGL802", "quantisation-modules", "error")
def quantisation_modules(subject: Subject) -> Iterator[Match]:
    """The modules that the config quantises are those that have scales.

    vLLM builds each module by the config: scales of a module that the config excludes cannot be loaded, and
    a module without scales that it does not exclude gets uninitialised ones.

    Fix: correct the config's list of excluded modules, with the names of the tensors.
    """
    config = subject.drafter.quantisation
    if not config:
        return
    quantised = _quantised_modules(subject)
    patterns = tuple(_exclude_patterns(config))
    for module in _modules(subject):
        is_excluded = any(_matches(pattern, module) for pattern in patterns) or not _is_target(config, module)
        if is_excluded and module in quantised:
            text = f"{module} has scales, and the config leaves it out"
            tensor = subject.drafter.tensors.get(f"{module}.weight")
            yield Match(text, f"tensor:{tensor.stored[0] if tensor else module}")
        elif not is_excluded and module not in quantised and module != "lm_head":
            yield Match(f"{module} has no scales, and the config does not leave it out", _place(subject))


@rule("EGL803", "quantisation-method", "error")
def quantisation_method(subject: Subject) -> Iterator[Match]:
    """The config names a quantisation method that engines know.

    They look up quant_method, or ModelOpt's quant_algo, and stop at any other.

    Fix: quantise the drafter with a tool that the engine supports (compressed-tensors or ModelOpt).
    """
    config = subject.drafter.quantisation
    if not config:
        return
    method, algorithm = config.get("quant_method"), _modelopt(config).get("quant_algo")
    if method is None and algorithm is None:
        yield Match("the quantisation config has neither quant_method nor quant_algo", _place(subject))
    elif method is not None and method not in METHODS:
        yield Match(f"quant_method is {method!r}, which vLLM does not know", _place(subject))
    elif algorithm is not None and str(algorithm).upper() not in ALGORITHMS:
        yield Match(f"quant_algo is {algorithm!r}, which vLLM does not know", _place(subject))


@rule("EGL804", "quantised-edges", "note")
def quantised_edges(subject: Subject) -> Iterator[Match]:
    """fc and lm_head are not quantised.

    fc mixes states of very different scales, and lm_head decides the drafts: both lose most by rounding,
    are small beside the target, and only recent engines load them quantised.

    Fix: exclude both when quantising, unless `eaglectl smoke SOURCE --target TARGET` shows no loss.
    """
    for module in sorted(_quantised_modules(subject) & {"fc", "lm_head"}):
        yield Match(f"{module} is quantised", f"tensor:{module}.weight")


@rule("EGL805", "quantisation-unresolved", "note")
def quantisation_unresolved(subject: Subject) -> Iterator[Match]:
    """Every module that the quantisation config excludes is one of the drafter's.

    Names of the target's modules in it show that the list was copied, and that the drafter's own may be
    missing.

    Fix: write the names of the drafter's modules.
    """
    config = subject.drafter.quantisation
    if not config:
        return
    # norms too, which quantisers of some frameworks leave out by name
    tensors = {name.rpartition(".")[0] for name in subject.drafter.tensors}
    modules = (*tensors, *_modules(subject), "embed_tokens", "lm_head", "model.embed_tokens")
    for pattern in _exclude_patterns(config):
        if pattern not in CLASSES and not any(_matches(pattern, module) for module in modules):
            yield Match(
                f"{pattern} is left out of quantisation, and no module of the drafter is meant by it",
                _place(subject),
            )


@rule("EGL806", "allowed-quantisation", "error")
def allowed_quantisation(subject: Subject) -> Iterator[Match]:
    """The drafter is quantised by a method that the policy allows.

    Reports nothing without `quantisation` in the policy's [allow]; an empty list allows no method.

    Fix: quantise the drafter anew, or add the method to the policy.
    """
    allowed, config = subject.policy.allowed.get("quantisation"), subject.drafter.quantisation
    if allowed is None or not config:
        return
    method = str(config.get("quant_method") or _modelopt(config).get("quant_algo") or "unnamed")
    if not any(fnmatchcase(method.lower(), pattern.lower()) for pattern in allowed):
        yield Match(f"{method} is not among {', '.join(allowed) or 'none'}", _place(subject))


def _modelopt(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("quantization")
    return inner if isinstance(inner, Mapping) else config


def _exclude_patterns(config: Mapping[str, Any]) -> Iterator[str]:
    """The patterns of modules that the config excludes from quantisation."""
    inner = _modelopt(config)
    for table in (config,) if inner is config else (config, inner):
        for key in EXCLUDE_KEYS:
            patterns = table.get(key)
            if patterns is not None and not isinstance(patterns, list):
                raise CannotLook(f"the quantisation config's {key} is no list")
            yield from (pattern for pattern in patterns or () if isinstance(pattern, str))


def _is_target(config: Mapping[str, Any], module: str) -> bool:
    """Whether a group of compressed-tensors targets a module; other configs target all that they do not
    exclude.
    """
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping):
        return True
    targets = [
        target
        for group in groups.values()
        if isinstance(group, Mapping)
        for target in group.get("targets") or ()
        if isinstance(target, str)
    ]
    return "Linear" in targets or any(_matches(target, module) for target in targets)


def _matches(pattern: str, module: str) -> bool:
    """Whether a pattern (a name, its end, a glob, "re:...") matches a module, with any prefix."""
    names = (module, f"model.{module}", module.replace("layers.0.", "midlayer.", 1))
    if pattern.startswith("re:"):
        try:
            return any(re.match(pattern[3:], name) for name in names)
        except re.error:
            raise CannotLook(f"{pattern} in the quantisation config is no regular expression") from None
    own = canonical_name(pattern)
    is_match = any(fnmatchcase(name, pattern) or f".{own}." in f".{name}." for name in names)
    return is_match or f".{own}".endswith(f".{module}")


def _quantised_modules(subject: Subject) -> set[str]:
    """The modules that have scales or packed weights."""
    parts = (name.rpartition(".") for name in subject.drafter.tensors if QUANTISED.search(name))
    return {module for module, _, part in parts if part not in NOT_OF_WEIGHTS}


def _modules(subject: Subject) -> tuple[str, ...]:
    """The modules that engines may quantise: those with a matrix, without the embedding."""
    tensors, quantised = subject.drafter.tensors, _quantised_modules(subject)
    matrices = {
        name.removesuffix(".weight")
        for name, tensor in tensors.items()
        if name.endswith(".weight") and len(tensor.shape) == 2
    }
    return tuple(sorted((matrices | quantised) - {"embed_tokens"}))


def _place(subject: Subject) -> str:
    return (
        key_place(subject.config, KEY)
        if KEY in subject.config or QUANTISATION not in subject.names
        else QUANTISATION
    )
