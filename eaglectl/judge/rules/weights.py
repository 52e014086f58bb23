"""Rules on the tensors: names, shapes, dtypes, quantisation, and numbers that no trained drafter has.

Such numbers are not finite, were never initialised or trained, or are far too large: blocks of zeros, copied
rows, untrained matrices and norms, a dtype or norm weights read as other numbers than the trained ones. The
config and the scales of a quantised drafter must agree, and engines must know its method.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import translate
from functools import lru_cache
from math import prod, sqrt
from typing import Any

from msgspec.structs import replace

from eaglectl.drafter.tensors import (
    HALF_DTYPES,
    LAYER,
    Tensor,
    is_norm,
    is_quantised_part,
    joined_name,
    numbers,
    quantised_modules,
)
from eaglectl.engines.quantised import MODELOPT, algorithm_of, known_methods, method_of, quantisation_lists
from eaglectl.files.budgets import MAX_MODULES
from eaglectl.files.layout import QUANTISATION
from eaglectl.files.text_part import text_part
from eaglectl.formats.commands import PLAIN, Fix, read_fix
from eaglectl.formats.config_keys import EXCLUDE_KEYS
from eaglectl.formats.names import WRAPPERS, canonical_name, droppable, module_prefix, stored_prefix
from eaglectl.judge.judgement import TABLES, Subject, key_place
from eaglectl.judge.rule import CannotLook, Match, make_rule, note_rule, rule
from eaglectl.judge.samples import LEAST_WIDTH, RANGES, Sample, Summary
from eaglectl.shell import quote

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
DTYPE = r"(torch\.)?(bfloat16|float(8_\w+|16|32|64)?|half|double|auto)"
NUMBERS = ("BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2", "F8_E8M0")
OTHER_WRAPPERS = "|".join(re.escape(wrapper) for wrapper in WRAPPERS if wrapper != "model.")
# patterns of names that some engines do not load -> those engines
UNLOADED_NAMES: Mapping[str, str] = {
    r"model\.": "vLLM, TensorRT-LLM, and SGLang for MLA",
    rf"(?s)(model\.)?({OTHER_WRAPPERS})|.*\.({OTHER_WRAPPERS})": "vLLM, SGLang and TensorRT-LLM",
    r"(model\.)?midlayer\.\d+\.": "vLLM and SGLang",
    r"(model\.)?aux_norm_(low|mid|high)\.": "vLLM and TensorRT-LLM",
    r"(?s).*\.(w_kc|w_vc|fused_qkv_a_proj_with_mqa)\b": "vLLM",
}
# parts of a quantised matrix that name a group for each column -> the axis of groups of its scales
GROUPS: Mapping[str, tuple[int, str]] = {"g_idx": (0, "scales"), "weight_g_idx": (1, "weight_scale")}
MOST_COLUMNS = 2**20
# methods whose lists name the modules that are not quantised, or all that are
LISTING = ("compressed-tensors", "fp8", MODELOPT)
INTEGERS = ("I32", "I64")
HALF = 65504.0  # the largest number of float16
# the largest number whose square float32 holds: an RMS norm over a larger one is zero or NaN
SQUARES = sqrt(3.4028234663852886e38)


@rule("EGL202", "unknown-tensor", "error", "convert")
def unknown_tensor(subject: Subject) -> Iterator[Match]:
    """Every tensor in the weights belongs to an EAGLE-3 drafter.

    vLLM stops at a name that it does not know. SGLang skips it; if the name is misspelt, the tensor is
    missing.

    Fix: correct the name, or leave the tensor out: `eaglectl convert SOURCE` with --drop and its name, or
    with --drop 'MODULE.*' for all of a module such as ModelOpt's parallel_draft_heads.
    """
    groups = droppable(subject.drafter.unknown, subject.drafter.tensors)
    values = {names[0]: value for value, names in groups.items()}
    for match in subject.reported("unknown-tensor"):
        name = match.where.removeprefix("tensor:")
        command = f"eaglectl convert SOURCE --drop {quote(values.get(name, name))}"
        fix = f"correct the name, or leave the tensor out: `{command}`."
        yield replace(match, repair=read_fix(fix, "convert") if PLAIN.fullmatch(name) else Fix())


@rule("EGL203", "tensor-shape", "error")
def tensor_shape(subject: Subject) -> Iterator[Match]:
    """Every tensor has the shape that the drafter's dimensions give it.

    Engines stop at most wrong shapes with a message that does not name the tensor, and load some of them.

    Fix: restore the tensor from the trainer, or correct the size in config.json that it does not fit.
    """
    for match in subject.reported("tensor-shape"):
        if match.where == "tensor:d2t" and not subject.ended_on("tensor-shape"):
            repair = subject.vocabulary_repair  # none where t2d has another count
            match = replace(match, message=match.why, fix="", repair=repair, options=())
        yield match


@rule("EGL204", "tensor-dtype", "error")
def tensor_dtype(subject: Subject) -> Iterator[Match]:
    """Weights are floating-point numbers of 16 bits or more, or have the scales of a quantiser.

    If the scales are missing, engines copy integers and 8-bit numbers into their weights unscaled.

    Fix: restore the tensor, or its scales, from the trainer.
    """
    for name, dtype in ((tensor.stored[0], tensor.dtype) for tensor in _unquantised(subject)):
        if dtype not in NUMBERS or dtype.startswith("F8"):
            yield Match(
                f"{name} is {dtype}, without scales beside it; engines expect bfloat16 or float16",
                f"tensor:{name}",
            )


@rule("EGL209", "engine-names", "note", "serve")
def engine_names(subject: Subject) -> Iterator[Match]:
    """The tensors have names that every engine loads.

    Engines stop at other names, or skip them silently. No names suit all engines for a drafter of several
    layers: the norm of later layers is input_layernorm in vLLM and hidden_norm in SGLang and TensorRT-LLM.

    Fix: run `eaglectl convert SOURCE` with --for and the engine that serves it.
    """
    names, prefix = tuple(subject.checkpoint.tensors), module_prefix(subject.checkpoint.tensors)
    patterns = UNLOADED_NAMES
    if prefix != stored_prefix(prefix):
        patterns = {re.escape(prefix): "vLLM, SGLang and TensorRT-LLM"}
    for pattern, engines in patterns.items():
        yield from _unloaded(names, pattern, engines)
    layers = (LAYER.fullmatch(canonical_name(name, prefix=prefix)) for name in names)
    parts = [layer[2] for layer in layers if layer and layer[1] != "0"]
    if parts and "input_layernorm.weight" not in parts:
        yield Match("later layers have only hidden_norm; vLLM looks for input_layernorm there")
    elif parts and "hidden_norm.weight" not in parts:
        yield Match(
            "later layers have only input_layernorm; SGLang and TensorRT-LLM look for hidden_norm there"
        )


def _unloaded(names: Sequence[str], pattern: str, engines: str) -> Iterator[Match]:
    if unloaded := [name for name in names if re.match(pattern, name)]:
        more = f" and {len(unloaded) - 1} tensors named like it" if len(unloaded) > 1 else ""
        yield Match(f"{engines} do not load {unloaded[0]}{more}", f"tensor:{unloaded[0]}")


@rule("EGL210", "mixed-dtypes", "note", "convert")
def mixed_dtypes(subject: Subject) -> Iterator[Match]:
    """All weights that are not quantised have one dtype.

    Engines cast them to the target's dtype, so nothing breaks; a float32 tensor among bfloat16 ones is
    twice as large for no benefit, and the engine rounds it.

    Fix: run `eaglectl convert SOURCE` with --dtype, if all weights should have one dtype.
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

    If it states another dtype, or none, some loaders cast to a default of their own: bfloat16 weights that
    are cast to float16 overflow, and acceptance falls from half of the draft tokens to none.

    Fix: set torch_dtype (or dtype) to the dtype of the weights.
    """
    # the most frequent dtype stands for the weights, as EGL210 reports mixtures; `dtype` is transformers'
    # newer name of torch_dtype
    counts, flat = _dtype_counts(subject), subject.flat
    key = "dtype" if flat.get("dtype") is not None else "torch_dtype"
    dtype, stored = flat.get(key), max(counts, key=counts.__getitem__, default=None)
    if stored is None or (dtype is not None and not re.fullmatch(DTYPE, str(dtype))):
        return  # EGL112 reports it
    if DTYPES.get(str(dtype).removeprefix("torch.")) != stored:
        words = "no torch_dtype" if dtype is None else f"{key}: {dtype}"
        yield Match(f"config has {words}, but the weights are {stored}", key_place(subject.config, key))


@rule("EGL213", "allowed-dtype", "error")
def allowed_dtype(subject: Subject) -> Iterator[Match]:
    """The weights have dtypes that the policy allows.

    Without `dtypes` in the policy's [allow], this rule reports nothing.

    Fix: convert it with --dtype and an allowed dtype, or add the dtype to the policy.
    """
    tensors = subject.drafter.tensors.items() if "dtypes" in subject.policy.allowed else ()
    weights = [tensor for name, tensor in tensors if name not in TABLES and not is_quantised_part(name)]
    for dtype, name in {tensor.dtype: tensor.stored[0] for tensor in reversed(weights)}.items():
        if words := subject.policy.refusal(
            "dtypes", dtype, lambda pattern: DTYPES.get(pattern.lower(), pattern.upper())
        ):
            yield Match(f"{name} is {dtype}, which {words}", f"tensor:{name}")


def _unquantised(subject: Subject) -> Iterator[Tensor]:
    tensors = {name: tensor for name, tensor in subject.drafter.tensors.items() if name not in TABLES}
    quantised = {name.rpartition(".")[0] for name in tensors if is_quantised_part(name)}
    return (tensor for name, tensor in tensors.items() if name.rpartition(".")[0] not in quantised)


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
            yield Match(
                f"{name} holds NaN or infinity: {summary.bad} of {prod(shape)} numbers, the first at {first}",
                f"tensor:{name}",
            )


@rule("EGL206", "constant-tensor", "error")
def constant_tensor(subject: Subject) -> Iterator[Match]:
    """No matrix is one constant, and no norm is all zeros.

    Training leaves no such tensor: it was never initialised, or it was created in place of a missing one. A
    bias may be zero, and a norm beside others that are stored as offsets from one (EGL509).

    Fix: restore the tensor from the trainer's checkpoint.
    """
    weights, are_offsets = _weights(subject), any(_offset_means(subject))
    # norms that are read as stored: a reading may add one to the others
    factors = {
        stored
        for stored, tensor in weights.items()
        if stored.endswith("weight") and isinstance(tensor.origin, tuple) and not are_offsets
    }
    for name, constant in ((name, summary.constant) for name, summary in subject.summaries()):
        shape = subject.checkpoint.tensors[name].shape
        is_matrix = name in weights and len(shape) > 1 and prod(shape) > 1
        if (is_matrix and constant is not None) or (name in factors and constant == 0):
            yield Match(f"{name} {list(shape)} is all {constant:g}", f"tensor:{name}")


def _weights(subject: Subject) -> Mapping[str, Tensor]:
    """Return by stored name what is no bias, and no tensor of a quantiser or of the draft vocabulary."""
    return {
        stored: tensor
        for name, tensor in subject.drafter.tensors.items()
        if name not in (*TABLES, "mask_hidden") and not name.endswith(".bias") and not is_quantised_part(name)
        for stored in tensor.stored
    }


@rule("EGL207", "untrained", "warning", "anew")
def untrained(subject: Subject) -> Iterator[Match]:
    """The weights do not look randomly initialised.

    A matrix looks untrained if it has the distribution of a framework's initialisation: normal with the
    config's initializer_range, or uniform as in torch, with the singular values of noise. Loaders that miss a
    name keep such numbers with at most a warning, and save them. EGL219 reports fc or lm_head if only that
    matrix is untrained.

    Fix: compare the tensors with the trainer's checkpoint; convert that again, with names that match.
    """
    untrained = subject.untrained_matrices
    layers = [name for name in untrained if name not in ALONE]
    constants = {summary.constant for summary in _norms(subject, least=1).values()}
    # trainers start from the target's head
    if constants == {1} and untrained and untrained.keys() >= subject.samples.keys() - {"lm_head.weight"}:
        stored, words = next(iter(untrained.values()))
        yield Match(
            f"nothing was trained: all norms are ones, all matrices randomly initialised ({stored}: {words})"
        )
    elif names := layers if constants != {1} else list(untrained):  # EGL219 is silent if all norms are ones
        stored, words = untrained[names[0]]
        named = f"{stored} and {len(names) - 1} others look" if len(names) > 1 else f"{stored} looks"
        yield Match(f"{named} randomly initialised ({words})", f"tensor:{stored}")


def _large(subject: Subject, least: float, most: float, words: str) -> Iterator[Match]:
    for name, summary in subject.summaries():
        if not summary.bad and least < summary.largest <= most and not is_quantised_part(name):
            yield Match(f"{name} reaches {summary.largest:.3g}{words}", f"tensor:{name}")


# targets of compressed-tensors that are classes of modules
CLASSES = ("Linear", "LMHead", "ParallelLMHead", "Embedding", "Attention")
CONFIG_KEY = "quantization_config"


@rule("EGL802", "quantisation-modules", "error")
def quantisation_modules(subject: Subject) -> Iterator[Match]:
    """The modules that the config quantises are those that have scales.

    vLLM builds each module by the config: scales of a module that the config excludes cannot be loaded, and
    a module without scales that it does not exclude gets uninitialised ones.

    Fix: correct the config's list of excluded modules, with the names of the tensors.
    """
    config = subject.drafter.quantisation or {}
    quantised, patterns = quantised_modules(subject.drafter.tensors), tuple(_exclude_patterns(config))
    # of GPTQ and AWQ each engine reads other lists, or makes them of the file: its own rule compares them;
    # other methods, as auto-round, have lists of other kinds
    for module in _quantisable(subject) if method_of(config) in LISTING else ():
        is_excluded = any(_is_module(pattern, module) for pattern in patterns) or not _is_target(
            config, module
        )
        if is_excluded and module in quantised:
            tensor = subject.drafter.tensors.get(f"{module}.weight")
            yield Match(
                f"{module} has scales, but the config excludes it from quantisation",
                f"tensor:{tensor.stored[0] if tensor else module}",
            )
        elif not is_excluded and module not in quantised and module != "lm_head":
            yield Match(
                f"{module} has no scales, but the config does not exclude it from quantisation",
                _config_place(subject),
            )


@rule("EGL803", "quantisation-method", "error")
def quantisation_method(subject: Subject) -> Iterator[Match]:
    """The config names a quantisation method that engines know.

    They look up quant_method, or ModelOpt's quant_algo, and stop at any other.

    Fix: quantise the drafter with a tool that the engine supports (compressed-tensors or ModelOpt).
    """
    config = subject.drafter.quantisation
    if not config:
        return
    place, method, algorithm = _config_place(subject), config.get("quant_method"), algorithm_of(config)
    if method is None and algorithm is None:
        yield Match("the quantisation config has neither quant_method nor quant_algo", place)
    elif method_of(config) not in known_methods("methods"):
        yield Match(f"quant_method is {method!r}, which neither vLLM nor SGLang knows", place)
    elif algorithm is not None and str(algorithm).upper() not in known_methods("algorithms"):
        yield Match(f"quant_algo is {algorithm!r}, which neither vLLM nor SGLang knows", place)


@rule("EGL804", "quantised-edges", "note", "measure")
def quantised_edges(subject: Subject) -> Iterator[Match]:
    """fc and lm_head are not quantised.

    fc mixes states of very different scales, and lm_head decides the drafts: both lose most by rounding,
    are small beside the target, and only recent engines load them quantised.

    Fix: exclude both when quantising, unless `eaglectl smoke SOURCE --target TARGET` shows no loss.
    """
    for module in sorted(quantised_modules(subject.drafter.tensors) & {"fc", "lm_head"}):
        yield Match(f"{module} is quantised", f"tensor:{module}.weight")


@rule("EGL805", "quantisation-unresolved", "note")
def quantisation_unresolved(subject: Subject) -> Iterator[Match]:
    """Every module that the quantisation config excludes is one of the drafter's.

    Names of the target's modules in it show that the list was copied, and that the drafter's own may be
    missing.

    Fix: write the names of the drafter's modules.
    """
    # norms too, which quantisers of some frameworks leave out by name
    tensors = {name.rpartition(".")[0] for name in subject.drafter.tensors}
    modules = (*tensors, *_quantisable(subject), "embed_tokens", "lm_head", "model.embed_tokens")
    for pattern in _exclude_patterns(subject.drafter.quantisation or {}):
        if pattern not in CLASSES and not any(_is_module(pattern, module) for module in modules):
            yield Match(
                f"the config excludes {pattern} from quantisation, but the drafter has no such module",
                _config_place(subject),
            )


@rule("EGL806", "allowed-quantisation", "error")
def allowed_quantisation(subject: Subject) -> Iterator[Match]:
    """The drafter is quantised by a method that the policy allows.

    Without `quantisation` in the policy's [allow], this rule reports nothing; an empty list allows no method.

    Fix: quantise the drafter with an allowed method, or add the method to the policy.
    """
    config = subject.drafter.quantisation or {}
    method = str(config.get("quant_method") or algorithm_of(config) or "unnamed")
    if config and (words := subject.policy.refusal("quantisation", method.lower(), str.lower)):
        yield Match(f"{method} {words}", _config_place(subject))


@rule("EGL807", "group-index", "error")
def group_index(subject: Subject) -> Iterator[Match]:
    """g_idx names, for each column of a matrix, a group that its scales have.

    With activation order, a column has the scale of the group that g_idx names. Engines do not check it: a
    number beyond the groups is read from other memory.

    Fix: restore the tensor from the quantiser's output, or quantise the drafter again.
    """
    parts = {name: tensor for name, tensor in subject.drafter.tensors.items() if is_quantised_part(name)}
    for name, tensor in parts.items():
        module, _, part = name.rpartition(".")
        axis, scales = GROUPS.get(part, (0, ""))
        table = parts.get(f"{module}.{scales}")
        is_read = tensor.dtype in INTEGERS and prod(tensor.shape) <= MOST_COLUMNS
        if table is None or len(table.shape) != 2 or not is_read:
            continue
        count, groups = table.shape[axis], numbers(name, tensor.dtype, subject.values.read(tensor.stored[0]))
        if (wrong := next((group for group in groups if not 0 <= group < count), None)) is not None:
            yield Match(f"{name} names group {wrong} of {count}", f"tensor:{tensor.stored[0]}")


def _exclude_patterns(config: Mapping[str, Any]) -> Iterator[str]:
    tables = [table for table in (config, config.get("quantization")) if isinstance(table, Mapping)]
    for key, patterns in ((key, table.get(key)) for table in tables for key in EXCLUDE_KEYS):
        if patterns is not None and not isinstance(patterns, list):
            raise CannotLook(f"the quantisation config's {key} is no list")
        yield from (pattern for pattern in patterns or () if isinstance(pattern, str))


def _is_target(config: Mapping[str, Any], module: str) -> bool:
    targets, _ = quantisation_lists(config)
    return "Linear" in targets or any(isinstance(name, str) and _is_module(name, module) for name in targets)


def _is_module(pattern: str, module: str) -> bool:
    # a pattern is a name, its end, a glob or "re:...", with any prefix and number of a layer; engines join
    # some matrices, and their own rules compare as they do
    joined = joined_name(module)
    names = (
        *(module, joined, f"model.{module}", f"model.{joined}"),
        module.replace("layers.0.", "midlayer.", 1),
    )
    canonical, expression = _spelled(pattern)
    if canonical and f".{canonical}".endswith(f".{module}"):
        return True
    is_inside = canonical and any(f".{canonical}." in f".{name}." for name in names)
    return bool(is_inside or any(map(expression, names)))


@lru_cache(2 * MAX_MODULES)
def _spelled(pattern: str) -> tuple[str, Callable[[str], object]]:
    # the canonical name of a pattern, "" of an expression, and whether a name is of it
    pattern = re.sub(r"layers(\\?\.)\d+", r"layers\g<1>0", pattern)
    if pattern.startswith("re:"):
        try:
            return "", re.compile(pattern[3:]).match
        except re.error:
            raise CannotLook(f"{pattern} in the quantisation config is no regular expression") from None
    is_glob = any(mark in pattern for mark in "*?[")
    return canonical_name(pattern), re.compile(translate(pattern)).match if is_glob else pattern.__eq__


def _quantisable(subject: Subject) -> tuple[str, ...]:
    matrices = {
        name.removesuffix(".weight")
        for name, tensor in subject.drafter.tensors.items()
        if name.endswith(".weight") and len(tensor.shape) == 2
    }
    return tuple(sorted((matrices | quantised_modules(subject.drafter.tensors)) - {"embed_tokens"}))


def _config_place(subject: Subject) -> str:
    return (
        key_place(subject.config, CONFIG_KEY)
        if CONFIG_KEY in subject.config or QUANTISATION not in subject.names
        else QUANTISATION
    )


# the matrices that EGL219 reports: fc alone reads the aux states, lm_head alone gives the logits
ALONE = ("fc.weight", "lm_head.weight")


def misread(subject: Subject) -> Mapping[str, str]:
    """Return the matrices whose numbers are those of the other 16-bit dtype: stored name -> evidence."""
    evidence = dict[str, str]()
    for canonical, (name, sample) in subject.samples.items():
        dtype = subject.drafter.tensors[canonical].dtype
        # a bfloat16's exponent has three bits more: read as float16, its numbers lie between 1/16 and 4
        if dtype == "F16" and sample.small < (RANGES["small"].below or 0) and 1 / 16 < sample.rms < 4:
            evidence[name] = f"none of its numbers is below a tenth of their RMS, {sample.rms:.2f}"
        elif dtype == "BF16" and sample.rms < (RANGES["scale"].below or 0):
            evidence[name] = f"the RMS of its numbers is {sample.rms:.1g}"
    return evidence


def _plausible(subject: Subject) -> Iterator[tuple[str, str, Sample]]:
    others, samples = misread(subject), subject.samples.items()
    return ((name, stored, sample) for name, (stored, sample) in samples if stored not in others)


@rule("EGL216", "outlier", "warning")
def outlier(subject: Subject) -> Iterator[Match]:
    """No weight is a thousand times larger than the weights around it.

    In trained matrices the largest number is up to 40 times the root mean square. One far above it comes from
    a flipped bit or a broken copy, and dominates every state that it multiplies: one value of 30,000 in fc
    reduced the acceptance length from 2.58 to 1.02 (on the tiny pair, like the figures of the rules below).

    Fix: restore the tensor from the trainer's checkpoint.
    """
    for _, stored, sample in _plausible(subject):
        peak = subject.scan[stored]
        if not peak.bad and sample.rms * (RANGES["peak"].above or 0) < peak.largest <= HALF:
            yield Match(
                f"{stored} reaches {peak.largest:.3g}, {peak.largest / sample.rms:,.0f} times the root mean"
                f" square of its numbers ({sample.rms:.2g})",
                f"tensor:{stored}",
            )


@rule("EGL217", "unread-block", "warning")
def unread_block(subject: Subject) -> Iterator[Match]:
    """fc reads every aux state, and the first layer reads both halves of its input.

    In a trained fc or first layer, each block has an RMS of 0.1 to 1.7 times that of the whole. A block of
    zeros reads nothing: the drafter ignores that layer of the target, and no engine reports it (acceptance
    length 1.88 instead of 2.58; 1.31 without the embedding).

    Fix: restore the tensor from the trainer's checkpoint; if a state was left out on purpose, do nothing.
    """
    states = [f"boundary {boundary}" for boundary in subject.drafter.aux.boundaries or ()]
    states = states or [f"aux state {place + 1}" for place in range(subject.drafter.dims.aux)]
    for name, stored, sample in _plausible(subject):
        inputs = states if name == "fc.weight" else ["the embedding", "the fed-back state"]
        for at, rms in enumerate(sample.blocks):
            if len(sample.blocks) > 1 and rms < sample.rms * (RANGES["block"].below or 0):
                share = f"hardly read: {rms / sample.rms:.3f} of the RMS of all" if rms else "not read at all"
                yield Match(f"{inputs[at]} is {share} by {stored}", f"tensor:{stored}")


@rule("EGL218", "repeated-row", "warning")
def repeated_row(subject: Subject) -> Iterator[Match]:
    """The rows of a matrix differ from each other, and none is all zeros.

    Trained matrices have no two equal rows. Draft tokens with equal rows of lm_head have the same logit, so
    at most one of them is ever drafted; tokens with rows of zeros are drafted only if all other logits are
    negative. With half of the rows zero the acceptance length was 2.24 instead of 2.58, with every row twice
    1.58.

    Fix: restore the tensor from the trainer's checkpoint; remove the padding of a padded head.
    """
    share, counted = RANGES["rows"].above or 0, {} if subject.headers_only else subject.scan
    for stored, summary in counted.items():
        rows = (*subject.values.tensors[stored].shape, 0)[0]  # a scale has no shape
        is_partly = summary.zero_rows > rows * share and summary.constant is None
        if is_partly and not stored.endswith("embed_tokens.weight"):  # which is the target's, and padded
            yield _repeated(stored, f"{summary.zero_rows} of {rows} rows are zeros")
    for _, stored, sample in _plausible(subject):
        kinds = (("zeros", 0 if counted else sample.zeros), ("copies of other rows", sample.copies))
        for words, count in kinds:
            if count > sample.rows * share:
                rows = subject.values.tensors[stored].shape[0]
                yield _repeated(stored, f"{count} of {sample.rows} checked rows (of {rows}) are {words}")


def _repeated(stored: str, text: str) -> Match:
    effect = "; those tokens are hardly drafted" if stored.endswith("lm_head.weight") else ""
    return Match(f"{stored}: {text}{effect}", f"tensor:{stored}")


@rule("EGL219", "fresh-matrix", "error", "anew")
def fresh_matrix(subject: Subject) -> Iterator[Match]:
    """Neither fc nor lm_head is randomly initialised while the rest is trained.

    Such a matrix is noise: acceptance length 1.00 for lm_head and 1.11 for fc, instead of 2.58. Loaders that
    miss a name leave such a matrix with at most a warning, and save it. A matrix counts as untrained if its
    spread is that of the config's initializer_range, or of torch, and its singular values are those of noise.

    Fix: restore the tensor from the trainer's checkpoint; convert that again, with names that match.
    """
    untrained = subject.untrained_matrices  # first: it raises CannotLook if the weights are not read
    # EGL207 reports a drafter without any training
    if any(summary.constant != 1 for summary in _norms(subject).values()):
        for stored, words in (entry for name, entry in untrained.items() if name in ALONE):
            yield Match(f"{stored} looks randomly initialised ({words})", f"tensor:{stored}")


@rule("EGL220", "misread-dtype", "error", "convert")
def misread_dtype(subject: Subject) -> Iterator[Match]:
    """The weights have the dtype that the file states.

    bfloat16 and float16 are both two bytes. Data of one that is declared as the other gives wrong numbers:
    bfloat16 read as float16 lies between 1/16 and 4 with nothing near zero, float16 read as bfloat16 is below
    a millionth. In a trained matrix at least 6 % of the numbers are below a tenth of their root mean square.
    Measured acceptance length: 1.01 and 1.00 instead of 2.58.

    Fix: run `eaglectl convert SOURCE --fix-reading dtype=bfloat16`, or dtype=float16, which keeps the
    bytes.
    """
    others = misread(subject)
    for stored, words in list(others.items())[:1]:
        dtype = subject.checkpoint.tensors[stored].dtype
        reading, other = next(names for names in HALF_DTYPES.items() if names[1] != dtype)
        named = f"{stored} and {len(others) - 1} others" if len(others) > 1 else stored
        text = f"{named}, stated as {dtype}, {'hold' if len(others) > 1 else 'holds'} {other}"
        yield Match(
            f"{text}: read as {dtype}, {words}",
            f"tensor:{stored}",
            repair=read_fix(
                f"run `eaglectl convert SOURCE --fix-reading dtype={reading}`, which keeps the bytes.",
                "convert",
            ),
        )


def _norms(subject: Subject, least: int = LEAST_WIDTH) -> Mapping[str, Summary]:
    """Return the norms stored without a change of dtype and at least `least` wide, by canonical name."""
    stored, vectors = subject.checkpoint.tensors, subject.vectors
    return {
        name: vectors[tensor.stored[0]]
        for name, tensor in subject.drafter.tensors.items()
        if is_norm(name)
        and tensor.shape[0] >= least
        and isinstance(tensor.origin, tuple)
        and stored[tensor.stored[0]].dtype == tensor.dtype
        and tensor.stored[0] in vectors
    }


def _norm_means(subject: Subject) -> Mapping[str, float]:
    with suppress(CannotLook):  # --headers-only: norms are read all the same
        if misread(subject):
            return {}
    return {name: norm.mean for name, norm in _norms(subject).items() if norm.mean is not None}


def _offset_means(subject: Subject) -> list[float]:
    """Return the sorted means of the layer's norms if they look like offsets from one, else no mean."""
    means = sorted(mean for name, mean in _norm_means(subject).items() if LAYER.fullmatch(name))
    return means if len(means) > 1 and means[-1] < (RANGES["highest norm"].below or 0) else []


