"""What is known of acceptance with a target that was quantised, by method; each fact has its source."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct


class Method(Struct, frozen=True):
    """A method of quantisation: what its configs say, and what is known of acceptance with it.

    `marks` is a pattern of quant_method, quant_algo and format; compressed-tensors and ModelOpt are
    containers, which name the method in the latter two. Lengths are tokens for each step of the target.
    """

    name: str
    marks: str
    known: str
    source: str


_SERVED = "a drafter of the unquantised model is served with it as it is (llm-compressor 1843)"
_EDGE = "TensorRT Edge-LLM 0.4.0, performance benchmarks"
_BOTH = "with target and drafter quantised; the unquantised pairs were not run beside them"
_OWN = "fixtures/tiny and fixtures/second, reference, k=3"
_ROUNDED = (
    "weights rounded to 4 bits in groups of 32, without the method's correction, took 2.67 to 2.53 and"
    f" 3.20 to 2.78 ({_OWN})"
)
_NOTHING = "nothing is published of a drafter's acceptance with it"

METHODS = (
    Method(
        "MXFP4",
        r"mxfp4",
        "gpt-oss is released in it, and its drafters are measured so (gpt-oss-20b: 2.56 on mt-bench, k=3); of"
        " a model that was quantised to it afterwards nothing is published",
        "vLLM tests/v1/spec_decode/test_acceptance_length.py",
    ),
    Method(
        "NVFP4",
        r"nvfp4",
        f"{_SERVED}; 5.21 with Llama-3.1-8B-Instruct and 4.26 with Qwen3-8B are published, {_BOTH}",
        _EDGE,
    ),
    Method(
        "AWQ",
        r"awq",
        f"{_SERVED}; {_ROUNDED}; 5.25 with Llama-3.1-8B-Instruct and 4.36 with Qwen3-8B are published,"
        f" {_BOTH}",
        _EDGE,
    ),
    Method("GPTQ", r"gptq|pack-quantized", f"{_SERVED}; no length is published; {_ROUNDED}", ""),
    Method(
        "FP8",
        r"fp8|float-quantized",
        f"{_SERVED}; weights rounded to it kept acceptance, 2.67 to 2.77 and 3.20 to 3.23",
        _OWN,
    ),
    Method("bitsandbytes", r"bitsandbytes|bnb", _NOTHING, ""),
    Method("compressed-tensors, in a format that names no method", r"compressed-tensors", _NOTHING, ""),
)
UNKNOWN = Method("a method that is not listed", "", _NOTHING, "")


def quantised_changes(*places: Mapping[str, Any]) -> Iterator[str]:
    """What the first quantization_config of a target's config, or of parts of it, means to its drafter."""
    stated = next((value for place in places if (value := place.get("quantization_config"))), None)
    if not isinstance(stated, Mapping):
        return
    parts = (stated.get(key) for key in ("quant_method", "quant_algo", "format"))
    words = " ".join(part for part in parts if isinstance(part, str))
    method = next((method for method in METHODS if re.search(method.marks, words.lower())), UNKNOWN)
    source = f" ({method.source})" if method.source else ""
    yield (
        f"the target is quantised ({words or 'of no name'}): {method.known}{source}; a method that rotates"
        " the residual stream first takes nearly all acceptance (vllm-ascend 7038); measure with this target"
    )
