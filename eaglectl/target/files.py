"""A target's small files, read before an engine loads them, and the marks of a rotated stream in them.

The marks are those of the tools that write one, and no others. ModelSlim's QuaRot writes
quant_model_description.json, and the matrix with `export_extra_info`; vllm-ascend reads both
(vllm_ascend/patch/worker/patch_draft_quarot.py, 29816bb8). llm-compressor's SpinQuantModifier writes
transform_config, in which R1 rotates what the embedding puts out (spinquant/base.py). QuIPModifier turns
single linear layers, and not the stream between them.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglectl.errors import UnreadableError
from eaglectl.files.files import MIB, errors_about, open_regular, read_small_file
from eaglectl.files.header import parse_json
from eaglectl.files.source import Source
from eaglectl.files.text_part import text_part, text_parts

CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
MAX_CONFIG = 64 * MIB
# endings of what a loader of targets opens, and bytes of those that it reads whole
READ_BY_LOADERS = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py", ".safetensors", ".bin")
WEIGHTS, MAX_READ_WHOLE = (".safetensors", ".bin"), 256 * MIB
# keys under which transformers takes a repository on the Hub whose compiled kernel it downloads and runs
KERNEL_KEYS = ("attn_implementation", "experts_implementation")


def read_target_config(target: Path, name: str = CONFIG) -> Mapping[str, Any]:
    """Read the object in a target's config.json, or another of its files. Raises UnreadableError."""
    path = target / name
    try:
        value = json.loads(read_small_file(path, MAX_CONFIG))
    except (ValueError, RecursionError) as error:
        message = str(error).splitlines()[0][:200]
        raise UnreadableError(f"{path} is not JSON: {message}; restore the target's own file") from None
    if not isinstance(value, dict):
        raise UnreadableError(f"{path} is not a JSON object; restore the target's own file")
    return value


def read_tokenizer_config(target: Path) -> Mapping[str, Any]:
    """Read a target's tokenizer_config.json; empty without that file. Raises UnreadableError."""
    return read_target_config(target, TOKENIZER_CONFIG) if (target / TOKENIZER_CONFIG).exists() else {}


def read_end_tokens(target: Path) -> frozenset[int]:
    """Read eos_token_id of a target's generation_config.json, or without that of its config.json.

    Raises UnreadableError.
    """
    has_file = (target / GENERATION_CONFIG).exists()
    config = read_target_config(target, GENERATION_CONFIG if has_file else CONFIG)
    return frozenset(config_tokens((config if has_file else text_part(config)).get("eos_token_id")))


def config_tokens(value: object) -> list[int]:
    """Return the token ids of a config's value: a number or a list.

    Numbers of more than 64 bits are none: many can have one hash, and a set of them takes the square.
    """
    values = value if isinstance(value, list) else [value]
    return [token for token in values if type(token) is int and token.bit_length() < 64]


def check_files(target: Path) -> None:
    """Raise UnreadableError for a file that would block a loader of the target, or take all memory."""
    with errors_about(f"the target {target}"):
        entries = [
            entry for entry in target.iterdir() if entry.name.endswith(READ_BY_LOADERS) and not entry.is_dir()
        ]
    for entry in entries:
        with open_regular(entry, f"the target {target}:") as file:
            size = os.fstat(file.fileno()).st_size
        if size > MAX_READ_WHOLE and not entry.name.endswith(WEIGHTS):
            raise UnreadableError(
                f"the target {target}: {entry.name} has {size} bytes, and a tokenizer or config has at most"
                f" {MAX_READ_WHOLE}; restore the target's own file"
            )


def check_kernels(target: Path) -> None:
    """Raise UnreadableError for a target whose config.json names a kernel on the Hub to be run."""
    for part in text_parts(read_target_config(target)):
        for key in KERNEL_KEYS:
            if "/" in (name := str(part.get(key) or part.get(f"_{key}") or "")):
                raise code_needed(target, f"its config.json names a kernel to download, {name}")


def code_needed(target: Path, reason: str = "") -> UnreadableError:
    """Return the error for a target that cannot be loaded without running its own code."""
    reason = reason or "transformers and vLLM load it with its own Python files (auto_map)"
    return UnreadableError(
        f"the target {target} needs its own code, which is not run by default: {reason}; read that code, and"
        " pass --trust-remote-code if you trust it",
        options=("--trust-remote-code",),
    )


DESCRIPTION = "quant_model_description.json"


def rotation_mark(source: Source, config: Mapping[str, Any]) -> str:
    """Return how a target's files state that its residual stream is rotated; "" if they do not."""
    if _rotation(source)[0]:
        return f"{DESCRIPTION}, which ModelSlim writes: QuaRot"
    if any(_rotates_embedding(part.get("quantization_config")) for part in text_parts(config)):
        return "quantization_config.transform_config in its config.json rotates the embedding: SpinQuant"
    return ""


def rotation_file(source: Source) -> str | None:
    """Return the file in its folder with a ModelSlim target's rotation; None if there is none."""
    return _rotation(source)[1]


def _rotation(source: Source) -> tuple[bool, str | None]:
    """Whether a ModelSlim target's description states a rotation, and the file that it names."""
    if DESCRIPTION not in source.names():
        return False, None
    match parse_json(DESCRIPTION, source.read(DESCRIPTION)):
        case {"is_rot_used": False}:
            return False, None
        case {"optional": {"quarot": {"rotation_map": {"global_rotation": str(file)}}}}:
            return True, file
        case {"is_rot_used": True}:
            return True, None
    return False, None


def _rotates_embedding(quantisation: object) -> bool:
    # compressed-tensors: a transform of the weights that produce the embeddings
    entries: list[Any] = []
    match quantisation:
        case {"transform_config": {"config_groups": Mapping() as groups}}:
            transforms = [group.get("apply") for group in groups.values() if isinstance(group, Mapping)]
            entries = [entry for apply in transforms if isinstance(apply, list) for entry in apply]
    for entry in entries:
        match entry:
            case {"location": "weight_output", "targets": list(targets)} if "embed" in str(targets):
                return True
    return False


def until_end(tokens: Sequence[int], stop: frozenset[int]) -> list[int]:
    """Return the tokens up to and including the first that ends an answer."""
    return list(
        tokens[: next((index + 1 for index, token in enumerate(tokens) if token in stop), len(tokens))]
    )