@rule("EGL509", "norms-near-zero", "error", "convert")
def norms_near_zero(subject: Subject) -> Iterator[Match]:
    """Norm weights are stored as factors, not as offsets from one.

    Gemma stores w and computes 1 + w. Engines multiply by the stored number of an EAGLE-3 drafter, so such a
    drafter gets states near zero: acceptance length 1.07 instead of 2.58. In trained drafters the highest
    mean of a layer's norms is 0.9 or more.

    Fix: run `eaglectl convert SOURCE --fix-reading norm-weights=less-one`, which adds one to each.
    """
    if means := _offset_means(subject):
        yield Match(
            f"the norms have means of {means[0]:.2f} to {means[-1]:.2f}, like weights stored as offsets from"
            " one (1 + w, as in Gemma)"
        )


@rule("EGL510", "norms-near-two", "warning", "measure")
def norms_near_two(subject: Subject) -> Iterator[Match]:
    """No 1 was added to the norm weights on export.

    If 1 is added to weights that already include it, every state is about twice as large as in training:
    acceptance length 1.31 instead of 2.58. In trained drafters the lowest mean of all norms is 1.2 or less.

    Fix: run `eaglectl diagnose SOURCE --target TARGET`, which measures whether norms minus one draft
    better; if they do, `eaglectl convert SOURCE --fix-reading norm-weights=plus-one`.
    """
    means = sorted(_norm_means(subject).values())
    if len(means) > 1 and means[0] > (RANGES["lowest norm"].above or 0):
        yield Match(
            f"all norms have means of {means[0]:.2f} to {means[-1]:.2f}, like weights with 1 added twice"
        )


