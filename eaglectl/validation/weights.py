"""Rules on the tensors as headers show them: exactly those of the drafter, in their shapes and types."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase

from eaglectl.drafter.tensors import LAYER, Tensor, is_quantised_part
from eaglectl.formats.spelling import canonical_name
from eaglectl.validation.rule import Hit, rule
from eaglectl.validation.subject import Subject, key_place

# how configs spell the types of safetensors
DTYPES: Mapping[str, str] = {
    "bfloat16": "BF16", "float16": "F16", "half": "F16", "float32": "F32", "float": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
DTYPE = re.compile(r"(torch\.)?(bfloat16|float(8_\w+|16|32|64)?|half|double|auto)")
NUMBERS = ("BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2", "F8_E8M0")


def _numbered(name: str) -> bool:
    return re.match(r"(model\.)?midlayer\.\d+\.", name) is not None


def _runtime(name: str) -> bool:
    return re.search(r"\.(w_kc|w_vc|fused_qkv_a_proj_with_mqa)\b", name) is not None


# names that only some engines load -> those that do not
NAMES: tuple[tuple[Callable[[str], bool], str], ...] = (
    (lambda name: name.startswith("model."), "vLLM, TensorRT-LLM, and SGLang for MLA"),
    (_numbered, "vLLM and SGLang"),
    (lambda name: re.match(r"(model\.)?aux_norm_(low|mid|high)\.", name) is not None, "vLLM and TensorRT-LLM"),
    (_runtime, "vLLM"),
)


@rule("EGL201", "missing-tensor", "error")
def missing_tensor(subject: Subject) -> Iterator[Hit]:
    """Every tensor of the drafter is in the weights.

    No engine reports what is missing: norms stay at one, matrices keep uninitialised memory, and the drafts are worthless
    while the server answers as ever.

    Fix: restore the tensor from the trainer's checkpoint.
    """
    yield from subject.said("missing-tensor")


@rule("EGL202", "unknown-tensor", "error")
def unknown_tensor(subject: Subject) -> Iterator[Hit]:
    """Every tensor in the weights has a place in an EAGLE-3 drafter.

    vLLM stops at a name that it does not know. SGLang skips it, and if it is a misspelt one, the real one is missing.

    Fix: correct the name, or leave the tensor out with `eaglectl convert --drop NAME`.
    """
    yield from subject.said("unknown-tensor")
    for name, reason in subject.drafter.strays.items():
        if name.startswith("verifier_"):
            yield Hit(
                f"{name} is {reason}; vLLM stops at it", f"tensor:{name}", "run `eaglectl convert`, which leaves it out"
            )


@rule("EGL203", "tensor-shape", "error")
def tensor_shape(subject: Subject) -> Iterator[Hit]:
    """Every tensor has the shape that the drafter's dimensions give it.

    Engines stop at most of these with a message that does not name the tensor, and take some of them as they are.

    Fix: restore the tensor from the trainer, or correct the size in config.json that it does not fit.
    """
    yield from subject.said("tensor-shape")


@rule("EGL204", "tensor-dtype", "error")
def tensor_dtype(subject: Subject) -> Iterator[Hit]:
    """Weights are floating-point numbers, or come with the scales of a quantiser.

    Engines copy whole numbers into their weights as they are, without the scale that they once had.

    Fix: restore the tensor, or its scales, from the trainer.
    """
    for tensor in _plain(subject):
        if tensor.dtype not in NUMBERS:
            name = tensor.stored[0]
            yield Hit(
                f"{name} is {tensor.dtype}, without scales beside it; engines expect bfloat16 or float16",
                f"tensor:{name}",
            )


@rule("EGL209", "engine-names", "note")
def engine_names(subject: Subject) -> Iterator[Hit]:
    """The tensors have names that every engine loads.

    Engines stop at other names, or skip them in silence. In a drafter of several layers no spelling suits all: the norm of
    later layers is input_layernorm to vLLM and hidden_norm to SGLang and TensorRT-LLM.

    Fix: run `eaglectl convert`, with `--for` the engine that serves it.
    """
    names = tuple(subject.checkpoint.tensors)
    for is_such, engines in NAMES:
        found = [name for name in names if is_such(name)]
        if found:
            rest = f" and {len(found) - 1} like it are names" if len(found) > 1 else " is a name"
            yield Hit(f"{found[0]}{rest} not loaded by {engines}", f"tensor:{found[0]}")
    own = [layer[2] for name in names if (layer := LAYER.fullmatch(canonical_name(name))) and layer[1] != "0"]
    if own and "input_layernorm.weight" not in own:
        yield Hit("later layers have hidden_norm alone; vLLM looks for input_layernorm there")
    elif own and "hidden_norm.weight" not in own:
        yield Hit("later layers have input_layernorm alone; SGLang and TensorRT-LLM look for hidden_norm there")


@rule("EGL210", "mixed-dtypes", "note")
def mixed_dtypes(subject: Subject) -> Iterator[Hit]:
    """All weights that are not quantised have one type.

    Engines cast them to the target's type, so nothing breaks; a float32 among bfloat16 is twice the size for nothing, and
    rounding it is left to the engine.

    Fix: run `eaglectl convert --dtype`, if the rest is meant to be of that type.
    """
    counts = Counter(tensor.dtype for tensor in _plain(subject) if tensor.dtype in NUMBERS)
    if len(counts) > 1:
        rare = min(counts, key=lambda dtype: counts[dtype])
        first = next(tensor.stored[0] for tensor in _plain(subject) if tensor.dtype == rare)
        found = ", ".join(f"{count} of {dtype}" for dtype, count in sorted(counts.items()))
        yield Hit(f"the weights have {found}; {first} is {rare}", f"tensor:{first}")


@rule("EGL211", "config-dtype", "warning")
def config_dtype(subject: Subject) -> Iterator[Hit]:
    """The config states the type that the weights have.

    Where it states another, or none, some loaders cast to what they take it to be: bfloat16 weights cast to float16 overflow,
    and a head that accepted half of its drafts accepts none.

    Fix: write torch_dtype (or dtype) as the weights have it.
    """
    stated = next((value for key in ("dtype", "torch_dtype") if (value := subject.flat.get(key)) is not None), None)
    counts = Counter(tensor.dtype for tensor in _plain(subject) if tensor.dtype in NUMBERS)
    if not counts:
        return
    most = counts.most_common(1)[0][0]
    key = "dtype" if subject.flat.get("dtype") is not None else "torch_dtype"
    place = key_place(subject.config, key)
    if stated is None:
        yield Hit(f"config states no torch_dtype, and the weights are {most}", place)
    elif DTYPE.fullmatch(str(stated)) and DTYPES.get(str(stated).removeprefix("torch.")) != most:  # else another rule's
        yield Hit(f"config states {key}: {stated}, and the weights are {most}", place)


@rule("EGL212", "tensor-twice", "error")
def tensor_twice(subject: Subject) -> Iterator[Hit]:
    """No tensor is in the weights under two names.

    Which of the two an engine keeps depends on the order in which it reads them.

    Fix: keep the one that was trained.
    """
    yield from subject.said("tensor-twice")


@rule("EGL213", "allowed-dtype", "error")
def allowed_dtype(subject: Subject) -> Iterator[Hit]:
    """The weights are of types that the policy allows.

    A team that serves some types only says so in its policy, by `dtypes`.

    Fix: run `eaglectl convert --dtype`, or add the type to the policy.
    """
    allowed = subject.policy.allowed.get("dtypes")
    if allowed is None:
        return
    patterns = [DTYPES.get(one.lower(), one.upper()) for one in allowed]
    weights = {name: one for name, one in subject.drafter.tensors.items() if name not in ("d2t", "t2d")}
    first = {one.dtype: one.stored[0] for name, one in reversed(weights.items()) if not is_quantised_part(name)}
    for dtype, name in first.items():
        if not any(fnmatchcase(dtype, pattern) for pattern in patterns):
            yield Hit(f"{name} is {dtype}, which is not among {', '.join(allowed)}", f"tensor:{name}")


def _plain(subject: Subject) -> Iterator[Tensor]:
    """Every tensor that is neither of the vocabulary nor of a quantised module."""
    tensors = subject.drafter.tensors
    quantised = {name.rpartition(".")[0] for name in tensors if is_quantised_part(name)}
    for name, tensor in tensors.items():
        if name not in ("d2t", "t2d") and name.rpartition(".")[0] not in quantised:
            yield tensor
