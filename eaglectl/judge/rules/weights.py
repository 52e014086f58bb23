"""Rules on the tensors: exactly those of the drafter, in their shapes and dtypes, with numbers as trained.

Not finite, never initialised, never trained, or far too large: that is what their numbers show. Of quantised
drafters: a config and scales that agree, and methods that engines know.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod, sqrt
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from eaglectl.drafter.tensors import LAYER, QUANTISED, Tensor, is_quantised_part
from eaglectl.files.layout import QUANTISATION
from eaglectl.formats.commands import PLAIN
from eaglectl.formats.names import WRAPPERS, canonical_name
from eaglectl.judge.rule import CannotLook, Match, note_rule, rule
from eaglectl.judge.subject import TABLES, Subject, key_place

if TYPE_CHECKING:
    from eaglectl.judge.samples import Summary
    from eaglectl.judge.scanning import Spread

# dtypes as configs name them -> as safetensors names them
DTYPES: Mapping[str, str] = {
    "bfloat16": "BF16",
    "float16": "F16",
    "half": "F16",
    "float32": "F32",
    "float": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
DTYPE = re.compile(r"(torch\.)?(bfloat16|float(8_\w+|16|32|64)?|half|double|auto)")
NUMBERS = ("BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2", "F8_E8M0")
OTHER_WRAPPERS = "|".join(re.escape(wrapper) for wrapper in WRAPPERS if wrapper != "model.")
# patterns of names that some engines do not load -> those engines
UNLOADED_NAMES: Mapping[re.Pattern[str], str] = {
    re.compile(r"model\."): "vLLM, TensorRT-LLM, and SGLang for MLA",
    re.compile(
        rf"(model\.)?({OTHER_WRAPPERS})|.*\.({OTHER_WRAPPERS})", re.DOTALL
    ): "vLLM, SGLang and TensorRT-LLM",
    re.compile(r"(model\.)?midlayer\.\d+\."): "vLLM and SGLang",
    re.compile(r"(model\.)?aux_norm_(low|mid|high)\."): "vLLM and TensorRT-LLM",
    re.compile(r".*\.(w_kc|w_vc|fused_qkv_a_proj_with_mqa)\b", re.DOTALL): "vLLM",
}
HALF = 65504.0  # the largest number of float16
# the largest number whose square float32 holds: an RMS norm over a larger one is zero or NaN
SQUARES = sqrt(3.4028234663852886e38)


missing_tensor = note_rule(
    "EGL201",
    "missing-tensor",
    "error",
    """Every tensor of the drafter is in the weights.

    No engine reports a missing tensor: norms stay at one, matrices keep uninitialised memory, and the
    drafts are worthless while the server answers as usual.

    Fix: restore the tensor from the trainer's checkpoint.
    """,
)


@rule("EGL202", "unknown-tensor", "error")
def unknown_tensor(subject: Subject) -> Iterator[Match]:
    """Every tensor in the weights belongs to an EAGLE-3 drafter.

    vLLM stops at a name that it does not know. SGLang skips it; if the name is misspelt, the tensor is
    missing.

    Fix: correct the name, or leave the tensor out: `eaglectl convert SOURCE` with --drop and its name.
    """
    for match in subject.reported("unknown-tensor"):
        name = match.where.removeprefix("tensor:")
        fix = f"correct the name, or leave the tensor out: `eaglectl convert SOURCE --drop {name}`."
        yield replace(match, fix=fix if PLAIN.fullmatch(name) else "")
    for name, reason in subject.drafter.strays.items():
        if name.startswith("verifier_"):
            fix = "run `eaglectl convert SOURCE`, which leaves it out"
            yield Match(f"{name} is {reason}; vLLM stops at it", f"tensor:{name}", fix)


@rule("EGL203", "tensor-shape", "error")
def tensor_shape(subject: Subject) -> Iterator[Match]:
    """Every tensor has the shape that the drafter's dimensions give it.

    Engines stop at most wrong shapes with a message that does not name the tensor, and load some of them.

    Fix: restore the tensor from the trainer, or correct the size in config.json that it does not fit.
    """
    for match in subject.reported("tensor-shape"):
        if match.where == "tensor:d2t" and not subject.ended_on("tensor-shape"):
            message, repair = match.message.partition("; or pass ")[0], subject.vocabulary_repair
            match = replace(match, message=message, fix=repair)
        yield match


@rule("EGL204", "tensor-dtype", "error")
def tensor_dtype(subject: Subject) -> Iterator[Match]:
    """Weights are floating-point numbers, or have the scales of a quantiser.

    Engines copy integers into their weights unscaled where the scales are missing.

    Fix: restore the tensor, or its scales, from the trainer.
    """
    for tensor in _unquantised(subject):
        if tensor.dtype not in NUMBERS:
            (name, *_), dtype = tensor.stored, tensor.dtype
            text = f"{name} is {dtype}, without scales beside it; engines expect bfloat16 or float16"
            yield Match(text, f"tensor:{name}")


@rule("EGL209", "engine-names", "note")
def engine_names(subject: Subject) -> Iterator[Match]:
    """The tensors have names that every engine loads.

    Engines stop at other names, or skip them silently. No names suit all engines for a drafter of several
    layers: the norm of later layers is input_layernorm in vLLM and hidden_norm in SGLang and TensorRT-LLM.

    Fix: run `eaglectl convert SOURCE` with --for and the engine that serves it.
    """
    names = tuple(subject.checkpoint.tensors)
    for pattern, engines in UNLOADED_NAMES.items():
        unloaded = [name for name in names if pattern.match(name)]
        if unloaded:
            more = f" and {len(unloaded) - 1} like it are names" if len(unloaded) > 1 else " is a name"
            yield Match(f"{unloaded[0]}{more} not loaded by {engines}", f"tensor:{unloaded[0]}")
    layers = (LAYER.fullmatch(canonical_name(name)) for name in names)
    parts = [layer[2] for layer in layers if layer and layer[1] != "0"]
    if parts and "input_layernorm.weight" not in parts:
        yield Match("later layers have hidden_norm alone; vLLM looks for input_layernorm there")
    elif parts and "hidden_norm.weight" not in parts:
        yield Match(
            "later layers have input_layernorm alone; SGLang and TensorRT-LLM look for hidden_norm there"
        )


@rule("EGL210", "mixed-dtypes", "note")
def mixed_dtypes(subject: Subject) -> Iterator[Match]:
    """All weights that are not quantised have one dtype.

    Engines cast them to the target's dtype, so nothing breaks; a float32 tensor among bfloat16 ones is
    twice as large for no benefit, and the engine rounds it.

    Fix: run `eaglectl convert SOURCE` with --dtype, if all weights are meant to be of one dtype.
    """
    counts = _dtype_counts(subject)
    if len(counts) > 1:
        rare = min(counts, key=lambda dtype: counts[dtype])
        first = next(tensor.stored[0] for tensor in _unquantised(subject) if tensor.dtype == rare)
        dtypes = ", ".join(f"{count} of {dtype}" for dtype, count in sorted(counts.items()))
        yield Match(f"the weights have {dtypes}; {first} is {rare}", f"tensor:{first}")


@rule("EGL211", "config-dtype", "warning")
def config_dtype(subject: Subject) -> Iterator[Match]:
    """The config states the dtype of the weights.

    Where it states another, or none, some loaders cast to a dtype of their own: bfloat16 weights cast to
    float16 overflow, and a drafter with half of its drafts accepted has none accepted.

    Fix: write torch_dtype (or dtype) as the weights have it.
    """
    counts, flat = _dtype_counts(subject), subject.flat
    key = "dtype" if flat.get("dtype") is not None else "torch_dtype"
    stated, stored = flat.get(key), max(counts, key=counts.__getitem__, default=None)
    if stored is None or (stated is not None and not DTYPE.fullmatch(str(stated))):
        return  # EGL112 reports it
    if DTYPES.get(str(stated).removeprefix("torch.")) != stored:
        said = "no torch_dtype" if stated is None else f"{key}: {stated}"
        yield Match(f"config states {said}, and the weights are {stored}", key_place(subject.config, key))


tensor_twice = note_rule(
    "EGL212",
    "tensor-twice",
    "error",
    """No tensor is in the weights under two names.

    Which of the two an engine keeps depends on the order in which it reads them.

    Fix: keep the one that was trained.
    """,
)


@rule("EGL213", "allowed-dtype", "error")
def allowed_dtype(subject: Subject) -> Iterator[Match]:
    """The weights have dtypes that the policy allows.

    Reports nothing without `dtypes` in the policy's [allow].

    Fix: run `eaglectl convert SOURCE` with --dtype, or add the dtype to the policy.
    """
    allowed = subject.policy.allowed.get("dtypes")
    if allowed is None:
        return
    patterns = [DTYPES.get(dtype.lower(), dtype.upper()) for dtype in allowed]
    tensors = subject.drafter.tensors.items()
    weights = [tensor for name, tensor in tensors if name not in TABLES and not is_quantised_part(name)]
    for dtype, name in {tensor.dtype: tensor.stored[0] for tensor in reversed(weights)}.items():
        if not any(fnmatchcase(dtype, pattern) for pattern in patterns):
            yield Match(f"{name} is {dtype}, which is not among {', '.join(allowed)}", f"tensor:{name}")


def _unquantised(subject: Subject) -> Iterator[Tensor]:
    """The tensors that belong neither to the draft vocabulary nor to a quantised module."""
    tensors = subject.drafter.tensors
    quantised = {name.rpartition(".")[0] for name in tensors if is_quantised_part(name)}
    for name, tensor in tensors.items():
        if name not in TABLES and name.rpartition(".")[0] not in quantised:
            yield tensor


def _dtype_counts(subject: Subject) -> Counter[str]:
    return Counter(tensor.dtype for tensor in _unquantised(subject) if tensor.dtype in NUMBERS)


@rule("EGL205", "not-finite", "error")
def not_finite(subject: Subject) -> Iterator[Match]:
    """No number in the weights is NaN or infinite.

    One such number spreads to every draft: vLLM and SGLang load it, propose only token 0 and accept
    nothing, while the server answers as usual, but slower.

    Fix: go back to a checkpoint from before training diverged; a cast to float16 turns large numbers into
    infinities.
    """
    for name, summary in subject.summaries():
        if summary.bad:
            # the indices of the first one in a row-major tensor
            shape, position, first = subject.checkpoint.tensors[name].shape, summary.first, list[int]()
            for size in reversed(shape):
                position, index = divmod(position, size)
                first.insert(0, index)
            count = f"{summary.bad} of {prod(shape)} numbers, the first at {first}"
            yield Match(f"{name} holds NaN or infinity: {count}", f"tensor:{name}")


@rule("EGL206", "constant-tensor", "error")
def constant_tensor(subject: Subject) -> Iterator[Match]:
    """No matrix is one constant, and no norm is all zeros.

    Training leaves no such tensor: it was never initialised, or it was created in place of a missing one. A
    bias may be zero.

    Fix: restore the tensor from the trainer's checkpoint.
    """
    # not those of quantisers and of the draft vocabulary; biases may be zero
    names = {
        stored
        for name, tensor in subject.drafter.tensors.items()
        if name not in (*TABLES, "mask_hidden") and not name.endswith(".bias") and not is_quantised_part(name)
        for stored in tensor.stored
    }
    for name, summary in subject.summaries():
        if summary.constant is None or name not in names:
            continue
        shape = subject.checkpoint.tensors[name].shape
        is_matrix = len(shape) > 1 and prod(shape) > 1
        if is_matrix or (summary.constant == 0 and name.endswith("weight")):
            yield Match(f"{name} {list(shape)} is all {summary.constant:g}", f"tensor:{name}")


@rule("EGL207", "untrained", "warning")
def untrained(subject: Subject) -> Iterator[Match]:
    """The weights are not as training initialises them.

    A part looks untrained when its norms are exactly ones and each of its matrices is distributed as
    frameworks initialise it: normal with the config's initializer_range, or uniform as in torch. Loaders
    that miss a name keep such numbers with at most a warning, and save them.

    Fix: compare the tensors with the trainer's checkpoint; convert that again, with names that match.
    """
    parts = _parts(subject)
    fresh = {part: matrices for part, names in parts.items() if (matrices := _untrained(subject, names))}
    if len(fresh) == len(parts) > 1:
        _, distribution = next(iter(fresh.values()))[0]
        text = f"nothing was trained: all norms are ones and all matrices as first drawn ({distribution})"
        yield Match(text)
        return
    for part, ((name, distribution), *_) in fresh.items():
        text = f"{part} looks untrained: its norms are ones and its matrices as first drawn ({distribution})"
        yield Match(text, f"tensor:{name}")


@rule("EGL214", "beyond-float16", "warning")
def beyond_float16(subject: Subject) -> Iterator[Match]:
    """Every weight fits into float16.

    Served with --dtype float16, or by kernels that support nothing else, a number above 65504 becomes
    infinite, and every draft is token 0.

    Fix: serve it in bfloat16; trained numbers are rarely so large, so inspect the tensor too.
    """
    for name, summary in _large(subject, HALF, SQUARES):
        yield Match(f"{name} reaches {summary.largest:.3g}; float16 ends at 65504", f"tensor:{name}")


@rule("EGL215", "overflowing", "error")
def overflowing(subject: Subject) -> Iterator[Match]:
    """No weight is so large that its square overflows float32.

    Norms square their inputs. A number beyond 1.8e19 comes from a flipped bit, a wrong dtype or
    uninitialised memory, never from training, and destroys everything computed from it.

    Fix: restore the tensor from the trainer's checkpoint.
    """
    for name, summary in _large(subject, SQUARES, float("inf")):
        yield Match(f"{name} reaches {summary.largest:.3g}, whose square no float32 holds", f"tensor:{name}")


def _large(subject: Subject, least: float, most: float) -> Iterator[tuple[str, "Summary"]]:
    for name, summary in subject.summaries():
        if not summary.bad and least < summary.largest <= most and not is_quantised_part(name):
            yield name, summary


def _parts(subject: Subject) -> Mapping[str, tuple[str, ...]]:
    """Tensors that are trained together: fc with the norms around it, and each layer."""
    parts: dict[str, list[str]] = {}
    for name, tensor in subject.drafter.tensors.items():
        layer = LAYER.fullmatch(name)
        is_edge = name in ("fc.weight", "norm.weight", "input_norm.weight") or name.startswith("fc_norm.")
        if (layer or is_edge) and not is_quantised_part(name) and not name.endswith(".bias"):
            parts.setdefault(f"layer {layer[1]}" if layer else "fc", []).extend(tensor.stored)
    return {part: tuple(dict.fromkeys(names)) for part, names in parts.items()}


def _untrained(subject: Subject, names: Sequence[str]) -> list[tuple[str, str]]:
    """Each matrix of a part with its distribution, if the norms are ones and all matrices look
    initialised; else none.
    """
    summaries = {name: subject.scan[name] for name in names if name in subject.scan}
    matrices = [name for name in summaries if len(subject.checkpoint.tensors[name].shape) > 1]
    norms = [summary for name, summary in summaries.items() if name not in matrices]
    if not norms or not matrices or len(summaries) < len(names):
        return []
    if any(norm.constant != 1 for norm in norms) or any(summaries[name].bad for name in matrices):
        return []
    return distributions(subject, matrices)


def distributions(subject: Subject, matrices: Sequence[str]) -> list[tuple[str, str]]:
    """Each matrix with its distribution; none where one of them has no known distribution."""
    weights, stated = subject.weights, subject.flat.get("initializer_range")  # before numpy is loaded
    from eaglectl.judge.scanning import spread

    deviation = float(stated) if isinstance(stated, int | float) and stated > 0 else 0.02
    fitting = [
        (name, _distribution(spread(weights, name), deviation, subject.checkpoint.tensors[name].shape[-1]))
        for name in matrices
    ]
    return (
        [(name, f"{name}: {words}") for name, words in fitting] if all(words for _, words in fitting) else []
    )


def _distribution(spread: "Spread", deviation: float, width: int) -> str:
    """The distribution that frameworks initialise matrices with and that fits the numbers; "" where none
    does.
    """
    error = 4 / sqrt(spread.count)  # four standard errors, in units of each statistic
    for kurtosis, expected, words in (
        (3.0, deviation, f"normal, deviation {deviation:g}"),
        (1.8, 1 / sqrt(3 * width), f"uniform within 1/sqrt({width})"),
    ):
        is_centred = abs(spread.mean) <= expected * max(0.01, error)
        is_wide = abs(spread.deviation / expected - 1) <= max(0.01, error * sqrt((kurtosis - 1) / 4))
        if is_centred and is_wide and abs(spread.kurtosis - kurtosis) <= max(0.03, error * sqrt(24)):
            return words
    return ""


# targets of compressed-tensors that are classes of modules
CLASSES = ("Linear", "LMHead", "ParallelLMHead", "Embedding", "Attention")
CONFIG_KEY = "quantization_config"
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
    quantised, patterns = _quantised_modules(subject), tuple(_exclude_patterns(config))
    for module in _quantisable(subject):
        is_excluded = any(_is_module(pattern, module) for pattern in patterns) or not _is_target(
            config, module
        )
        if is_excluded and module in quantised:
            tensor = subject.drafter.tensors.get(f"{module}.weight")
            place = f"tensor:{tensor.stored[0] if tensor else module}"
            yield Match(f"{module} has scales, and the config leaves it out", place)
        elif not is_excluded and module not in quantised and module != "lm_head":
            text = f"{module} has no scales, and the config does not leave it out"
            yield Match(text, _config_place(subject))


@rule("EGL803", "quantisation-method", "error")
def quantisation_method(subject: Subject) -> Iterator[Match]:
    """The config names a quantisation method that engines know.

    They look up quant_method, or ModelOpt's quant_algo, and stop at any other.

    Fix: quantise the drafter with a tool that the engine supports (compressed-tensors or ModelOpt).
    """
    config = subject.drafter.quantisation
    if not config:
        return
    method, algorithm, text = config.get("quant_method"), _modelopt(config).get("quant_algo"), ""
    if method is None and algorithm is None:
        text = "the quantisation config has neither quant_method nor quant_algo"
    elif method is not None and method not in METHODS:
        text = f"quant_method is {method!r}, which vLLM does not know"
    elif algorithm is not None and str(algorithm).upper() not in ALGORITHMS:
        text = f"quant_algo is {algorithm!r}, which vLLM does not know"
    if text:
        yield Match(text, _config_place(subject))


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
    modules = (*tensors, *_quantisable(subject), "embed_tokens", "lm_head", "model.embed_tokens")
    for pattern in _exclude_patterns(config):
        if pattern not in CLASSES and not any(_is_module(pattern, module) for module in modules):
            text = f"{pattern} is left out of quantisation, and no module of the drafter is meant by it"
            yield Match(text, _config_place(subject))


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
        yield Match(f"{method} is not among {', '.join(allowed) or 'none'}", _config_place(subject))


def _modelopt(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("quantization")
    return inner if isinstance(inner, Mapping) else config


def _exclude_patterns(config: Mapping[str, Any]) -> Iterator[str]:
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
    tables = [group.get("targets") or () for group in groups.values() if isinstance(group, Mapping)]
    targets = [target for targets in tables for target in targets if isinstance(target, str)]
    return "Linear" in targets or any(_is_module(target, module) for target in targets)


def _is_module(pattern: str, module: str) -> bool:
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
    parts = (name.rpartition(".") for name in subject.drafter.tensors if QUANTISED.search(name))
    return {module for module, _, part in parts if part not in NOT_OF_WEIGHTS}


def _quantisable(subject: Subject) -> tuple[str, ...]:
    """The modules that engines may quantise: those with a matrix, without the embedding."""
    matrices = {
        name.removesuffix(".weight")
        for name, tensor in subject.drafter.tensors.items()
        if name.endswith(".weight") and len(tensor.shape) == 2
    }
    return tuple(sorted((matrices | _quantised_modules(subject)) - {"embed_tokens"}))


def _config_place(subject: Subject) -> str:
    return (
        key_place(subject.config, CONFIG_KEY)
        if CONFIG_KEY in subject.config or QUANTISATION not in subject.names
        else QUANTISATION
    )
