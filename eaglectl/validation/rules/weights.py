"""Rules on the tensors as headers show them: exactly those of the drafter, in their shapes and dtypes."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec.structs import replace

from eaglectl.drafter.tensors import LAYER, Tensor, is_quantised_part
from eaglectl.formats.commands import PLAIN
from eaglectl.formats.names import WRAPPERS, canonical_name
from eaglectl.validation.rule import Match, rule
from eaglectl.validation.subject import Subject, key_place
from eaglectl.validation.vocabulary_tables import TABLES

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


@rule("EGL201", "missing-tensor", "error")
def missing_tensor(subject: Subject) -> Iterator[Match]:
    """Every tensor of the drafter is in the weights.

    No engine reports a missing tensor: norms stay at one, matrices keep uninitialised memory, and the
    drafts are worthless while the server answers as usual.

    Fix: restore the tensor from the trainer's checkpoint.
    """
    yield from subject.reported("missing-tensor")


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
        yield replace(match, fix=fix) if PLAIN.fullmatch(name) else match
    for name, reason in subject.drafter.strays.items():
        if name.startswith("verifier_"):
            yield Match(
                f"{name} is {reason}; vLLM stops at it",
                f"tensor:{name}",
                "run `eaglectl convert SOURCE`, which leaves it out",
            )


@rule("EGL203", "tensor-shape", "error")
def tensor_shape(subject: Subject) -> Iterator[Match]:
    """Every tensor has the shape that the drafter's dimensions give it.

    Engines stop at most wrong shapes with a message that does not name the tensor, and load some of them.

    Fix: restore the tensor from the trainer, or correct the size in config.json that it does not fit.
    """
    for match in subject.reported("tensor-shape"):
        if match.where == "tensor:d2t" and not subject.ended_on("tensor-shape"):
            message, repair = match.message.partition("; or pass ")[0], subject.vocabulary_tables.repair
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
            name = tensor.stored[0]
            yield Match(
                f"{name} is {tensor.dtype}, without scales beside it; engines expect bfloat16 or float16",
                f"tensor:{name}",
            )


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
    yield from _norms_of_later_layers(names)


def _norms_of_later_layers(names: Sequence[str]) -> Iterator[Match]:
    layers = (LAYER.fullmatch(canonical_name(name)) for name in names)
    parts = [layer[2] for layer in layers if layer and layer[1] != "0"]
    if not parts:
        return
    if "input_layernorm.weight" not in parts:
        yield Match("later layers have hidden_norm alone; vLLM looks for input_layernorm there")
    elif "hidden_norm.weight" not in parts:
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
    counts = _dtype_counts(subject)
    if not counts:
        return
    stored = counts.most_common(1)[0][0]
    key = "dtype" if subject.flat.get("dtype") is not None else "torch_dtype"
    stated, place = subject.flat.get(key), key_place(subject.config, key)
    if stated is None:
        yield Match(f"config states no torch_dtype, and the weights are {stored}", place)
    elif not DTYPE.fullmatch(str(stated)):
        return  # EGL112 reports it
    elif DTYPES.get(str(stated).removeprefix("torch.")) != stored:
        yield Match(f"config states {key}: {stated}, and the weights are {stored}", place)


@rule("EGL212", "tensor-twice", "error")
def tensor_twice(subject: Subject) -> Iterator[Match]:
    """No tensor is in the weights under two names.

    Which of the two an engine keeps depends on the order in which it reads them.

    Fix: keep the one that was trained.
    """
    yield from subject.reported("tensor-twice")


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
    first: dict[str, str] = {}
    for name, tensor in subject.drafter.tensors.items():
        if name not in TABLES and not is_quantised_part(name):
            first.setdefault(tensor.dtype, tensor.stored[0])
    for dtype, stored_name in first.items():
        if not any(fnmatchcase(dtype, pattern) for pattern in patterns):
            yield Match(
                f"{stored_name} is {dtype}, which is not among {', '.join(allowed)}", f"tensor:{stored_name}"
            )


def _unquantised(subject: Subject) -> Iterator[Tensor]:
    """The tensors that belong neither to the draft vocabulary nor to a quantised module."""
    tensors = subject.drafter.tensors
    quantised = {name.rpartition(".")[0] for name in tensors if is_quantised_part(name)}
    for name, tensor in tensors.items():
        if name not in TABLES and name.rpartition(".")[0] not in quantised:
            yield tensor


def _dtype_counts(subject: Subject) -> Counter[str]:
    """How many tensors that are not quantised have each floating-point dtype."""
    return Counter(tensor.dtype for tensor in _unquantised(subject) if tensor.dtype in NUMBERS)