@rule("EGL511", "norm-of-ones", "warning")
def norm_of_ones(subject: Subject) -> Iterator[Match]:
    """If the other norms are trained, each norm is.

    Training in one precision changes all norms or none. If one is exactly ones and the others are not, it was
    missing when the file was written, and a loader filled it (for the final norm, acceptance length 2.44
    instead of 2.58).

    Fix: restore the tensor from the trainer's checkpoint.
    """
    norms = _norms(subject)
    ones = [name for name, norm in norms.items() if norm.constant == 1]
    count = len(norms) - len(ones)
    for stored in (subject.drafter.tensors[name].stored[0] for name in ones if len(ones) <= count):
        yield Match(f"{stored} is exactly ones, but {count} other norms are trained", f"tensor:{stored}")


@rule("EGL124", "norm-epsilon", "warning")
def norm_epsilon(subject: Subject) -> Iterator[Match]:
    """rms_norm_eps is small compared with the squares of the states.

    Trained drafters have 1e-6 or 1e-5. A larger one makes norms of small states too small: with 1e-2 an
    embedding with an RMS of 0.05 is less than half of what the layer was trained on (acceptance length 2.30
    instead of 2.58).

    Fix: set rms_norm_eps to the trained value, which is usually the target's.
    """
    epsilon = subject.flat.get("rms_norm_eps")
    if isinstance(epsilon, int | float) and epsilon > (RANGES["epsilon"].above or 0):
        theirs = text_part(subject.target.config or {}).get("rms_norm_eps")
        beside = f", and the target's {theirs:g}" if isinstance(theirs, int | float) else ""
        yield Match(
            f"rms_norm_eps is {epsilon:g}{beside}; trained drafters have 1e-6 or 1e-5",
            key_place(subject.config, "rms_norm_eps"),
        )


