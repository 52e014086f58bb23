"""A drafter as the GGUF file that llama.cpp's converter would write, but for the tokenizer.

llama.cpp drafts with token ids and never reads a drafter's tokenizer, so the file states that it has none
(conversion/llama.py and src/models/eagle3.cpp of llama-cpp-python 0.3.36; tests/engine/llamacpp runs it).
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from eaglectl.conversion.arithmetic import cast
from eaglectl.drafter.drafter import Drafter, Rope
from eaglectl.drafter.tensors import Tensor
from eaglectl.errors import RefusedError, UnreadableError, UsageError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.files import is_folder
from eaglectl.files.gguf import ARCHITECTURE, FACTORS, MAGIC
from eaglectl.files.header import DTYPE_BITS
from eaglectl.files.scratch import scratch_folder, sync_folder
from eaglectl.files.writer import FULL, OLD, check_apart, exchange, rename_new
from eaglectl.formats.gguf import NAMES as MODULES
from eaglectl.formats.gguf import ROTATED
from eaglectl.text import is_url

if TYPE_CHECKING:
    from gguf import GGUFWriter

INSTALL = "install eaglectl's gguf extra: pip install '.[gguf]' in a checkout, or pip install gguf"
CONVERTER = "leave --gguf out and run llama.cpp's converter, whose command convert prints"
NAMES: Mapping[str, str] = {f"{canonical}.weight": f"{own}.weight" for own, canonical in MODULES.items()}
# as llama.cpp's converter does: nothing reads it
LEFT_OUT = ("t2d",)
FILE_TYPES: Mapping[str, str] = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "BF16": "MOSTLY_BF16"}
# of each rope_type, the settings that the file states or the frequencies of a tensor replace
ROPE_KEYS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow"),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
}
LENGTH = "original_max_position_embeddings"
OPTIONAL = ("beta_fast", "beta_slow")
PLAIN = ("rope_type", "type", "rope_theta")

Array = npt.NDArray[Any]


class _Entry(Struct, frozen=True):
    """A tensor of the file: its name, its type in GGUF, its shape with rows in bytes, and its bytes."""

    name: str
    type: str
    shape: tuple[int, ...]
    make: Callable[[], Array]


def check_gguf(file: Path, out: Path, *, force: bool) -> None:
    """Raise UsageError where `file` cannot be made or may not be written, UnreadableError without `gguf`."""
    if is_url(str(file)):
        raise UsageError(f"--gguf {file} is a URL, and a file of this machine is written; give one")
    if find_spec("gguf") is None:
        raise UnreadableError(f"--gguf {file}: the package gguf is not installed; {INSTALL}")
    check_apart(file, out, "--gguf")
    if not is_folder(file.absolute().parent):
        raise UsageError(f"--gguf {file}: {file.parent} is no folder; make it")
    _check_free(file, force=force)


def _check_free(file: Path, *, force: bool) -> None:
    if not os.path.lexists(file):
        return
    if not force:
        raise UsageError(f"{file} is there already; give another --gguf, or --force to replace it")
    if not _is_gguf(file):
        raise UsageError(f"{file} is no GGUF file, so --force does not replace it; give another --gguf")


def _is_gguf(file: Path) -> bool:
    if file.is_symlink() or not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(len(MAGIC)) == MAGIC


def check_drafter(drafter: Drafter, dtypes: Mapping[str, str]) -> None:
    """Raise RefusedError where a drafter with tensors of these dtypes has what the file has no place for."""
    unnamed = [name for name in dtypes if name not in (*NAMES, "d2t", *LEFT_OUT)]
    if unnamed:
        raise RefusedError(f"--gguf: llama.cpp has no place for {', '.join(unnamed)}")
    if drafter.aux.boundaries is None:
        raise UsageError("--gguf writes the layer ids, and without them the target's depth; pass --target")
    _check_numbers(drafter)
    for name, dtype in dtypes.items():
        if name in NAMES and dtype not in FILE_TYPES:
            raise RefusedError(f"--gguf: {name} is {dtype}, which is not carried; {CONVERTER}")


def _check_numbers(drafter: Drafter) -> None:
    """Raise RefusedError where a number cannot be stated in the types of the file."""
    kind, scaling = _scaling(drafter.rope)
    numbers = {"rope_theta": drafter.rope.theta, "rms_norm_eps": drafter.settings["rms_norm_eps"]}
    numbers |= {key: scaling[key] for key in ROPE_KEYS[kind] if scaling.get(key) is not None}
    for key, value in numbers.items():
        if np.float32(value) == 0 or (key == LENGTH and value != int(value)):
            needed = "a whole number" if key == LENGTH else "a number that float32 holds"
            raise RefusedError(f"--gguf: {key} is {value!r}, and the file states {needed}; correct it")
    if kind == "llama3":
        factors = llama3_factors(drafter.rope, drafter.dims.head_dim)
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise RefusedError(
                "--gguf: the rope scaling's factors are not all positive float32 numbers; correct it"
            )


def scaling_type(rope: Rope) -> str:
    """The name of the rope's scaling, "default" where it has none."""
    scaling = rope.scaling or {}
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def _scaling(rope: Rope) -> tuple[str, Mapping[str, Any]]:
    """The rope's type and settings. Raises RefusedError for what the file would leave out."""
    scaling, kind = rope.scaling or {}, scaling_type(rope)
    if kind not in ROPE_KEYS:
        raise RefusedError(f"--gguf: llama.cpp has no rope_type {kind}; it has {', '.join(ROPE_KEYS)}")
    known = (*PLAIN, *ROPE_KEYS[kind])
    if unread := [key for key, value in scaling.items() if key not in known and value is not None]:
        raise RefusedError(
            f"--gguf: rope_scaling's {', '.join(unread)} has no place in the file; {CONVERTER}"
        )
    if absent := [key for key in ROPE_KEYS[kind] if key not in OPTIONAL and scaling.get(key) is None]:
        raise RefusedError(f"--gguf: rope_scaling has no {', '.join(absent)}; write it as it was trained")
    return kind, scaling


