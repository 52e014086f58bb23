"""Rules on quantised drafters: a config and scales that belong together, and modules that engines build as they were saved."""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from eaglectl.drafter.tensors import QUANTISED
from eaglectl.formats.spelling import canonical_name
from eaglectl.validation.rule import CannotLook, Hit, rule
from eaglectl.validation.subject import Subject, key_place

KEY = "quantization_config"
SIDE = "hf_quant_config.json"
# what vLLM 0.32 takes for quant_method, and ModelOpt's algorithms (layers/quantization/__init__.py and modelopt.py there)
METHODS = (
    "awq", "auto_awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "auto_gptq",
    "gptq", "gptq_marlin", "awq_marlin", "humming", "compressed-tensors", "experts_int8", "quark", "moe_wna16", "torchao", "inc", "mxfp4",
    "gpt_oss_mxfp4", "deepseek_v4_fp8", "online", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only",
    "nvfp4_per_token", "mxfp8",
)  # fmt: skip
ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8", "MIXED_PRECISION")
# where each kind of config lists the modules that stay as they are
IGNORED = ("ignore", "exclude_modules", "exclude", "ignored_layers", "modules_to_not_convert")
# scales of keys and values, not of weights
OF_CACHE = ("k_scale", "v_scale", "q_scale", "output_scale", "input_scale", "pre_quant_scale")


@rule("EGL801", "quantisation-config", "error")
def quantisation_config(subject: Subject) -> Iterator[Hit]:
    """A quantisation config and the scales of quantised weights are there together, or neither is.

    With the config alone, which drafters inherit from a quantised target, engines look for scales that are not there; with
    the scales alone they read quantised numbers as weights.

    Fix: remove quantization_config from a drafter that is not quantised; else restore what is missing from the trainer.
    """
    yield from subject.said("quantisation-config")


@rule("EGL802", "quantisation-modules", "error")
def quantisation_modules(subject: Subject) -> Iterator[Hit]:
    """The modules that the config quantises are those that have scales.

    vLLM builds each module by the config: scales of one that the config leaves out have no place, and one without scales
    that the config does not leave out gets uninitialised ones.

    Fix: correct the config's list of modules that are left out, by the names that the tensors have.
    """
    config = _config(subject)
    if config is None:
        return
    quantised = _quantised(subject)
    place = _place(subject)
    left_out = tuple(_left_out(config))
    for module in _modules(subject):
        is_left_out = any(_is_meant(pattern, module) for pattern in left_out) or not _is_target(config, module)
        stored = (
            subject.drafter.tensors[f"{module}.weight"].stored[0]
            if f"{module}.weight" in subject.drafter.tensors
            else module
        )
        if is_left_out and module in quantised:
            yield Hit(f"{module} has scales, and the config leaves it out", f"tensor:{stored}")
        elif not is_left_out and module not in quantised and module != "lm_head":
            yield Hit(f"{module} has no scales, and the config does not leave it out", place)


@rule("EGL803", "quantisation-method", "error")
def quantisation_method(subject: Subject) -> Iterator[Hit]:
    """The config names a way of quantising that engines know.

    They look quant_method up, or ModelOpt's quant_algo, and stop at any other.

    Fix: quantise the drafter with a tool that the engine supports (compressed-tensors or ModelOpt).
    """
    config = _config(subject)
    if config is None:
        return
    method, algorithm = config.get("quant_method"), _modelopt(config).get("quant_algo")
    if method is None and algorithm is None:
        yield Hit("the quantisation config has neither quant_method nor quant_algo", _place(subject))
    elif method is not None and method not in METHODS:
        yield Hit(f"quant_method is {method!r}, which vLLM does not know", _place(subject))
    elif algorithm is not None and str(algorithm).upper() not in ALGORITHMS:
        yield Hit(f"quant_algo is {algorithm!r}, which vLLM does not know", _place(subject))


@rule("EGL804", "quantised-edges", "note")
def quantised_edges(subject: Subject) -> Iterator[Hit]:
    """fc and lm_head are not quantised.

    fc mixes states of very different scales, and lm_head decides the drafts: both lose most by rounding, are small beside the
    target, and engines learned late to load them quantised.

    Fix: leave both out when quantising, unless `eaglectl smoke` shows that nothing is lost.
    """
    for module in sorted(_quantised(subject) & {"fc", "lm_head"}):
        yield Hit(f"{module} is quantised", f"tensor:{module}.weight")