@rule("EGL713", "target-head-size", "warning", "measure")
def target_head_size(subject: Subject) -> Iterator[Match]:
    """Weights that fit the target's head size are read with that head size.

    The rows of q_proj and k_proj do not show where a head ends: 32 rows are two heads of 16 or one of 32.
    Trainers copy the target's head size. Read with another head size, most draft tokens are rejected:
    acceptance length 1.28 instead of 2.58.

    Fix: run `eaglectl diagnose SOURCE --target TARGET`, which measures both readings.
    """
    dims, sizes = subject.drafter.dims, text_part(subject.target.given_config)
    heads, hidden = sizes.get("num_attention_heads"), sizes.get("hidden_size")
    if dims.attention == "MLA" or type(heads) is not int or type(hidden) is not int or heads < 1:
        return
    kv_heads, size = sizes.get("num_key_value_heads", heads), sizes.get("head_dim") or hidden // heads
    is_other = type(kv_heads) is int and type(size) is int and size != dims.head_dim
    ours = (dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim)
    if is_other and ours == (heads * size, kv_heads * size):
        yield Match(
            f"the config states {dims.heads} heads of {dims.head_dim} and {dims.kv_heads} key heads; the same"
            f" rows are {heads} heads of {size} and {kv_heads} key heads, as in the target",
            key_place(subject.config, "head_dim"),
        )