@contextmanager
def gguf_written(
    drafter: Drafter, checkpoint: Checkpoint, file: Path, *, name: str, force: bool
) -> Iterator[None]:
    """Write `drafter`, whose tensors the folder `checkpoint` has, as the file; publish the folder inside.

    Where the block ends in an error and the folder was not renamed, the file is as before. Raises
    UnreadableError where the file cannot be written, UsageError where something came to its place.
    """
    check_drafter(drafter, {name: tensor.dtype for name, tensor in drafter.tensors.items()})
    written = Path(checkpoint.source.place)
    unpublished = _identity(written)
    with scratch_folder(file.absolute().parent) as folder:
        part = folder / file.name
        with _errors_of(file):
            _write_file(part, drafter, checkpoint, name)
        own = _identity(part)
        try:
            with _errors_of(file):
                _publish(part, file, force=force)
            yield
        except BaseException:
            if _identity(written) == unpublished:
                _withdraw(part, file, own)
            raise
        sync_folder(file.absolute().parent)


@contextmanager
def _errors_of(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # numpy raises one without a number where it wrote less than all
        is_full = error.errno in FULL or error.errno is None
        what = "no space left" if is_full else error.strerror
        raise UnreadableError(f"--gguf {file}: {what}; nothing was written") from None


def _write_file(part: Path, drafter: Drafter, checkpoint: Checkpoint, name: str) -> None:
    import gguf

    with closing(gguf.GGUFWriter(part, ARCHITECTURE)) as writer:
        _add_facts(writer, drafter, name)
        _write_tensors(writer, list(_entries(drafter, checkpoint)))
    with part.open("rb") as written:
        os.fsync(written.fileno())


def _publish(part: Path, file: Path, *, force: bool) -> None:
    """Rename `part` to `file`; what `force` replaces is then at `part`, or beside it."""
    _check_free(file, force=force)
    try:
        if not (force and os.path.lexists(file)):
            rename_new(part, file)
        elif not exchange(part, file):
            rename_new(file, part.with_name(OLD))
            rename_new(part, file)
    except FileExistsError:
        raise UsageError(f"{file} came to be there meanwhile; give another --gguf") from None
    replaced = [path for path in (part, part.with_name(OLD)) if os.path.lexists(path)]
    if not all(map(_is_gguf, replaced)):
        raise UsageError(f"{file} became something else meanwhile; it is back, give another --gguf")


def _withdraw(part: Path, file: Path, own: tuple[int, int] | None) -> None:
    """Undo `_publish`, as far as it came; `own` is the identity of what was written."""
    old = part.with_name(OLD)
    if _identity(file) == own and os.path.lexists(part):
        exchange(part, file)
    elif _identity(file) == own:
        rename_new(file, part)
    if os.path.lexists(old) and not os.path.lexists(file):
        rename_new(old, file)


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode; None where nothing has that name."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _add_facts(writer: "GGUFWriter", drafter: Drafter, name: str) -> None:
    import gguf

    dims, norms = drafter.dims, drafter.norms
    assert drafter.aux.boundaries is not None
    writer.add_array(f"{ARCHITECTURE}.target_layers", list(drafter.aux.boundaries))
    writer.add_uint32(f"{ARCHITECTURE}.target_hidden_size", dims.target_hidden)
    writer.add_bool(f"{ARCHITECTURE}.norm_before_residual", norms.norm_before_residual)
    writer.add_bool(f"{ARCHITECTURE}.norm_before_fc", norms.norm_before_fc)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_block_count(dims.layers)
    writer.add_context_length(drafter.settings["max_position_embeddings"])
    writer.add_embedding_length(dims.hidden)
    writer.add_feed_forward_length(dims.intermediate)
    writer.add_head_count(dims.heads)
    writer.add_head_count_kv(dims.kv_heads)
    writer.add_key_length(dims.head_dim)
    writer.add_value_length(dims.head_dim)
    writer.add_rope_dimension_count(dims.head_dim)
    writer.add_rope_freq_base(drafter.rope.theta)
    _add_scaling(writer, drafter.rope)
    writer.add_layer_norm_rms_eps(drafter.settings["rms_norm_eps"])
    writer.add_vocab_size(dims.vocab)
    file_type = FILE_TYPES[drafter.tensors["fc.weight"].dtype]
    writer.add_file_type(gguf.LlamaFileType[file_type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_tokenizer_model("none")


def _add_scaling(writer: "GGUFWriter", rope: Rope) -> None:
    """What linear and yarn state; llama3 is a tensor."""
    import gguf

    kind, scaling = _scaling(rope)
    if kind not in ("linear", "yarn"):
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
    writer.add_rope_scaling_factor(scaling["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(int(scaling[LENGTH]))
        if scaling.get("beta_fast") is not None:
            writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        if scaling.get("beta_slow") is not None:
            writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])


def _write_tensors(writer: "GGUFWriter", entries: Sequence[_Entry]) -> None:
    """Write all, with one tensor's data in memory at a time."""
    import gguf

    for entry in entries:
        kind = gguf.GGMLQuantizationType[entry.type]
        writer.add_tensor_info(entry.name, entry.shape, np.dtype(np.uint8), math.prod(entry.shape), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for entry in entries:
        writer.write_tensor_data(entry.make())


def _entries(drafter: Drafter, checkpoint: Checkpoint) -> Iterator[_Entry]:
    if _scaling(drafter.rope)[0] == "llama3":
        factors = llama3_factors(drafter.rope, drafter.dims.head_dim).view(np.uint8)
        yield _Entry(FACTORS, "F32", factors.shape, partial(np.asarray, factors))
    for name, tensor in drafter.tensors.items():
        if name == "d2t":
            tokens = _target_tokens(drafter, tensor, checkpoint)
            yield _Entry("d2t", "I64", tokens.shape, partial(np.asarray, tokens))
        elif name in NAMES:
            # matrices keep their dtype; llama.cpp multiplies by vectors in float32 alone
            dtype = "F32" if len(tensor.shape) == 1 else tensor.dtype
            shape = (*tensor.shape[:-1], tensor.shape[-1] * DTYPE_BITS[dtype] // 8)
            yield _Entry(NAMES[name], dtype, shape, partial(_data, drafter, tensor, checkpoint, dtype))


def _data(drafter: Drafter, tensor: Tensor, checkpoint: Checkpoint, dtype: str) -> Array:
    """The bytes of a tensor, by rows."""
    raw = _raw(tensor, checkpoint)
    if tensor.dtype != dtype:
        raw = cast(raw, tensor.dtype, dtype, tensor.name)
    rows = np.frombuffer(raw, np.uint8).reshape(*tensor.shape[:-1], -1)
    return _interleaved(rows, drafter.dims.head_dim) if tensor.name in ROTATED else rows


def _raw(tensor: Tensor, checkpoint: Checkpoint) -> bytes:
    assert isinstance(tensor.origin, tuple), (
        "a checkpoint as eaglectl writes it has every tensor in one piece"
    )
    return b"".join(checkpoint.read(piece.stored, piece.start, piece.stop) for piece in tensor.origin)


def _interleaved(rows: Array, head_dim: int) -> Array:
    """Rows of each head [2, head_dim / 2], rotated in pairs by halves, as pairs of neighbours."""
    by_halves = rows.reshape(-1, 2, head_dim // 2, rows.shape[-1])
    return by_halves.swapaxes(1, 2).reshape(rows.shape)


def _target_tokens(drafter: Drafter, tensor: Tensor, checkpoint: Checkpoint) -> Array:
    """The target's token of each draft token; the stored map has offsets."""
    offsets = np.frombuffer(_raw(tensor, checkpoint), {"I64": "<i8", "I32": "<i4"}[tensor.dtype])
    tokens = offsets.astype(np.int64) + np.arange(len(offsets))
    if tokens.min() < 0 or tokens.max() >= drafter.dims.vocab or len(np.unique(tokens)) < len(tokens):
        raise RefusedError(
            f"--gguf: d2t leads out of the target's {drafter.dims.vocab} tokens, or to one token twice;"
            " llama.cpp takes neither"
        )
    return tokens.view(np.uint8)


def llama3_factors(rope: Rope, head_dim: int) -> Array:
    """What llama.cpp divides each frequency by, [head_dim / 2] float32."""
    scaling = _scaling(rope)[1]
    factor, low, high = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(scaling["original_max_position_embeddings"])
    waves = 2 * math.pi * rope.theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = ((original / waves - low) / (high - low)).clip(0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth), np.float32)