@rule("EGL805", "quantisation-unresolved", "note")
def quantisation_unresolved(subject: Subject) -> Iterator[Hit]:
    """Every module that the quantisation config leaves out is one of the drafter's.

    Names of the target's modules in it say that the list was copied, and that the drafter's own may be missing.

    Fix: write the names of the drafter's modules.
    """
    config = _config(subject)
    if config is None:
        return
    modules = (*_modules(subject), "embed_tokens", "lm_head", "model.embed_tokens")
    for pattern in _left_out(config):
        if pattern not in CLASSES and not any(_is_meant(pattern, module) for module in modules):
            yield Hit(
                f"{pattern} is left out of quantisation, and no module of the drafter is meant by it", _place(subject)
            )


@rule("EGL806", "allowed-quantisation", "error")
def allowed_quantisation(subject: Subject) -> Iterator[Hit]:
    """The drafter is quantised in a way that the policy allows.

    A team that serves some ways only says so in its policy, by `quantisation`; an empty list allows none.

    Fix: quantise the drafter anew, or add the way to the policy.
    """
    allowed, config = subject.policy.allowed.get("quantisation"), _config(subject)
    if allowed is None or config is None:
        return
    method = str(config.get("quant_method") or _modelopt(config).get("quant_algo") or "unnamed")
    if not any(fnmatchcase(method.lower(), pattern.lower()) for pattern in allowed):
        yield Hit(f"{method} is not among {', '.join(allowed) or 'none'}", _place(subject))


# targets that name classes of modules, not modules
CLASSES = ("Linear", "LMHead", "ParallelLMHead", "Embedding", "Attention")


def _config(subject: Subject) -> Mapping[str, Any] | None:
    """The quantisation config of a drafter that is quantised, None of one that is not."""
    found = subject.drafter.quantisation
    return found or None


def _modelopt(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("quantization")
    return inner if isinstance(inner, Mapping) else config


def _left_out(config: Mapping[str, Any]) -> Iterator[str]:
    for place in (config, _modelopt(config)) if _modelopt(config) is not config else (config,):
        for key in IGNORED:
            listed = place.get(key)
            if listed is not None and not isinstance(listed, list):
                raise CannotLook(f"the quantisation config's {key} is no list")
            yield from (one for one in listed or () if isinstance(one, str))


def _is_target(config: Mapping[str, Any], module: str) -> bool:
    """Whether a group of compressed-tensors means a module; other kinds of config mean all that they do not leave out."""
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
    return "Linear" in targets or any(_is_meant(target, module) for target in targets)


def _is_meant(pattern: str, module: str) -> bool:
    """Whether a pattern (a name, its end, a glob, "re:...") means a module, by whatever prefix either has."""
    names = (module, f"model.{module}", module.replace("layers.0.", "midlayer.", 1))
    if pattern.startswith("re:"):
        try:
            return any(re.match(pattern[3:], name) for name in names)
        except re.error:
            raise CannotLook(f"{pattern} in the quantisation config is no regular expression") from None
    own = canonical_name(pattern)
    return any(fnmatchcase(name, pattern) or f".{own}." in f".{name}." for name in names) or f".{own}".endswith(
        f".{module}"
    )


def _quantised(subject: Subject) -> set[str]:
    """Modules that have scales, or packed numbers, of weights."""
    parts = (name.rpartition(".") for name in subject.drafter.tensors if QUANTISED.search(name))
    return {module for module, _, part in parts if part not in OF_CACHE}


def _modules(subject: Subject) -> tuple[str, ...]:
    """Modules that engines may quantise: all with a matrix, but for the embedding."""
    tensors, quantised = subject.drafter.tensors, _quantised(subject)
    matrices = {n.removesuffix(".weight") for n, t in tensors.items() if n.endswith(".weight") and len(t.shape) == 2}
    return tuple(sorted((matrices | quantised) - {"embed_tokens"}))


def _place(subject: Subject) -> str:
    return key_place(subject.config, KEY) if KEY in subject.config or SIDE not in subject.names else SIDE