# of numbers that no trained drafter has
PLAUSIBLE = (
    outlier, unread_block, repeated_row, fresh_matrix, misread_dtype, norms_near_zero, norms_near_two,
    norm_of_ones, norm_epsilon, target_head_size,
)  # fmt: skip


# what reading reports on the topic of a rule's name, and rules of one call
RULES = (
    note_rule(
        "EGL201",
        "missing-tensor",
        "error",
        """Every tensor of the drafter is in the weights.

    No engine reports a missing tensor: norms stay at one, matrices keep uninitialised memory, and the
    drafts are worthless while the server answers as usual.

    Fix: restore the tensor from the trainer's checkpoint.
    """,
    ),
    note_rule(
        "EGL212",
        "tensor-twice",
        "error",
        """No tensor is in the weights under two names.

    Which of the two an engine keeps depends on the order in which it reads them.

    Fix: keep the one that was trained.
    """,
    ),
    make_rule(
        "EGL214",
        "beyond-float16",
        "warning",
        lambda subject: _large(subject, HALF, SQUARES, "; float16's largest number is 65504"),
        """Every weight fits into float16.

    Served with --dtype float16, or by kernels that support nothing else, a number above 65504 becomes
    infinite, and every draft is token 0.

    Fix: serve it in bfloat16; trained numbers are rarely so large, so inspect the tensor too.
    """,
    ),
    make_rule(
        "EGL215",
        "overflowing",
        "error",
        lambda subject: _large(subject, SQUARES, float("inf"), ", whose square overflows float32"),
        """No weight is so large that its square overflows float32.

    Norms square their inputs. A number beyond 1.8e19 comes from a flipped bit, a wrong dtype or
    uninitialised memory, never from training, and destroys everything computed from it.

    Fix: restore the tensor from the trainer's checkpoint.
    """,
    ),
    note_rule(
        "EGL801",
        "quantisation-config",
        "error",
        """A quantisation config and the scales of quantised weights are both present, or neither is.

    With the config alone, which drafters inherit from a quantised target, engines look for scales that do
    not exist; with the scales alone they read quantised numbers as weights.

    Fix: restore what is missing from the trainer, or remove quantization_config from a drafter that is not
    quantised.
    """,
    ),
)
