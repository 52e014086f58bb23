"""The values of quantised weights, as engines multiply them out: FP8, INT8, packed integers, NVFP4.

Packed integers are those of compressed-tensors, GPTQ and AWQ. Activations are not quantised here, which W8A8
and W4A4 kernels do. Read in the compressed-tensors that vLLM 0.32.0 installs (compressors/pack_quantized,
compressors/nvfp4), and in its quantization/modelopt.py, auto_awq.py:70 and auto_gptq.py.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from eaglectl.drafter.tensors import is_quantised_part
from eaglectl.errors import RefusedError, input_error
from eaglectl.files.pickles import SAFETENSORS_DTYPES

Weights = Mapping[str, torch.Tensor]
# the numbers of E2M1 by their lower three bits; the fourth is the sign
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
WORD = 32
# parts of methods that are not multiplied out here: reordered groups, scaled inputs
OTHERS = {"weight_g_idx", "pre_quant_scale"}
ZERO = "weight_zero_point"
# the parts of GPTQ and AWQ, which have the matrix's rows as columns
BY_WORDS = ("qweight", "qzeros", "scales", "g_idx")
# the places of eight rows in a word of AWQ
AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]


def dequantised(
    stored: Weights, config: Mapping[str, Any] | None = None, dtype: torch.dtype = torch.float32
) -> Weights:
    """Return the weights with each quantised one in `dtype`, and without the quantiser's parts.

    `config` is the quantisation config. Raises RefusedError for a method that is not multiplied out here.
    """
    plain = {name: tensor for name, tensor in stored.items() if not is_quantised_part(name)}
    modules: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in stored.items():
        module, _, part = name.rpartition(".")
        modules.setdefault(module, {})[part] = tensor
    for module, parts in modules.items():
        with fitting(module):
            if (len(parts) > 1 and "weight" in parts) or "weight_packed" in parts:
                plain[f"{module}.weight"] = _weight(module, parts, dtype)
            elif "qweight" in parts:
                # GPTQ's first format stores one less than a zero
                less = int((config or {}).get("checkpoint_format") != "gptq_v2")
                plain[f"{module}.weight"] = _by_words(module, parts, dtype, less)
            elif lost := OTHERS & parts.keys():
                raise _refusal(module, min(lost))
    return plain


@contextmanager
def fitting(module: str) -> Iterator[None]:
    """Raise RefusedError where the arithmetic on the parts of a module fails: the file has their shapes."""
    try:
        yield
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, StopIteration, ValueError) as error:
        about = (
            f"{module}: the parts of its quantised weight do not fit each other ({error}); quantise it again"
        )
        raise input_error(error) or RefusedError(about) from None


def dequantised_rows(
    module: str,
    parts: Mapping[str, tuple[str, tuple[int, ...], bytes]],
    config: Mapping[str, Any] | None = None,
) -> Any:
    """Return the numbers [rows, in] of a module's weight as NumPy's float64.

    `parts` are the dtype, shape and bytes of each stored part, as safetensors has them. Raises RefusedError
    as `dequantised` does.
    """
    dtypes = {stored: getattr(torch, name) for name, stored in SAFETENSORS_DTYPES.items()}
    with fitting(module):
        tensors = {
            f"{module}.{part}": torch.frombuffer(bytearray(raw), dtype=dtypes[dtype]).reshape(shape)
            for part, (dtype, shape, raw) in parts.items()
        }
        return dequantised(tensors, config, torch.float64)[f"{module}.weight"].numpy()


def block_size(size: int, count: int) -> int:
    """Return the rows or columns of a scale's block, `count` of which cover `size`.

    It is a power of two where that gives `count` blocks, the last may be shorter; else all are equal.
    """
    equal = -(-size // count)
    power = 1 << (equal - 1).bit_length()
    return power if -(-size // power) == count else equal


def number_bits(columns: int, words: int) -> int:
    """Return the bits of each of `columns` numbers in `words`; three numbers of 8 bits fill a word."""
    return next(bits for bits in range(8, 0, -1) if -(-columns // (WORD // bits)) == words)


def _refusal(module: str, part: str) -> RefusedError:
    return RefusedError(
        f"{module}.{part}: the reference runs drafters in FP8, INT8, NVFP4, GPTQ, AWQ and packed integers;"
        " use --run-in vllm",
        options=("--run-in",),
    )


def _weight(module: str, parts: Weights, dtype: torch.dtype) -> torch.Tensor:
    # the values of one module's weight
    if lost := OTHERS & parts.keys():
        raise _refusal(module, min(lost))
    stored = parts.get("weight_packed", parts.get("weight"))
    assert stored is not None
    scale = parts.get("weight_scale", parts.get("weight_scale_inv"))
    if scale is None:
        return stored.to(dtype) if stored.is_floating_point() else stored
    if scale.dtype == torch.uint8:  # MXFP4 and MXFP8: the scales are exponents
        raise _refusal(module, "weight_scale")
    scale, bits = scale.to(dtype), 0
    if stored.dtype == torch.uint8:
        values = _fp4(stored)
        # compressed-tensors divides by its global scale, ModelOpt multiplies
        factor = parts.get("weight_global_scale")
        scale = scale / factor if factor is not None else scale * parts.get("weight_scale_2", torch.ones(()))
    elif stored.dtype == torch.int32:
        if (shape := parts.get("weight_shape")) is None:
            raise _refusal(module, "weight_packed")
        values = _integers(stored, int(shape[-1]), bits := number_bits(int(shape[-1]), stored.shape[-1]))
    else:
        values = stored
    if (zero := parts.get(ZERO)) is not None:
        if stored.dtype not in (torch.int32, torch.int8):  # floating-point numbers are symmetric
            raise _refusal(module, ZERO)
        if bits:  # packed too, along the rows
            zero = _integers(zero.T, len(values), bits).T
        values = values.to(dtype) - _spread(zero.to(dtype), values.shape)
    return values.to(dtype) * _spread(scale, values.shape)


def _by_words(module: str, parts: Weights, dtype: torch.dtype, less: int) -> torch.Tensor:
    """Return the weight [out, in] of GPTQ (words [in / count, out]) or AWQ (words [in, out / count])."""
    if not parts.keys() >= {"qweight", "qzeros", "scales"}:
        raise _refusal(module, "qweight")
    scales, zeros, words = parts["scales"].to(dtype), parts["qzeros"], parts["qweight"]
    count, is_awq = scales.shape[1] // zeros.shape[1], words.shape[1] != scales.shape[1]
    # 3 bits go over the ends of words, and AWQ's order is of eight
    if count * zeros.shape[1] != scales.shape[1] or count not in ((8,) if is_awq else (4, 8, 16)):
        raise _refusal(module, "qzeros")
    offsets = _of_words(zeros, count, is_awq) + (0 if is_awq else less)
    numbers = _of_words(words, count, is_awq) if is_awq else _of_words(words.T, count, is_awq).T
    places = torch.arange(len(numbers)) // (len(numbers) // len(scales))
    groups = parts.get("g_idx", places).long()
    if bool((groups < 0).any()):
        raise ValueError("g_idx names a group below 0")
    return ((numbers - offsets[groups]).to(dtype) * scales[groups]).T.contiguous()


def _of_words(words: torch.Tensor, count: int, is_awq: bool) -> torch.Tensor:
    # the numbers [rows, columns * count] of words [rows, columns]
    bits = WORD // count
    numbers = (words.long()[..., None] >> (bits * torch.arange(count))) & ((1 << bits) - 1)
    return (numbers[..., AWQ_ORDER] if is_awq else numbers).flatten(-2)


def _fp4(packed: torch.Tensor) -> torch.Tensor:
    """Return the E2M1 numbers [rows, 2 * columns] of bytes [rows, columns]; the lower half comes first."""
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()
    numbers = torch.tensor([*FP4, *(-number for number in FP4)], device=packed.device)
    return numbers[codes]


def _integers(packed: torch.Tensor, columns: int, bits: int) -> torch.Tensor:
    """Return the numbers [rows, columns] of words [rows, words]; each is stored above half of its range."""
    shifts = bits * torch.arange(WORD // bits, device=packed.device)
    numbers = (packed.long()[..., None] >> shifts) & ((1 << bits) - 1)
    numbers = numbers.flatten(-2)[..., :columns]
    if numbers.shape[-1] != columns:
        raise ValueError(f"{numbers.shape[-1]} numbers in words, of {columns}")
    return (numbers - (1 << bits - 1)).float()


def _spread(scale: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return a scale of the whole, of rows or of blocks, as one that multiplies a matrix of `shape`."""
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.dim() == 1:
        scale = scale[:, None]
    for axis, size in enumerate(shape):
        if scale.shape[axis] > 1:
            block = block_size(size, scale.shape[axis])
            scale = scale.repeat_interleave(block, axis).narrow(axis, 0, size)
    if torch.broadcast_shapes(scale.shape, shape) != shape:
        raise ValueError(f"a scale of {list(scale.shape)} on {list(shape)}")
    return scale
